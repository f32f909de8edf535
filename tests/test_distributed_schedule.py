"""When `fit-large` does what, as literal lists: visits, looks, checkpoints, progress; what it takes from the bank."""

from __future__ import annotations

import json
import math
import zlib
from contextlib import nullcontext
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from reference_step import keys, order
from sharded_data import in_threads
from test_dense_literal import assert_close
from test_distributed_literal import (
    ALONE,
    BANK,
    GROUP,
    GROUPS,
    PER_BUCKET,
    SEED,
    WIDTHS,
    N,
    literal_rows,
    prepared,
    unlike_rows,
)  # fmt: skip
from viewfuse import Config, __version__
from viewfuse.distributed import first_pass, shards, training
from viewfuse.distributed import fit_large as fit_module
from viewfuse.distributed import processes as processes_module
from viewfuse.distributed.first_pass import Buckets
from viewfuse.distributed.fit_large import _Job
from viewfuse.distributed.processes import Processes, joined
from viewfuse.distributed.shards import Layout
from viewfuse.distributed.training import PreparedRows, Visit, VisitPlan, train_on_all
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.training import TrainState
from viewfuse.errors import DataError, Diverged, EmptySampleWarning, SettingError, SuspiciousDataWarning, ViewfuseError
from viewfuse.methods.urrl import stages as early_stopping
from viewfuse.methods.urrl.stages import EarlyStopping
from viewfuse.utils import memory

__all__ = ["prepared"]  # a fixture
LAYOUT = Layout("id", {"v0": ["v0"], "v1": ["v1"]}, (range(3), range(2)))
BEFORE = 4
"""Epochs that the bank was trained for."""


# --- the plan


@pytest.mark.parametrize(
    ("counts", "size", "batch_size", "expected"),
    [
        ([100, 90], 8, 64, (8, 8)), ([100, 90], 8, 71, (8, 8)), ([100, 90], 8, 4, (8, 1)), ([100, 5], 8, 64, (5, 1)),
        ([20, 30], 8, 1000, (8, 2)), ([100, 30], 8, 16, (8, 2)),
    ],
)  # fmt: skip
def test_groups_of_a_batch(counts, size, batch_size, expected):
    plan = VisitPlan.of(counts, size, batch_size, 10, SEED)
    assert (plan.size, plan.groups) == expected
    assert [plan.batches_in(b) for b in range(2)] == [count // math.prod(expected) for count in counts]


def literal_visits(counts, per_batch, steps):
    """All buckets in a new order, again and again, until all steps are made."""
    found = []
    while sum(n for _, _, n in found) < steps:
        for bucket in order(keys(SEED, len(found))[1], len(counts)):
            left = steps - sum(n for _, _, n in found)
            if left:
                found.append((len(found), bucket, min(left, counts[bucket] // per_batch)))
    return found


def test_visits_are_divided_evenly_among_epochs():
    plan = VisitPlan.of([100, 30, 20], 8, 16, 20, SEED)  # 6, 1 and 1 batches
    visits = literal_visits([100, 30, 20], 16, 20)
    ends = list(accumulate(n for _, _, n in visits))
    for count in (1, 3, 8):
        parts = [[] for _ in range(count)]
        for visit, end in zip(visits, ends, strict=True):
            parts[min(count - 1, math.floor((end - 1) / 20 * count))].append(Visit(*visit))
        assert plan.epochs(count) == [part for part in parts if part]
    assert len({bucket for _, bucket, _ in visits[:3]}) == 3
    assert [len(part) for part in VisitPlan([64, 64], 8, 8, 5, SEED).epochs(2)] == [3, 2]
    assert [len(part) for part in VisitPlan([64, 64], 8, 8, 5, SEED).epochs(8)] == [1] * 5


def test_every_process_has_its_share_of_every_batch():
    plan, visit = VisitPlan([100, 60], 4, 5, 9, SEED), Visit(3, 1, 2)
    shuffled = order(keys(SEED, 3)[1], 15)
    for rank in range(5):
        found = plan.groups_of(visit, Processes(rank, 5, torch.device("cpu")))
        assert found.tolist() == [[shuffled[rank]], [shuffled[5 + rank]]]
    two = [plan.groups_of(visit, Processes(rank, 2, torch.device("cpu"))).tolist() for rank in range(2)]
    assert two[0] == [[shuffled[0], shuffled[2], shuffled[4]], [shuffled[5], shuffled[7], shuffled[9]]]
    assert two[1] == [[shuffled[1], shuffled[3]], [shuffled[6], shuffled[8]]]
    with pytest.raises(SettingError, match="a batch is 5 groups of 4 rows, too few for 6 processes"):
        plan.groups_of(visit, Processes(0, 6, torch.device("cpu")))


@pytest.mark.parametrize(
    ("n_rows", "trained", "bank", "number"),
    [(10**6, 300_000, 20_000, 3), (10**6, 262_144, 20_000, 2), (100, 10**9, 20, 1), (10**9, 10**9, 10**5, 256)],
)
def test_rows_are_divided_into_buckets(n_rows, trained, bank, number):
    buckets = Buckets.of(n_rows, trained, bank)
    assert buckets.number == number
    assert buckets.last_trained == (2**64 - 1 if trained >= n_rows else int(trained / n_rows * 2.0**64))
    assert buckets.last_in_bank == int(bank / n_rows * 2.0**64)
    edges = np.array([0, buckets.last_trained // 2, buckets.last_trained], np.uint64)
    assert buckets.of_rows(edges).tolist() == [0, int(number / 2 - 1e-9), number - 1]
    others = np.array([buckets.last_trained + 1, 2**63, 2**64 - 1] if trained < n_rows // 2 else [], np.uint64)
    expected = [int(key) // (2**64 // buckets.parts + 1) for key in others]
    assert buckets.of_rows(others).tolist() == [number + min(part, buckets.parts - 1) for part in expected]


def reads(number, rows, forget=lambda *_: None):
    """A reader of so many buckets."""
    return SimpleNamespace(rows=lambda b: (None, rows(b)), forget=forget, buckets=SimpleNamespace(number=number))


def test_rows_are_prepared_a_few_at_a_time(prepared, monkeypatch, tmp_path):
    model, rows, counts, _ = prepared
    views, mask, _, _ = unlike_rows()
    wide = np.concatenate([np.where(mask[:, [v]], view, np.nan) for v, view in enumerate(views)], axis=1)
    monkeypatch.setattr(memory, "_ROWS_AT_A_TIME", 7)
    for bucket, own in enumerate(literal_rows()[0]):
        reader = reads(1, lambda _, own=own: wide[own].astype(np.float32))
        again = PreparedRows(tmp_path / str(bucket), list(WIDTHS), model.stored.neighbor_ids.shape[2])
        again.prepare(reader, LAYOUT, model, ALONE)
        parted, found = again.read(0, np.arange(len(own)), 1), rows.read(bucket, np.arange(counts[bucket]), 1)
        for view, other in zip(parted.values, found.values, strict=True):
            np.testing.assert_allclose(view, other, rtol=1e-5, atol=1e-6)
        assert parted.present.tolist() == found.present.tolist() == mask[own].tolist()
        assert parted.neighbor_ids.tolist() == found.neighbor_ids.tolist()


def test_groups_are_runs_of_rows_and_the_rest_is_left_out(prepared):
    _, rows, counts, _ = prepared
    every = rows.read(0, np.arange(counts[0]), 1)
    some = rows.read(0, np.array([[2, 0], [1, 3]]), 4)
    places = [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]
    for own, view in zip(some.values, every.values, strict=True):
        assert torch.equal(own, view[places])
    assert torch.equal(some.present, every.present[places])
    assert torch.equal(some.neighbor_ids, every.neighbor_ids[places])


def mapping(own):
    """A process that does a part of all items."""
    return SimpleNamespace(map=lambda work, items, share: [work(item) for item in items[own]])


def test_buckets_are_made_once_and_what_they_were_made_of_goes(prepared, tmp_path):
    model, events = prepared[0], []
    rows = PreparedRows(tmp_path, list(WIDTHS), model.stored.neighbor_ids.shape[2])

    def values(bucket):
        events.append(("make", bucket))
        return np.ones((10 + bucket, sum(WIDTHS)), np.float32)

    reader = reads(4, values, lambda b: events.append(("forget", b)))
    rows.prepare(reads(3, values), LAYOUT, model, mapping(slice(1, None)))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0001.npy", "0002.npy"]
    second = mapping(slice(None, None, 2))
    (tmp_path / "0002.npy").write_bytes((tmp_path / "0002.npy").read_bytes()[:-1])
    events.clear()
    rows.prepare(reader, LAYOUT, model, second)
    assert events == [("make", 0), ("forget", 0), ("make", 2), ("forget", 2)]
    events.clear()
    rows.prepare(reader, LAYOUT, model, second)
    assert [event[0] for event in events] == ["forget", "forget"]
    assert rows.prepare(reads(3, values), LAYOUT, model, mapping(slice(None))) == [10, 11, 12]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0000.npy", "0001.npy", "0002.npy"]


def test_a_checksum_is_of_the_bytes_of_all_weights(prepared):
    model, _, counts, _ = prepared
    run = state(model)
    step = training.SharedStep(run, VisitPlan.of(counts, GROUP, 12, 1, SEED), ALONE)
    content = b"".join(one.detach().numpy().tobytes() for one in run.network.parameters())
    assert step.checksum() == zlib.crc32(content)


# --- the schedule


class Told:
    """A progress that keeps what it is told."""

    def __init__(self, events):
        self._events = events

    def __getattr__(self, name):
        return lambda *args: self._events.append((name, *args))


def state(model):
    names = ("reconstruction", "robustness", "clustering", "total", "seconds")
    history = {
        "epoch": [*range(1, BEFORE + 1)],
        "stage": ["joint"] * BEFORE,
        **{name: [1.0] * BEFORE for name in names},
    }
    network = type(model.network)(list(WIDTHS), model.method.config)
    network.load_state_dict(model.network.state_dict())
    numbers = {"view_dropout": 0.4, "clustering_weight": 0.8}
    return TrainState(network, model.stored, SEED, model.method, numbers, history=history)


@pytest.fixture
def events(monkeypatch):
    """What happens in a training on all rows, in order."""
    found, epoch, evaluate = [], training.SharedStep.epoch, EarlyStopping.evaluate

    def one(step, rows, visits):
        found.append(("epoch", [visit.number for visit in visits]))
        return epoch(step, rows, visits)

    monkeypatch.setattr(training.SharedStep, "epoch", one)
    monkeypatch.setattr(
        EarlyStopping, "evaluate", lambda watch, e, *others: (found.append(("look", e)), evaluate(watch, e, *others))
    )
    monkeypatch.setattr(training.SharedStep, "checksum", lambda step: found.append(("equal",)))
    monkeypatch.setattr(early_stopping, "_STILL", 2.0)  # it does not end where nothing changes
    monkeypatch.setattr(early_stopping, "_PATIENCE", 1)
    monkeypatch.setattr(training, "EPOCHS", 3)
    return found


def test_a_training_on_all_rows_is_looked_at_kept_and_gone_on_with(prepared, events, tmp_path, monkeypatch):
    model, rows, counts, _ = prepared
    plan = VisitPlan.of(counts, GROUP, GROUP * GROUPS, 7, SEED)
    parts = [[visit.number for visit in part] for part in plan.epochs(3)]
    assert len(parts) == 3
    run, checkpoint = state(model), Checkpoint(tmp_path, {"n": N})
    train_on_all(run, rows, plan, ALONE, Checkpoint(), Told(events))
    total = run.history["total"]
    assert events == [
        ("expect", 3), ("begin", "training on all rows"), ("look", 4),
        ("epoch", parts[0]), ("equal",), ("look", 5), ("advance", total[4]),
        ("epoch", parts[1]), ("equal",), ("look", 6), ("advance", total[5]),
        ("epoch", parts[2]), ("equal",), ("look", 7), ("advance", total[6]), ("end_stage",),
    ]  # fmt: skip
    assert run.history["epoch"] == [*range(1, 8)]
    assert run.history["stage"] == ["joint"] * 4 + ["all rows"] * 3
    assert list(run.joint_stage.seen) == [4, 5, 6, 7]

    events.clear()
    with monkeypatch.context() as patch:
        seen = []
        patch.setattr(
            training.SharedStep, "checksum", lambda step: seen.append(1) or (None if len(seen) < 3 else {}[2])
        )
        with pytest.raises(KeyError):
            train_on_all(state(model), rows, plan, ALONE, checkpoint, Told(events))
    with safe_open(tmp_path / "all-rows-5.safetensors", "pt") as file:
        assert json.loads(file.metadata()["facts"])["epoch"] == 2
    events.clear()
    again = state(model)
    train_on_all(again, rows, plan, ALONE, Checkpoint(tmp_path, {"n": N}), Told(events))
    assert events == [
        ("expect", 1), ("begin", "training on all rows"), ("epoch", parts[2]), ("equal",), ("look", 7),
        ("advance", total[6]), ("end_stage",),
    ]  # fmt: skip
    assert again.history["total"] == total
    for own, other in zip(again.network.parameters(), run.network.parameters(), strict=True):
        assert torch.equal(own, other)
    events.clear()
    train_on_all(state(model), rows, plan, ALONE, Checkpoint(tmp_path, {"n": N}), Told(events))
    assert events == [("expect", 0), ("begin", "training on all rows"), ("end_stage",)]


def test_a_training_that_was_stopped_makes_no_more_epochs(prepared, events):
    model, rows, counts, _ = prepared
    run = state(model)
    run.joint_stage.ended = "by somebody"
    with pytest.raises(RuntimeError):  # nothing was looked at, so there is nothing to go back to
        train_on_all(run, rows, VisitPlan.of(counts, GROUP, 12, 7, SEED), ALONE, Checkpoint(), Told(events))
    assert [event[0] for event in events] == ["expect", "begin", "look", "end_stage"]


def test_the_epoch_and_the_loss_that_broke_are_named(prepared, events, monkeypatch):
    model, rows, counts, _ = prepared
    epoch, asked = training.SharedStep.epoch, []

    def broken(step, rows, visits):
        asked.append(1)
        return {**epoch(step, rows, visits), **({"robustness": math.inf} if len(asked) > 1 else {})}

    monkeypatch.setattr(training.SharedStep, "epoch", broken)
    with pytest.raises(Diverged, match=r"^the robustness loss is not finite in epoch 6; lower learning_rate"):
        train_on_all(state(model), rows, VisitPlan.of(counts, GROUP, 12, 7, SEED), ALONE, Checkpoint(), Told(events))


def test_there_are_eight_epochs():
    assert (training.EPOCHS, training.STAGE) == (8, "all rows")


# --- the job


def job(bank=20, steps=1, batch_size=512, kind="cpu", size=1, out=Path("out")):
    own = type("NinetyRows", (), {"__len__": lambda self: 90})()
    own.layout, own.paths, own.digest, own.ignored = LAYOUT, ["a", "b"], lambda: "abc", []
    processes = SimpleNamespace(
        device=torch.device(kind),
        size=size,
        is_first=True,
        from_first=lambda value: value,
        together=lambda work: work(),
        first=lambda work: work(),
    )
    asked = {"n_clusters": 3, "random_state": 7, "batch_size": batch_size, "bank": bank, "steps": steps}
    return _Job(own, out, processes, {**asked, "embedding": True}, {"config": Config(noise=0.1)})


@pytest.mark.parametrize(("kind", "expected"), [("cpu", (20_000, 250, 1_024)), ("cuda", (100_000, 2_500, 4_096))])
def test_what_auto_means(kind, expected):
    own = job("auto", "auto", "auto", kind)
    assert (own.bank, own.steps, own.batch_size) == expected
    own = job(20, 1, 1, kind)
    assert (own.bank, own.steps, own.batch_size, own.seed) == (20, 1, 1, 7)
    for wrong in ((19, 1, 1), (20, 0, 1), (20, 1, 0), (20.0, 1, 1), (True, 1, 1), ("20", 1, 1)):
        with pytest.raises(SettingError, match="must be 'auto' or an integer of at least"):
            job(*wrong)


@pytest.mark.parametrize(("batch_size", "size", "is_enough"), [(512, 8, True), (511, 8, False), (1, 1, True)])
def test_every_process_has_a_small_batch_at_least(batch_size, size, is_enough):
    with nullcontext() if is_enough else pytest.raises(SettingError, match="is less than 64 rows per process"):
        job(20, 1, batch_size, size=size)


def test_all_on_which_results_depend():
    facts = job(30, 4, 128).facts
    names = [
        "n_clusters",
        "random_state",
        "batch_size",
        "bank",
        "steps",
        "embedding",
        "config",
        "rows",
        "views",
        "shards",
    ]
    assert list(facts)[: len(names)] == names  # the order in which differences are told
    assert facts == {
        "n_clusters": 3, "random_state": 7, "batch_size": 128, "bank": 30, "steps": 4, "embedding": True,
        "config": "Config(noise=0.1)", "rows": 90, "views": ["v0", "v1"], "shards": "abc",
        "version of viewfuse": __version__, "version of torch": str(torch.__version__), "device": "cpu",
    }  # fmt: skip


@pytest.mark.parametrize(("n_rows", "told"), [(89, "1 of 90 rows have no view at all"), (90, "")])
def test_every_row_that_is_left_out_is_told_of(monkeypatch, n_rows, told):
    facts = SimpleNamespace(n_rows=n_rows)
    monkeypatch.setattr(fit_module, "run_first_pass", lambda *args, **ways: facts)
    monkeypatch.setattr(_Job, "_start", lambda *_: {}["stop"])
    with pytest.raises(KeyError), pytest.warns(EmptySampleWarning, match=told) if told else nullcontext():
        job()._run(SimpleNamespace(tell=lambda line: None), trust=False)


def test_columns_that_are_not_looked_at_are_named(tmp_path):
    own = job(out=tmp_path)
    own.shards.ignored = [f"c{i}" for i in range(9)]
    with pytest.warns(
        SuspiciousDataWarning, match=r"9 column\(s\) .* are ignored: c0, c1, c2, c3, c4, c5, c6, c7; name"
    ):
        own._claim(force=False)


def test_seconds_are_rounded(monkeypatch):
    clock = iter([1.0, 3.26])
    monkeypatch.setattr(fit_module.time, "perf_counter", lambda: next(clock))
    own = job()
    with own._timed("reading"):
        pass
    assert own.seconds == {"reading": 2.3}


@pytest.mark.parametrize(("bank", "steps", "batch", "expected"), [(30, 3, 16, 48), (30, 1, 16, 30)])
def test_no_more_rows_are_kept_than_are_trained_on(monkeypatch, tmp_path, bank, steps, batch, expected):
    asked = []
    monkeypatch.setattr(fit_module.Buckets, "of", lambda *args: asked.append(args) or {}["stop"])
    with pytest.raises(KeyError):
        job(bank, steps, batch, out=tmp_path)._run(SimpleNamespace(tell=lambda line: None), trust=False)
    assert asked == [(90, expected, bank)]


def test_the_fit_of_the_bank_has_a_checkpoint_and_the_seed_of_the_run(tmp_path, monkeypatch):
    events = []

    class Fit:
        def __init__(self, n_clusters, **options):
            events.append((n_clusters, options))

        def fit(self, views):
            events.append((views.ids.tolist(), [view.tolist() for view in views.arrays]))
            return self

        def save(self, folder):
            events.append(folder)

        @staticmethod
        def load(folder, device):
            return folder, device

    monkeypatch.setattr(fit_module, "URRL", Fit)
    own, told = job(out=tmp_path), []
    reader = SimpleNamespace(bank=lambda: (["x", "y"], np.arange(10, dtype=np.float32).reshape(2, 5)))
    folder = tmp_path / "checkpoint"
    assert own._start(reader, SimpleNamespace(tell=told.append, is_shown=True)) == (folder / "start", "cpu")
    options = {
        "checkpoint": folder / "fit",
        "verbose": True,
        "config": Config(noise=0.1),
        "random_state": 7,
        "device": "cpu",
    }
    views = [[[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]], [[3.0, 4.0], [8.0, 9.0]]]
    assert events == [(3, options), (["x", "y"], views), folder / "start"]
    assert told == ["fitting 2 of 90 rows"]
    (folder / "start").mkdir(parents=True)
    (folder / "start" / "manifest.json").write_text("{}")
    own._start(reader, None)  # what is done is not done again
    assert len(events) == 3


def test_the_training_on_all_rows_has_what_was_asked_for_and_what_the_bank_decided(prepared, tmp_path, monkeypatch):
    events, runs, model = [], [], prepared[0]
    rows = SimpleNamespace(prepare=lambda *args: events.append(args[1:]) or [30, 30])
    monkeypatch.setattr(fit_module, "PreparedRows", lambda *args: events.append(args) or rows)
    monkeypatch.setattr(fit_module, "train_on_all", lambda run, *args: runs.append(run) or events.append(args))
    monkeypatch.setattr(fit_module, "_save", lambda *args: events.append(args))
    evidence = {"joint_stage": {"evidence": {"clustering_weight": 0.125}}}
    start = SimpleNamespace(_model=model, decisions_=evidence, history_={"epoch": [1, 2]})
    own, waited = job(30, 9, 24, out=tmp_path), []
    own.checkpoint, own.processes.first = Checkpoint(tmp_path / "c", {}), lambda work: waited.append(work())
    own._train(start, None, SimpleNamespace(tell=lambda line: None))
    depth = model.stored.neighbor_ids.shape[2]
    assert events[:2] == [(tmp_path / "checkpoint" / "prepared", [3, 2], depth), (LAYOUT, model, own.processes)]
    given, plan, processes, checkpoint, _ = events[2]
    size = model.method.config.batch_size
    assert (given, processes, plan) == (rows, own.processes, VisitPlan.of([30, 30], size, 24, 9, 7))
    assert checkpoint._prefix == "all-"
    assert checkpoint._clock is own.checkpoint._clock
    assert events[3:] == [(start, runs[0], tmp_path / "model")]
    assert list(own.seconds) == ["neighbours", "training"]
    assert waited == [None]
    (run,) = runs
    missing = 1 - model.stored.present.double().mean().item()
    assert run.numbers == {"view_dropout": pytest.approx(0.15 + 0.85 * missing**2), "clustering_weight": 0.125}
    assert missing > 0.1
    assert (run.seed, run.history["epoch"], run.network) == (7, [1, 2], model.network)
    assert run.stored is model.stored


def test_the_clusters_of_the_bank_are_those_of_the_trained_network(prepared):
    """Neighbours are counted by where the network that learned from all rows places them."""
    model, seen = prepared[0], []
    take_over = {"_take_over": lambda *fitted: seen.extend(fitted), "save": seen.append}
    start = SimpleNamespace(_model=model, decisions_={}, objectives_=[4.0], **take_over)
    run = state(model)
    run.history["total"].append(2.0)
    run.history["epoch"].append(5)
    fit_module._save(start, run, "folder")
    trained, embedding, history, objectives, _, folder = seen
    assert folder == "folder"
    assert (objectives, history) == ([4.0, 2.0], run.history)
    expected = model.method.embed(run.network, run.stored, run.stored)
    assert_close(embedding, expected, rtol=1e-4, atol=1e-5)
    assert trained.calibration.labels.tolist() == trained.assign(trained.stored, embedding).argmax(axis=1).tolist()
    assert np.array_equal(trained.calibration.again, model.calibration.again)


# --- processes


def test_errors_of_all_processes_are_one(monkeypatch):
    others = [DataError("of the first"), DataError("of the second")]
    monkeypatch.setattr(Processes, "gather", lambda self, value: [*others, value])
    three = Processes(2, 3, torch.device("cpu"))
    with pytest.raises(DataError, match="of the first"):
        three.together(lambda: 1)
    others.clear()
    with pytest.raises(ViewfuseError, match="process 2: OSError: no such disk"):
        three.together(lambda: (_ for _ in ()).throw(OSError("no such disk")))
    with pytest.raises(ViewfuseError, match="process 2: MemoryError"):
        three.together(lambda: (_ for _ in ()).throw(MemoryError()))
    others[:] = ["a", "b"]
    assert three.from_first("c") == "a"
    assert [Processes(rank, 3, three.device).is_first for rank in range(3)] == [True, False, False]


def test_the_work_of_all_is_divided_and_known_to_all():
    shares = [list(range(7))[rank::3] for rank in range(3)]
    did = in_threads(3, lambda own: own.map(lambda i: (own.rank, i), range(7)))
    assert did == [[(next(r for r in range(3) if i in shares[r]), i) for i in range(7)]] * 3
    assert in_threads(3, lambda own: own.map(str, range(2))) == [["0", "1"]] * 3
    assert in_threads(2, lambda own: own.first(lambda: f"by {own.rank}")) == ["by 0"] * 2
    for fault in (MemoryError, FileNotFoundError):  # alone there is nobody who waits, and verbs know what to say

        def work(_, fault=fault):
            raise fault

        with pytest.raises(fault):
            ALONE.map(work, [1])
        with pytest.raises(ViewfuseError, match=f"process 0: {fault.__name__}"):
            in_threads(2, lambda own: own.map(work, [1]))


class Group:
    """What torch.distributed is asked."""

    def __init__(self, monkeypatch, known=False):
        self.asked = {}
        own = {
            "is_initialized": lambda: known,
            "rendezvous": self.rendezvous,
            "PrefixStore": lambda prefix, store: (prefix, store),
            "init_process_group": lambda backend, **ways: self.asked.update(backend=backend, group=ways),
            "get_rank": lambda: 1,
            "get_world_size": lambda: 3,
            "destroy_process_group": lambda: self.asked.update(destroyed=True),
        }
        for name, work in own.items():
            monkeypatch.setattr(torch.distributed, name, work)
        monkeypatch.setenv("WORLD_SIZE", "3")

    def rendezvous(self, address, **ways):
        self.asked["met"] = address, ways
        yield "store", 1, 3


def test_processes_share_the_gpus_of_their_machine(monkeypatch):
    chosen, group = [], Group(monkeypatch)
    monkeypatch.setattr(
        processes_module, "chosen_device", lambda name: torch.device("cuda:0" if name == "auto" else name)
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(str(device)))
    monkeypatch.setenv("LOCAL_RANK", "6")
    backends = {}
    for name, count in (("auto", "4"), ("cuda", "5"), ("cuda:1", "4")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
        with joined(name) as found:
            assert (found.rank, found.size, str(found.device)) == (1, 3, chosen[-1])
        backends[name] = group.asked["backend"]
    assert chosen == ["cuda:2", "cuda:2", "cuda:1"]
    assert backends == {"auto": "cpu:gloo,cuda:nccl", "cuda": "gloo", "cuda:1": "cpu:gloo,cuda:nccl"}


def test_limits_by_size_are_these():
    assert (first_pass._ROWS_PER_BUCKET, first_pass._MOST_BUCKETS, BANK, PER_BUCKET) == (131_072, 256, 30, 30)
    assert (shards._ROWS, memory._ROWS_AT_A_TIME, training._SHARE) == (16_384, 65_536, 4)
    assert processes_module._PATIENCE.total_seconds() == 86_400


@pytest.mark.parametrize("attempt", [None, "2"])
def test_processes_meet_in_a_store_of_their_attempt_and_wait_a_day(monkeypatch, attempt):
    group, day = Group(monkeypatch), timedelta(days=1)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if attempt:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
    with joined("cpu"):
        assert "destroyed" not in group.asked
    own = (f"viewfuse-{attempt or 0}", "store")
    assert group.asked == {
        "met": ("env://", {"timeout": day}),
        "backend": "gloo",
        "group": {"store": own, "rank": 1, "world_size": 3, "timeout": day},
        "destroyed": True,
    }


def test_a_group_that_is_there_is_used_and_kept(monkeypatch):
    group = Group(monkeypatch, known=True)
    with joined("cpu") as found:
        assert (found.rank, found.size) == (1, 3)
    assert group.asked == {}
