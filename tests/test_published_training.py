"""Our training loops, two networks in one stack, beside plain ones: three views, of which some are missing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import published_reference as reference
from golden import network_of, steps, term
from viewfuse.methods.published import cpspan, dsimvc, sure
from viewfuse.neighbors.index import Samples

__all__ = ["steps"]
WIDTHS, N = (5, 3, 4, 2), 13
MASK = torch.tensor(
    [[1, 1, 1]] * 4
    + [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]]
).bool()
MLP = {"hidden_dims": (6, 4), "latent_dim": 3}


def sets(mask=MASK):
    """Two sets of samples, in which others lack views, with offsets and units."""
    rng, found = np.random.default_rng(0), []
    for turn in range(2):
        own = mask.roll(turn * 3, dims=0)
        values = [torch.from_numpy(rng.random((N, w)) * (1 + v) + turn) for v, w in enumerate(WIDTHS[: mask.shape[1]])]
        values = [x * own[:, v, None] for v, x in enumerate(values)]
        found.append(Samples(values, own, torch.empty(*own.shape, 0, dtype=torch.int64)))
    return found


def two_networks(name, samples, **params):
    pairs = [network_of(name, own, **params) for own in samples]
    for seed, (method, network) in enumerate(pairs):
        method.start(network, seed + 5)
    return pairs[0][0], [network for _, network in pairs]


def check(method, networks, samples, train, steps, **kwargs):
    """Train ours, both in one stack, and each of them plainly; gives what both learned."""
    before = copy.deepcopy(networks)
    method.train(networks, samples, [3, 4])
    for r, (network, own) in enumerate(zip(before, samples, strict=True)):
        extra = {name: values[r] for name, values in kwargs.items()}
        losses, parts = train(network, own.values, own.present, method, **extra)
        np.testing.assert_allclose(term(steps, replicate=r), losses, rtol=1e-8)
        yield networks[r], parts


def check_parts(network, parts):
    """Weights are equal but for biases before a normalisation, which have no gradient."""
    ours = {f"encoder {v}": one for v, one in enumerate(network.encoders)}
    ours |= {f"decoder {v}": one for v, one in enumerate(network.decoders)}
    ours |= dict(getattr(network, "predictors", {}))
    for name, mlp in ours.items():
        linears = [one for one in parts[name] if isinstance(one, torch.nn.Linear)]
        for own, theirs in zip(mlp.linears, linears, strict=True):
            np.testing.assert_allclose(own.weight.detach(), theirs.weight.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "mask"),
    [("completer", MASK), *(pytest.param("dcp", mask, marks=pytest.mark.slow) for mask in (MASK, MASK[:, :2]))],
)  # DCP of four views is tested below
def test_completer_and_dcp(steps, name, mask):
    samples = sets(mask)
    method, networks = two_networks(name, samples, epochs=2, prediction_start=1, learning_rate=1e-3, **MLP)
    n_views = mask.shape[1]
    pairs = [(0, 1, 1 / 3, 1 / 3), (0, 2, 1 / 3, 1 / 3), (1, 2, 1 / 3, 1 / 3)]
    if name == "dcp":
        pairs = [(0, 1, 1 / 2, 1 / 2), (0, 2, 0.1 / 2, 1 / 2)]
    pairs = pairs if n_views > 2 else [(0, 1, 1.0, 1.0)]
    own = {"pairs": [pairs] * 2, "share": [1.0] * 2}
    for network, parts in check(method, networks, samples, reference.train_completer, steps, **own):
        check_parts(network, parts)


def test_dcp_of_four_views(steps):
    """The sum of the reconstructions is divided by two."""
    samples = sets(torch.cat([MASK, MASK[:, :1]], dim=1))
    method, networks = two_networks("dcp", samples, epochs=2, prediction_start=1, **MLP)
    pairs = [(0, 1, 1 / 3, 1 / 3), (0, 2, 0.1 / 3, 1 / 3), (0, 3, 0.1 / 3, 1 / 3)]
    own = {"pairs": [pairs] * 2, "share": [1 / 2] * 2}
    for network, parts in check(method, networks, samples, reference.train_completer, steps, **own):
        check_parts(network, parts)


@pytest.mark.parametrize("rate", [pytest.param(1e-3, marks=pytest.mark.slow), 0.3])
def test_sure(steps, rate):
    samples = sets()
    method, networks = two_networks(
        "sure", samples, epochs=4, dropout=0.0, n_negatives=3, batch_size=500, learning_rate=rate, **MLP
    )
    pairs = [method._pairs(own.present, seed).tolist() for own, seed in zip(samples, (3, 4), strict=True)]
    for network, parts in check(method, networks, samples, reference.train_sure, steps, pairs=pairs):
        check_parts(network, parts)


def test_sure_draws_each_negative_once():
    """The first view of a sample stands beside other views of samples that may be learned from."""
    present = MASK
    found = sure.SURE(3, n_negatives=4)._pairs(present, 0).numpy()
    rows = np.flatnonzero(present.sum(dim=1) > 1)
    assert (found[: len(rows)] == np.stack([rows, rows, rows, np.ones_like(rows)], axis=1)).all()
    for row in rows:
        own = found[len(rows) :][found[len(rows) :, 0] == row]
        assert own.shape == (4, 4)
        assert not own[:, 3].any()
        for v in (1, 2):
            assert len(set(own[:, v])) == 4
            assert set(own[:, v]) <= set(rows)
    everybody = sure.SURE(3, n_negatives=99)._pairs(present, 0).numpy()[len(rows) :]
    assert sorted(everybody[everybody[:, 0] == rows[0], 1]) == rows.tolist()


def test_cpspan(steps):
    samples = sets()
    weights = {"prototype_weight": 0.3, "instance_weight": 0.5}
    method, networks = two_networks("cpspan", samples, pretrain_epochs=2, epochs=3, **weights, **MLP)
    lists = [cpspan._lists(own.present, N, seed).T for own, seed in zip(samples, (3, 4), strict=True)]
    for r, own in enumerate(samples):  # whoever has a view, at least once
        for v in range(3):
            assert set(lists[r][v].tolist()) == set(own.present[:, v].nonzero().flatten().tolist())
    for network, parts in check(method, networks, samples, reference.train_cpspan, steps, lists=lists):
        check_parts(network, parts)


def test_recformer(steps):
    samples = sets()
    widths = {"token_dim": 4, "feedforward_dim": 5, "n_heads": 2, "n_neighbors": 3}
    method, networks = two_networks("recformer", samples, recover_epochs=2, refine_epochs=2, batch_size=7, **widths)
    batches = [[list(range(6)), list(range(6, 12))]] * 2  # thirteen samples are two batches of six
    for network, parts in check(method, networks, samples, reference.train_recformer, steps, batches=batches):
        for ours, theirs in zip(network.refine.parameters(), parts.parameters(), strict=True):
            np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-8)


KINDS = {
    "three views": MASK,
    "two views": MASK[:, :2] | (torch.arange(N) == 9)[:, None],
    "nobody complete": torch.eye(3).bool()[torch.arange(N) % 3] | torch.eye(3).bool()[torch.arange(N) % 2],
    "everybody complete": torch.ones(N, 3).bool(),
}


SLOW = ("two views", "everybody complete")
"""Golden numbers are of such sets."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in KINDS])
def test_dsimvc(steps, monkeypatch, kind):
    samples, starts, draw = sets(KINDS[kind]), ([], []), dsimvc.start_weights

    def start(module, generator):
        """For one network after the other: decoders, the second network, its decoders, the weigher."""
        draw(module, generator)
        for one in module.parameters():
            one.data.mul_(2.5)  # else all features are nearly the same
        starts[len(starts[0]) > len(starts[1])].append(copy.deepcopy(module.double()))

    monkeypatch.setattr(dsimvc, "start_weights", start)
    epochs = {"pretrain_epochs": 2, "neighbor_pretrain_epochs": 2, "neighbor_epochs": 2, "iterations": 2}
    rates = {"learning_rate": 3e-3, "virtual_rate": 0.5, "weight_rate": 0.1}
    method, networks = two_networks(
        "dsimvc", samples, feature_dim=5, **epochs, **rates, hidden_dims=(8, 7), latent_dim=6
    )
    for network, model in check(method, networks, samples, reference.train_dsimvc, steps, starts=starts):
        for ours, theirs in zip(network.parameters(), model.parameters(), strict=True):
            np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-9)
