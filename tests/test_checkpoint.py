"""A fit that is interrupted goes on, and ends as if nothing had happened."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open

from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.datasets import load_handwritten
from viewfuse.engine import checkpoint as module
from viewfuse.engine.training import Epoch
from viewfuse.errors import CannotWrite, CheckpointDiffers
from viewfuse.methods.urrl.config import Epochs

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 30, "learning_rate": 2e-3, "random_state": 0}
LENGTH = {"pretrain_epochs": 2, "joint_epochs": 3}


@pytest.fixture(scope="module")
def views():
    return make_blobs(36, 3, widths=(4, 3), missing=0.3)[0]


@pytest.fixture(autouse=True)
def at_every_epoch(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN", 0.0)


@pytest.fixture(scope="module")
def whole(views):
    return URRL(3, **flat(**TINY, **LENGTH)).fit(views)


class Killed(BaseException):
    """Nothing catches it."""


def kill_after(epochs, model, views, monkeypatch):
    """A fit that ends without a warning after so many epochs."""
    run_epoch, left = Epoch.run, [epochs]

    def dying(*args):
        if not left[0]:
            raise Killed
        left[0] -= 1
        return run_epoch(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Epoch, "run", dying)
        with pytest.raises(Killed):
            model.fit(views)


@pytest.mark.parametrize("epochs", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4))])
def test_a_fit_that_was_killed_ends_as_one_that_was_not(views, whole, tmp_path, monkeypatch, epochs):
    kill_after(epochs, URRL(3, **flat(**TINY, **LENGTH), checkpoint=tmp_path), views, monkeypatch)
    counted = []
    monkeypatch.setattr(Epoch, "run", lambda *args, go=Epoch.run: counted.append(go(*args)) or counted[-1])
    resumed = URRL(3, **flat(**TINY, **LENGTH), checkpoint=tmp_path).fit(views)
    assert np.array_equal(resumed.embedding_, whole.embedding_)
    assert np.array_equal(resumed.soft_labels_, whole.soft_labels_)
    assert resumed.history_["total"] == whole.history_["total"]
    assert resumed.decisions_ == whole.decisions_
    total = 2 * len(whole.decisions_["scaling"]["evidence"]) + 3
    assert len(counted) == total - epochs


@pytest.mark.usefixtures("never_still")
def test_a_watched_stage_goes_on_with_what_it_has_seen(views, tmp_path, monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(2, 8))
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.trial_epochs", lambda self, n: 2)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._FALL", np.inf)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._STILL", 0.0)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._PATIENCE", np.inf)
    settings = {**TINY, "scaling": "standard"}
    whole = URRL(3, **flat(**settings)).fit(views)
    kill_after(6, URRL(3, **flat(**settings), checkpoint=tmp_path), views, monkeypatch)
    resumed = URRL(3, **flat(**settings), checkpoint=tmp_path).fit(views)
    assert np.array_equal(resumed.embedding_, whole.embedding_)
    assert resumed.decisions_["joint_stage"] == whole.decisions_["joint_stage"]
    with safe_open(tmp_path / "pre-training-2-0.safetensors", "pt") as ended:
        assert not [name for name in ended.keys() if name.startswith("adam")]  # noqa: SIM118  nobody needs it any more


@pytest.mark.slow
def test_a_stage_that_goes_on_knows_the_clusters_that_were_judged_last(views, tmp_path, monkeypatch):
    """Killed just before the look that finds no change: after the resume it is compared with the one before."""
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(2, 16))
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.trial_epochs", lambda self, n: 2)
    settings = {**TINY, "scaling": "standard", "learning_rate": 3e-3}
    whole = URRL(3, **flat(**settings)).fit(views)
    lasted = whole.decisions_["joint_stage"]["lasted"]
    assert 4 <= lasted < 16  # two looks at least
    kill_after(lasted + 1, URRL(3, **flat(**settings), checkpoint=tmp_path), views, monkeypatch)
    resumed = URRL(3, **flat(**settings), checkpoint=tmp_path).fit(views)
    assert resumed.decisions_["joint_stage"] == whole.decisions_["joint_stage"]
    assert np.array_equal(resumed.embedding_, whole.embedding_)


SHORT = {**TINY, "scaling": "standard", "pretrain_epochs": 1, "joint_epochs": 1}


@pytest.fixture(scope="module")
def finished(views, tmp_path_factory):
    """The folder of a fit that was kept to its end."""
    folder = tmp_path_factory.mktemp("finished")
    URRL(3, **flat(**SHORT), checkpoint=folder).fit(views)
    return folder


@pytest.fixture
def kept(finished, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(finished, tmp_path / "kept")


def test_other_data_settings_and_versions_are_refused(views, kept):
    with pytest.raises(
        CheckpointDiffers, match=r"keeps another fit: noise was 0\.05, is 0\.1; give what was given then"
    ):
        URRL(3, **flat(**SHORT, noise=0.1), checkpoint=kept).fit(views)
    other = [view.copy() for view in views]
    other[1][0, 0] += 1e-3
    with pytest.raises(CheckpointDiffers, match=r"digest of the data was [0-9a-f]+, is "):
        URRL(3, **flat(**SHORT), checkpoint=kept).fit(other)
    facts = json.loads((kept / "fit.json").read_text())
    (kept / "fit.json").write_text(json.dumps({**facts, "version of torch": "1.0"}))
    with pytest.raises(CheckpointDiffers, match=r"version of torch was 1\.0, is "):
        URRL(3, **flat(**SHORT), checkpoint=kept).fit(views)


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_checkpoint_is_refused_by_name(views, kept, damage):
    (file,) = kept.glob("pre-training-*.safetensors")
    file.write_bytes(damage)
    with pytest.raises(CheckpointDiffers, match=f"{file.name} cannot be read .*; delete the folder to train anew"):
        URRL(3, **flat(**SHORT), checkpoint=kept).fit(views)


def test_a_full_disk_is_named(views, tmp_path, monkeypatch):
    write = Path.write_bytes

    def full(path, content):
        if content.startswith(b"{"):  # the facts still have room
            return write(path, content)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CannotWrite, match=r"\.safetensors .* cannot be written: No space left on device; free some"):
        URRL(3, **flat(**TINY, **LENGTH), checkpoint=tmp_path).fit(views)


def test_files_of_another_fit_are_refused_even_if_nothing_says_whose_they_are(views, kept):
    (kept / "fit.json").unlink()
    others = [view * 2 + 1 for view in views]
    with pytest.raises(CheckpointDiffers, match="is of another fit; delete the folder"):
        URRL(3, **flat(**SHORT), checkpoint=kept).fit(others)


def test_changed_bits_are_noticed(views, kept):
    (path,) = kept.glob("joint-*[0-9].safetensors")
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDiffers, match="its checksum is wrong"):
        URRL(3, **flat(**SHORT), checkpoint=kept).fit(views)


@pytest.mark.parametrize("text", ["[]", "[1]", "3", "null", "[" * 100_000])
def test_facts_that_are_none_are_refused(views, tmp_path, text):
    (tmp_path / "fit.json").write_text(text)
    with pytest.raises(CheckpointDiffers):
        URRL(3, **flat(**TINY, **LENGTH), checkpoint=tmp_path).fit(views)


def test_ctrl_c_waits_for_the_end_of_the_epoch_and_keeps_it(views, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN", 1e9)
    run_epoch, before = Epoch.run, signal.getsignal(signal.SIGINT)

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return run_epoch(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Epoch, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            URRL(3, **flat(**TINY, **LENGTH), scaling="standard", checkpoint=tmp_path).fit(views)
    assert signal.getsignal(signal.SIGINT) is before
    resumed = URRL(3, **flat(**TINY, **LENGTH), scaling="standard", checkpoint=tmp_path).fit(views)
    assert np.array_equal(
        resumed.embedding_, URRL(3, **flat(**TINY, **LENGTH), scaling="standard").fit(views).embedding_
    )


def test_a_worker_stops_where_its_fit_is_interrupted(tmp_path):
    """A worker has a copy, which no signal reaches."""
    own = module.Checkpoint(tmp_path / "new")
    copy, seen = pickle.loads(pickle.dumps(own)), []

    def interrupted():
        with own.interruptible():
            seen.append(copy.is_stopping())
            signal.raise_signal(signal.SIGINT)
            seen.extend([copy.is_stopping(), copy.is_due])
            with pytest.raises(KeyboardInterrupt):
                copy.written()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*seen, copy.is_stopping()] == [False, True, True, False]
    assert not (tmp_path / "new").exists()  # nothing was kept


@pytest.mark.slow
def test_the_training_with_which_the_number_of_clusters_is_chosen_is_kept_too(views, tmp_path, monkeypatch):
    settings = {**TINY, "scaling": "standard", "cluster_range": (2, 4), "pretrain_epochs": 3, "joint_epochs": 2}
    whole = URRL(**flat(**settings)).fit(views)
    kill_after(3, URRL(**flat(**settings), checkpoint=tmp_path), views, monkeypatch)
    counted = []
    monkeypatch.setattr(Epoch, "run", lambda *args, go=Epoch.run: counted.append(go(*args)) or counted[-1])
    resumed = URRL(**flat(**settings), checkpoint=tmp_path).fit(views)
    assert len(counted) == 2  # the joint stage; pre-training was done
    assert np.array_equal(resumed.embedding_, whole.embedding_)
    assert resumed.decisions_ == whole.decisions_


@pytest.mark.fault
@pytest.mark.filterwarnings("ignore:joint stage")
def test_a_checkpoint_of_handwritten_is_small_and_quick(tmp_path, monkeypatch):
    """The size depends on columns only, so few rows do; computing is timed, which other programs do not disturb."""
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(2, 8))
    own, sizes, seconds = module.KeptStage.keep, [], []

    def timed(stage, *args, **others):
        began = time.process_time()
        own(stage, *args, **others)
        seconds.append(time.process_time() - began)
        sizes.append(stage._path.stat().st_size / 1e6)

    monkeypatch.setattr(module.KeptStage, "keep", timed)
    given = [view[::10] for view in load_handwritten()[0]]
    URRL(10, scaling="standard", random_state=0, device="cpu", checkpoint=tmp_path).fit(given)
    folder = sum(path.stat().st_size for path in tmp_path.iterdir()) / 1e6
    print(f"{max(sizes):.1f} MB, in all {folder:.1f} MB; {np.median(seconds):.3f} s, at most {max(seconds):.3f} s")
    assert max(sizes) <= 60
    assert np.median(seconds) <= 0.3


def test_many_seeds_make_no_name_that_is_too_long(tmp_path):
    def name(seeds):
        kept = module.Checkpoint(tmp_path).stage("joint", [SimpleNamespace(seed=seed) for seed in seeds], None)
        return kept._path.name.removeprefix("joint-").removesuffix(".safetensors")

    assert name([3, 4]) == "3-4"
    long = name(range(10**9, 10**9 + 30))
    assert len(long) == 32
    assert long != name(range(10**9, 10**9 + 31))
    assert name([10**99]) == "1" + "0" * 99
    assert len(name([10**100])) == 32
