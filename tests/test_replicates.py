"""Networks trained side by side are those trained alone."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from conftest import make_blobs
from test_training import SMALL, stored_blobs
from training_tools import index_samples, train, train_replicates
from viewfuse import Diverged, Views
from viewfuse.data.scaling import fit_scaler
from viewfuse.engine import replicates as passes
from viewfuse.engine.replicates import embed, pool, stack
from viewfuse.engine.training import Training, TrainState
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod, plain_batch
from viewfuse.methods.urrl.network import build_network, fully_connected
from viewfuse.methods.urrl.stages import embed_stored, init_state
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples
from viewfuse.nn import layers as streams_module
from viewfuse.nn.layers import Adam, GraphedStep, LayerNorm, Linear, PReLU

SEEDS = [3, 0, 8]
NUMBERS = {"view_dropout": 0.2, "clustering_weight": 0.1}
CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def masked_sets(settings, device=CPU, n=40):
    """Three sets of samples of one shape, with different values and masks."""
    sets = []
    for seed in SEEDS:
        views = Views(make_blobs(n, 3, seed=seed)[0])
        scaled = fit_scaler(views, "minmax").apply(views)
        values = [torch.tensor(a, device=device) for a in scaled.arrays]
        sets.append(index_samples(values, torch.tensor(scaled.mask, device=device), settings))
    return sets


def networks_for(settings, dtype=torch.float32, n=3):
    return [build_network((5, 8, 3), settings, torch.Generator().manual_seed(s)).to(dtype) for s in range(n)]


def in_double(samples):
    return Samples([view.double() for view in samples.values], samples.present, samples.neighbor_ids)


def side_by_side(monkeypatch):
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 16, "cuda": 16})


def distance(run, other):
    """Largest difference of weights, over the largest weight."""
    pairs = list(zip(run.network.parameters(), other.network.parameters(), strict=True))
    return max(
        float((a.cpu() - b.cpu()).detach().abs().max() / b.detach().abs().max().clamp(min=1e-3)) for a, b in pairs
    )


def assert_same(runs, others, tolerance):
    assert [run.seed for run in runs] == [other.seed for other in others]
    for run, other in zip(runs, others, strict=True):
        assert distance(run, other) < tolerance
        assert run.history["total"] == pytest.approx(other.history["total"], rel=tolerance)
        assert run.objective == run.history["total"][-1]
        assert torch.allclose(embed_stored(run).cpu(), embed_stored(other).cpu(), atol=10 * tolerance)


@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_networks_trained_side_by_side_are_those_trained_alone(monkeypatch, shared):
    settings = Config(**SMALL | {"pretrain_epochs": 1, "joint_epochs": 1}, n_clusters=3)
    sets = [stored_blobs(settings, n=40)] * 3 if shared else masked_sets(settings)
    alone = [train(samples, settings, seed) for samples, seed in zip(sets, SEEDS, strict=True)]
    side_by_side(monkeypatch)
    together = train_replicates(sets, settings, SEEDS)
    assert_same(together, alone, 2e-3)
    assert distance(together[0], together[1]) > 0.1


def test_steps_with_other_outputs_are_the_same_side_by_side():
    """What `test_step` does not write out."""
    settings = Config(**SMALL, neighbor_output="mean", view_output="concat", n_clusters=3)
    sets = [in_double(masked_sets(settings)[0])] * 3
    together = networks_for(settings, torch.float64)
    alone = networks_for(settings, torch.float64)
    for joint, epoch in ((False, 0), (True, 1)):
        logs = stepped(together, sets, settings, joint, epoch)
        for r in range(3):
            own = stepped(alone[r : r + 1], sets[r : r + 1], settings, joint, epoch, r)
            assert torch.allclose(own[:, 0], logs[:, r], rtol=1e-9)
    for network, other in zip(alone, together, strict=True):
        for a, b in zip(network.parameters(), other.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-9)


def stepped(networks, sets, settings, joint, epoch, first=0):
    """Loss terms of an epoch of networks, the first of which is the one with number `first`."""
    trainees = []
    for r, (network, samples) in enumerate(zip(networks, sets, strict=True), first):
        if joint:
            network.centers.data = torch.from_numpy(np.random.default_rng(r).normal(size=(3, 16)))
        numbers = {"view_dropout": (0.2, 0.5, 0.8)[r], "clustering_weight": (0.1, 0.3, 2.0)[r]}
        trainees.append(TrainState(network, samples, SEEDS[r], URRLMethod(settings), numbers))
    together = Training(trainees)
    found = together.begin((stages.joint_stage if joint else stages.pretraining_stage)(together, 1)).run(epoch)
    together.unstack()
    return torch.stack(list(found.values()), dim=2)


def test_a_stacked_network_computes_what_its_networks_compute():
    settings = Config(**SMALL, n_clusters=3)
    networks = networks_for(settings, torch.float64)
    sets = [in_double(samples) for samples in masked_sets(settings)]
    batches = [plain_batch(samples, samples, settings) for samples in sets]
    together = plain_batch(pool(sets), pool(sets), settings)
    found = stack(networks).encode(together)
    expected = torch.cat([network.encode(batch) for network, batch in zip(networks, batches, strict=True)])
    assert torch.allclose(found, expected, atol=1e-12)
    rebuilt = stack(networks).decode(expected)
    for v, view in enumerate(rebuilt):
        own = [network.decode(z)[v] for network, z in zip(networks, expected.chunk(3), strict=True)]
        assert torch.allclose(view, torch.cat(own), atol=1e-12)


@pytest.mark.parametrize(("on_cpu", "shared"), [(7, True), (None, False)])  # rows per pass of each, on a GPU of all
def test_embeddings_of_all_are_those_of_each(monkeypatch, shared, on_cpu):
    monkeypatch.setattr("viewfuse.methods.urrl.stages.rows_for_all", lambda n, device: on_cpu)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._MOST_ROWS", 21)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._LEAST_ROWS", 7)
    settings = Config(**SMALL, n_clusters=3)
    sets = [in_double(samples) for samples in masked_sets(settings)]
    sets = sets[:1] * 3 if shared else sets
    runs = [
        TrainState(network, samples, 0, URRLMethod(settings), NUMBERS)
        for network, samples in zip(networks_for(settings, torch.float64), sets, strict=True)
    ]
    expected = torch.stack([embed(run.method, run.network, run.stored, run.stored) for run in runs])
    assert torch.allclose(stages.embed_all(Training(runs)), expected, atol=1e-12)
    assert torch.allclose(stages.embed_all(Training(runs[1:2])), expected[1:2], atol=1e-12)


@pytest.mark.parametrize("layer", [Linear(4, 4), LayerNorm(4), fully_connected([4, 3, 5, 2])])
@pytest.mark.parametrize("n_replicates", [3])
def test_layers_with_a_leading_axis_have_the_values_and_gradients_of_each(layer, n_replicates):
    layers = [copy.deepcopy(layer).double() for _ in range(n_replicates)]
    for parameter in (p for one in layers for p in one.parameters()):
        torch.nn.init.normal_(parameter)
    together = stack(layers)
    x = torch.randn(6, 5, 4, dtype=torch.float64, requires_grad=True)
    parts = [one(part) for one, part in zip(layers, x.chunk(n_replicates), strict=True)]
    assert torch.allclose(together(x), torch.cat(parts))
    assert torch.autograd.gradcheck(lambda *_: together(x), (x, *together.parameters()))


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=[pytest.mark.gpu, needs_gpu])])
def test_prelu_is_torchs(device):
    x = torch.randn(6, 4, dtype=torch.float64, device=device, requires_grad=True)
    ours, theirs = PReLU().double().to(device), torch.nn.PReLU().double().to(device)
    found = [torch.autograd.grad((layer(x) ** 2).sum(), (x, layer.weight)) for layer in (ours, theirs)]
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_pooled_samples_have_the_neighbours_that_they_had_and_no_others():
    lists = [torch.tensor([[[1, 2]], [[0, NO_NEIGHBOR]], [[NO_NEIGHBOR, NO_NEIGHBOR]]]), torch.tensor([[[2, 1]]] * 3)]
    sets = [Samples([torch.rand(3, 2)], torch.ones(3, 1, dtype=torch.bool), own) for own in lists[::-1]]
    found = pool(sets).neighbor_ids[:, 0].tolist()
    assert found == [[2, 1]] * 3 + [[4, 5], [3, NO_NEIGHBOR], [NO_NEIGHBOR, NO_NEIGHBOR]]


def test_only_samples_of_equal_shapes_are_trained_side_by_side(monkeypatch):
    side_by_side(monkeypatch)
    settings = Config(**SMALL, n_clusters=3)
    wide, fewer = masked_sets(settings), masked_sets(settings, n=50)[0]
    narrow = Samples([wide[0].values[2], *wide[0].values[1:]], wide[0].present, wide[0].neighbor_ids)
    runs = [init_state(samples, settings, 0) for samples in (wide[0], narrow, wide[1], fewer)]
    places = {id(run): place for place, run in enumerate(runs)}
    assert [[places[id(run)] for run in group] for group in stages.stacked_groups(runs)] == [[0, 2], [1], [3]]


def test_a_replicate_that_diverges_is_named(monkeypatch):
    side_by_side(monkeypatch)
    settings = Config(**SMALL, n_clusters=3)
    sets = masked_sets(settings)
    sets[1].values[0][sets[1].present[:, 0]] = 1e30
    with pytest.raises(Diverged, match=r"not finite in epoch 1, step 1 \(seed 0\)"):
        train_replicates(sets, settings, SEEDS)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shared", [True, False])
def test_a_gpu_trains_side_by_side_what_it_trains_alone(shared, monkeypatch):
    # With ten bits of each factor rounding differs so much between shapes that trainings drift apart.
    monkeypatch.setattr("viewfuse.engine.training.tensor_cores", lambda device: nullcontext())
    settings = Config(**SMALL, n_clusters=3)
    sets = masked_sets(settings, GPU)
    sets = sets[:1] * 3 if shared else sets
    alone = [train(samples, settings, seed) for samples, seed in zip(sets, SEEDS, strict=True)]
    assert_same(train_replicates(sets, settings, SEEDS), alone, 5e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("n", [1, 3])
def test_a_recorded_step_does_what_the_step_does(monkeypatch, n):
    settings = Config(**{**SMALL, "batch_size": 8}, n_clusters=3)
    samples, made, record = masked_sets(settings, GPU)[0], [], GraphedStep._record
    monkeypatch.setattr(GraphedStep, "_record", lambda self: made.append(record(self)) or made[-1])
    recorded, again = (train_replicates([samples] * n, settings, SEEDS[:n]) for _ in range(2))
    assert len(made) == 4
    assert None not in made
    assert all(distance(one, other) == 0 for one, other in zip(recorded, again, strict=True))
    monkeypatch.setattr(GraphedStep, "_record", lambda self: None)
    assert_same(recorded, train_replicates([samples] * n, settings, SEEDS[:n]), 5e-3)


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_a_step_is_recorded(monkeypatch, enabled):
    """Another graph that is cleared away then would spoil the recording."""
    for name in ("CUDAGraph", "device", "stream", "current_stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    monkeypatch.setattr("viewfuse.nn.layers.recording_on", lambda *_: nullcontext())
    seen = []
    (gc.enable if enabled else gc.disable)()
    try:
        GraphedStep(lambda: seen.append(gc.isenabled()), torch.device("cuda"))._record()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen == [False]


def copied_shapes(seen):
    """The shapes of tensors that were copied; a mode of torch's would say the same, and import its compiler first."""
    return {tuple(one.input_shapes[0]) for one in seen.function_events if one.name in ("aten::clone", "aten::copy_")}


class FakeStream:
    """A stream that notes what it waits for."""

    def __init__(self, number):
        self.cuda_stream, self.waits = number, []

    def wait_stream(self, other):
        self.waits.append(other.cuda_stream)


@pytest.fixture
def streams(monkeypatch):
    """The streams of a recording that is under way, the main one first."""
    found = [FakeStream(0)]
    current = found[:]

    @contextmanager
    def on(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: found.append(FakeStream(len(found))) or found[-1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(streams_module, "_made", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with streams_module.recording_on(CPU):
        yield found


def test_views_run_side_by_side_and_are_waited_for(streams):
    on = streams_module.map_views(lambda v: (v, torch.cuda.current_stream().cuda_stream), 3)
    assert on == [(0, 1), (1, 2), (2, 3)]
    assert streams[0].waits == [1, 2, 3]
    assert [stream.waits for stream in streams[1:]] == [[0]] * 3


def in_turn_on():
    return streams_module.map_views(lambda v: (v, torch.cuda.current_stream().cuda_stream), 3)


def test_work_in_a_side_stream_is_waited_for(streams):
    for _ in range(2):
        with streams_module.side_stream():
            assert len({on for _, on in in_turn_on()}) == 1  # there views take turns
    assert len(streams) == 2
    assert streams[0].waits == []
    streams_module.join_streams()
    assert streams[0].waits == [1]
    assert len({on for _, on in in_turn_on()}) == 3


def test_each_stream_has_a_side_stream_of_its_own(streams):
    def aside(v):
        with streams_module.side_stream():
            return torch.cuda.current_stream().cuda_stream

    assert len(set(streams_module.map_views(aside, 3))) == 3
    streams[0].waits.clear()
    streams_module.join_streams()
    assert len(streams[0].waits) == 3


def test_adam_waits_for_side_streams(streams):
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with streams_module.side_stream():
        pass
    Adam([weight], lr=0.5).step()
    assert streams[0].waits == [1]
    assert weight.tolist() == pytest.approx([0.5, 0.5])


def test_a_later_recording_uses_the_streams_of_the_one_before(streams):
    in_turn_on()
    with streams_module.side_stream():
        pass
    with streams_module.recording_on(CPU), streams_module.side_stream():
        in_turn_on()
    assert len(streams) == 5


@pytest.mark.parametrize(
    "layer",
    [lambda: Linear(5, 5), lambda: LayerNorm(5), lambda: fully_connected([5, 4, 5])],
    ids=["linear", "norm", "both"],
)
def test_gradients_of_stacked_weights_are_not_copied(layer):
    """They are computed aside, so a copy could be made too early."""
    together = stack([layer() for _ in range(3)])
    with torch.autograd.profiler.profile(use_cpu=True, record_shapes=True) as seen:
        together(torch.randn(6, 5, requires_grad=True)).sum().backward()
    assert all(w.grad is not None for w in together.parameters())
    assert not {tuple(weight.shape) for weight in together.parameters()} & copied_shapes(seen)


@pytest.mark.parametrize("layer", [lambda: Linear(5, 5), lambda: LayerNorm(5)], ids=["linear", "norm"])
def test_gradients_are_computed_aside_only_of_weights_that_are_used_once(streams, layer):
    """Those of two uses are added at once, as of samples and of pairs."""
    once, twice = (stack([layer() for _ in range(3)]) for _ in range(2))
    rows = [torch.randn(6, 5, requires_grad=True) for _ in range(2)]
    (twice(rows[0]) + twice(rows[1])).sum().backward()
    assert len(streams) == 1
    once(rows[0]).sum().backward()
    assert len(streams) == 2


def test_a_network_keeps_no_gradients():
    settings = Config(**SMALL, n_clusters=3)
    run = train(masked_sets(settings)[0], settings, 0)
    assert all(weight.grad is None for weight in run.network.parameters())


def test_what_was_trained_together_leaves_no_memory_behind():
    settings = Config(**SMALL, n_clusters=3)
    samples = masked_sets(settings)[0]
    gc.disable()
    try:
        run = TrainState(networks_for(settings, n=1)[0], samples, 0, URRLMethod(settings), dict(NUMBERS))
        together = Training([run])
        steps = together.begin(stages.joint_stage(together, 1))
        steps.run(0)
        gone = weakref.ref(steps)
        del steps
        assert gone() is None
    finally:
        gc.enable()
