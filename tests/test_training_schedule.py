"""The stages of trainings as lists of events: what is trained, looked at and kept, and after which epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from schedule_tools import GROUPS, TINY, run_past, stored_samples
from viewfuse.engine.progress import SILENT
from viewfuse.methods.urrl import training
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.cost import fit_bytes, step_seconds
from viewfuse.methods.urrl.training import init_state


class Recorder:
    """Stands for networks side by side, and for the checkpoint and its stage."""

    def __init__(self, epoch=None):
        self.events, self.epoch = [], epoch

    def side_by_side(self, runs, *, joint):
        self.events.append(("joint", joint))
        return self

    def stage(self, name, runs, replicates, watches=()):
        self.events.append(("stage", name, len(watches)))
        return self

    def left(self, epochs):
        return epochs if self.epoch is None else range(self.epoch, epochs.stop)

    def keep(self, epoch, *, last=False):
        self.events.append(("keep", epoch, last))

    def unstack(self):
        self.events.append("unstack")

    def finish(self):
        self.events.append("finish")

    def embed(self):
        self.events.append("embed")
        return [torch.full((60, 8), float(r)) for r in range(2)]


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


def joint_events(monkeypatch, length, *, stop=(99, 99), watched=True, epoch=None):
    settings = Config(n_clusters=3, joint_epochs="auto" if watched else length, **TINY)
    stored, recorder = stored_samples(), Recorder(epoch)
    runs = [init_state(stored, settings, seed) for seed in (0, 1)]
    for run in runs:
        run_past(run, 3, GROUPS)
    watches = [Watch(recorder, r, run.joint_stage, stop[r]) for r, run in enumerate(runs)] if watched else []
    monkeypatch.setattr(
        training, "Replicates", lambda runs, joint: recorder.events.append(("joint", joint)) or recorder
    )
    monkeypatch.setattr(training, "EarlyStopping", lambda *args, settles: watches.pop(0) if settles else None)
    monkeypatch.setattr(
        training, "run_epoch", lambda runs, reps, epoch, stage, progress: recorder.events.append((stage, epoch))
    )
    runs[1].diverged = "broke" if watched else ""
    training._train_jointly_together(runs, range(3, 3 + length), SILENT, recorder)
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
def test_a_joint_stage_is_looked_at_eight_times(monkeypatch, length, looks):
    events, _ = joint_events(monkeypatch, length)
    assert [event[2] - 3 for event in events if event[0] == "evaluate" and event[1] == 0] == looks


def test_the_events_of_a_watched_stage(monkeypatch):
    events, _ = joint_events(monkeypatch, 16, stop=(7, 7))
    assert events == [
        ("joint", True), ("stage", "joint", 2), ("judge", 0, 3), ("judge", 1, 3),
        ("joint", 3), ("keep", 4, False),
        ("joint", 4), "unstack", "embed", ("evaluate", 0, 5, ""), ("evaluate", 1, 5, "broke"), ("keep", 5, False),
        ("joint", 5), ("keep", 6, False),
        ("joint", 6), "unstack", "embed", ("evaluate", 0, 7, ""), ("evaluate", 1, 7, "broke"), ("keep", 7, True),
        "finish", ("restore", 0), ("restore", 1),
    ]  # fmt: skip


def test_a_stage_lasts_until_every_training_has_stopped(monkeypatch):
    events, _ = joint_events(monkeypatch, 16, stop=(5, 9))
    assert [event[1] for event in events if event[0] == "joint"] == [True, 3, 4, 5, 6, 7, 8]
    assert [event[1:] for event in events if event[0] == "keep" and event[2]] == [(9, True)]


def test_a_stage_that_is_taken_up_again_does_not_judge_its_start(monkeypatch):
    events, _ = joint_events(monkeypatch, 2, epoch=4)
    assert events[2:5] == [("joint", 4), "unstack", "embed"]
    assert events[-4:] == [("keep", 5, True), "finish", ("restore", 0), ("restore", 1)]


def test_a_stage_whose_length_was_given_is_not_looked_at(monkeypatch):
    events, runs = joint_events(monkeypatch, 2, watched=False)
    steps = [("joint", 3), ("keep", 4, False), ("joint", 4), ("keep", 5, True)]
    assert events == [("joint", True), ("stage", "joint", 0), *steps, "finish"]
    assert [run.joint_stage.kept for run in runs] == [5, 5]


def test_pretraining_ends_with_centres_a_weight_and_clusters(monkeypatch):
    recorder, settings = Recorder(), Config(n_clusters=3, **TINY)
    run = init_state(stored_samples(), settings, 4)
    embedding = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    recorder.embed = lambda: [embedding]
    starts, own = [], training.initial_centers
    monkeypatch.setattr(
        training, "Replicates", lambda runs, joint: recorder.events.append(("joint", joint)) or recorder
    )
    monkeypatch.setattr(training, "run_epoch", lambda runs, r, epoch, s, p: run_past(run, epoch + 1, GROUPS))
    monkeypatch.setattr(training, "initial_centers", lambda *args: starts.append(args) or own(*args))
    training._pretrain_together([run], range(3), SILENT, recorder)
    assert recorder.events == [
        ("joint", False), ("stage", "pretraining-3", 0),
        ("keep", 1, False), ("keep", 2, False), ("keep", 3, True), "finish",
    ]  # fmt: skip
    assert starts[0][0] is embedding
    assert starts[0][1:3] == (3, 4)
    centers = run.network.centers.detach().numpy()
    assert run.clusters.tolist() == reference.student_t(embedding.numpy(), centers).argmax(axis=1).tolist()
    assert (run.numbers["clustering_weight"], run.joint_stage.kept) == (pytest.approx(0.7 / 3), 3)


@pytest.mark.parametrize(("broken", "epochs"), [({0: 1}, [0, 1, 2, 3]), ({0: 1, 1: 2}, [0, 1, 2]), ({0: 0, 1: 0}, [0])])
def test_pretraining_ends_early_only_where_all_have_diverged(monkeypatch, broken, epochs):
    recorder, settings, ran = Recorder(), Config(n_clusters=3, **TINY), []
    stored = stored_samples()
    runs = [init_state(stored, settings, seed) for seed in range(2)]

    def run_epoch(runs, replicates, epoch, stage, progress):
        ran.append(epoch)
        for r, at in broken.items():
            runs[r].diverged = runs[r].diverged or ("it broke" if epoch == at else "")

    monkeypatch.setattr(training, "Replicates", recorder.side_by_side)
    monkeypatch.setattr(training, "run_epoch", run_epoch)
    prepared = []
    monkeypatch.setattr(training, "_prepare_joint_stage", lambda run, embedding: prepared.append(run))
    training._pretrain_together(runs, range(4), SILENT, recorder)
    assert ran == epochs
    assert prepared == [run for r, run in enumerate(runs) if r not in broken]


def test_jobs_are_the_trainings_that_are_not_there_yet(monkeypatch):
    settings = Config(n_clusters=3, **TINY)
    stored, jobs = stored_samples(), []
    runs = [init_state(stored, settings, seed) for seed in range(4)]
    for run, epochs in zip(runs, (0, 2, 5, 6), strict=True):
        run_past(run, epochs, GROUPS)
    runs[3].clusters = None  # it was long enough, but has no centres
    monkeypatch.setattr(training, "run_jobs", lambda given, **_: jobs.extend(given) or [[] for _ in given])
    monkeypatch.setattr(training, "_learn", lambda groups, jobs, *_: training.run_jobs(jobs))
    training.pretrain(runs, 5, threads=2)
    widths = [view.shape[1] for view in stored.values]
    assert [(job.args[1][0].seed, job.args[2]) for job in jobs] == [(0, range(5)), (1, range(2, 5)), (3, range(6, 5))]
    step = step_seconds(widths, settings)
    assert [job.seconds for job in jobs] == pytest.approx([5 * 3 * step, 3 * 3 * step, 0.0])  # 60 // 16 steps
    assert {(job.threads, job.gpus, job.n_bytes) for job in jobs} == {(2, 0, fit_bytes(60, widths, settings))}
    jobs.clear()
    monkeypatch.setattr(Config, "epochs", lambda self, n: (5, 4))
    training.train_jointly(runs[1:3])
    assert [job.args[2] for job in jobs] == [range(2, 6), range(5, 9)]


def test_what_is_said_of_the_stages_of_a_training(monkeypatch):
    monkeypatch.setattr(Config, "epochs", lambda self, n: (7, 9))
    run = init_state(stored_samples(), Config(n_clusters=3, **TINY), 0)
    run_past(run, 8, GROUPS)
    run.history["stage"][3:] = ["joint"] * 5
    run.numbers["clustering_weight"], stage = 0.25, run.joint_stage
    stage.kept, stage.seen, stage.size_entropy, stage.ended = 6, {3: 0.1, 6: 0.2}, {3: 1.0, 6: 0.9}, "it broke"
    assert training.pretraining_decision(run, 0.5) == {"chosen": 3, "planned": 7, "evidence": {"agreement": 0.5}}
    assert training.pretraining_decision(run, None)["evidence"] == {}
    assert training.joint_stage_decision(run) == {
        "chosen": 3, "lasted": 5, "planned": 9, "ended": "it broke", "merged": False,
        "evidence": {
            "neighbor_agreement_after_epoch": {"3": 0.1, "6": 0.2},
            "size_entropy_after_epoch": {"3": 1.0, "6": 0.9},
            "clustering_weight": 0.25,
        },
    }  # fmt: skip
