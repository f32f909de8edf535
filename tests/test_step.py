"""Every step of stacked networks is that of each network alone, written out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from conftest import make_blobs
from reference_step import Learner
from training_tools import index_samples
from viewfuse.engine.replicates import RandomNumbers
from viewfuse.engine.training import Training, TrainState
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import TERMS, URRLMethod
from viewfuse.methods.urrl.network import build_network
from viewfuse.methods.urrl.stages import joint_stage, pretraining_stage

CONFIG = Config(
    n_clusters=3, n_neighbors=3, donor_depth=6, embedding_dim=8, hidden_dim=6, n_heads=2, batch_size=5,
    learning_rate=0.01, weight_decay=0.05, noise=0.3, feature_dropout=0.2, robustness_weight=0.5, imputed_bias=-1.0,
)  # fmt: skip
"""Every part of a step weighs enough to be seen."""
N, EPOCHS = 11, (4, 5)
SEEDS, RATES, WEIGHTS = (3, 0, 8), (0.25, 0.5, 0.75), (0.25, 0.5, 2.0)


@pytest.fixture(autouse=True)
def _in_double(monkeypatch):
    """The noise, too, is computed in float64, from the same numbers."""
    uniform = RandomNumbers.uniform
    monkeypatch.setattr(RandomNumbers, "uniform", lambda self, count: uniform(self, count).double())


@cache
def samples(number):
    """Values and mask of one of several sets."""
    views, _, mask = make_blobs(N, 3, widths=(2, 4, 3), missing=0.4, seed=number)
    return [np.nan_to_num(view).astype(np.float64) / 4 for view in views], mask


@cache
def stored(number):
    values, mask = samples(number)
    return index_samples([torch.from_numpy(view) for view in values], torch.from_numpy(mask), CONFIG)


def network_of(replicate):
    generator = torch.Generator().manual_seed(replicate)
    network = build_network((2, 4, 3), CONFIG, generator).double()
    network.centers.data.normal_(generator=generator)
    return network


def weights_of(network):
    """All weights one after another, the centres last."""
    named = sorted(network.named_parameters(), key=lambda pair: pair[0] == "centers")
    return torch.cat([weights.detach().flatten() for _, weights in named])


@cache
def expected(replicate, number, config, joint):
    """Loss terms of every step, and the weights after it, epoch by epoch."""
    learner = Learner(
        network_of(replicate), *samples(number), config, SEEDS[replicate], RATES[replicate], WEIGHTS[replicate],
        joint=joint,
    )  # fmt: skip
    return [(learner.run_epoch(epoch), weights_of(learner.network)) for epoch in EPOCHS]


def run_of(replicate, number, config=CONFIG):
    numbers = {"view_dropout": RATES[replicate], "clustering_weight": WEIGHTS[replicate]}
    return TrainState(network_of(replicate), stored(number), SEEDS[replicate], URRLMethod(config), numbers)


def epochs_of(runs, *, joint):
    """Train together, epoch by epoch; gives the terms of every step, per name of shape (steps, replicates)."""
    together = Training(runs)
    steps = together.begin((joint_stage if joint else pretraining_stage)(together, 1))
    for epoch in EPOCHS:
        terms = steps.run(epoch)
        together.unstack()
        yield terms


def check(replicates, numbers, config=CONFIG, *, joint):
    """Train the replicates on the sets with these numbers, together, and compare each with itself alone."""
    runs = [run_of(r, number, config) for r, number in zip(replicates, numbers, strict=True)]
    alone = [expected(r, number, config, joint) for r, number in zip(replicates, numbers, strict=True)]
    for i, terms in enumerate(epochs_of(runs, joint=joint)):
        for r, (run, known) in enumerate(zip(runs, alone, strict=True)):
            own = torch.stack([terms[name][:, r] for name in TERMS], dim=1)
            torch.testing.assert_close(own, torch.tensor(known[i][0], dtype=own.dtype), rtol=1e-9, atol=1e-12)
            total = own[:, 0] + config.robustness_weight * own[:, 1] + WEIGHTS[replicates[r]] * own[:, 2]
            torch.testing.assert_close(terms["total"][:, r], total, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(weights_of(run.network), known[i][1], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_steps_of_three_networks_are_those_of_each():
    check((0, 1, 2), (0, 1, 2), joint=False)


@pytest.mark.parametrize(("joint", "threads"), [(False, 1), (True, 2)])
def test_steps_of_one_network_are_written_out(joint, threads, set_threads):
    set_threads(threads)
    check((1,), (0,), joint=joint)


def test_steps_in_two_threads_are_the_same_to_the_bit_in_every_run(set_threads):
    set_threads(2)
    weights = []
    for _ in range(2):
        run = run_of(1, 0)
        assert len(list(epochs_of([run], joint=True))) == 2
        weights.append(weights_of(run.network))
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_two_networks_with_one_set_and_a_third_with_another():
    check((1, 0, 2), (1, 0, 0), joint=True)


def test_an_epoch_may_be_a_single_step():
    check((0,), (0,), replace(CONFIG, batch_size=N), joint=True)
    check((1,), (0,), replace(CONFIG, batch_size=64), joint=True)


def test_without_augmentation_there_is_one_branch():
    check((0, 2), (0, 2), replace(CONFIG, augmentation=False), joint=True)


def test_replicates_and_stages_are_told_apart():
    """What the others compare would not be worth much, were these the same."""
    first, other = expected(0, 0, CONFIG, True)[-1], expected(1, 0, CONFIG, True)[-1]
    assert np.abs(np.array(first[0]) - np.array(other[0])).min() > 1e-3
    start = network_of(0).centers.flatten()
    assert (first[1][-len(start) :] - start).abs().max() > 1e-3
    assert torch.equal(expected(0, 0, CONFIG, False)[-1][1][-len(start) :], start)
