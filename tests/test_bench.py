"""The plain reference computes what the package computes; the measurements are whole. No test asserts a time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from inspect import unwrap

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.command import main
from benchmarks.reference.model import PlainModel, PlainNetwork, PlainTraining, batch_losses, copy_weights
from benchmarks.speed import child, picture, roofline, wide
from benchmarks.speed import measure as speed
from benchmarks.speed.adapter import (
    OurTraining,
    losses_of_both,
    own_losses,
    plain_batch,
    scaled_table,
    stored_samples,
)
from benchmarks.speed.picture import comparisons, draw_speed
from benchmarks.speed.wide import WideSize
from conftest import make_blobs
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import draws_per_sample, view_dropout_rate
from viewfuse.methods.urrl.losses_and_augmentation import plain_batch as as_they_are
from viewfuse.methods.urrl.network import build_network

CPU = torch.device("cpu")
SETTINGS = Config(
    n_clusters=3, embedding_dim=16, hidden_dim=12, batch_size=20, pretrain_epochs=2, joint_epochs=2,
    clustering_weight=0.1,
)  # fmt: skip
TINY = speed.Size(
    every=2,
    portions=1,
    neighbor_counts=(60,),
    scaling_counts=(60,),
    epochs=1,
    seeds=(0,),
    most_epochs=1,
    side=16,
    floats=64,
    wide=WideSize(40, (300, 260), (8, 6), 30, 20_000, texts=40, words=400, epochs=1, portions=1),
)


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch):
    """Torch's optimizers would import its compiler for a second, to keep themselves out of what it compiles."""
    own = unwrap(torch.optim.Optimizer.add_param_group)
    monkeypatch.setattr(own, "__dynamo_disable", own, raising=False)


@pytest.fixture
def pair():
    """Our stored samples, our network and the plain one with the same weights."""
    table = scaled_table(make_blobs(60, 3)[0])
    stored = stored_samples(table, SETTINGS, CPU)
    network = build_network((5, 8, 3), SETTINGS, torch.Generator().manual_seed(0))
    network.centers.data.normal_()
    plain = PlainNetwork((5, 8, 3), SETTINGS)
    copy_weights(network, plain)
    return table, stored, network, plain


def test_the_plain_network_gives_our_embeddings(pair):
    _, stored, network, plain = pair
    batch = as_they_are(stored, stored, SETTINGS)
    assert batch.valid.any(dim=2).all()  # a list in which nothing is filled is where torch's encoder differs
    assert not stored.present.all()
    again = plain.encode({"tokens": batch.tokens, "filled": batch.valid, "have": batch.available})
    assert torch.allclose(network.encode(batch), again, atol=1e-5)


def test_the_plain_losses_and_gradients_are_ours(pair):
    _, stored, network, plain = pair
    rows, rate = torch.arange(20), view_dropout_rate(stored.present)
    draws = torch.rand(1, 20, sum(draws_per_sample(stored, SETTINGS)))
    own = own_losses(network, stored, rows, SETTINGS, rate, draws)
    same = batch_losses(plain, plain_batch(stored, rows, SETTINGS, rate, draws), joint=True)
    assert torch.allclose(torch.cat(own), torch.stack(same), rtol=1e-4)
    assert (torch.cat(own) > 0).all()
    sum(own).sum().backward()
    sum(same).backward()
    assert torch.allclose(network.centers.grad, plain.centers.grad, atol=1e-6)
    for ours, theirs in zip(network.decoders.parameters(), plain.decoders.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
    query = network.neighbor_encoders[0].block.query.weight.grad
    assert torch.allclose(query, plain.neighbor_encoders[0].layers[0].self_attn.in_proj_weight.grad[:9], atol=1e-6)


def test_the_plain_data_are_ours(pair):
    table, stored, _, _ = pair
    ours = as_they_are(stored, stored, SETTINGS)
    samples = PlainTraining(table, SETTINGS, 0, CPU)._as_they_are
    theirs = default_collate([samples[i] for i in range(len(samples))])["plain"]
    assert torch.equal(ours.valid, theirs["filled"])
    assert torch.equal(ours.available, theirs["have"])
    for a, b in zip(ours.tokens, theirs["tokens"], strict=True):
        assert torch.equal(a, b)


def test_plain_augmentation_drops_and_spoils(pair):
    training = PlainTraining(pair[0], SETTINGS, 0, CPU)
    batch = default_collate([training.samples[i] for i in range(60)])
    available, present = batch["augmented"]["have"], batch["present"]
    assert (available <= present).all()
    assert available.any(dim=1).all()
    assert available.sum() < present.sum()
    for v, tokens in enumerate(batch["augmented"]["tokens"]):
        valid = batch["augmented"]["filled"][:, v]
        assert (tokens[~valid] == 0).all()
        assert 0.01 < (tokens[valid] == 0).float().mean() < 0.12  # feature_dropout is 0.05


@pytest.mark.slow
def test_both_learn_the_same():
    table, quick = scaled_table(make_blobs(60, 3)[0]), replace(SETTINGS, learning_rate=6e-3)
    ours, plain = OurTraining(table, quick, 0, CPU), PlainTraining(table, quick, 0, CPU)
    ends = []
    for run in (ours, plain):
        terms = [run.run_epoch(epoch).reshape(3, 3) for epoch in range(3)]
        run.begin_joint_stage()
        terms += [run.run_epoch(epoch).reshape(3, 3) for epoch in range(3, 7)]
        assert terms[-1].mean(dim=0)[0] < 0.7 * terms[0].mean(dim=0)[0]
        assert set(run.labels().tolist()) <= {0, 1, 2}
        ends.append(torch.stack(terms[-4:]).mean(dim=(0, 1)))
    assert float(ends[0][0]) == pytest.approx(float(ends[1][0]), rel=0.3)  # other random numbers


@pytest.mark.slow
def test_the_plain_model_places_new_samples():
    views, _, _ = make_blobs(90, 3, missing=0.2)
    model = PlainModel([view[:60] for view in views], SETTINGS, 0, CPU)
    assert model.labels.shape == (60,)
    again = model.predict([view[:60] for view in views])
    assert again.shape == (60,)
    assert np.isin(model.predict([view[60:] for view in views]), [0, 1, 2]).all()


@pytest.mark.slow
def test_operations_are_counted_as_torch_counts_them(pair):
    _, stored, network, plain = pair
    rows, rate = torch.arange(20), view_dropout_rate(stored.present)
    draws = torch.rand(1, 20, sum(draws_per_sample(stored, SETTINGS)))
    with FlopCounterMode(display=False) as ours:
        own_losses(network, stored, rows, SETTINGS, rate, draws)
    with FlopCounterMode(display=False) as theirs:
        batch_losses(plain, plain_batch(stored, rows, SETTINGS, rate, draws), joint=True)
    # Torch leaves out the distances of the losses and, on a CPU, attention that is computed in one piece.
    distances, over_views, over_lists = 20 * 23 * 16, 40 * 2 * 9 * 16, 40 * 2 * 16 * (9 + 12 + 7)
    expected = [2 * roofline.multiply_adds((5, 8, 3), SETTINGS, asked) for asked in (1, 4)]
    assert 0 <= expected[0] - ours.get_total_flops() <= 2 * (distances + over_views)
    assert 0 <= expected[1] - theirs.get_total_flops() <= 2 * (distances + over_views + over_lists)
    learned = sum(w.numel() for w in network.parameters() if w.dim() == 2)
    assert roofline.weights((5, 8, 3), SETTINGS) == learned


def test_the_mixture_lacks_views_but_never_all():
    views, labels = child.mixture(500)
    missing = np.stack([np.isnan(view).all(axis=1) for view in views], axis=1)
    assert missing.mean() == pytest.approx(0.3, abs=0.05)
    assert not missing.all(axis=1).any()
    assert all(np.isnan(view).any(axis=1).sum() == gone.sum() for view, gone in zip(views, missing.T, strict=True))
    assert len(labels) == 500


def in_this_process(fit):
    return child.run(fit)


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.slow
def test_bench_speed_writes_json_and_picture(tmp_path, monkeypatch):
    # New processes take seconds to start; that memory is measured in one is not what is tested here.
    monkeypatch.setattr(speed, "measured", in_this_process)
    monkeypatch.setattr(wide, "in_child", lambda work, job: work(job))
    monkeypatch.setattr(speed, "Size", lambda: TINY)
    monkeypatch.setattr(child, "load_handwritten", few_digits)
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["speed", "--out", str(out), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("training", "neighbours of 60", "fit of 60", "the floor of a step"))
    assert (out / "speed.png").read_bytes()[:4] == b"\x89PNG"
    text = (out / "speed.json").read_text()
    assert str(tmp_path) not in text
    found = json.loads(text)
    parts = ["training", "default_fit", "accuracy", "memory", "neighbors", "predict", "scaling", "wide", "floor"]
    assert list(found) == ["machine", *parts]
    assert "a step after reduction" in done.output
    assert {"cpu", "cores", "gpu", "versions", "date", "command", "load_before"} <= set(found["machine"])
    assert found["machine"]["command"] == "python -m benchmarks speed --device cpu"
    assert found["training"]["losses_of_one_batch"]["largest_relative_difference"] < 1e-3
    assert found["neighbors"][0]["same_neighbors"] == 1
    assert found["default_fit"]["plain_steps"] > 0
    assert found["default_fit"]["accuracy"] > 0.4
    assert {"floor_ms", "gflops", "copy_gb_per_second", "megabytes", "times_the_floor"} <= set(found["floor"])
    assert {"ours", "plain", "n", "epochs"} <= set(found["scaling"][0])
    assert {line.what for line in comparisons(found)} >= {"training", "predict, many rows", "predict, one row"}
    refused = CliRunner().invoke(main, ["speed", "--out", str(out)])
    assert refused.exit_code == 2
    draw_speed(tmp_path / "again.png", {**found, "accuracy": None, "scaling": [{"n": 9, "epochs": 1, "ours": {}}]})


def few_digits():
    from viewfuse.datasets import load_handwritten

    views, digits = load_handwritten()
    return [view[::10] for view in views], digits[::10]


@pytest.mark.slow
def test_a_fit_is_measured_in_a_process_of_its_own():
    ballast = np.ones(50_000_000)  # which only this process has
    found = child.measured(child.Fit("ours", 60, 1, "cpu"))
    assert found["seconds"] > 0
    assert found["peak_mb"] < child.memory_now()
    assert 0 < found["more_than_before_mb"] < ballast.nbytes / 1e6


def test_a_fit_that_fails_is_said_to_have_failed(monkeypatch):
    monkeypatch.setattr(child, "ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    found = child.measured(child.Fit("ours", 5, 1, "cpu"))  # fewer samples than clusters
    assert list(found) == ["failed"]
    assert "5 samples are fewer than" in found["failed"]


def test_memory_of_this_process_is_known():
    assert 0 < child.memory_now() <= child.memory_peak()


def test_same_losses_on_handwritten():
    table = scaled_table([view[::20] for view in child.handwritten()[0]])
    settings = Config(n_clusters=10, clustering_weight=0.1).sized(len(table))
    run = OurTraining(table, settings, 0, CPU)
    both = losses_of_both(run.runs[0].network, run.stored, torch.arange(64), settings)
    assert both["ours"] == pytest.approx(both["plain"], rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.5, 30, [2, 5, 10, 20]), (560, 690, [575, 600, 625, 650, 675]), (2.1, 4.2, [3, 4]), (1.01, 1.02, [1.01, 1.02])],
)
def test_an_axis_has_two_numbers_at_least(low, high, expected):
    assert picture._round_numbers(low, high) == pytest.approx(expected)


def test_what_is_measured_is_the_default():
    assert Config(n_clusters=10).search_depth == speed._NEIGHBORS
    assert (speed.FULL.seeds, speed.FULL.portions) == ((0, 1, 2), 9)
