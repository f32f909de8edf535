"""The command line, from files to labels, and in one line from mistakes to their cure."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse.cli import VERBS, main
from viewfuse.results import labels_csv
from viewfuse.views import Views

QUICK = ["--pretrain-epochs", "6", "--joint-epochs", "2"]


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def omics(tmp_path):
    """Two files, each of which lacks 30 % of the patients."""
    views, labels, _ = make_blobs(60, 2, widths=(4, 6), missing=0.0)
    rng, ids = np.random.default_rng(0), np.array([f"p{i}" for i in range(60)])
    paths = []
    for name, view, lost in zip(("rna", "protein"), views, rng.permutation(60)[:36].reshape(2, 18), strict=True):
        kept = np.setdiff1d(np.arange(60), lost)
        paths.append(tmp_path / f"{name}.csv")
        pd.DataFrame(view[kept], index=ids[kept]).to_csv(paths[-1], index_label="patient")
    truth = tmp_path / "truth.csv"
    pd.DataFrame({"id": ids, "label": labels}).to_csv(truth, index=False)
    return paths, truth


def test_from_two_files_to_labels_and_back(omics, tmp_path):
    files, truth = omics
    shown = run("inspect", *files)
    assert shown.exit_code == 0
    assert "60 samples, 2 views" in shown.output
    assert ["rna", "+", "protein", "24"] in [line.split() for line in shown.output.splitlines()]
    out = tmp_path / "run"
    fitted = run("fit", *files, "--clusters", 2, "--out", out, *QUICK)
    assert fitted.exit_code == 0, fitted.output
    assert sorted(path.name for path in out.iterdir()) == [
        "embedding.npy", "history.csv", "labels.csv", "model", "summary.json",
    ]  # fmt: skip
    assert np.load(out / "embedding.npy").shape == (60, 256)
    assert sum(json.loads((out / "summary.json").read_text())["cluster_sizes"]) == 60
    scored = run("score", out / "labels.csv", truth, "--json")
    assert json.loads(scored.output)["accuracy"] >= 0.9
    again = tmp_path / "again.csv"
    assert run("predict", out / "model", *files, "--out", again).exit_code == 0
    assert again.read_bytes() == (out / "labels.csv").read_bytes()
    assert run("predict", out / "model", files[1], "--out", tmp_path / "part.csv").exit_code == 0
    with (tmp_path / "part.csv").open() as file:
        assert {row["views_present"] for row in csv.DictReader(file)} == {"protein"}
    assert "rna (4 columns), protein (6 columns)" in run("info", out / "model").output


def test_nothing_is_overwritten_without_being_told(omics, tmp_path):
    files, _ = omics
    out = tmp_path / "run"
    out.mkdir()
    refused = run("fit", *files, "--clusters", 2, "--out", out, *QUICK)
    assert refused.exit_code == 2
    assert "exists already; give another --out, or --force" in refused.output
    assert run("fit", *files, "--clusters", 2, "--out", out, "--force", *QUICK).exit_code == 0
    assert run("fit", *files, "--clusters", 2, "--out", out, "--force", *QUICK).exit_code == 0


def test_mistakes_are_answered_in_one_line(omics, tmp_path):
    files, _ = omics
    (tmp_path / "bad.csv").write_text("id,x\na,one\n")
    for arguments, words in [
        (("inspect", tmp_path / "nothing.csv"), "nothing.csv is no file"),
        (("inspect", tmp_path / "bad.csv"), "'one' is not a number"),
        (("fit", *files, "--clusters", 99, "--out", tmp_path / "o"), "n_samples=60 should be >= n_clusters=99"),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--scaling", "big"), "scaling must be one of"),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--joint-epochs", "few"), "joint_epochs must be"),
        (("predict", tmp_path, *files, "--out", tmp_path / "o"), "is not a viewfuse model"),
        (("info", tmp_path), "is not a viewfuse model"),
        (("score", files[0], files[1]), "has no column 'id'"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        last = result.output.strip().splitlines()[-1]
        assert last.startswith("viewfuse: ")
        assert words in last


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert VERBS[verb] in shown.output


def test_the_overview_names_every_verb():
    assert all(verb in run("--help").output for verb in VERBS)


def test_formulas_in_ids_stay_text():
    views = Views([np.ones((2, 1))], ids=["=HYPERLINK(1)", "-3"])
    lines = labels_csv(views, np.array([[1.0], [1.0]], dtype=np.float32)).decode().splitlines()
    assert lines[1].startswith("'=HYPERLINK")
    assert lines[2].startswith("-3,")
