"""Centres, partitions and evidence beside literal versions, with units, weights, offsets and unequal sizes."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

import reference_selection as literal
from benchmarks.clusters.criteria import partitions
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection import kmeans, linkage, scores
from viewfuse.selection.kmeans import filled_table, partition
from viewfuse.selection.linkage import principal
from viewfuse.selection.rules import gaussian_like
from viewfuse.selection.scores import Candidate, candidate_scores, macro_agreement, merits


def cloud(n=60, width=3, seed=0):
    """Points without clusters, with units and offsets: k-means needs many rounds."""
    rng = np.random.default_rng(seed)
    return rng.random((n, width)) * [1.0, 3.0, 0.5][:width] + [100.0, -7.0, 0.0][:width]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gappy(n=40, widths=(2, 3, 1), seed=0, missing=0.4):
    """Training samples of three groups of unequal sizes; views differ in units, and some are missing."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.choice(3, size=n, p=[0.5, 0.3, 0.2]))
    values = [
        (unit * (rng.normal(size=(n, w)) + 3 * rng.normal(size=(3, w))[labels] + 9)).astype(np.float32)
        for unit, w in zip((1.0, 40.0, 0.1), widths, strict=False)
    ]
    mask = rng.random((n, len(widths))) >= missing
    mask[~mask.any(axis=1), 0] = True
    values = [np.where(mask[:, v, None], view, 0).astype(np.float32) for v, view in enumerate(values)]
    return index_training_set([torch.from_numpy(x) for x in values], torch.from_numpy(mask), 9), values, mask


def lists(n=30, n_views=3, depth=11, seed=0, missing=0.3):
    """Neighbours of samples that lack some views, of shape (samples, views, depth)."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, n, size=(n, n_views, depth))
    ids[rng.random((n, n_views)) < missing] = -1
    return torch.from_numpy(ids)


@pytest.mark.parametrize("k", [2, 4])
def test_drawn_starts_are_those_of_greedy_k_means_plus_plus(k):
    points, weights = cloud(25), np.random.default_rng(1).integers(1, 9, size=25).astype(float)
    found = kmeans.drawn_centers(*map(torch.from_numpy, (points, weights)), k, np.random.RandomState(3), 20)
    assert np.array_equal(found.numpy(), literal.drawn_centers(points, weights, k, np.random.RandomState(3)))


@pytest.mark.parametrize("rounds", [0, 1, 3, 100])
@pytest.mark.parametrize("tolerance", [0.0, 1e-4, 0.03])
def test_rounds_of_k_means_are_lloyds(monkeypatch, rounds, tolerance):
    monkeypatch.setattr(kmeans, "_ROWS_AT_A_TIME", 17)
    points, weights = cloud(), np.random.default_rng(1).integers(1, 9, size=60).astype(float)
    starts = np.stack([points[:4], points[[5, 9, 30, 31]], [*points[:3], [999.0, 0.0, 0.0]]])  # one centre is alone
    monkeypatch.setattr(kmeans, "_TOLERANCE", tolerance)
    found, squares = kmeans.k_means(*map(torch.from_numpy, (points, weights, starts)), rounds)
    expected, scattered = literal.lloyd(points, weights, starts, rounds, tolerance)
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-9)
    np.testing.assert_allclose(squares, scattered, rtol=1e-6)


def test_rounds_end_where_centres_move_by_less_than_a_share_of_the_variance(monkeypatch):
    rounds, own = [], kmeans._sums
    monkeypatch.setattr(kmeans, "_sums", lambda *args: rounds.append(args) or own(*args))
    points, starts = torch.tensor([[0.0, 7.0], [2.0, 7.0]]), torch.tensor([[[0.5, 7.0], [2.0, 7.0]]])
    # Columns have variances of 1 and 0, and a centre moves by the square root of 0.25: half of 0.5.
    for tolerance, expected in ((0.51, 1), (0.49, 2)):
        rounds.clear()
        monkeypatch.setattr(kmeans, "_TOLERANCE", tolerance)
        kmeans.k_means(points, torch.ones(2), starts, 9)
        assert len(rounds) == expected


@pytest.mark.parametrize(
    ("n", "k", "limits"),
    [
        (40, 4, {}),
        (40, 3, {"ward_rows": 39, "groups": 20}),
        (40, 3, {"ward_rows": 40, "groups": 20}),
        (40, 5, {"ward_rows": 30, "groups": 20}),  # five groups for each cluster are more
        (40, 1, {"ward_rows": 30, "groups": 20}),
        (40, 4, {"ward_rows": 30, "groups": 25, "rounds": 2, "last_rounds": 1}),
        (40, 5, {"rounds": 2}),
    ],
)
def test_centres_start_where_the_literal_version_does(monkeypatch, n, k, limits):
    limits = {"ward_rows": 1000, "groups": 1000, "rounds": 100, "last_rounds": 20} | limits
    names = {"ward_rows": "_WARD_ROWS", "groups": "_GROUPS", "rounds": "_ROUNDS", "last_rounds": "_ROUNDS_WITH_ALL"}
    for name, value in limits.items():
        monkeypatch.setattr(kmeans, names[name], value)
    points, ids = cloud(n), lists(n, 2)
    found = kmeans.initial_centers(torch.from_numpy(points), k, 7, ids)
    np.testing.assert_allclose(found, literal.initial_centers(points, k, 7, ids, **limits), rtol=1e-5)


def test_the_limits_and_rounds_of_the_start_are_what_they_are_said_to_be(monkeypatch):
    sizes, rounds, own = [], [], kmeans.k_means
    monkeypatch.setattr(kmeans, "ward_centers", lambda points, k: sizes.append(len(points)) or points[:k].numpy())
    monkeypatch.setattr(kmeans, "k_means", lambda *args: rounds.append(args[3]) or own(*args))
    points = torch.arange(10_001.0, dtype=torch.float64)[:, None]
    for n in (1_000, 1_001):
        kmeans.initial_centers(points[:n], 2, 0)
    for n in (10_000, 10_001):
        kmeans.paper_centers(points[:n], 2)
    kmeans.paper_centers(points, 300)
    assert sizes == [1_000, 1_000, 10_000, 1_000, 1_500]
    assert rounds == [100, 100, 20]
    assert kmeans._TOLERANCE == 1e-4


def test_centres_of_the_paper_are_wards_of_all_samples_or_of_small_groups(monkeypatch):
    points = cloud()
    expected = literal.in_order(literal.ward(points, 4), points)
    np.testing.assert_allclose(kmeans.paper_centers(torch.from_numpy(points), 4), expected, rtol=1e-6)
    monkeypatch.setattr(kmeans, "_WARD_ALL_ROWS", 59)
    monkeypatch.setattr(kmeans, "_GROUPS", 12)
    few, _ = literal.micro_clusters(points, 20, np.random.RandomState(0))  # five for each cluster
    expected = literal.in_order(literal.ward(few, 4), few)
    np.testing.assert_allclose(kmeans.paper_centers(torch.from_numpy(points), 4), expected, rtol=1e-6)


def test_the_nearest_centre_is_so_far_from_the_origin_too(monkeypatch):
    monkeypatch.setattr(kmeans, "_ROWS_PER_GROUPING", 7)
    points = (cloud(40) + 2e4).astype(np.float32)
    own = points[[3, 8, 20, 21]] + np.float32(0.05)
    found = kmeans.nearest_center(torch.from_numpy(points), torch.from_numpy(own))
    assert found.tolist() == literal.nearest(points.astype(float), own.astype(float)).tolist()


def test_groups_are_the_means_around_drawn_samples(monkeypatch):
    monkeypatch.setattr(kmeans, "_ROWS_PER_GROUPING", 7)
    points = np.concatenate([cloud(30), np.zeros((9, 3)), cloud(5)])  # equal samples lead one group
    found = kmeans.micro_clusters(torch.from_numpy(points), 15, np.random.RandomState(2))
    for own, expected in zip(found, literal.micro_clusters(points, 15, np.random.RandomState(2)), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-9)


def test_a_centre_that_no_point_is_nearest_to_comes_last():
    points, own = np.array([[5.0], [1.0], [5.2]]), np.array([[99.0], [1.0], [5.0]])
    assert kmeans.in_order(own, points).tolist() == [[5.0], [1.0], [99.0]]


@pytest.mark.parametrize("limit", [30, 29, 8])
def test_views_are_compared_on_rows_from_first_to_last(monkeypatch, limit):
    monkeypatch.setattr(scores, "_SEEN", limit)
    ids = lists()
    ids[:6, 1] = ids[:6, 0]  # the first samples have the same neighbours in two views, the others do not
    every = {30: 1, 29: 2, 8: 4}[limit]
    assert scores.view_weights(ids) == pytest.approx(literal.view_weights(ids, range(0, 30, every)))


def test_two_thousand_rows_tell_which_views_repeat_each_other():
    rows = np.arange(4_000)
    ids = np.stack([(rows + 1) % 4_000, np.where(rows // 2 % 2, (rows + 2) % 4_000, (rows + 1) % 4_000)], axis=1)
    # Of the even rows, which are seen, every other has one neighbour in both views.
    assert scores.view_weights(torch.from_numpy(ids)[:, :, None]) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("together", [4_000_000, 1_700])  # all five partitions, or two at a time
def test_the_merits_of_several_partitions_are_literal(monkeypatch, together):
    monkeypatch.setattr(scores, "_PAIRS_TOGETHER", together)
    rng, ids = np.random.default_rng(0), lists()
    found = [rng.choice(k, size=30, p=np.arange(1, k + 1) / sum(range(k + 1))) for k in (1, 2, 3, 5)]
    found.append(np.where(found[-1] == 2, 4, found[-1]))  # one of five clusters is empty
    for own, merit in zip(found, merits([torch.from_numpy(own) for own in found], ids, 5), strict=True):
        labels = own.tolist()
        expected = literal.macro(labels, ids, 5), literal.agreement(labels, ids), literal.information(labels, ids)
        assert merit == pytest.approx(expected)
        assert macro_agreement(torch.from_numpy(own), ids, 5) == merit.score


def test_a_cluster_that_a_view_does_not_have_is_not_judged_by_it():
    labels, ids = [0, 0, 0, 1, 1, 1, 2, 2], torch.full((8, 1, 2), -1)
    ids[:6, 0] = torch.tensor([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [3, 4]])
    expected = (3 / 4 - 2 / 5) / (3 / 5)  # three of three at one standard error, less two in five by chance
    assert macro_agreement(torch.tensor(labels), ids, 3) == pytest.approx(expected)
    assert macro_agreement(torch.tensor([*labels[:6], 0, 0]), ids, 3) == pytest.approx(2 / 3 * expected)


def test_one_sample_with_one_view_does_not_raise_the_score_of_the_others():
    """Two groups in two views; a sample apart, which has the first view only, is a cluster of its own."""
    rows = torch.arange(20)
    near = (rows[:, None] // 10 * 10 + (rows[:, None] + torch.arange(1, 5)) % 10)[:, None].repeat(1, 2, 1)
    ids = torch.cat([near, torch.tensor([[[0, 1, 10, 11], [-1] * 4]])])
    apart, joined = (torch.cat([rows // 10, torch.tensor([c])]) for c in (2, 0))
    assert macro_agreement(joined, ids, 2) > 0.7
    found = macro_agreement(apart, ids, 3)
    assert found == pytest.approx(literal.macro(apart.tolist(), ids, 3))
    assert found < 2 / 3  # the sample alone keeps none of its neighbours


def test_a_group_with_one_view_counts_in_others_what_it_counts_there():
    """Two groups in two views; four more samples, which have the first view only, keep three of their neighbours."""
    rows = torch.arange(20)
    near = (rows[:, None] // 10 * 10 + (rows[:, None] + torch.arange(1, 5)) % 10)[:, None].repeat(1, 2, 1)
    own = 20 + (torch.arange(4)[:, None] + torch.arange(1, 4)) % 4
    more = torch.stack([torch.cat([own, torch.zeros(4, 1, dtype=torch.int64)], dim=1), torch.full((4, 4), -1)], dim=1)
    ids, labels = torch.cat([near, more]), torch.cat([rows // 10, torch.full((4,), 2)])
    found = macro_agreement(labels, ids, 3)
    assert found == pytest.approx(literal.macro(labels.tolist(), ids, 3))
    assert found > 0.6  # nothing counts 0


def test_candidates_of_several_scalings_score_what_is_written_out():
    rng, graphs = np.random.default_rng(0), [lists(seed=seed) for seed in range(3)]
    graphs[1][:, 0] = graphs[0][:, 0]  # two scalings treat a view alike
    graphs[2][:, 2] = -1  # under one scaling a view says nothing
    labels = [rng.choice(4, size=30, p=[0.4, 0.3, 0.2, 0.1]) for _ in range(4)]
    found = [Candidate("abca"[i], own, graphs[i % 3], 1.0) for i, own in enumerate(labels)]
    expected = [literal.macro_over(own.tolist(), graphs, 5) for own in labels]
    assert candidate_scores(found, 5) == pytest.approx(expected)


def test_clusters_are_matched_from_the_other_to_this_one():
    labels, other = np.array([0, 0, 0, 1, 1, 2]), np.array([3, 3, 1, 1, 1, 0])
    # 3 becomes 0, 1 becomes 1, 0 becomes 2; a number that only the other one has is a cluster as well
    assert scores.stability(labels, [other]).tolist() == [1, 1, 0, 1, 1, 1]
    assert scores.matched_share(labels, other) == pytest.approx(5 / 6)
    assert scores.matched_share(other, labels) == pytest.approx(5 / 6)
    halves = np.array([0, 1, 2, 3, 4, 4])  # of five clusters two have no partner among three
    assert scores.matched_share(labels, halves) == pytest.approx(3 / 6)
    assert scores.stability(labels, [other, halves]).sum() == pytest.approx((5 + 3) / 2)


@pytest.mark.parametrize("shape", [(50, 30), (20, 70), (9, 3)])
def test_principal_components_are_those_of_a_singular_value_decomposition(shape):
    table = np.random.default_rng(0).normal(size=shape) * np.linspace(1, 50, shape[1]) + 200
    found, expected = principal(torch.from_numpy(table)), literal.principal(table)
    assert found.shape == expected.shape == (shape[0], min(*shape, 24))
    np.testing.assert_allclose(found.abs(), np.abs(expected), atol=1e-4)


def test_partitions_by_k_are_those_of_four_literal_starts():
    points = cloud(50).astype(np.float32)
    points -= points.mean(axis=0)
    found = partitions(torch.from_numpy(points), [2, 3, 5, 8], generator())
    expected = literal.partitions(points.astype(float), [2, 3, 5, 8], generator())
    assert found.tolist() == [own.tolist() for own in expected]
    for k in (2, 3, 5, 8):
        (alone,) = literal.partitions(points.astype(float), [k], generator())
        assert partition(torch.from_numpy(points), k).tolist() == alone.tolist()


def test_a_point_that_is_met_again_is_drawn_only_when_nothing_else_is_left():
    points = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    found = partition(points, 4)
    assert found[0] == found[1] != found[2] == found[3]


def test_a_gaussian_is_random_sums_of_the_rows_of_a_table():
    table = np.random.default_rng(0).normal(size=(4, 6)) * 5 + 30
    drawn = torch.randn(4, 4, generator=generator(), dtype=torch.float64).numpy()
    middle = table.mean(axis=0)
    expected = [sum(d[i] * (table[i] - middle) for i in range(4)) / 2 + middle for d in drawn]
    np.testing.assert_allclose(gaussian_like(torch.from_numpy(table), generator()), expected, atol=1e-9)


def test_missing_views_are_the_means_of_five_donors_in_the_units_of_their_view():
    samples, values, mask = gappy()
    found = filled_table(samples, torch.arange(40))
    np.testing.assert_allclose(found, literal.filled_table(values, mask), rtol=1e-5)
    some = torch.tensor([31, 4, 4, 17])
    np.testing.assert_allclose(filled_table(samples, some), literal.filled_table(values, mask)[some], rtol=1e-5)


def test_a_sample_without_donors_gets_the_mean_of_all_that_have_the_view():
    """The last two samples have the second view only, and nobody else has it."""
    values = [torch.tensor([[1.0], [2.0], [6.0], [0.0], [0.0]]), torch.tensor([[0.0], [0.0], [0.0], [7.0], [9.0]])]
    present = torch.tensor([[True, False]] * 3 + [[False, True]] * 2)
    samples = index_training_set(values, present, 9)
    assert filled_table(samples, torch.tensor([0, 4])).tolist() == [[1.0, 8.0], [3.0, 9.0]]


def test_only_samples_without_donors_get_that_mean():
    values = [[1.0, 2.0, 8.0, 0.0, 0.0], [0.0, 10.0, 40.0, 0.0, 100.0], [0.0] * 5]
    mask = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 1, 0]], dtype=bool)
    samples = index_training_set([torch.tensor(view)[:, None] for view in values], torch.from_numpy(mask), 9)
    # The second and the third sample are donors of the first one; the fourth meets nobody.
    assert filled_table(samples, torch.arange(5))[:, 1].tolist() == [25.0, 10.0, 40.0, 50.0, 100.0]


def test_limits_of_the_evidence_are_what_they_are_said_to_be():
    assert (kmeans._STARTS_BY_K, kmeans._ROUNDS_BY_K, linkage._DIMENSIONS) == (4, 24, 24)


def test_the_examples_of_unequal_sizes_hold():
    found = doctest.testmod(scores)
    assert (found.failed, found.attempted > 7) == (0, True)
