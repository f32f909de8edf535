"""The tree of clusters against a literal one, and what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from viewfuse.neighbors.index import index_training_set
from viewfuse.selection.kmeans import Tree, in_order_met
from viewfuse.selection.linkage import cluster_tree, coarser, edges, joined_groups, nearest, neighbor_graph


def samples(sizes, seed=0, widths=(5, 7), far=6.0):
    """Blobs of unequal sizes with units and offsets, a fifth of the views missing."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = [rng.normal(size=(len(labels), w)) + far * rng.normal(size=(len(sizes), w))[labels] for w in widths]
    present = rng.random((len(labels), len(widths))) < 0.8
    present[~present.any(axis=1), 0] = True
    tensors = [torch.from_numpy(np.where(present[:, [v]], 3.0 * x + 40.0, 0.0)).float() for v, x in enumerate(values)]
    points = torch.from_numpy(np.concatenate(values, axis=1)).float()
    return index_training_set(tensors, torch.from_numpy(present), 12), points, labels


def literal_merges(graph, groups):
    """At each step the mean weight of an edge end to an edge end is found anew for every two groups."""
    table, members = graph.toarray(), {g: np.flatnonzero(groups == g) for g in range(groups.max() + 1)}
    merges, names = [], len(members)
    while len(members) > 1:
        near = {
            (a, b): table[np.ix_(members[a], members[b])].sum() / (table[members[a]].sum() * table[members[b]].sum())
            for a in members for b in members if a < b
        }  # fmt: skip
        best = max(near, key=near.__getitem__)
        merges.append(set(best))
        members[names] = np.concatenate([members.pop(one) for one in best])
        names += 1
    return merges


def test_merges_are_those_of_average_linkage_on_the_graph():
    stored, points, _ = samples((20, 9, 14, 6))
    groups = np.random.default_rng(1).integers(0, 11, size=len(points))
    graph = neighbor_graph(nearest(points), stored.neighbor_ids)
    assert [set(pair) for pair in joined_groups(graph, in_order_met(groups), points, 11).tolist()] == literal_merges(
        graph, in_order_met(groups)
    )


def test_edges_are_counted_from_both_ends_and_shared_over_the_views():
    ids = torch.tensor([[[1, 2], [-1, -1]], [[0, 2], [2, -1]], [[1, 0], [1, -1]]])
    np.testing.assert_array_equal(edges(ids[:, 0].numpy()).toarray(), [[0, 2, 2], [2, 0, 2], [2, 2, 0]])
    views = np.array([[0, 2, 2], [2, 0, 2], [2, 2, 0]]) / [[1, 1, 1], [1, 1, 2], [1, 2, 1]]
    views[1, 2] = views[2, 1] = 2
    embedded = np.array([[0, 2, 0], [2, 0, 1], [0, 1, 0]])
    wanted = embedded / 6 + views / views.sum()
    found = neighbor_graph(torch.tensor([[1], [0], [1]]), ids)
    np.testing.assert_allclose(found.toarray(), wanted)


def test_clusters_of_unequal_sizes_are_found_at_their_number():
    stored, points, labels = samples((120, 40, 10, 25))
    tree = cluster_tree(points, stored.neighbor_ids, 0)
    assert adjusted_rand_score(labels, tree.cut(4)) == 1.0
    for k in range(1, 12):
        coarse, fine = tree.cut(k), tree.cut(k + 1)
        assert len(np.unique(coarse)) == k
        assert all(len(np.unique(coarse[fine == c])) == 1 for c in range(k + 1))


def test_the_order_of_the_samples_does_not_matter_to_the_merges():
    stored, points, _ = samples((30, 18, 7))
    order = np.random.default_rng(3).permutation(len(points))
    again = index_training_set([view[order] for view in stored.values], stored.present[order], 12)
    groups = np.random.default_rng(4).integers(0, 9, size=len(points))
    cuts = []
    for own, where, at in ((stored, points, groups), (again, points[order], groups[order])):
        names = in_order_met(at)
        cuts.append(Tree(names, joined_groups(neighbor_graph(nearest(where), own.neighbor_ids), names, where, 9)))
    for k in (2, 3, 5):
        assert adjusted_rand_score(cuts[0].cut(k)[order], cuts[1].cut(k)) == 1.0


def test_groups_without_shared_neighbours_join_by_distance():
    """Three groups of four clusters, all far apart."""
    rng = np.random.default_rng(0)
    places = np.repeat(300.0 * np.eye(3, 5), 4, axis=0) + 30 * rng.normal(size=(12, 5))
    points = torch.from_numpy(np.repeat(places, 20, axis=0) + rng.normal(size=(240, 5))).float()
    stored = index_training_set([points], torch.ones(240, 1, dtype=torch.bool), 12)
    tree = cluster_tree(points, stored.neighbor_ids, 0)
    assert adjusted_rand_score(np.arange(240) // 20, tree.cut(12)) == 1.0
    assert adjusted_rand_score(np.arange(240) // 80, tree.cut(3)) == 1.0
    fewer = coarser(np.arange(240) // 20, points.numpy(), stored.neighbor_ids, 3)
    assert adjusted_rand_score(np.arange(240) // 80, fewer) == 1.0


@pytest.mark.parametrize("n", [1, 2, 9])
def test_few_or_equal_samples_are_one_small_cluster(n):
    points = torch.ones(n, 2)
    stored = index_training_set([points], torch.ones(n, 1, dtype=torch.bool), 3)
    tree = cluster_tree(points, stored.neighbor_ids, 0)
    assert (tree.n_groups, tree.cut(3).tolist()) == (1, [0] * n)
