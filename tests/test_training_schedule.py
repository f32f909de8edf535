"""The stages of trainings as lists of events: what is trained, looked at and kept, and after which epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from schedule_tools import GROUPS, TINY, run_past, stored_samples
from viewfuse.engine import replicates as passes
from viewfuse.engine.training import Epoch
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.stages import init_state


class Recorder:
    """Stands for the checkpoint and its stage; writes down what the engine does."""

    def __init__(self, epoch=None):
        self.events, self.epoch = [], epoch

    def stage(self, name, runs, learner, watches=()):
        trained = sum(len(group["params"]) for group in learner.adam.param_groups)
        self.events.append(("stage", name, len(watches), trained - len(list(learner.network.parameters()))))
        return self

    def left(self, epochs):
        return epochs if self.epoch is None else range(self.epoch, epochs.stop)

    def keep(self, epoch, *, last=False):
        self.events.append(("keep", epoch, last))


@pytest.fixture
def recorder(monkeypatch):
    """Networks that learn nothing: every epoch is an event, with terms of zero."""
    own = Recorder()

    def run(self, epoch):
        own.events.append(("epoch", epoch))
        return {name: torch.zeros(1, 2) for name in (*stages.TERMS, "total")}

    def embed_all(together):
        own.events.append("embed")
        return torch.stack([torch.full((60, 8), float(r)) for r in range(len(together.runs))])

    monkeypatch.setattr(Epoch, "run", run)
    monkeypatch.setattr(stages, "embed_all", embed_all)
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 2})
    return own


class Watch:
    """Stands for early stopping."""

    def __init__(self, recorder, number, stage, stops_after):
        self.events, self.number, self.joint_stage, self.stops_after = recorder.events, number, stage, stops_after

    def judge(self, epoch, labels):
        self.events.append(("judge", self.number, epoch))

    def evaluate(self, epoch, embedding, diverged):
        assert (embedding == self.number).all()
        self.events.append(("evaluate", self.number, epoch, diverged))
        self.joint_stage.settled = epoch >= self.stops_after

    def restore_best(self):
        self.events.append(("restore", self.number))


def joint_events(monkeypatch, recorder, length, *, stop=(99, 99), watched=True, epoch=None):
    settings = Config(n_clusters=3, joint_epochs="auto" if watched else length, **TINY)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(3, length))
    stored, recorder.epoch = stored_samples(), epoch
    runs = [init_state(stored, settings, seed) for seed in (0, 1)]
    for run in runs:
        run_past(run, 3, GROUPS)
    watches = [Watch(recorder, r, run.joint_stage, stop[r]) for r, run in enumerate(runs)] if watched else []
    monkeypatch.setattr(stages, "EarlyStopping", lambda *args, settles, views: watches.pop(0) if settles else None)
    runs[1].diverged = "broke" if watched else ""
    stages.train_jointly(runs, checkpoint=recorder)
    return recorder.events, runs


@pytest.mark.parametrize(
    ("length", "looks"),
    [
        (16, [2, 4, 6, 8, 10, 12, 14, 16]),
        (10, [1, 2, 4, 5, 6, 8, 9, 10]),
        (30, [4, 8, 11, 15, 19, 22, 26, 30]),
        (3, [1, 2, 3]),
        (1, [1]),
    ],
)
def test_a_joint_stage_is_looked_at_eight_times(monkeypatch, recorder, length, looks):
    events, _ = joint_events(monkeypatch, recorder, length)
    assert [event[2] - 3 for event in events if event[0] == "evaluate" and event[1] == 0] == looks


def test_the_events_of_a_watched_stage(monkeypatch, recorder):
    events, _ = joint_events(monkeypatch, recorder, 16, stop=(7, 7))
    assert events == [
        ("judge", 0, 3), ("judge", 1, 3), ("stage", "joint-19", 2, 0),
        ("epoch", 3), ("keep", 4, False),
        ("epoch", 4), "embed", ("evaluate", 0, 5, ""), ("evaluate", 1, 5, "broke"), ("keep", 5, False),
        ("epoch", 5), ("keep", 6, False),
        ("epoch", 6), "embed", ("evaluate", 0, 7, ""), ("evaluate", 1, 7, "broke"), ("keep", 7, True),
        ("restore", 0), ("restore", 1),
    ]  # fmt: skip


def test_a_stage_lasts_until_every_training_has_stopped(monkeypatch, recorder):
    events, _ = joint_events(monkeypatch, recorder, 16, stop=(5, 9))
    assert [event[1] for event in events if event[0] == "epoch"] == [3, 4, 5, 6, 7, 8]
    assert [event[1:] for event in events if event[0] == "keep" and event[2]] == [(9, True)]


def test_a_stage_that_is_resumed_begins_where_it_was(monkeypatch, recorder):
    events, _ = joint_events(monkeypatch, recorder, 2, epoch=4)
    assert events[3:5] == [("epoch", 4), "embed"]
    assert events[-3:] == [("keep", 5, True), ("restore", 0), ("restore", 1)]


def test_a_stage_whose_length_was_given_is_not_looked_at(monkeypatch, recorder):
    events, runs = joint_events(monkeypatch, recorder, 2, watched=False)
    steps = [("epoch", 3), ("keep", 4, False), ("epoch", 4), ("keep", 5, True)]
    assert events == [("stage", "joint-5", 0, 0), *steps]
    assert [run.joint_stage.kept for run in runs] == [5, 5]


def test_pretraining_ends_with_centres_a_weight_and_clusters(monkeypatch, recorder):
    settings = Config(n_clusters=3, **TINY)
    run = init_state(stored_samples(), settings, 4)
    embedding = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    starts, own = [], stages.initial_centers

    def embed_all(together):
        run.history["reconstruction"][-1] = 1 / 3  # by which the weight is chosen
        return embedding[None]

    monkeypatch.setattr(stages, "embed_all", embed_all)
    monkeypatch.setattr(stages, "initial_centers", lambda *args: starts.append(args) or own(*args))
    stages.pretrain([run], 3, checkpoint=recorder)
    assert recorder.events == [
        ("stage", "pre-training-3", 0, -1),  # the centres are not trained
        ("epoch", 0), ("keep", 1, False), ("epoch", 1), ("keep", 2, False), ("epoch", 2), ("keep", 3, True),
    ]  # fmt: skip
    assert torch.equal(starts[0][0], embedding)
    assert starts[0][1:3] == (3, 4)
    centers = run.network.centers.detach().numpy()
    assert run.clusters.tolist() == reference.student_t(embedding.numpy(), centers).argmax(axis=1).tolist()
    assert (run.numbers["clustering_weight"], run.joint_stage.kept) == (pytest.approx(0.7 / 3), 3)


@pytest.mark.parametrize(("broken", "epochs"), [({0: 1}, [0, 1, 2, 3]), ({0: 1, 1: 2}, [0, 1, 2]), ({0: 0, 1: 0}, [0])])
def test_pretraining_ends_early_only_where_all_have_diverged(monkeypatch, recorder, broken, epochs):
    settings, stored = Config(n_clusters=3, **TINY), stored_samples()
    runs = [init_state(stored, settings, seed) for seed in range(2)]
    run_epoch = Epoch.run

    def spoiled(self, epoch):
        terms = run_epoch(self, epoch)
        for r, at in broken.items():
            terms["robustness"][0, r] = torch.nan if epoch == at else 0.0
        return terms

    monkeypatch.setattr(Epoch, "run", spoiled)
    prepared = []
    monkeypatch.setattr(stages, "_prepare_joint_stage", lambda run, embedding: prepared.append(run))
    stages.pretrain(runs, 4, checkpoint=recorder)
    assert [event[1] for event in recorder.events if event[0] == "epoch"] == epochs
    assert [event[1:] for event in recorder.events if event[0] == "keep"][-1] == (epochs[-1] + 1, True)
    assert prepared == [run for r, run in enumerate(runs) if r not in broken]


def test_only_what_is_missing_is_trained(monkeypatch, recorder):
    settings, stored = Config(n_clusters=3, **TINY), stored_samples()
    runs = [init_state(stored, settings, seed) for seed in range(4)]
    for run, epochs in zip(runs, (0, 2, 5, 6), strict=True):
        run_past(run, epochs, GROUPS)
    runs[3].clusters = None  # it was long enough, but has no centres
    prepared = []
    monkeypatch.setattr(stages, "_prepare_joint_stage", lambda run, embedding: prepared.append(run.seed))
    stages.pretrain(runs, 5, checkpoint=recorder)
    assert [event[1] for event in recorder.events if event[0] == "epoch"] == [*range(5), *range(2, 5)]
    assert prepared == [0, 1, 3]
    assert [run.n_epochs for run in runs] == [5, 5, 5, 6]
    recorder.events.clear()
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(5, 4))
    monkeypatch.setattr(Config, "watched", False)
    stages.train_jointly(runs[2:], checkpoint=recorder)
    assert [event[1] for event in recorder.events if event[0] == "epoch"] == [*range(5, 9), *range(6, 10)]


def test_what_is_said_of_the_stages_of_a_training(monkeypatch):
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(7, 9))
    run = init_state(stored_samples(), Config(n_clusters=3, **TINY), 0)
    run_past(run, 8, GROUPS)
    run.history["stage"][3:] = ["joint"] * 5
    run.numbers["clustering_weight"], stage = 0.25, run.joint_stage
    stage.kept, stage.seen, stage.score, stage.ended = 6, {3: 0.1, 6: 0.2}, {3: 1.0, 6: 0.9}, "it broke"
    stage.size_entropy = {3: 0.8, 6: 0.7}
    pretraining = stages.pretraining_decision(run, 0.5)
    assert (pretraining.chosen, pretraining.planned, pretraining.evidence) == (3, 7, {"agreement": 0.5})
    assert stages.pretraining_decision(run, None).evidence == {}
    joint = stages.joint_stage_decision(run)
    assert (joint.chosen, joint.lasted, joint.planned, joint.ended) == (3, 5, 9, "it broke")
    assert joint.evidence == {
        "neighbor_agreement_after_epoch": {"3": 0.1, "6": 0.2},
        "score_after_epoch": {"3": 1.0, "6": 0.9},
        "size_entropy_after_epoch": {"3": 0.8, "6": 0.7},
        "clustering_weight": 0.25,
    }
