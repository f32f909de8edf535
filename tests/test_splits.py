"""Evidence for a split beside literal versions, with units, gaps and unequal sizes."""

from __future__ import annotations

from statistics import NormalDist, mean, stdev

import numpy as np
import pytest
import torch

from test_linkage import samples
from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.selection import split_evidence
from viewfuse.selection.kmeans import Tree, filled_table
from viewfuse.selection.linkage import cluster_tree, edges, nearest_different
from viewfuse.selection.rules import gaussian_like
from viewfuse.selection.split_evidence import (
    Contrast,
    Look,
    _split_of,
    agreement,
    border_gaps,
    evidence,
    p_value,
    splits_of,
)

NAMES = ["a", "b"]
HALF = 0.25 ** (1 / 3)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def a_look(sizes, seed=0, far=6.0):
    stored, points, labels = samples(sizes, seed, far=far)
    hidden = torch.stack([torch.cat([points[:, :5] * (v != 0), points[:, 5:] * (v != 1)], dim=1) for v in range(2)])
    table = filled_table(stored, torch.arange(len(points)))
    return Look(points, hidden, stored.values, stored.present, table), labels


def literal_agreement(table, sides, among):
    """Cohen's kappa of the sides of both ends of an edge, drawn by weight."""
    pairs = [(i, j) for i in np.flatnonzero(among) for j in np.flatnonzero(among)]
    total = sum(table[i, j] for i, j in pairs)
    same = sum(table[i, j] for i, j in pairs if sides[i] == sides[j]) / total
    ends = [sum(table[i, j] for i, j in pairs if sides[i] == side) / total for side in (False, True)]
    chance = ends[0] ** 2 + ends[1] ** 2
    return (same - chance) / (1 - chance)


def test_agreement_is_cohens_kappa_of_both_ends_of_an_edge():
    look, labels = a_look((9, 6, 7))
    graph, rng = edges(look.neighbors[:, 0].numpy()), np.random.default_rng(0)
    sides, among = rng.random(len(labels)) < 0.3, rng.random(len(labels)) < 0.8
    assert agreement(graph, sides, among) == pytest.approx(literal_agreement(graph.toarray(), sides, among))
    assert np.isnan(agreement(graph, np.zeros(len(labels), dtype=bool)))


def test_a_gaussian_of_few_samples_is_not_split():
    look, _ = a_look((9, 6))
    assert _split_of(look, torch.Generator()) == [0.0, 0.0, 0.0]


def test_whether_a_valley_is_asked_for_depends_on_all_views_together(monkeypatch):
    look, _ = a_look((30, 30))
    sides = np.arange(60) >= 30
    for nulls, own, asked in (([0.77, 0.1, 0.1], 0.9, 1), ([0.75, 0.99, 0.99], 0.9, 0), ([0.77, 0.1, 0.1], 0.996, 0)):
        calls = []
        monkeypatch.setattr(split_evidence, "_split_of", lambda *_, found=nulls: found)
        monkeypatch.setattr(split_evidence, "_agreements", lambda *_, own=own: [own, 0.9, 0.9])
        monkeypatch.setattr(split_evidence, "valley_p_value", lambda *given, calls=calls: calls.append(given) or 0.03)
        found = evidence(look, sides, NAMES, 2, torch.Generator())
        assert (len(calls), found.valley) == (asked, 0.03 if asked else None)


def test_neighbors_of_a_look_are_its_own():
    look, _ = a_look((20, 9))
    some = look.take(np.arange(3, 29, 2))
    ids, values, present = some.neighbors, some.values[1].double().numpy(), some.present[:, 1].numpy()
    for i in np.flatnonzero(present):
        others = sorted((np.square(values[i] - values[j]).sum(), j) for j in np.flatnonzero(present) if j != i)
        assert sorted(ids[i, 1][ids[i, 1] >= 0].tolist()) == sorted(j for _, j in others[:9])
    assert (ids[~some.present] == -1).all()


def test_the_p_value_is_that_of_a_normal_fit_to_logarithms():
    null, logs = [0.3, 0.4, 0.45, 0.5], [np.log(1 - one) for one in (0.3, 0.4, 0.45, 0.5)]
    wanted = NormalDist(mean(logs), stdev(logs) * 1.25**0.5).cdf(np.log(1 - 0.7))
    assert p_value(0.7, null) == pytest.approx(wanted)
    assert p_value(0.4, [0.4] * 4) == pytest.approx(0.5)
    assert p_value(1.0, [0.4] * 4) == p_value(0.99, [0.4] * 4)  # a handful of crossing neighbours is none


def test_a_gaussian_has_the_same_views_and_covariance():
    look, _ = a_look((120, 60))
    drawn = look.drawn(generator())
    parts = gaussian_like(torch.cat([look.table, look.embedding], dim=1), generator())
    assert torch.equal(torch.cat([*drawn.values, drawn.embedding], dim=1), parts)
    assert torch.equal(drawn.present, look.present)


def weighed(monkeypatch, agreements, nulls, held, gaps=(1.0, 1.0)):
    """The evidence of made-up agreements, in all views together and in each; `nulls` has a row per Gaussian."""
    look, rows, told = a_look((12, 9))[0], iter(nulls), iter(held)
    monkeypatch.setattr(split_evidence, "_agreements", lambda *_: agreements)
    monkeypatch.setattr(split_evidence, "_split_of", lambda *_: next(rows))
    monkeypatch.setattr(split_evidence, "agreement", lambda *_: next(told))
    monkeypatch.setattr(split_evidence, "border_gaps", lambda *_: [[gap] for gap in gaps])
    return evidence(look, np.arange(21) >= 12, NAMES[: len(agreements) - 1], len(nulls), torch.Generator())


def test_the_strength_is_what_crosses_less_and_held_out_views_weigh_it(monkeypatch):
    nan, nulls = float("nan"), [[0.6, 0.0, 0.0]] * 3
    said = weighed(monkeypatch, [0.9, nan, nan], nulls, [0.125, nan])
    assert said.strength == pytest.approx(np.log(0.4 / 0.1) * 0.5)
    assert said.held_out == {"a": 0.125, "b": None}
    assert said.views == {"a": None, "b": None}
    assert said.sizes == [12, 9]
    assert weighed(monkeypatch, [0.9, nan, nan], nulls, [-0.2, -0.2]).strength == 0
    said = weighed(monkeypatch, [1.0, nan, nan], nulls, [1.0, 1.0])
    assert said.strength == pytest.approx(np.log(0.4 / 0.02))
    one = [row[:2] for row in nulls]
    assert weighed(monkeypatch, [0.9, nan], one, [], [1.0]).strength == pytest.approx(np.log(4) * HALF)


def test_border_samples_are_further_from_their_neighbours_where_there_is_a_gap():
    rng = np.random.default_rng(0)
    even, apart = rng.uniform(-3, 3, size=(300, 1)), rng.normal(size=(300, 1))
    apart += np.where(rng.random((300, 1)) < 0.5, -2, 2)
    found = []
    for points in (even, apart):
        values = torch.from_numpy(np.concatenate([points, rng.normal(size=(300, 1)) * 0.3], axis=1)).float()
        look = Look(values, values[None], [values], torch.ones(300, 1, dtype=torch.bool), values)
        found.append(np.mean(border_gaps(look, points[:, 0] > 0)))
    assert found[1] > 0.4 > 0.25 > found[0]
    assert border_gaps(look, np.zeros(300, dtype=bool)) == [[]]  # nothing crosses


def test_true_sides_are_evident_in_all_views_and_halves_of_one_group_are_not():
    look, labels = a_look((70, 50))
    true = evidence(look, labels == 1, NAMES, 4, generator())
    assert (true.agreement, true.p_value < 1e-6, min(true.held_out.values()) > 0.9) == (
        pytest.approx(1, abs=0.01),
        True,
        True,
    )
    one, _ = a_look((120,))
    halves = evidence(one, one.embedding[:, 0].numpy() > 0, NAMES, 4, generator())
    assert true.strength > 5 * max(halves.strength, 0.1)


def test_a_split_in_one_view_only_is_not_seen_where_it_is_left_out():
    look, _ = a_look((100,))
    sides = np.arange(100) % 2 == 1
    for points in (look.values[0], look.embedding, look.hidden[1]):
        points[:, 0] += torch.from_numpy(20.0 * sides).float()
    said = evidence(look, sides, NAMES, 2, generator())
    assert said.held_out["a"] < 0.3
    assert abs(said.held_out["b"]) < 0.3
    assert said.agreement > 0.5
    assert said.alone == "a"  # and it is strong there
    weight = max(np.mean([*said.held_out.values()]), 0) ** (1 / 3)
    assert said.strength > 1 > (np.log(1 - said.null) - np.log(max(1 - said.agreement, 0.02))) * weight
    assert said.p_value < 0.001


def test_one_view_alone_must_be_stronger_than_gaussians_and_have_a_gap(monkeypatch):
    """By hand: the logarithm of how much rarer neighbours cross, times the cube root of a quarter."""
    crisp = Contrast(0.95, [0.5, 0.7], HALF, 0.1)
    assert crisp.strength == pytest.approx(HALF * np.log(0.4 / 0.05))
    assert Contrast(0.95, [0.5, 0.7], HALF, 0.0).strength == -np.inf  # the border is as dense as the rest
    assert Contrast(0.8, [0.5, 0.7], HALF, 0.1).strength == -np.inf  # 0.44, and Gaussians have 0.6
    assert Contrast(float("nan"), [0.5, 0.7], HALF, 0.1).strength == -np.inf  # too few samples have it
    said = weighed(monkeypatch, [0.7, 0.1, 0.95], [[0.6, 0.2, 0.5], [0.5, 0.1, 0.7]], [0.0, 0.0], [1.0, 0.1])
    assert (said.alone, said.strength) == ("b", crisp.strength)
    assert said.p_value == pytest.approx(2 * p_value(0.95, [0.5, 0.7]))
    logs = [np.log(0.5), np.log(0.3)]
    assert said.error == pytest.approx(HALF * np.std(logs, ddof=1))
    nulls = [[0.6, 0.5, 0.5], [0.5, 0.7, 0.7]]
    seen = weighed(monkeypatch, [0.97, 0.95, 0.95], nulls, [0.9, 0.95], [0.1, 0.1])
    together = Contrast(0.97, [0.6, 0.5], np.mean([0.9, 0.95]) ** (1 / 3))
    assert (seen.alone, seen.strength) == (False, pytest.approx(together.strength))
    assert seen.p_value == p_value(0.97, [0.6, 0.5])


def test_splits_have_eight_samples_on_both_sides_and_smaller_parts_stay():
    groups = np.repeat(np.arange(5), [3, 20, 10, 8, 4])
    tree = Tree(groups, np.array([[0, 1], [2, 3], [4, 6], [5, 7]]))
    first, second = splits_of(tree)
    assert [len(first.left), len(first.right), first.parent] == [23, 22, -1]
    assert (second.parent, second.side, len(second.left), len(second.right)) == (0, 1, 10, 8)
    assert second.left.tolist() == [*range(23, 33)]


def test_every_split_is_nested_in_its_parent():
    stored, points, _ = samples((60, 40, 30))
    found = splits_of(cluster_tree(points, stored.neighbor_ids, 0))
    for one in found[1:]:
        parent = found[one.parent]
        within = (parent.left, parent.right)[one.side]
        assert np.isin(np.concatenate([one.left, one.right]), within).all()


def test_copies_of_a_row_are_no_neighbours():
    """Twelve texts, each there five times, are no twelve clusters; rows with nine copies more tell nothing."""
    distinct = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    found = nearest_different(distinct.repeat_interleave(5, dim=0))
    far = torch.cdist(distinct.double(), distinct.double()).fill_diagonal_(torch.inf)
    for i, ids in enumerate(found.tolist()):
        order = far[i // 5].argsort().tolist()
        assert {j // 5 for j in ids} == set(order[:2])  # five copies of the nearest text, and four of the next
    assert (nearest_different(torch.ones(6, 2)) == NO_NEIGHBOR).all()
    assert nearest_different(torch.tensor([[0.0], [0.0], [4.0]]))[:2].tolist() == [[2, NO_NEIGHBOR]] * 2
    often = torch.arange(30.0)[:, None].repeat_interleave(torch.tensor([9] + [10] + [1] * 28), dim=0)
    assert (nearest_different(often)[:9] >= 9).all()
    assert (nearest_different(often)[9:19] == NO_NEIGHBOR).all()


def test_groups_of_copies_are_found_by_the_embedding():
    """Three different rows are three clusters; no view can say more, and none says the opposite."""
    kind = np.repeat([0, 1, 2], [60, 30, 10])
    views = [torch.randn(3, width, generator=torch.Generator().manual_seed(width))[kind] for width in (8, 5)]
    points = torch.cat(views, dim=1)
    look = Look(points, torch.stack([points, points]), views, torch.ones(100, 2, dtype=torch.bool), points)
    assert (look.neighbors == NO_NEIGHBOR).all()
    found = evidence(look, kind > 0, NAMES, 3, torch.Generator().manual_seed(0))
    assert (found.agreement, found.alone) == (1.0, False)
    assert found.held_out == {"a": None, "b": None}
    assert found.p_value < 0.001


def test_a_view_of_copies_and_one_without_neighbours_have_no_gaps():
    look, labels = a_look((20, 30), far=1.0)
    sides = np.asarray(labels) == 1
    values = [look.values[0], torch.ones_like(look.values[1])]
    same = type(look)(look.embedding, look.hidden, values, look.present, look.table)
    ids = same.neighbors
    assert (ids[:, 1] == NO_NEIGHBOR).all()
    ours, nothing = border_gaps(same, sides)
    assert len(ours) == 2
    assert ours == border_gaps(look, sides)[0]
    assert nothing == []
