"""When a fit in memory does what, as literal lists: epochs, looks at clusters, files, progress."""

from __future__ import annotations

from itertools import accumulate
from math import inf

import pytest

from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.engine import checkpoint
from viewfuse.engine.training import Progress, Training
from viewfuse.methods.urrl import stages as early_stopping
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.stages import EarlyStopping

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 30, "random_state": 0, "scaling": "standard"}


@pytest.fixture
def events(monkeypatch):
    """What happens in a fit, in order."""
    found, record, judge, write = [], Training.record, EarlyStopping.judge, checkpoint.write_file

    def epoch_of(self, stage, terms, seconds):
        (rate,) = {group["lr"] for group in self.adam.param_groups}
        found.append((stage, self.runs[0].n_epochs, round(rate / 1e-3, 6)))
        record(self, stage, terms, seconds)

    def look(self, epoch, labels):
        found.append(("look", epoch))
        judge(self, epoch, labels)

    monkeypatch.setattr(Training, "record", epoch_of)
    monkeypatch.setattr(EarlyStopping, "judge", look)

    def kept(path, text):
        found.extend([path.stem] * (path.suffix == ".safetensors"))
        write(path, text)

    monkeypatch.setattr(checkpoint, "write_file", kept)
    monkeypatch.setattr(early_stopping, "_STILL", 0.0)
    monkeypatch.setattr(early_stopping, "_PATIENCE", inf)
    monkeypatch.setattr(early_stopping, "_FALL", inf)
    monkeypatch.setattr(early_stopping, "_TIE", 2.0)  # so the last state is kept
    monkeypatch.setattr(early_stopping, "_LESS_PURE", inf)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(3, 12))
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 2)
    return found


@pytest.fixture
def told(monkeypatch):
    """What is said of the progress, in order."""
    found = []

    def listen(name):
        own = getattr(Progress, name)
        monkeypatch.setattr(Progress, name, lambda self, what: found.append((name, what)) or own(self, what))

    for name in ("expect", "begin", "advance"):
        listen(name)
    return found


def test_epochs_looks_files_and_progress_of_a_fit(events, told, tmp_path):
    model = URRL(3, **flat(**TINY, learning_rate=1e-3), checkpoint=tmp_path).fit(make_blobs(60, 3)[0])
    joint = 2.0
    looks = (5, 6, 7, 9, 11, 12, 13, 15)  # after 1.5, 3, 4.5, ... epochs of the stage, rounded
    expected = [("pre-training", epoch, 1.0) for epoch in range(3)] + ["pre-training-3-0", ("look", 3)]
    for epoch in range(3, 15):
        expected += [("joint", epoch, joint), *([("look", epoch + 1)] if epoch + 1 in looks else [])]
    assert events == [*expected, "joint-15-0"]
    assert model.history_["epoch"] == [*range(1, 16)]
    assert model.history_["stage"] == ["pre-training"] * 3 + ["joint"] * 12
    assert model.decisions_["joint_stage"]["chosen"] == 12
    assert [what for name, what in told if name == "begin"] == ["pre-training", "joint training"]
    assert [what for name, what in told if name == "advance"] == model.history_["total"]
    done = list(accumulate(name == "advance" for name, _ in told))
    assert {n + what for n, (name, what) in zip(done, told, strict=True) if name == "expect"} == {15}
