"""What is refused or told in one line: numbers in odd digits, jobs that end their process, models of newer versions."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import viewfuse
from conftest import make_blobs
from viewfuse import URRL, Config, DataError, OutOfRangeWarning, Views
from viewfuse.cli import main
from viewfuse.errors import BadModelFile
from viewfuse.fitted.manifest import checksum

NEWER = {"viewfuse": "99.1.0"}
TINY = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=1), "scaling": "standard"}


@pytest.fixture(scope="module")
def fitted():
    views = make_blobs(40, 3, missing=0.3)[0]
    return URRL(3, **TINY, random_state=0).fit(views), views


@pytest.mark.parametrize("call", ["predict", "impute", "explain", "transform"])
def test_samples_far_out_of_range_are_told_whatever_is_asked(fitted, call):
    model, views = fitted
    far = [view[:4].copy() for view in views]
    far[0][1] = 1e4
    with pytest.warns(OutOfRangeWarning, match="1 of 4 samples, such as 1, have values far outside"):
        getattr(model, call)(far)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": NEWER}, rf"was written by viewfuse 99\.1\.0, and this is viewfuse {viewfuse.__version__}"),
        ({"format": 4, "versions": NEWER}, r"has format 4, but this viewfuse .*; use viewfuse 99\.1\.0"),
        ({"format": 99, "versions": 3}, "has format 99, but .*; use the viewfuse that wrote it"),
    ],
)  # fmt: skip
def test_models_of_newer_versions_are_refused_with_both(fitted, tmp_path, change, said):
    fitted[0].save(tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    manifest = {**json.loads(path.read_text()), **change}
    manifest.pop("checksum")
    path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    with pytest.raises(BadModelFile, match=said):
        viewfuse.load(tmp_path / "model")


def test_models_of_older_versions_are_read(fitted, tmp_path):
    fitted[0].save(tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum")
    manifest["versions"]["viewfuse"] = "0.1.9"
    path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    assert viewfuse.load(tmp_path / "model").n_clusters_ == 3


@pytest.mark.parametrize("cell", [Decimal("sNaN"), Decimal("-sNaN7")])
def test_numbers_that_cannot_be_compared_are_named(cell):
    values = np.arange(12, dtype=object).reshape(6, 2)
    values[1, 0], values[3, 1] = pd.NA, cell
    with pytest.raises(DataError, match=r"view 'a', row 3, column 1: Decimal\('-?sNaN7?'\) is not a number"):
        Views({"a": values, "b": np.ones((6, 2))})


NUMBERS = {
    "fit": ["--clusters", "--batch-size", "--learning-rate", "--n-init", "--keep", "--random-state", "--view-dropout"],
    "fit-large": ["--clusters", "--bank", "--steps", "--random-state"],
    "compare": ["--clusters", "--seeds", "--jobs"],
    "predict": ["--alpha"],
    "explain": ["--top"],
}


@pytest.mark.parametrize("verb", NUMBERS)
def test_settings_are_numbers_in_plain_digits(tmp_path, verb):
    (tmp_path / "a.csv").write_text("id,x,y\n" + "".join(f"s{i},{i % 3},{i}\n" for i in range(12)))
    given = [str(tmp_path / "a.csv")] * (2 if verb in ("predict", "explain") else 1)
    for option, text in itertools.product(NUMBERS[verb], ("1_0", "１０", "٣")):  # noqa: RUF001
        needed = ["--clusters", "2"] if verb == "compare" and option != "--clusters" else []
        said = CliRunner().invoke(main, [verb, *given, "--out", str(tmp_path / "out.csv"), *needed, option, text])
        assert said.exit_code == 2, (option, text)
        assert said.output.count("\n") == 1, (option, text)
        assert text in said.output, option
        assert not (tmp_path / "out.csv").exists(), (option, text)


def test_settings_in_plain_digits_are_taken():
    command = main.get_command(__import__("click").Context(main), "fit")
    found = {param.name: param.type.convert("-1e-3", None, None) for param in command.params if param.name == "noise"}
    assert found == {"noise": -0.001}
