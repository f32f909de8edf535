"""viewfuse fit --resume: an interrupted run goes on where it was."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse.cli import main
from viewfuse.engine import checkpoint
from viewfuse.engine.training import Epoch
from viewfuse.methods.urrl import scaling_search

SHORT = [
    "--clusters",
    "2",
    "--pretrain-epochs",
    "3",
    "--joint-epochs",
    "2",
    "--embedding-dim",
    "8",
    "--hidden-dim",
    "8",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, names = tmp_path_factory.mktemp("files"), []
    for name, view in zip("ab", make_blobs(40, 2)[0], strict=False):
        names.append(str(folder / f"{name}.csv"))
        pd.DataFrame(view, index=[f"s{i}" for i in range(40)]).to_csv(names[-1], index_label="id")
    return names


def fit(files, *options):
    return CliRunner().invoke(main, ["fit", *files, *SHORT, "--scaling", "standard", "--trusted", *map(str, options)])


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory, quick_map):
    """The folder of a run that nobody stopped, and what was said."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, fit(files, "--out", folder)


@pytest.fixture
def interrupted(files, tmp_path, monkeypatch):
    """The folder of a run that was stopped in its second epoch."""
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN", 0.0)
    run_epoch = Epoch.run

    def stop(self, epoch):
        if epoch == 1:
            raise KeyboardInterrupt
        return run_epoch(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Epoch, "run", stop)
        patch.setattr(scaling_search, "measured_step", lambda *_: 0.01)  # it runs epochs of its own
        result = fit(files, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert "interrupted; to resume, give the same files and options and --resume" in result.output
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]
    return tmp_path / "run"


@pytest.mark.usefixtures("quick_map")
@pytest.mark.parametrize("option", ["--resume", pytest.param("--out", marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_and_leaves_no_checkpoint(files, interrupted, whole, option):
    resumed, (folder, said) = fit(files, option, interrupted), whole
    assert resumed.exit_code == said.exit_code == 0, resumed.output
    assert "pre-training: 2 epochs" in resumed.output
    assert "pre-training: 3 epochs" in said.output
    assert not (interrupted / "checkpoint").exists()
    one, two = (np.load(own / "embedding.npy") for own in (interrupted, folder))
    assert np.array_equal(one, two)
    assert "checkpoint" not in json.loads((interrupted / "summary.json").read_text())["files"]


def test_another_fit_is_refused_where_one_waits(files, interrupted):
    result = fit(files, "--out", interrupted, "--noise", "0.2")
    assert result.exit_code == 2
    assert "keeps another fit: noise was 0.05, is 0.2; give what was given then" in result.output
    assert (interrupted / "checkpoint").is_dir()


def test_there_must_be_something_to_go_on_with(files, tmp_path):
    result = fit(files, "--resume", tmp_path / "nothing")
    assert result.exit_code == 2
    assert "there is no interrupted fit in" in result.output
    assert "Missing option '--out'" in fit(files).output


def test_a_fit_that_fails_leaves_nothing(files, tmp_path):
    result = fit(files, "--out", tmp_path / "run", "--learning-rate", "1e30")
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [[], ["--force"]])
def test_a_folder_that_merely_is_called_checkpoint_is_left_alone(files, tmp_path, option):
    precious = tmp_path / "run" / "checkpoint" / "epoch1.pt"
    precious.parent.mkdir(parents=True)
    precious.write_text("weeks of work")
    done = CliRunner().invoke(main, ["fit", *files, *SHORT, "--out", str(tmp_path / "run"), *option])
    assert done.exit_code == 2
    assert precious.read_text() == "weeks of work"
    assert ("is no checkpoint of a fit; move it" in done.output) == bool(option)
