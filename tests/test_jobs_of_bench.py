"""A bench whose runs go side by side: every run once and the same numbers, also if a worker is killed on the way."""

from __future__ import annotations

import os
import signal
import warnings
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.experiments import launch
from benchmarks.experiments.catalogue import CATALOGUE, DataSet
from benchmarks.experiments.run_folders import done_folders, read_arrays
from conftest import write_tiny_plan
from viewfuse.cli.options import on_engine

pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]
TINY = DataSet("tiny", "Tiny", 40, (5, 8, 3), 2, 2, (1, 1), in_paper=False)
PLAN = """
title = "Tiny"
data = ["tiny"]
missing_rates = [0.0, 0.25, 0.5]
seeds = 4
settings = ["default"]
keep_embedding = true

[[conditions]]
name = "a"
settings = { embedding_dim = 8, hidden_dim = 8, batch_size = 20, pretrain_epochs = 3, joint_epochs = 3 }
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts twelve runs; gives their folder, and how often each of them was written."""
    root = tmp_path_factory.mktemp("bench")
    write_tiny_plan(root, PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CATALOGUE, "tiny", TINY)

        def begin(log=len, n_jobs=None):
            written, whole = Counter(), launch.run_plan.__globals__["write_run"]
            with pytest.MonkeyPatch.context() as counting:
                counting.setitem(
                    launch.run_plan.__globals__,
                    "write_run",
                    lambda folder, *rest: (written.update([folder.name]), whole(folder, *rest)),
                )
                out = tmp_path_factory.mktemp("out")
                folder = launch.bench(root / "tiny.toml", root, out, device="cpu", n_jobs=n_jobs, log=log)
            return folder, written

        yield begin


@pytest.fixture(scope="module")
def whole(start):
    return start()[0]


def contents(folder):
    """Tables as bytes, and all arrays."""
    tables = {path.name: path.read_bytes() for path in sorted((folder / "tables").iterdir())}
    arrays = {run.name: {k: x.tobytes() for k, x in read_arrays(run).items()} for run in done_folders(folder)}
    return tables, arrays


def kill_one(which):
    """A process, below this one, of which `which` says that it works on a run."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line, pid = (place / "cmdline").read_bytes().decode(errors="replace"), int(place.name)
            if which(line) and os.getpid() in ancestors(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        except OSError:
            continue
    return False


def ancestors(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def killing(which, after):
    """A log that kills one worker after so many lines, once."""
    lines, killed = [], []

    def log(line):
        lines.append(line)
        if len(lines) >= after and not killed and kill_one(which):
            killed.append(line)

    return log, killed


def test_a_worker_that_is_killed_changes_nothing(start, whole):
    log, killed = killing(lambda line: "loky.backend.popen" in line, after=4)
    folder, written = start(log, n_jobs=2)
    assert killed
    assert contents(folder) == contents(whole)
    assert set(written.values()) == {1}
    assert len(written) == 12


def test_a_worker_of_ray_that_is_killed_changes_nothing(start, whole):
    pytest.importorskip("ray", reason="needs Ray, which is not installed: pip install -e '.[ray]'")
    log, killed = killing(lambda line: line.startswith("ray::PoolActor"), after=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray has some of its own
        with on_engine("ray", None, "cpu"):
            folder, written = start(log)
    assert killed
    assert contents(folder) == contents(whole)
    assert set(written.values()) == {1}
    assert len(written) == 12
