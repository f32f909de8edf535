"""Stages of networks side by side beside a literal version: each network alone, in plain loops, in float64."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reference_step import INCREMENT, Adam, keys, order
from test_dense_literal import assert_close, literal_norm
from test_random_numbers import splitmix
from viewfuse.engine.replicates import RandomNumbers
from viewfuse.engine.training import Stage, Training, TrainState
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP
from viewfuse.nn.layers import start_weights

SEEDS, N, RATE = (3, 11), 9, 0.25


def stages(loss=None, pairs=None):
    """Four stages, of which one has no epochs and one keeps Adam."""

    def made(name, epochs, batch_size, rate, **more):
        return Stage(name, epochs, batch_size, rate, loss and partial(loss, name), pairs, **more)

    return [
        made("first", 2, 4, 0.01),
        made("nothing", 0, 4, 0.5),
        made("second", 1, 5, 0.7, same_adam=True),
        made("third", 2, 4, 0.1, last="drop short", weight_decay=0.3),
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("spread", {3: (1, 3), 4: (1, 4), 8: (2, 4), 9: (3, 3), 10: (3, 3)}),
        ("drop short", {3: (1, 3), 4: (1, 4), 8: (2, 4), 9: (2, 4), 11: (2, 4)}),
        ("drop", {3: (1, 3), 4: (1, 4), 8: (1, 4), 9: (2, 4), 12: (2, 4), 13: (3, 4)}),
    ],
)
def test_steps_of_an_epoch(last, expected):
    assert {n: Stage("any", 1, 4, 0.1, None, last=last).steps(n) for n in expected} == expected


def samples(seed):
    """Two views with units and offsets; a third of the cells of the mask are empty."""
    rng = np.random.default_rng(seed)
    values = [torch.from_numpy(rng.normal(size=(N, 2)) * [1.0, 30.0] + 5), torch.from_numpy(rng.normal(size=(N, 3)))]
    present = torch.from_numpy(rng.random((N, 2)) > 0.3)
    return Samples(values, present, torch.zeros(N, 2, 1, dtype=torch.int64))


def network(seed):
    made = MLP([2, 4, 3], norm=True).double()
    made.stackable = True
    start_weights(made, torch.Generator().manual_seed(seed))
    return made


def elements():
    """Pairs of a row and a number; more than there are samples, and other ones in each replicate."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(np.stack([rng.integers(N, size=(2, 14)), rng.integers(5, size=(2, 14))], axis=2))


class Literal:
    """One network alone."""

    def __init__(self, r):
        self.network, self.own, self.elements, self.seed = network(r), samples(r), elements()[r].tolist(), SEEDS[r]
        self.epochs, self.rows, self.adam = 0, [], None

    def run(self, stage):
        if stage.epochs and not stage.same_adam:
            self.adam = Adam(self.network.parameters(), lr=stage.rate, weight_decay=stage.weight_decay)
        for _ in range(stage.epochs):
            for_draws, for_order = keys(self.seed, self.epochs)
            steps, size = stage.steps(len(self.elements))
            shuffled, self.drawn = order(for_order, len(self.elements)), 0
            terms = [self.step(shuffled[s * size : (s + 1) * size], for_draws, stage.name) for s in range(steps)]
            self.epochs += 1
            means = {name: float(np.mean([one[name] for one in terms])) for name in terms[0]}
            self.rows.append({"epoch": self.epochs, "stage": stage.name, **means, "total": sum(means.values())})

    def step(self, places, key, stage):
        picked = [self.elements[place] for place in places]
        out = self.forward(torch.stack([self.own.values[0][row] for row, _ in picked]))
        out = out * self.left(key, out.shape)
        fit, size = out.new_zeros(()), out.new_zeros(())
        for i, (row, number) in enumerate(picked):
            if self.own.present[row, 1]:
                fit = fit + ((out[i] - self.own.values[1][row]) ** 2).sum() / len(picked)
            size = size + number * out[i].sum() / 10
        terms = {"fit": fit} if stage == "first" else {"fit": fit, "size": size}
        self.adam.zero_grad()
        sum(terms.values()).backward()
        self.adam.step()
        return {name: float(term.detach()) for name, term in terms.items()}

    def forward(self, x):
        first, last = self.network.linears
        norm = self.network.norms[0]
        x = x @ first.weight.T + first.bias
        x, mean, variance = literal_norm(x, norm.weight, norm.bias, norm.mean, norm.variance)
        norm.mean.copy_(mean)
        norm.variance.copy_(variance)
        return x.clamp(min=0) @ last.weight.T + last.bias

    def left(self, key, shape):
        """Four decisions of every hash; the next step goes on behind them."""
        count = shape[0] * shape[1]
        n_hashes = -(-count // 4)
        states = [splitmix((key + (self.drawn + i) * INCREMENT) % 2**64) for i in range(n_hashes)]
        self.drawn += n_hashes
        pieces = np.array(states, dtype="<u8").view("<i2")[:count].astype(int) + 2**15
        return torch.from_numpy(np.where(pieces >= RATE * 2**16, 1 / (1 - RATE), 0.0).reshape(shape))


def runs():
    return [TrainState(network(r), samples(r), seed) for r, seed in enumerate(SEEDS)]


def test_stages_of_two_networks_are_those_of_each(monkeypatch):
    """Dropout in float64, as the literal version has it."""
    losses, modes = [], []
    dropout = RandomNumbers.dropout
    monkeypatch.setattr(RandomNumbers, "dropout", lambda *args: (dropout(*args).double() > 0) / (1 - RATE))
    training = Training(runs())

    def loss(stage, picked):
        modes.append(training.network.training)
        rows, number = picked[..., 0], picked[..., 1]
        out = training.network(training.view(0, rows))
        out = out * training.random.dropout(tuple(out.shape), RATE)
        errors = (out - training.view(1, rows)).square().sum(dim=2) * training.has(rows)[..., 1]
        fit, size = errors.mean(dim=1), (number[..., None] * out).sum(dim=(1, 2)) / 10
        return {"fit": fit} if stage == "first" else {"fit": fit, "size": size}

    for stage in stages(loss, elements()):
        training.run(stage, SimpleNamespace(advance=losses.append))
    assert all(modes)
    assert not training.network.training
    assert all(one.grad is None for one in training.network.parameters())
    for r, run in enumerate(training.runs):
        alone = Literal(r)
        for stage in stages():
            alone.run(stage)
        for own, other in zip(run.network.state_dict().items(), alone.network.state_dict().items(), strict=True):
            assert_close(own[1], other[1], rtol=1e-4, atol=1e-5)
        assert not run.network.training
        assert run.history["stage"] == ["first", "first", "second", "third", "third"]
        assert run.history["epoch"] == [1, 2, 3, 4, 5]
        assert run.history["size"][:2] == [0.0, 0.0]  # a term that came later
        for name in ("fit", "size", "total"):
            assert run.history[name] == pytest.approx([row.get(name, 0.0) for row in alone.rows], rel=1e-4, abs=1e-6)
    assert losses == training.runs[0].history["total"]


def test_epochs_are_counted_through_all_stages():
    training, after = Training(runs()), []

    def loss(rows):
        return {"size": training.network(training.view(0, rows)).sum(dim=(1, 2))}

    for name in "ab":
        training.run(Stage(name, 2, 9, 0.1, loss, after_epoch=after.append))
    assert after == [1, 2, 3, 4]


def test_what_is_recorded_of_an_epoch():
    """Means over the steps of each replicate; a term that is gone is zero, and one that is not finite is named."""
    training = Training(runs())
    one = {"a": torch.tensor([[1.0, 10.0], [3.0, 30.0]]), "b": torch.tensor([[0.0, 4.0], [1.0, 6.0]])}
    training.record("x", one, 0.5)
    training.record("y", {"b": one["b"]}, 0.25)
    training.record("z", {**one, "total": torch.tensor([[7.0, 1.0], [9.0, 2.0]])}, 0.1)  # the method's own sum
    first, second = (run.history for run in training.runs)
    assert first == {
        "epoch": [1, 2, 3], "stage": ["x", "y", "z"], "total": [2.5, 0.5, 8.0], "seconds": [0.5, 0.25, 0.1],
        "a": [2.0, 0.0, 2.0], "b": [0.5, 0.5, 0.5],
    }  # fmt: skip
    assert (second["a"], second["b"], second["total"]) == ([20.0, 0.0, 20.0], [5.0] * 3, [25.0, 5.0, 1.5])
    broken = copy.deepcopy(one)
    broken["b"][1, 1] = torch.inf
    training.record("z", broken, 0.1)
    assert [run.diverged for run in training.runs] == ["", "the b loss is not finite in epoch 4, step 2"]
