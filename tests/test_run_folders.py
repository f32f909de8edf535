"""A folder of results takes its place as a whole; leftovers of the dead are swept, and two writers do not mix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from viewfuse import CannotWrite, cli
from viewfuse.cli import main
from viewfuse.utils import atomic
from viewfuse.utils.atomic import replacing

QUICK = ["--clusters", "2", "--pretrain-epochs", "1", "--joint-epochs", "1", "--scaling", "standard", "--device", "cpu"]
QUICK += ["--hidden-dim", "8", "--embedding-dim", "4"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, text: str) -> None:
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(text)
    (folder / "model").mkdir()
    (folder / "model" / "c.txt").write_text(text)


@pytest.fixture(params=["exchange", "two renames"])
def _renames(request, monkeypatch):
    if request.param == "two renames":
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)


@pytest.mark.usefixtures("_renames")
def test_a_folder_takes_its_place_as_a_whole(tmp_path):
    place = tmp_path / "new" / "run"
    with replacing(place) as folder:
        fill(folder, "first")
        assert not place.exists()
    (place / "notes.txt").write_text("mine")
    (place / "own").mkdir()
    (place / "own" / "x").write_text("mine")
    (place / "link").symlink_to("notes.txt")
    (place / "stale.txt").write_text("of an earlier run")
    with replacing(place, {"stale.txt"}.__contains__) as folder:
        fill(folder, "second")
        assert (place / "a.txt").read_text() == "first"
    assert names(place) == ["a.txt", "b.txt", "link", "model", "notes.txt", "own"]
    assert (place / "model" / "c.txt").read_text() == "second"
    assert (place / "own" / "x").read_text() == (place / "link").read_text() == "mine"
    assert names(place.parent) == ["run"]


def fail_to_replace(place: Path, error: Exception) -> None:
    with replacing(place) as folder:
        fill(folder, "second")
        raise error


@pytest.mark.usefixtures("_renames")
def test_a_failure_leaves_what_was_there(tmp_path):
    with replacing(tmp_path / "run") as folder:
        fill(folder, "first")
    with pytest.raises(ZeroDivisionError):
        fail_to_replace(tmp_path / "run", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        fail_to_replace(tmp_path / "deep" / "deeper" / "run", ZeroDivisionError())
    words = "run cannot be written: No space left on device; .* what was there before is intact"
    with pytest.raises(CannotWrite, match=words):
        fail_to_replace(tmp_path / "run", OSError(28, os.strerror(28)))
    assert (tmp_path / "run" / "a.txt").read_text() == "first"
    assert names(tmp_path) == ["run"]


def test_a_folder_that_somebody_works_in_stays_the_same_folder(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    inode = os.stat(".").st_ino
    for text in ("first", "second"):
        with replacing(Path()) as folder:
            fill(folder, text)
    assert os.stat(tmp_path / "run").st_ino == inode
    assert names(tmp_path / "run") == ["a.txt", "b.txt", "model"]
    assert Path("model", "c.txt").read_text() == "second"


def test_of_two_writers_one_says_so(tmp_path):
    with replacing(tmp_path / "run") as folder:
        fill(folder, "first")
        words = "run is being written by another process; try again later, or choose another folder"
        with pytest.raises(CannotWrite, match=words), replacing(tmp_path / "run"):
            pass
    assert (tmp_path / "run" / "a.txt").read_text() == "first"


def test_leftovers_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead = process.pid
    alive = os.getppid()
    left = [f"{atomic.TEMPORARY}{atomic._machine()}-{pid}-{'0' * 16}" for pid in (dead, alive)]
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.csv").write_text("half")
    (tmp_path / f"{left[0][:-1]}1").write_text("half a file")
    (tmp_path / f"{atomic.TEMPORARY}lock-run").mkdir()
    with replacing(tmp_path / "run") as folder:
        fill(folder, "first")
    assert names(tmp_path) == [left[1], "run"]
    (tmp_path / left[0]).write_text("half")
    atomic.write_file(tmp_path / "labels.csv", b"whole")
    assert names(tmp_path) == [left[1], "labels.csv", "run"]


def test_a_writer_that_was_killed_between_two_renames_loses_nothing(tmp_path):
    (tmp_path / f"{atomic._ASIDE}run").mkdir()
    (tmp_path / f"{atomic._ASIDE}run" / "notes.txt").write_text("mine")
    with replacing(tmp_path / "run") as folder:
        fill(folder, "second")
    assert names(tmp_path) == ["run"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def no_space(*_):
    raise OSError(28, os.strerror(28))


@pytest.mark.usefixtures("quick_map")
def test_fit_replaces_its_results_and_keeps_what_is_somebodys_own(tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 3))
    np.savez(tmp_path / "a.npz", a=values)
    command = ["fit", str(tmp_path / "a.npz"), *QUICK, "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(main, command).exit_code == 0
    before = (tmp_path / "run" / "embedding.npy").read_bytes()
    for name in ("notes.txt", "cells.h5mu"):
        (tmp_path / "run" / name).write_text("mine")
    summary = tmp_path / "run" / "summary.json"
    assert '"labels.csv"' in summary.read_text()
    summary.write_text(summary.read_text().replace('"labels.csv"', '"labels.csv", "cells.h5mu"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.cli.fit.write_history", no_space)
        result = CliRunner().invoke(main, [*command, "--force", "--random-state", "1"])
    assert result.exit_code == 2
    assert "intact" in result.output
    assert (tmp_path / "run" / "embedding.npy").read_bytes() == before
    assert CliRunner().invoke(main, [*command, "--force", "--random-state", "1"]).exit_code == 0
    assert (tmp_path / "run" / "embedding.npy").read_bytes() != before
    assert "notes.txt" in names(tmp_path / "run")
    assert "cells.h5mu" not in names(tmp_path / "run")
    assert names(tmp_path) == ["a.npz", "run"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_a_fit_tidily(tmp_path, number, code, monkeypatch):
    """A fit that gets a signal while it trains ends with its code, says so in one line and leaves nothing behind."""
    np.savez(tmp_path / "a.npz", a=np.random.default_rng(0).normal(size=(12, 3)))
    monkeypatch.setattr("viewfuse.methods.urrl.estimator.fit_models", lambda *_, **__: [os.kill(os.getpid(), number)])
    result = CliRunner().invoke(main, ["fit", str(tmp_path / "a.npz"), *QUICK, "--out", str(tmp_path / "run")])
    assert result.exit_code == code
    assert len(result.output.splitlines()) == 1
    assert names(tmp_path) == ["a.npz"]


@pytest.fixture
def _heard():
    """Ctrl-C is heard, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_a_second_signal_changes_nothing_about_the_last_line(tmp_path, monkeypatch):
    said = []

    def interrupted(line):
        signal.raise_signal(signal.SIGINT)
        said.append(line)

    np.savez(tmp_path / "a.npz", a=np.ones((4, 2)))
    monkeypatch.setattr("viewfuse.io.readers.parse", lambda job: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(cli, "tell", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "a.npz"), "--trusted"])
    assert result.exit_code == 130
    assert said == ["viewfuse: interrupted"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_while_python_ends_says_nothing_more(tmp_path):
    heard = "import atexit, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    late = "atexit.register(signal.raise_signal, signal.SIGINT)"
    code = f"{heard}; {late}; from viewfuse.cli import main; main(['inspect', {str(tmp_path)!r}])"  # without torch
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.count("\n") == 1
    assert "is a folder without" in ended.stderr
