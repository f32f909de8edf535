"""The losses of published methods beside slow versions that read like their formulas."""

from __future__ import annotations

import copy
import itertools
from math import log, sqrt

import numpy as np
import pytest
import torch

from conftest import make_blobs
from reference_step import Adam
from test_methods import BRIEF
from viewfuse import Views
from viewfuse.engine import replicates as passes
from viewfuse.engine.training import Stage
from viewfuse.methods import estimator_of
from viewfuse.methods.network import embeddings, masked_mse
from viewfuse.methods.published import completer, cpspan, dsimvc, nemo, pimvc, recformer, sure
from viewfuse.missing import paper_mask
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP, BatchNorm

B, K = 7, 4
TWO = 2
"""Replicates."""


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def tensor(array):
    return torch.from_numpy(np.asarray(array))


def codes(rng, *shape):
    return rng.normal(size=(TWO, *shape))


def shares(rng, *shape):
    raw = rng.random((TWO, *shape)) + 0.01
    return raw / raw.sum(axis=-1, keepdims=True)


def both(rng):
    """Which samples have both views; the first has, so that there is one."""
    mask = rng.random((TWO, B)) < 0.6
    mask[:, 0] = True
    return mask


def close(found, wanted):
    np.testing.assert_allclose(found.numpy(), np.array(wanted), rtol=1e-6)


def test_completer_mutual_information(rng):
    first, second, mask, alpha = shares(rng, B, K), shares(rng, B, K), both(rng), 9.0
    wanted = []
    for r in range(TWO):
        joint = np.zeros((K, K))
        for i in range(B):
            if mask[r, i]:
                joint += np.outer(first[r, i], second[r, i])
        joint = (joint + joint.T) / 2
        joint /= joint.sum()
        loss = 0.0
        for a in range(K):
            for b in range(K):
                p, q = joint[a].sum(), joint[:, b].sum()
                loss -= joint[a, b] * (log(joint[a, b]) - (alpha + 1) * log(p) - (alpha + 1) * log(q))
        wanted.append(loss)
    close(completer.mutual_information_loss(tensor(first), tensor(second), tensor(mask), alpha), wanted)


def test_completer_pairs_and_dcp_core():
    assert completer.COMPLETER(3).pairs(2) == [(0, 1, 1, 1)]
    assert [pair[:2] for pair in completer.COMPLETER(3).pairs(3)] == [(0, 1), (0, 2), (1, 2)]
    assert sum(pair[2] for pair in completer.COMPLETER(3).pairs(4)) == pytest.approx(1)
    assert completer.DCP(3).pairs(2) == completer.COMPLETER(3).pairs(2)
    assert completer.DCP(3).pairs(3) == [(0, 1, 1 / 2, 1 / 2), (0, 2, 0.1 / 2, 1 / 2)]


def test_errors_of_missing_rows_do_not_count(rng):
    x, y, mask = codes(rng, B, K), codes(rng, B, K), both(rng)
    wanted = [np.mean([(x[r, i] - y[r, i]) ** 2 for i in range(B) if mask[r, i]]) for r in range(TWO)]
    close(masked_mse(tensor(x), tensor(y), tensor(mask)), wanted)


@pytest.mark.parametrize("robust", [False, True])
def test_sure_contrast(rng, robust):
    distance, positive, mask = rng.random((TWO, B)) * 3, rng.random((TWO, B)) < 0.5, both(rng)
    wanted = []
    for r, margin in enumerate((1.0, 2.0)):
        terms = []
        for i in range(B):
            d = distance[r, i]
            pushed = (1 / margin) * max(sqrt(d) * (margin - d), 0) ** 2 if robust else max(margin - d, 0) ** 2
            if mask[r, i]:
                terms.append(d**2 if positive[r, i] else pushed)
        wanted.append(sum(terms) / (2 * len(terms)))
    margins, robusts = tensor(np.array([1.0, 2.0])), torch.full((TWO,), robust)
    close(sure.contrastive_loss(tensor(distance), tensor(positive), tensor(mask), margins, robusts), wanted)


def test_dsimvc_spectral_contrast(rng):
    first, second = codes(rng, B, K), codes(rng, B, K)
    wanted = []
    for r in range(TWO):
        near = -2 / B * sum(first[r, i] @ second[r, i] for i in range(B))
        far = sum((first[r, i] @ second[r, j]) ** 2 for i in range(B) for j in range(B) if i != j) / (B * (B - 1))
        wanted.append(near + far)
    close(dsimvc.feature_terms(tensor(first), tensor(second)).mean(dim=1), wanted)


def test_dsimvc_label_contrast(rng):
    first, second = shares(rng, B, K), shares(rng, B, K)
    cosine = lambda a, b: a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # noqa: E731
    wanted = []
    for r in range(TWO):
        terms, entropies = [], 0.0
        for own, other in ((first[r], second[r]), (second[r], first[r])):
            for k in range(K):
                partner = np.exp(cosine(own[:, k], other[:, k]))
                others = sum(np.exp(cosine(own[:, k], own[:, j])) for j in range(K) if j != k)
                terms.append(-log(partner / (partner + others)))
            p = own.mean(axis=0)
            entropies += log(K) + (p * np.log(p)).sum()
        wanted.append(np.mean(terms) + entropies)
    close(dsimvc.label_loss(tensor(first), tensor(second)), wanted)


@pytest.mark.parametrize("n_views", [1, 2, 4])
def test_dsimvc_sums_over_pairs_of_views(rng, n_views):
    features = [tensor(codes(rng, B, K)) for _ in range(n_views)]
    labels = [tensor(shares(rng, B, K)) for _ in range(n_views)]
    pairs = [(a, b) for a in range(n_views) for b in range(a)] or [(0, 0)]
    each, clusters = dsimvc.pair_losses(features, labels)
    close(each, sum(dsimvc.feature_terms(features[b], features[a]) for a, b in pairs).numpy())
    close(clusters, sum(dsimvc.label_loss(labels[b], labels[a]) for a, b in pairs).numpy())


def test_dsimvc_shortens_long_features_only(rng):
    features = np.array([[[0.3, 0.4], [30.0, 40.0]]])
    close(dsimvc.shortened(tensor(features)), [[[0.3, 0.4], [0.6 * sqrt(3), 0.8 * sqrt(3)]]])


def test_dsimvc_weights_follow_the_gradient_through_a_virtual_step():
    """That of the loss of complete samples after a plain step, on which weights depend by way of the network, too."""
    torch.default_generator.manual_seed(0)
    network = torch.nn.Linear(3, TWO).double()
    complete, filled = torch.randn(5, 3).double(), torch.randn(4, 3).double()
    rates = (0.01, 0.05, 0.02)

    def each(outputs):
        return outputs.square().sum(dim=-1)

    def losses(outputs):
        return dsimvc.Found(each(outputs)[None], outputs.exp().mean()[None], outputs.softmax(dim=-1)[None])

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = copy.deepcopy(network)

        def forward(self, values):
            return (self.linear(values[0][0]),)

    levels = dsimvc.TwoLevels(Network(), losses, TWO, [0], rates)
    weigher = torch.nn.Sequential(torch.nn.Linear(TWO, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1)).double()
    for theirs, ours in zip(weigher.parameters(), levels.weigher.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    adams = [Adam(one.parameters(), lr=rate) for one, rate in ((network, 0.01), (weigher, 0.02))]
    for _ in range(3):
        own = [network.weight, network.bias]

        def loss(matrix, bias, *, weights=None):
            safe, risky = complete @ matrix.T + bias, filled @ matrix.T + bias
            total = each(safe).mean() + safe.exp().mean()
            if weights is None:
                return total
            u = weights(risky.softmax(dim=1))
            return total + (u / u.sum() * each(risky)).sum() / len(filled) + risky.exp().mean()

        virtual = loss(*own, weights=lambda q: weigher(q)[:, 0].sigmoid())
        moved = [p - 0.05 * d for p, d in zip(own, torch.autograd.grad(virtual, own, create_graph=True), strict=True)]
        wanted = torch.autograd.grad(loss(*moved), list(weigher.parameters()))
        for one, slope in zip(weigher.parameters(), wanted, strict=True):
            one.grad = slope
        adams[1].step()
        total = loss(*own, weights=lambda q: weigher(q)[:, 0].sigmoid().detach())
        adams[0].zero_grad()
        total.backward()
        adams[0].step()
        close(levels.step([complete[None]], [filled[None]]), [total.item()])
        for ours, theirs in zip(levels.weigher.parameters(), wanted, strict=True):
            torch.testing.assert_close(ours.grad, theirs)


def test_cpspan_instances_and_prototypes(rng):
    first, second, mask = codes(rng, B, K), codes(rng, B, K), both(rng)
    cosine = lambda a, b: a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # noqa: E731
    instances, prototypes = [], []
    for r in range(TWO):
        here = np.flatnonzero(mask[r])
        instances.append(np.mean([(1 - cosine(first[r, i], second[r, i])) ** 2 for i in here]))
        pairs = [(first[r, here, a], second[r, here, b]) for a in range(K) for b in range(K)]
        prototypes.append(np.mean([(1 - cosine(*pair)) ** 2 for pair in pairs]))
    close(cpspan.instance_loss(tensor(first), tensor(second), tensor(mask)), instances)
    close(cpspan.prototype_loss(tensor(first), tensor(second), tensor(mask)), prototypes)


def test_cpspan_looks_for_donors_in_the_views_that_a_sample_has(rng):
    own, others = rng.normal(size=(3, 3, K)), rng.normal(size=(5, 3, K))
    has = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=bool)
    they = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=bool)
    own, others = own * has[..., None], others * they[..., None]
    found = cpspan.similarity_in_common_views(tensor(own), tensor(has), tensor(others), tensor(they)).numpy()
    for i in range(3):
        for j in range(5):
            if (has[i] & ~they[j]).any():
                assert found[i, j] == -np.inf
            else:
                a, b = own[i, has[i]].mean(axis=0), others[j, has[i]].mean(axis=0)
                assert found[i, j] == pytest.approx(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_recformer_reconstruction_counts_missing_entries_as_zero(rng):
    found, wanted = [codes(rng, B, 3), codes(rng, B, 5)], [codes(rng, B, 3), codes(rng, B, 5)]
    mask = rng.random((TWO, B, 2)) < 0.6
    losses = [
        np.mean(
            [((found[v][r] - wanted[v][r]) ** 2 * mask[r, :, v, None]).sum() / (B * w) for v, w in ((0, 3), (1, 5))]
        )
        for r in range(TWO)
    ]
    close(recformer.reconstruction_loss([*map(tensor, found)], [*map(tensor, wanted)], tensor(mask)), losses)


def test_recformer_graph(rng):
    n, count, views = 9, 3, 2
    tokens, memory = codes(rng, B, views, K), codes(rng, n, views, K)
    near = np.stack([rng.permuted(np.tile(np.arange(n), (B, views, 1)), axis=2)[..., :count] for _ in range(TWO)])
    wanted = [
        sum(
            ((tokens[r, i, v] - memory[r, j, v]) ** 2).sum()
            for i in range(B)
            for v in range(views)
            for j in near[r, i, v]
        )
        / (views * B * n)
        for r in range(TWO)
    ]
    close(recformer.graph_loss(tensor(tokens), tensor(memory), tensor(near)), wanted)


def test_nemo_similarity(rng):
    arrays, mask = [rng.normal(size=(13, 2)), rng.normal(size=(13, 3))], np.ones((13, 2), dtype=bool)
    mask[:4, 0], mask[4:6, 1] = False, False
    wanted, seen = np.zeros((13, 13)), np.zeros((13, 13))
    for v, array in enumerate(arrays):
        here = np.flatnonzero(mask[:, v])
        k = round(len(here) / 6)
        squares = np.array([[((array[i] - array[j]) ** 2).sum() for j in here] for i in here])
        near = np.sort(squares, axis=1)[:, 1 : k + 1].mean(axis=1)
        kernel = np.zeros_like(squares)
        for i in range(len(here)):
            for j in range(len(here)):
                sigma = 0.5 * (near[i] + near[j] + squares[i, j]) / 3
                kernel[i, j] = np.exp(-((squares[i, j] / sigma) ** 2) / 2) / (sigma * sqrt(2 * np.pi))
        own = np.where(kernel >= np.sort(kernel, axis=1)[:, [-k]], kernel, 0)
        own /= own.sum(axis=1, keepdims=True)
        wanted[np.ix_(here, here)] += own + own.T
        seen[np.ix_(here, here)] += 1
    wanted = np.where(seen > 0, wanted / np.maximum(seen, 1), np.nan)
    wanted[np.isnan(wanted)] = np.nanmean(wanted)
    found = nemo.average_similarity([array.astype(np.float64) for array in arrays], mask)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_pimvc_solves_for_the_common_representation_and_keeps_the_constraint(rng):
    views = [rng.normal(size=(20, 4)), rng.normal(size=(20, 5))]
    present = np.ones((20, 2), dtype=bool)
    present[:5, 0] = False
    samples = Samples([tensor(view) for view in views], tensor(present), torch.empty(20, 2, 0, dtype=torch.int64))
    system = pimvc.smoothing(samples, 2.0, 3)
    right = rng.normal(size=(20, 3))
    wanted = np.linalg.solve(system.toarray(), right)
    np.testing.assert_allclose(pimvc.solve(system, right, np.zeros_like(right)), wanted, rtol=1e-4, atol=1e-5)
    root = pimvc.PIMVC(3)._root(views[1])
    p = pimvc._projection(root, views[1].T @ right)
    whole = views[1].T @ views[1] + 1e5 * np.eye(5)
    np.testing.assert_allclose(p @ whole @ p.T, np.eye(3), atol=1e-8)


def test_pimvc_links_no_sample_that_has_a_view_alone(rng):
    first, second = rng.normal(size=(12, 3)), rng.normal(size=(12, 5))
    present = np.ones((12, 2), dtype=bool)
    present[1:, 0] = False
    none = torch.empty(12, 2, 0, dtype=torch.int64)
    both = pimvc.smoothing(Samples([tensor(first), tensor(second)], tensor(present), none), 2.0, 3)
    alone = pimvc.smoothing(Samples([tensor(second)], tensor(present[:, 1:]), none[:, 1:]), 2.0, 3)
    np.testing.assert_allclose(both.toarray(), alone.toarray() + np.diag(present[:, 0].astype(float)))


def test_pimvc_says_its_objective_but_for_what_never_changes(rng, monkeypatch):
    """Sum by sum, as the paper has it; projections of one length leave clusters per view out of it."""
    n, weight, graph = 14, 2.0, 0.5
    views, present = [rng.normal(size=(n, 4)) * 3 + 5, rng.normal(size=(n, 3)) - 1], np.ones((n, 2), dtype=bool)
    present[:3, 0] = present[8:, 1] = False
    views = [np.where(present[:, [v]], view, 0) for v, view in enumerate(views)]
    samples = Samples([tensor(view) for view in views], tensor(present), torch.empty(n, 2, 0, dtype=torch.int64))
    rounds, solve = [], pimvc.solve
    monkeypatch.setattr(pimvc, "solve", lambda *given: rounds.append(solve(*given)) or rounds[-1])
    how = {"projection_weight": weight, "graph_weight": graph, "n_neighbors": 2, "tolerance": 0.0}
    for count in (1, 2, 3):
        rounds.clear()
        network = pimvc.PIMVC(2, rounds=count, **how).network([4, 3])
        (history,) = pimvc.PIMVC(2, rounds=count, **how).train([network], [samples], [0])
        y, total = rounds[-1], 0.0
        for v, view in enumerate(views):
            p, here = network.projections[v].detach().double().numpy(), np.flatnonzero(present[:, v])
            total += sum(((p @ view[i] - y[i]) ** 2).sum() for i in here) + weight * (p**2).sum()
            near = {(i, j) for i in here for j in sorted(here, key=lambda j: ((view[i] - view[j]) ** 2).sum())[1:3]}
            total += graph * sum(((y[i] - y[j]) ** 2).sum() for i, j in near | {(j, i) for i, j in near}) / 2
        assert history["total"][-1] == pytest.approx((total - 2 * 2) / n, rel=1e-5)
        assert (history["epoch"], history["stage"]) == ([*range(1, count + 1)], ["projection"] * count)


def test_pimvc_ends_where_its_objective_changes_little_from_one_round_to_the_next(rng):
    views = [rng.normal(size=(40, 6)), rng.normal(size=(40, 5))]
    for tolerance in (1e-2, 1e-4, 1e-7):
        totals = pimvc.PIMVC(n_clusters=3, tolerance=tolerance, random_state=0).fit(views).history_["total"]
        changes = [abs(a - b) / abs(b) for a, b in itertools.pairwise(totals)]
        assert changes[-1] <= tolerance < min(changes[:-1], default=1.0)


def normalisation(*shape):
    """That of a network, or of several, as they start."""
    found = BatchNorm(shape[-1])
    for name, start in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("variance", 1.0)):
        getattr(found, name).data = torch.full(shape, start)
    return found


def test_batch_normalisation_is_torchs_where_all_rows_count(rng):
    x = tensor(rng.normal(size=(1, B, K))).float()
    ours, theirs = normalisation(K), torch.nn.BatchNorm1d(K)
    torch.testing.assert_close(ours(x)[0], theirs(x[0]))
    torch.testing.assert_close(ours.variance, theirs.running_var)
    mask = torch.tensor([[True] * 4 + [False] * 3])
    torch.testing.assert_close(ours(x, mask)[0, :4], theirs(x[0, :4]))


def test_dropout_multiplies_hidden_numbers_in_training_only(rng):
    network = MLP((3, 4, 2), dropout=0.3)
    x, factors = (torch.from_numpy(rng.normal(size=shape)).float() for shape in ((1, 5, 3), (1, 5, 4)))
    first, last = network.linears
    for layer in network.linears:
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
        torch.nn.init.zeros_(layer.bias)
    asked = []
    found = network.train()(x, None, lambda *what: asked.append(what) or factors)
    assert asked == [((1, 5, 4), 0.3)]
    torch.testing.assert_close(found, last(first(x).relu() * factors))
    torch.testing.assert_close(network.eval()(x, None, lambda *_: factors), last(first(x).relu()))


def test_batch_normalisation_over_all_rows_is_that_over_rows_that_count(rng):
    x, slopes = (tensor(rng.normal(size=(2, B, K))).float() for _ in range(2))
    found = []
    for shown in (None, torch.ones(2, B, dtype=torch.bool)):
        norm, own = normalisation(2, K), x.clone().requires_grad_()
        done = norm(own, shown)
        (done * slopes).sum().backward()
        found.append([done, norm.mean, norm.variance, own.grad, norm.weight.grad, norm.bias.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    norm(x[:, :1])
    assert torch.isfinite(norm.variance).all()  # of a single row torch's own would make NaN


@pytest.mark.parametrize(
    ("last", "n", "wanted"),
    [
        ("drop short", 25, (2, 10)),
        ("drop short", 20, (2, 10)),
        ("drop short", 7, (1, 7)),
        ("spread", 25, (3, 8)),
        ("drop", 25, (2, 10)),
        ("drop", 20, (1, 10)),
        ("drop", 10, (1, 10)),
        ("drop", 7, (1, 7)),
    ],
)
def test_steps_of_an_epoch(last, n, wanted):
    assert Stage("any", 1, 10, 1e-3, None, last=last).steps(n) == wanted


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize("name", [pytest.param("completer", marks=pytest.mark.slow), "sure"])
def test_seeds_side_by_side_place_samples_as_alone_where_those_to_learn_from_are_complete(name, monkeypatch):
    """Biases before a normalisation may differ: they have no effect in the end, and no gradient but rounding.

    Only complete samples are looked at, as the nearest codes that stand in for a missing one may differ, too.
    """
    views = make_blobs(40, 3, missing=0.0)[0][:2]
    sets = [Views(views, mask=paper_mask(40, 2, 0.5, 1, random_state=seed)) for seed in range(2)]
    method = estimator_of(name)(3, device="cpu", **BRIEF[name])
    alone = [method.train_many([one], [seed])[0] for seed, one in zip((5, 6), sets, strict=True)]
    monkeypatch.setitem(passes.MAX_STACKED, "cpu", 2)
    for one, other, views in zip(alone, method.train_many(sets, [5, 6]), sets, strict=True):
        np.testing.assert_allclose(one.history["total"], other.history["total"], rtol=1e-4)
        rows = views.mask.all(axis=1)
        np.testing.assert_allclose(
            embeddings(one.network, one.samples)[rows], embeddings(other.network, other.samples)[rows], atol=2e-3
        )


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize("name", ["completer", "sure"])
def test_rows_that_lack_a_view_take_no_part_in_the_normalisation(name, monkeypatch):
    """Means that the first normalisation keeps are those of the rows that have the view."""
    monkeypatch.setattr(BatchNorm, "_MOMENTUM", 0.5)  # so that few steps are enough
    views = [np.full((30, 2), 1.0) + np.arange(30)[:, None] % 2, *make_blobs(30, 3, missing=0.0)[0][:2]]
    mask = np.ones((30, 3), dtype=bool)
    mask[::2, 0] = False
    method = estimator_of(name)(
        3, device="cpu", **{**BRIEF[name], "scaling": "none", "learning_rate": 0.0, "epochs": 8}
    )
    (trained,) = method.train_many([Views(views, mask=mask)], [0])
    encoder = trained.network.encoders[0]
    wanted = encoder.linears[0](torch.full((1, 1, 2), 2.0))[0, 0]
    torch.testing.assert_close(encoder.norms[0].mean, wanted, atol=0.05, rtol=0.05)
