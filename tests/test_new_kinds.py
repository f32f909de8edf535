"""Which samples are new kinds, part by part: who holds together, beside which cluster, and what is tested."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

from run_folders import a_split
from viewfuse.methods import number_of_clusters
from viewfuse.methods.number_of_clusters import NewKind, _Tested
from viewfuse.selection import split_tree
from viewfuse.selection.split_evidence import Split


def tree_of(**parts):
    tree = object.__new__(_Tested)
    tree._splits = []
    for name, part in parts.items():
        setattr(tree, f"_{name}", part)
    return tree


def literally_together(graph, labels, novel):
    """Sample by sample: who shares more of the group's neighbours than of any cluster's stays, all others leave."""
    weights, n = graph.sum(axis=1), len(labels)
    group = [i for i in range(n) if novel[i]]

    def near(i, others):
        whole = sum(weights[j] for j in others)
        return sum(graph[i, j] for j in others) / whole if whole else 0.0

    clusters = [[j for j in range(n) if labels[j] == c and not novel[j]] for c in sorted(set(labels.tolist()))]
    while len(group) >= 8:
        stay = [i for i in group if near(i, group) > max(near(i, own) for own in clusters)]
        if stay == group:
            break
        group = stay
    return group


def test_novel_samples_hold_together_where_they_share_neighbours_for_their_sizes():
    """Clusters of unequal sizes, neighbours with ties, and a group of novel samples some of which are strays."""
    rng, sizes = np.random.default_rng(3), []
    for trial in range(40):
        novel = rng.permutation(60) < 22
        labels, kind = rng.choice([0, 2, 3], 60, p=[0.6, 0.3, 0.1]), novel & (rng.random(60) < trial / 40)
        graph = rng.integers(0, 3, (60, 60)) * (rng.random((60, 60)) < 0.2) + 2.0 * kind[:, None] * kind
        graph = graph + graph.T
        np.fill_diagonal(graph, 0.0)
        tree = tree_of(graph=csr_array(graph), weights=graph.sum(axis=1), labels=labels, novel=novel)
        found = tree._together()
        assert found.tolist() == literally_together(graph, labels, novel)
        sizes.append(len(found))
    assert min(sizes) < 8 < max(sizes)


def test_the_next_cluster_shares_the_most_neighbours_for_its_size():
    rng = np.random.default_rng(0)
    for _ in range(60):
        graph = rng.random((30, 30)) * (rng.random((30, 30)) < 0.3)
        labels, novel = rng.choice([0, 1, 3], 30), rng.random(30) < 0.4
        weights = graph.sum(axis=1)
        tree = tree_of(graph=csr_array(graph), weights=weights, labels=labels, novel=novel)
        rows, own = rng.permutation(30)[:6], int(rng.choice([-1, 0, 3]))
        close = {}
        for c in {0, 1, 3} - {own}:
            members = [i for i in range(30) if labels[i] == c and not novel[i] and i not in rows]
            close[c] = graph[np.ix_(members, rows)].sum() / weights[members].sum() if members else -1
        assert tree._next_cluster(rows, own) == max(close, key=close.get)
    apart = tree_of(graph=csr_array((4, 4)), weights=np.ones(4), labels=np.array([0, 0, 1, 1]), novel=np.zeros(4, bool))
    assert apart._next_cluster(np.array([0]), 0) == 1  # never itself


@pytest.mark.parametrize("within", [True, False])
def test_a_kind_is_tested_against_the_known_samples_beside_it_and_then_within(monkeypatch, within):
    labels, novel, rows = np.repeat([0, 1], [20, 30]), np.arange(50) >= 34, np.arange(36, 50)
    looked = SimpleNamespace(embedding=None, neighbors=lambda: None)
    tree = tree_of(labels=labels, novel=novel, seed=2, look=SimpleNamespace(take=lambda rows: looked))
    splits, asked = iter([[SimpleNamespace(left=np.arange(6), right=np.arange(6, 14))], [], []]), []

    def tried(left, right):
        asked.append((left.tolist(), right.tolist()))
        return Split(**a_split(-1, 0, [], len(asked), stands=within or len(asked) != 4))

    monkeypatch.setattr(number_of_clusters, "cluster_tree", lambda *given: None)
    monkeypatch.setattr(number_of_clusters, "splits_of", lambda tree: next(splits))
    tree._test, tree._next_cluster, tree._together = tried, lambda rows, own=-1: 1 - max(own, 0), lambda: rows
    found = tree.kinds()
    first, second, kind = list(range(20)), list(range(20, 34)), rows.tolist()
    assert asked == [(second, first), (first, second), (second, kind), (kind[:6], kind[6:])]
    facts = {**a_split(-1, 0, [], 4 if within else 3), "beside": 1}
    del facts["parent"], facts["side"]
    assert [one.facts for one in found] == [facts] * (2 if within else 1)
    assert [one.rows.tolist() for one in found] == ([kind[:6], kind[6:]] if within else [kind])
    tree._together = lambda: rows[:7]
    assert tree.kinds() == []  # too few hold together
    tree._together, tree._novel = lambda: rows, np.arange(50) >= 27
    assert tree.kinds() == []  # seven known samples beside them are too few


def test_splits_of_few_samples_are_tested_at_a_smaller_level(monkeypatch):
    seen = []

    def evidence(look, sides, *more):
        seen.append(sides.tolist())
        return Split(**a_split(-1, 0, [4, 7], 1.0, stands=False))

    monkeypatch.setattr(split_tree, "evidence", evidence)
    monkeypatch.setattr(number_of_clusters, "strongest", len)
    monkeypatch.setattr(number_of_clusters, "tested", lambda split, strongest: strongest == 1)
    look = type("Look", (), {"take": lambda self, rows: rows, "__len__": lambda self: 101})()
    tree = tree_of(look=look, names=["rna"], generator=None)
    found = tree._test(np.arange(4), np.arange(10, 17))
    assert seen == [[False] * 4 + [True] * 7]
    assert (found.level, found.stands, found.sizes) == (pytest.approx(0.005), True, [4, 7])


def test_the_largest_kind_is_first(monkeypatch):
    tree = SimpleNamespace(kinds=lambda: [NewKind(np.arange(size), {}) for size in (3, 9, 5)])
    monkeypatch.setattr(number_of_clusters, "_Tested", lambda *given: tree)
    assert [len(kind.rows) for kind in number_of_clusters.new_kinds(None, None, None, [], 0)] == [9, 5, 3]
