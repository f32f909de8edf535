"""Partitions that are found without a network: the graph of neighbours, its cut, and who of them is a candidate."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from viewfuse import URRL, Config
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection import linkage
from viewfuse.selection.linkage import (
    candidate_partitions,
    graph_clusters,
    principal,
    tree_clusters,
    unequal_clusters,
    view_graph,
)


def made(sizes, seed=0, apart=6.0, missing=0.3):
    """Training samples of groups of these sizes in two views of other units, some of them missing, and the groups."""
    rng, groups = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    views = [
        unit * (rng.normal(size=(len(groups), w)) + apart * rng.normal(size=(len(sizes), w))[groups] + 50)
        for unit, w in ((1.0, 3), (0.2, 5))
    ]
    present = rng.random((len(groups), 2)) >= missing
    present[~present.any(axis=1), 1] = True
    values = [torch.tensor(np.where(present[:, [v]], view, 0), dtype=torch.float32) for v, view in enumerate(views)]
    return index_training_set(values, torch.from_numpy(present), 9), groups


def literal_graph(ids, depth=9):
    n, n_views = ids.shape[:2]
    has = [[bool((ids[i, v, :depth] >= 0).any()) for v in range(n_views)] for i in range(n)]
    graph = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            both = sum(has[i][v] and has[j][v] for v in range(n_views))
            edges = sum((j in ids[i, v, :depth]) + (i in ids[j, v, :depth]) for v in range(n_views))
            graph[i, j] = edges / 2 / max(both, 1)
    return graph


def test_an_edge_is_the_share_of_common_views_in_which_samples_are_neighbours():
    samples, _ = made((12, 7, 4))
    ids = torch.cat([samples.neighbor_ids, torch.zeros(23, 2, 2, dtype=torch.int64)], dim=2)  # only nine count
    found = view_graph(ids).toarray()
    np.testing.assert_allclose(found, literal_graph(ids.numpy()))
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize("sizes", [(60, 60, 60), (150, 20, 9)])
def test_the_cut_of_a_graph_is_that_of_scikit_learn(sizes):
    graph = view_graph(made(sizes, apart=1.5)[0].neighbor_ids)
    graph.indices, graph.indptr = graph.indices.astype(np.int32), graph.indptr.astype(np.int32)
    expected = SpectralClustering(3, affinity="precomputed", assign_labels="cluster_qr", random_state=0).fit(graph)
    assert adjusted_rand_score(graph_clusters(graph, 3), expected.labels_) > 0.97


def test_groups_of_very_unequal_sizes_fall_apart_and_few_samples_are_enough():
    samples, groups = made((120, 15, 10))
    assert adjusted_rand_score(groups, graph_clusters(view_graph(samples.neighbor_ids), 3)) == 1.0
    assert len(set(graph_clusters(view_graph(made((5, 4))[0].neighbor_ids), 7))) > 2  # as many vectors as samples


def test_the_graph_is_a_candidate_unless_there_are_too_many_samples_or_one_cluster(monkeypatch):
    samples, groups = made((30, 12))
    found = candidate_partitions(samples, 2, 0)
    assert list(found) == ["k-means", "graph"]
    assert all(adjusted_rand_score(groups, own) == 1.0 and own.dtype == np.int64 for own in found.values())
    assert list(candidate_partitions(samples, 1, 0)) == ["k-means"]
    monkeypatch.setattr(linkage, "_GRAPH_ROWS", 41)
    assert list(candidate_partitions(samples, 2, 0)) == ["k-means"]


def test_samples_in_another_order_are_in_the_same_clusters():
    samples, _ = made((40, 25, 8), apart=1.0)
    order = np.random.default_rng(1).permutation(73)
    moved = index_training_set([view[order] for view in samples.values], samples.present[order], 9)
    first, second = (graph_clusters(view_graph(one.neighbor_ids), 3) for one in (samples, moved))
    assert adjusted_rand_score(first[order], second) == 1.0


def test_the_tree_of_an_embedding_finds_unequal_groups_unless_there_are_too_many_samples_or_one_cluster(monkeypatch):
    samples, groups = made((60, 24, 9))
    embedding = torch.tensor([[0.0, 3.0], [4.0, 0.0], [4.0, 9.0]])[groups] + 0.5 * torch.randn(93, 2)
    found = tree_clusters(embedding, samples.neighbor_ids, 3, 2**40)
    assert adjusted_rand_score(groups, found) == 1.0
    assert found.dtype == np.int64
    assert tree_clusters(embedding, samples.neighbor_ids, 1, 0) is None
    monkeypatch.setattr(linkage, "_TREE_ROWS", 92)
    assert tree_clusters(embedding, samples.neighbor_ids, 3, 0) is None


def literal_linkage(points, n_clusters, least):
    """The two groups that are nearest on average join, until so many large ones would no longer be left."""
    groups, found = [[i] for i in range(len(points))], None
    far = lambda a, b: np.mean([np.linalg.norm(points[i] - points[j]) for i in a for j in b])  # noqa: E731
    while len(groups) >= n_clusters:
        large = [list(own) for own in groups if len(own) >= least]
        if len(large) == n_clusters:
            found = large
        if len(groups) == 1:
            break
        first, second = min(combinations(range(len(groups)), 2), key=lambda pair: far(*(groups[g] for g in pair)))
        groups[first] += groups.pop(second)
    if found is None:
        return None
    nearest = [min((np.linalg.norm(p - points[i]), g) for g, own in enumerate(found) for i in own)[1] for p in points]
    return np.array(nearest)


@pytest.mark.parametrize("seed", range(4))
def test_unequal_clusters_are_those_of_average_linkage_whose_small_groups_go_to_the_nearest(seed):
    rng, sizes = np.random.default_rng(seed), (24, 9, 5, 2)
    centers = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 8.0], [30.0, 30.0]])  # the last two samples are outliers
    points = np.repeat(centers, sizes, axis=0) + rng.normal(size=(40, 2))
    found = unequal_clusters(torch.from_numpy(points), 3)
    assert found.dtype == np.int64
    scaled = principal(torch.from_numpy(points)).numpy()
    wanted = literal_linkage(scaled, 3, 5)
    assert adjusted_rand_score(wanted, found) == 1.0
    assert sorted(np.bincount(found)) == sorted(np.bincount(wanted))
    assert adjusted_rand_score(np.repeat([0, 1, 2], sizes[:3]), found[:38]) > 0.8


def test_there_are_no_unequal_clusters_where_no_cut_has_as_many_groups(monkeypatch):
    points = torch.randn(19, 2, generator=torch.Generator().manual_seed(0))
    assert unequal_clusters(points, 1) is None
    assert unequal_clusters(points, 20) is None
    assert unequal_clusters(points, 4) is None  # four groups of five need twenty samples
    assert unequal_clusters(torch.zeros(19, 2), 3) is None  # all join at once
    assert unequal_clusters(points, 2) is not None
    monkeypatch.setattr(linkage, "_TREE_ROWS", 18)
    assert unequal_clusters(points, 2) is None


@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**31 + 5, 2**32 - 1, 2**32, 2**40 + 2**31 + 7])
def test_the_seed_of_a_tree_is_what_numpy_takes_of_it(monkeypatch, seed):
    """The last 32 bits, all of them; the points are the principal components, the neighbours as they are."""
    asked, embedding, ids = [], torch.tensor([[0.0, 3.0], [4.0, 0.0], [9.0, 1.0]]), torch.tensor([[[1]], [[0]], [[-1]]])
    cut = SimpleNamespace(cut=lambda k: np.arange(3) + 10 * k)
    monkeypatch.setattr(linkage, "principal", lambda points: 2 * points)
    monkeypatch.setattr(linkage, "cluster_tree", lambda *given: asked.append(given) or cut)
    assert tree_clusters(embedding, ids, 3, seed).tolist() == [30, 31, 32]  # as many clusters as samples
    ((points, neighbors, drawn),) = asked
    assert (points.tolist(), neighbors.tolist()) == ((2 * embedding).tolist(), ids.tolist())
    assert drawn == int(f"{seed:064b}"[-32:], 2)
    assert tree_clusters(embedding, ids, 4, seed) is None


@pytest.mark.slow
def test_rings_are_found_by_the_tree_and_taught_to_the_network():
    rng, groups = np.random.default_rng(0), np.repeat([0, 1], [60, 90])
    angle, radius = rng.uniform(0, 2 * np.pi, 150), np.array([1.0, 4.0])[groups]
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    views = [ring + 0.1 * rng.normal(size=(150, 2)), 30 + 7 * ring[:, ::-1] + rng.normal(size=(150, 2))]
    views[0][::5] = np.nan
    config = Config(embedding_dim=32, hidden_dim=64, pretrain_epochs=40, joint_epochs=0)
    model = URRL(2, config=config, scaling="standard", random_state=0).fit(views)
    assert model.decisions_["clusters"]["chosen"] == "tree"
    assert "the tree of its embedding" in model.decisions_["clusters"]["why"]
    assert adjusted_rand_score(groups, model.labels_) > 0.9
