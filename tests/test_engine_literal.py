"""The engine beside literal lists: what is recorded, which trainings are stacked, when files are written, and seeds."""

from __future__ import annotations

import json
import pickle
import re
import signal
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from viewfuse.engine import checkpoint as checkpoint_module
from viewfuse.engine import replicates as passes
from viewfuse.engine import training as engine
from viewfuse.engine import training as progress_module
from viewfuse.engine.checkpoint import Checkpoint, differences, is_ours
from viewfuse.engine.replicates import epoch_keys, replicate_seeds, seed_under_scaling, segments
from viewfuse.engine.training import Epoch, Progress, Stage, Training, TrainState, check_diverged
from viewfuse.errors import CheckpointDiffers, Diverged, SettingError
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.stages import EarlyStopping
from viewfuse.neighbors.index import Samples
from viewfuse.nn import layers as graphed_step
from viewfuse.nn.layers import Adam, GraphedStep

CPU = torch.device("cpu")


class Terms:
    """A method with two clusters: a sample's cluster is its only number."""

    n_clusters = 2

    def __init__(self):
        self.sizes = []

    def embed(self, network, samples, stored):
        self.sizes.append(len(samples))
        return samples.values[0] * 10

    def assign(self, network, embedding):
        self.sizes.append(len(embedding))
        return torch.stack([-embedding[:, 0], embedding[:, 0]], dim=1)


def samples(n=6, widths=(1, 3), index=None):
    values = [torch.arange(n * width, dtype=torch.float32).view(n, width) for width in widths]
    return Samples(values, torch.ones(n, len(widths), dtype=bool), torch.zeros(n, len(widths), 1).long(), index)


def state(seed=0, stored=None, **history):
    network = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(network.weight, float(seed))
    network.stackable = True
    run = TrainState(network, stored or samples(), seed, Terms(), {"weight": 0.5})
    run.history |= history
    return run


def had(epochs):
    """The history of so many epochs."""
    numbers = [float(e) for e in range(epochs)]
    columns = {name: [*numbers] for name in ("rec", "rob", "total", "seconds")}
    return {"epoch": [*range(1, epochs + 1)], "stage": ["joint"] * epochs, **columns}


def test_an_epoch_is_written_down(monkeypatch):
    """Three trainings: a sound one, one with two broken steps, and one that was stopped before."""
    runs, told = [state(seed, **had(4)) for seed in (1, 2, 3)], []
    runs[2].joint_stage.settled = True
    rec = torch.tensor([[1.0, 1.0, 9.0], [2.0, 1.0, 9.0], [6.0, torch.inf, torch.nan]])
    rob = torch.tensor([[2.0, 1.0, 9.0], [4.0, torch.nan, 9.0], [6.0, torch.inf, 9.0]])
    terms = iter([{"rec": rec, "rob": rob, "total": rec + rob / 2}, {"rec": torch.full((2, 3), 6.0)}])
    clock = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(engine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(Epoch, "run", lambda self, epoch: next(terms))
    watches = [SimpleNamespace()] * 3
    Training(runs).run(Stage("joint", 2, 4, 0.1, None, watches=watches), SimpleNamespace(advance=told.append))
    assert {name: values[4:] for name, values in runs[0].history.items()} == {
        "epoch": [5, 6], "stage": ["joint"] * 2, "rec": [3.0, 6.0], "rob": [4.0, 0.0], "total": [5.0, 6.0],
        "seconds": [2.5, 1.0],
    }  # fmt: skip
    assert runs[1].history["epoch"][4:] == [5, 6]
    assert [run.diverged for run in runs] == ["", "the rob loss is not finite in epoch 5, step 2", ""]
    assert runs[2].n_epochs == 4
    assert [runs[0].objective, runs[2].objective, state().objective] == [6.0, 3.0, inf]
    assert told == [5.0, 6.0]
    with pytest.raises(Diverged, match=r"^the rob loss is not finite in epoch 5, step 2 \(seed 2\); lower"):
        check_diverged(runs)
    with pytest.raises(Diverged, match=r"^the rob loss is not finite in epoch 5, step 2; lower"):
        check_diverged(runs[1:2])


def test_the_terms_that_broke_first_are_named():
    run, nan, inf = state(), torch.nan, torch.inf
    terms = {"rec": [1.0, nan, 1.0], "rob": [2.0, inf, nan], "total": [nan, nan, nan]}
    Training([run]).record("joint", {name: torch.tensor(own)[:, None] for name, own in terms.items()}, 1.0)
    assert run.diverged == "the rec and rob loss is not finite in epoch 1, step 2"


def test_an_embedding_that_is_not_finite_stops_with_the_epoch():
    run = state(stored=samples(3), **had(7))
    assert stages.embed_stored(run).tolist() == [[0.0], [10.0], [20.0]]
    run.stored.values[0][1] = torch.nan
    with pytest.raises(Diverged, match="the embedding is not finite after epoch 7"):
        stages.embed_stored(run)


def test_trainings_side_by_side_are_alike_and_groups_are_even(monkeypatch):
    monkeypatch.setattr(stages, "max_stacked", lambda network, device: 3)
    runs = [state(seed) for seed in range(7)]
    runs += [state(10, **had(2)), state(11, samples(5)), state(12, samples(6, (3, 1))), state(13), state(14, **had(2))]
    found = [[run.seed for run in group] for group in stages.stacked_groups(runs)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 13], [10, 14], [11], [12]]
    assert [len(group) for group in stages.stacked_groups(runs[:4])] == [2, 2]


def test_all_that_was_learned_in_another_process_is_taken_over():
    run, other = state(3, **had(2)), state(4)
    run.clusters, run.diverged, run.numbers = torch.tensor([1, 0]), "broken", {"weight": 2.0}
    run.joint_stage.kept = 5
    other.take_over(run)
    assert torch.equal(other.network.weight, run.network.weight)
    assert (other.numbers, other.diverged, other.joint_stage.kept) == ({"weight": 2.0}, "broken", 5)
    assert other.clusters.tolist() == [1, 0]
    assert other.history == had(2)
    assert other.seed == 4


def test_another_process_gets_no_index():
    run = state(3, samples(index="a large one"), **had(2))
    assert run.__getstate__()["stored"].index is None
    assert run.stored.index == "a large one"


# --- passes


def test_passes_have_a_fixed_number_of_rows_and_the_last_row_fills_up():
    rows = [one.tolist() for one in passes.fixed_rows(5, 3, CPU)]
    assert rows == [[0, 1, 2], [3, 4, 4]]
    assert [len(part) for part in passes.passes(samples(130))] == [64, 64, 64]
    assert [part.values[0][:, 0].tolist() for part in passes.passes(samples(5), 4)][1] == [4.0] * 4


def test_rows_of_passes_over_all():
    found = {n: passes.rows_for_all(n, CPU) for n in (1, 64, 65, 256, 257, 600, 1000)}
    assert found == {1: 64, 64: 64, 65: 128, 256: 256, 257: 192, 600: 256, 1000: 256}
    assert passes.rows_for_all(1000, torch.device("cuda")) is None


def test_embeddings_and_clusters_are_made_in_parts():
    method, own = Terms(), samples(130)
    assert passes.embed(method, None, own, own).tolist() == [[10.0 * i] for i in range(130)]
    assert method.sizes == [64] * 3
    method.sizes.clear()
    embedding = torch.linspace(-1, 2, 2500)[:, None]
    assert passes.clusters(method, None, embedding).tolist() == (embedding[:, 0] > 0).long().tolist()
    assert method.sizes == [1024, 1024, 452]


@pytest.mark.parametrize(("n", "expected"), [(1, 16), (32, 16), (33, 64)])
def test_a_few_samples_have_small_passes(n, expected):
    tried = []

    def work(given):
        tried.append(given.present[:, 0].tolist())
        return given.values[0]

    stored = Samples([torch.zeros(3, 2)], torch.tensor([[True], [False], [True]]), torch.zeros(3, 1, 1).long())
    assert passes.rows_per_pass(n, torch.nn.Linear(1, 1), stored, work) == expected
    if n < 33:  # with the views of stored samples, one after another
        assert max(tried, key=len) == [i % 3 != 1 for i in range(64)]
    assert passes.rows_per_pass(n, torch.nn.Linear(1, 1), stored, None) == 64


def test_all_networks_of_a_gpu_are_embedded_in_passes_of_so_many_rows(monkeypatch):
    monkeypatch.setattr(stages, "rows_for_all", lambda n, device: None)
    monkeypatch.setattr(stages, "_MOST_ROWS", 12)
    monkeypatch.setattr(stages, "_LEAST_ROWS", 2)
    for count, size in ((3, 4), (12, 2)):
        sets = [samples(6) for _ in range(count)]
        for r, own in enumerate(sets):
            own.values[0] += 6 * r
        together = Training([state(r, own) for r, own in enumerate(sets)])
        found = stages.embed_all(together)
        assert found[:, :, 0].tolist() == [[60.0 * r + 10 * i for i in range(6)] for r in range(count)]
        assert together.runs[0].method.sizes == [count * size] * -(-6 // size)


@pytest.mark.parametrize(
    ("device", "recorded", "expected"),
    [
        ("cuda", True, ["step"] * 3 + ["record", "replay", "replay"]),
        ("cuda", False, ["step"] * 3 + ["record", "step", "step"]),
        ("cpu", True, ["step"] * 5),
    ],
)
def test_a_gpu_records_a_step_once_and_replays_it(monkeypatch, device, recorded, expected):
    events = []
    graph = SimpleNamespace(replay=lambda: events.append("replay")) if recorded else None
    monkeypatch.setattr(GraphedStep, "_record", lambda self: events.append("record") or graph)
    step = GraphedStep(lambda: events.append("step"), torch.device(device))
    for _ in range(5):
        step()
    assert events == expected


def test_a_gpu_has_its_precision_back(monkeypatch):
    products = SimpleNamespace(fp32_precision="ieee")
    monkeypatch.setattr(graphed_step.torch.backends.cuda, "matmul", products)
    with graphed_step.tensor_cores(torch.device("cuda")):
        assert products.fp32_precision == "tf32"
    assert products.fp32_precision == "ieee"
    with graphed_step.tensor_cores(CPU):
        assert products.fp32_precision == "ieee"


# --- checkpoints


class Learner:
    """A network with an Adam that has made steps."""

    def __init__(self, fill=0.0, steps=0):
        self.network = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(self.network.weight, fill)
        self.adam = Adam([self.network.weight, self.network.bias])
        for _ in range(steps):
            self.network(torch.ones(1, 2)).sum().backward()
            self.adam.step()


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda: now[0])
    return now


def facts_of(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["facts"]), set(file.keys())


def test_a_stage_is_written_once_a_minute_and_at_its_end(tmp_path, clock):
    checkpoint = Checkpoint(tmp_path, {"n": 3})
    checkpoint._clock.written = clock[0]
    other = checkpoint.part("scaling").stage("joint", [state(3), state(4)], Learner(steps=1))
    own, on_disk, path = checkpoint.stage("joint", [state(3)], Learner(steps=1)), [], tmp_path / "joint-3.safetensors"
    for epoch in own.left(range(8)):
        clock[0] += 20.0
        own.keep(epoch + 1, last=epoch + 1 == 8)
        on_disk.append(facts_of(path)[0]["epoch"] if path.exists() else None)
    assert on_disk == [None, None, 3, 3, 3, 6, 6, 8]
    clock[0] += 59.5
    other.left(range(8))
    other.keep(1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fit.json", "joint-3.safetensors"]
    clock[0] += 0.5
    other.keep(2)  # all parts share one clock
    assert (tmp_path / "scaling-joint-3-4.safetensors").exists()
    assert json.loads((tmp_path / "fit.json").read_text()) == {"n": 3}


def test_adam_is_kept_until_its_stage_is_over(tmp_path):
    stage = Checkpoint(tmp_path).stage("joint", [state(3)], Learner(steps=1))
    stage.left(range(4))
    moments = {f"adam.{i}.{name}" for i in range(2) for name in ("step", "exp_avg", "exp_avg_sq")}
    weights = {"network.weight", "network.bias"}
    for epoch, names in ((3, moments | weights), (4, weights)):
        stage.keep(epoch, last=True)
        assert facts_of(tmp_path / "joint-3.safetensors")[1] == names


def test_the_best_weights_so_far_are_in_the_file_of_the_stage(tmp_path):
    run, learner = state(3), Learner(steps=1)
    watch = EarlyStopping(run.method, learner.network, run.stored.neighbor_ids, run.joint_stage)
    stage = Checkpoint(tmp_path).stage("joint", [run], learner, [watch])
    stage.left(range(9))
    watch.judge(2, torch.tensor([0, 0, 0, 1, 1, 1]))
    best = learner.network.weight.detach().clone()
    with torch.no_grad():
        learner.network.weight += 1
    for epoch, kept in ((3, best), (5, best + 1)):
        if epoch == 5:
            watch.weights = {name: x.clone() for name, x in learner.network.state_dict().items()}
        stage.keep(epoch, last=True)
        with safe_open(tmp_path / "joint-3.safetensors", "pt") as file:
            assert torch.equal(file.get_tensor("best.0.weight"), kept)
            assert torch.equal(file.get_tensor("network.weight"), best + 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fit.json", "joint-3.safetensors"]


def test_a_stage_that_goes_on_has_all_that_it_had(tmp_path):
    def made(fill, steps):
        runs = [state(3), state(4)]
        learner = Learner(fill, steps)
        return runs, learner, [EarlyStopping(r.method, r.network, r.stored.neighbor_ids, r.joint_stage) for r in runs]

    runs, learner, watches = made(0.25, 3)
    runs[0].history, runs[1].history, runs[1].diverged = had(5), had(4), "broken"
    for labels in ([0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]):
        for epoch, watch in enumerate(watches):
            watch.judge(4 + epoch, torch.tensor(labels))
    watches[1].counters |= {"mark": 0.125, "waited": 2, "best": 0.5}
    stage = Checkpoint(tmp_path, {"n": 3}).stage("joint", runs, learner, watches)
    stage.left(range(2, 9))
    stage.keep(6, last=True)

    again, other, looks = made(0.0, 0)
    found = Checkpoint(tmp_path, {"n": 3}).stage("joint", again, other, looks)
    assert found.epoch == 6
    assert found.left(range(2, 9)) == range(6, 9)
    assert torch.equal(other.network.weight, learner.network.weight)
    for i in range(2):
        ours, theirs = other.adam.state_dict()["state"][i], learner.adam.state_dict()["state"][i]
        assert float(ours["step"]) == 3.0
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [one.history for one in again] == [had(5), had(4)]
    assert [one.diverged for one in again] == ["", "broken"]
    assert [one.joint_stage for one in again] == [one.joint_stage for one in runs]
    assert [one.counters for one in looks] == [one.counters for one in watches]
    assert looks[1].counters == {"best": 0.5, "mark": 0.125, "n_clusters": 2, "waited": 2}
    for own, known in zip(looks, watches, strict=True):
        assert own.labels.tolist() == known.labels.tolist()
        assert all(torch.equal(own.weights[name], x) for name, x in known.weights.items())
    assert again[0].joint_stage.seen.keys() == {4}
    with pytest.raises(CheckpointDiffers, match="n was 3, is 4"):
        Checkpoint(tmp_path, {"n": 4})


def test_the_first_interruption_waits_and_the_second_does_not(tmp_path):
    checkpoint, before, passed = Checkpoint(tmp_path), signal.getsignal(signal.SIGINT), []

    def interrupted(checkpoint, times):
        part = checkpoint.part("choice")
        with checkpoint.interruptible():
            for number in range(times):
                signal.raise_signal(signal.SIGINT)
                passed.append((number, checkpoint.is_stopping(), checkpoint.is_due, part.is_stopping(), part.is_due))

    with pytest.raises(KeyboardInterrupt):
        interrupted(checkpoint, 2)
    assert signal.getsignal(signal.SIGINT) is before
    assert not pickle.loads(pickle.dumps(checkpoint)).is_stopping()
    with pytest.raises(KeyboardInterrupt):
        interrupted(Checkpoint(tmp_path), 1)  # there was no epoch to wait for
    # Python may run a line more before it calls the handler of the second signal.
    assert [one for one in passed if one[0] == 0] == [(0, True, True, True, True)] * 2


def test_what_differs_is_told_from_both_sides():
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == "b was 2, is 3; c was None, is 4"
    assert differences({"a": 1, "d": 5}, {"a": 1}) == "d was 5, is None"
    assert differences({"a": [1, 2]}, {"a": [1, 2]}) == ""


def test_whose_folder_it_is(tmp_path):
    assert is_ours(tmp_path)
    (tmp_path / "photo.png").write_bytes(b"")
    assert not is_ours(tmp_path)
    (tmp_path / "fit.json").write_text("{}")
    assert is_ours(tmp_path)


def test_a_checksum_is_of_names_numbers_and_facts():
    checksum, ones, twos = checkpoint_module._checksum, torch.ones(2), torch.full((2,), 2.0)
    sums = [
        checksum({"a": ones, "b": twos}, "{}"), checksum({"a": twos, "b": ones}, "{}"),
        checksum({"a": ones, "c": twos}, "{}"), checksum({"a": ones, "b": twos}, "{ }"),
    ]  # fmt: skip
    assert len(set(sums)) == 4
    assert checksum({"b": twos, "a": ones}, "{}") == sums[0]


# --- progress


def test_every_stage_has_a_clock_and_a_count_of_its_own(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: now[0])
    with Progress(shown=True) as progress:
        progress.begin("first")
        for _ in range(3):
            now[0] += 2.0
            progress.advance(0.5)
        progress.begin("second")
        now[0] += 4.0
        progress.advance(0.4)
        progress.end_stage()
        now[0] += 50.0
    assert capsys.readouterr().err == "first: 3 epochs in 6 s\nsecond: 1 epochs in 4 s\n"


def test_a_bar_shows_all_epochs_and_the_last_loss(monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "is_live", lambda: True)
    with Progress(shown=True) as progress:
        progress.expect(5)
        progress.begin("first")
        progress.advance(0.5)
        progress.advance(0.123456)
        progress.expect(4)
        progress._bar.refresh()
        last = re.split(r"[\r\n]", capsys.readouterr().err)[-1]
    assert "2/6" in last
    assert "loss=0.1235" in last


def test_epochs_of_another_process_are_shown_when_they_are_known(monkeypatch):
    shown, progress = [], Progress()
    advance = progress.advance
    monkeypatch.setattr(progress, "advance", lambda loss: shown.append(loss) or advance(loss))
    progress.begin("training")
    progress.advance(0.5)
    progress.reach(3, 0.25)
    progress.reach(3, 0.125)
    assert shown == [0.5, 0.25, 0.25]
    assert type(pickle.loads(pickle.dumps(progress))) is Progress


# --- seeds and random numbers


def test_seeds_are_these():
    assert replicate_seeds(7, 4) == [7, 2668623899, 1426569617, 1373263289]
    assert replicate_seeds(7, "auto", usual=2) == [7, 2668623899]
    assert [seed_under_scaling(7, place) for place in range(3)] == [7, 314170893, 417579663]
    assert replicate_seeds(np.random.RandomState(3), 1) == [218175338]
    assert replicate_seeds(np.random.default_rng(3), 1) == [1742692731]
    assert replicate_seeds(0, 1) == [0]
    assert replicate_seeds(2**64 - 1, 1) == [2**64 - 1]
    for wrong in (-1, 2**64, "7", 1.5):
        with pytest.raises(SettingError, match="random_state must be an integer from 0"):
            replicate_seeds(wrong, 1)
    assert replicate_seeds(None, 1) != replicate_seeds(None, 1)


def test_keys_of_places_are_as_far_apart_as_numbers_are_drawn():
    key, increment = epoch_keys([5], 2)[0, 0], 0x9E3779B97F4A7C15
    found = segments(key, torch.tensor([[0, 3], [1, 7]]), 10)
    expected = [[(int(key) + place * 10 * increment) % 2**64 for place in row] for row in ([0, 3], [1, 7])]
    assert [[number % 2**64 for number in row] for row in found.tolist()] == expected


def test_a_stage_after_one_that_was_ended_early_is_trained_and_written_down(monkeypatch):
    run = state(1, **had(2))
    run.joint_stage.settled = True
    monkeypatch.setattr(Epoch, "run", lambda self, epoch: {"rec": torch.ones(3, 1)})
    Training([run]).run(Stage("afterwards", 2, 4, 0.1, None))
    assert run.history["stage"] == ["joint"] * 2 + ["afterwards"] * 2
