"""Processes are killed while they write: what was there stays whole, and the next run leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse import URRL, Config, load
from viewfuse.cli import main
from viewfuse.engine import checkpoint

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3600), pytest.mark.usefixtures("quick_map")]
QUICK = ["--clusters", "2", "--pretrain-epochs", "1", "--joint-epochs", "1", "--scaling", "standard", "--device", "cpu"]
QUICK += ["--hidden-dim", "8", "--embedding-dim", "4"]


@pytest.fixture(autouse=True)
def one_thread():
    """Forked processes wait for ever for the threads that their parent had."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def invoke(*words: object) -> None:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output


def done(work: Callable[[], None], seconds: float = 0.0) -> tuple[bool, float]:
    """Do `work` in a forked process, which ends without a word when it has computed for so long; 0 lets it finish.

    Returns whether it was ended at work, and the seconds of computing that it had; these do not depend on what else
    runs on the machine.
    """
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status, used = os.wait4(pid, 0)
    assert status in (0, signal.SIGPROF)
    return status != 0, used.ru_utime + used.ru_stime


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "a.npz", a=make_blobs(30, 2, widths=(4,), missing=0)[0][0])
    return tmp_path / "a.npz"


def state(run: Path) -> tuple[int, str, str]:
    """Which run each part of the folder is from, by the seed."""
    summary = json.loads((run / "summary.json").read_text())
    seed = summary["params"]["random_state"]
    whole = [name for name in summary["files"] if not (run / name).exists()] == []
    assert whole
    assert np.array_equal(load(run / "model").embedding_, np.load(run / "embedding.npy"))
    return seed, digest(run / "embedding.npy"), digest(run / "labels.csv")


def test_a_hundred_kills_during_fit(data, tmp_path):
    run, rng = tmp_path / "run", np.random.default_rng(0)
    fit = ("fit", data, *QUICK, "--out", run, "--force", "--random-state")
    known = set()
    for seed in (0, 1, 0):
        _, lasts = done(lambda seed=seed: invoke(*fit, seed))
        known.add(state(run))
    n_killed = attempt = 0
    while n_killed < 100:
        attempt += 1
        n_killed += done(lambda seed=attempt % 2: invoke(*fit, seed), float(rng.uniform(0.2, 1.3) * lasts))[0]
        assert state(run) in known
    assert attempt > n_killed  # so late that some were done: others were killed while they wrote
    invoke(*fit, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "run"]
    print(f"fit --force: {n_killed} of {attempt} killed at work")


def test_fifty_kills_and_resumes_of_a_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN", 0.0)
    views, rng = make_blobs(60, 3, missing=0.3)[0], np.random.default_rng(0)
    config = Config(embedding_dim=8, hidden_dim=8, batch_size=16, pretrain_epochs=6, joint_epochs=6)
    settings = {"config": config, "random_state": 0, "device": "cpu"}
    whole, place, found = URRL(3, **settings).fit(views), tmp_path / "checkpoint", tmp_path / "found.npz"

    def fit() -> None:
        model = URRL(3, **settings, checkpoint=place).fit(views)
        arrays = {name: getattr(model, name) for name in ("labels_", "soft_labels_", "embedding_")}
        np.savez(tmp_path / "new.npz", **arrays)
        os.replace(tmp_path / "new.npz", found)

    (_, lasts), n_killed, n_done = done(fit), 0, 0
    while n_killed < 50:
        found.unlink()
        shutil.rmtree(place)
        while not found.exists():
            n_killed += done(fit, float(rng.uniform(0.1, 0.9) * lasts))[0]
        with np.load(found) as arrays:
            for name in ("labels_", "soft_labels_", "embedding_"):
                assert np.array_equal(arrays[name], getattr(whole, name))
        n_done += 1
    print(f"fit: {n_done} fits with {n_killed} kills and resumes")


def test_a_hundred_kills_during_save(tmp_path):
    views = make_blobs(30, 2, widths=(4,), missing=0)[0]
    models = [
        URRL(2, config=Config(pretrain_epochs=1, joint_epochs=1), random_state=s, scaling="standard", device="cpu").fit(
            views
        )
        for s in (0, 1)
    ]
    known = {model.embedding_.tobytes() for model in models}
    place, rng = tmp_path / "model", np.random.default_rng(0)
    _, lasts = done(lambda: models[0].save(place))
    n_killed = 0
    for _ in range(100):
        n_killed += done(lambda: [models[k % 2].save(place) for k in range(50)], float(rng.uniform(0.2, 6) * lasts))[0]
        assert load(place).embedding_.tobytes() in known
    models[0].save(place)
    assert len(list(place.iterdir())) == 2
    print(f"save: {n_killed} of 100 killed at work")


def test_fifty_kills_during_predict(data, tmp_path):
    invoke("fit", data, *QUICK, "--out", tmp_path / "run")
    out, rng = tmp_path / "labels.csv", np.random.default_rng(0)
    predict = ("predict", tmp_path / "run" / "model", data, "--out", out, "--force", "--device", "cpu")
    _, lasts = done(lambda: invoke(*predict))
    known, n_killed = digest(out), 0
    for _ in range(50):
        n_killed += done(lambda: invoke(*predict), float(rng.uniform(0.1, 1.2) * lasts))[0]
        assert digest(out) == known
    invoke(*predict)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "labels.csv", "run"]
    print(f"predict: {n_killed} of 50 killed at work")


def _save_often(model: URRL, place: Path, times: int, barrier) -> None:
    for _ in range(times):
        barrier.wait()
        model.save(place)
        barrier.wait()


def test_five_hundred_races_of_two_writers(tmp_path):
    views = make_blobs(30, 2, widths=(4,), missing=0)[0]
    models = [
        URRL(2, config=Config(pretrain_epochs=1, joint_epochs=1), random_state=s, scaling="standard", device="cpu").fit(
            views
        )
        for s in (0, 1)
    ]
    known = {model.embedding_.tobytes() for model in models}
    context = multiprocessing.get_context("fork")
    barrier, place = context.Barrier(3), tmp_path / "model"
    writers = [context.Process(target=_save_often, args=(model, place, 500, barrier)) for model in models]
    [writer.start() for writer in writers]
    for _ in range(500):
        barrier.wait()
        barrier.wait()
        assert load(place).embedding_.tobytes() in known
        assert len(list(place.iterdir())) == 2
    [writer.join() for writer in writers]
    assert [writer.exitcode for writer in writers] == [0, 0]
