"""Rules, bounds and limits of what is decided without labels: by hand, at the bound and on both sides of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import nan

import numpy as np
import pytest
import torch
from torch.nn import functional

import reference_selection as literal
from viewfuse.fitted.clusters import typical_samples
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection import confidence, kmeans, linkage, rules
from viewfuse.selection.decision_texts import label, records, restored, words
from viewfuse.selection.decisions import (
    CellFilling,
    ClusterSource,
    JointStageLength,
    MeanConfidence,
    PretrainingLength,
    SavedSentence,
    ScalingChoice,
    Trust,
    ViewReduction,
)
from viewfuse.selection.scores import Candidate, Merit, best_start, matched_kappa, merits


@pytest.mark.parametrize(
    ("kappa", "n", "k", "clear"),
    [(0.85, 10, 2, True), (0.849, 10, 2, False), (0.85, 9, 2, False), (0.85, 15, 3, True), (1.0, 5, 1, True)],
)
def test_clusters_are_clear_from_a_bound_on(kappa, n, k, clear):
    assert rules.are_clear(kappa, n, k) == clear


def test_partitions_are_compared_by_their_sizes_and_not_by_the_number_of_clusters():
    labels, other = np.array([0] * 6 + [1, 1]), np.array([2] * 5 + [0] + [0, 2])  # 2 becomes 0, 0 becomes 1
    chance = (6 * 6 + 2 * 2) / 64
    assert matched_kappa(labels, other) == pytest.approx((6 / 8 - chance) / (1 - chance))
    assert matched_kappa(labels, 7 - labels) == 1.0
    assert matched_kappa(np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64)) == 1.0


@pytest.mark.parametrize(
    ("other", "better", "of_graph", "of_tree"),
    [
        (Merit(0.5, 0.5, 1.0), False, False, False),
        (Merit(0.629, 0.5, 0.1), False, False, False),  # 0.371 leave: 0.5 / exp(0.3) is 0.3704
        (Merit(0.630, 0.5, 0.1), True, False, False),  # whatever it tells
        (Merit(0.1, 0.547, 0.952), False, False, False),  # 0.453 leave: 0.5 / exp(0.1) is 0.4524
        (Merit(0.1, 0.548, 0.952), True, False, False),
        (Merit(0.1, 0.548, 0.951), False, False, False),  # exp(-0.05) is 0.9512
        (Merit(0.5, 0.5, 1.051), False, False, False),  # exp(0.05) is 1.0513
        (Merit(0.5, 0.5, 1.052), True, False, False),
        (Merit(0.499, 0.5, 1.052), False, False, False),  # more leave
        (Merit(0.5, 0.499, 1.052), False, False, False),
        (Merit(0.630, 0.9, 1.10), True, False, True),
        (Merit(0.630, 0.9, 1.106), True, True, True),  # exp(0.1) is 1.105
        (Merit(0.629, 0.9, 1.2), True, False, True),
        (Merit(1.0, 1.0, 1.2), True, True, True),
        (Merit(0.52, 0.52, 1.041), False, False, True),  # 0.48 leave: 0.5 / exp(0.04) is 0.4804; exp(0.04) is 1.0408
        (Merit(0.519, 0.52, 1.041), False, False, False),
        (Merit(0.52, 0.519, 1.041), False, False, False),
        (Merit(0.52, 0.52, 1.040), False, False, False),
    ],
)
def test_when_another_partition_takes_the_place_of_the_networks(other, better, of_graph, of_tree):
    own = Merit(0.5, 0.5, 1.0)
    assert rules.clearly_better(other, own) == better
    assert rules.clearly_better(other, own, "graph") == of_graph
    assert rules.clearly_better(other, own, "tree") == of_tree


@pytest.mark.parametrize(
    ("other", "better"),
    [
        (Merit(0.1, 0.534, 0.924), True),  # 0.466 leave: 0.5 / exp(0.07) is 0.4662; exp(-0.08) is 0.9231
        (Merit(0.9, 0.533, 9.0), False),
        (Merit(0.9, 0.9, 0.923), False),
    ],
)
def test_average_linkage_may_tell_less_where_fewer_neighbours_leave(other, better):
    assert rules.clearly_better(other, Merit(0.5, 0.5, 1.0), "linkage") == better


@pytest.mark.parametrize(
    ("other", "found_in", "kappa", "better"),
    [
        (Merit(0.56, 0.6, 1.0), "linkage", 0.70, True),
        (Merit(0.56, 0.6, 1.0), "linkage", 0.69, False),
        (Merit(0.57, 0.6, 1.0), "linkage", 0.1, True),  # 0.43 leave: 0.5 / exp(0.15) is 0.4304
        (Merit(0.9, 0.9, 2.0), "consensus", 0.70, True),
        (Merit(0.9, 0.9, 2.0), "consensus", 0.69, False),
        (Merit(0.9, 0.9, 2.0), "tree", 0.0, True),  # which may be another partition
    ],
)
def test_a_vote_and_average_linkage_correct_clusters_and_do_not_replace_them(other, found_in, kappa, better):
    assert rules.clearly_better(other, Merit(0.5, 0.5, 1.0), found_in, kappa) == better


def test_even_halves_tell_more_than_a_rare_group_but_do_not_take_its_place():
    """Groups of 950 and 50 whose neighbours are all their own, and a cut through the large one."""
    rng = np.random.default_rng(0)
    rare, halves = (np.arange(1000) >= 950) * 1, np.arange(1000) // 500
    near = np.where(rng.random((1000, 9)) < 0.9, halves[:, None], 1 - halves[:, None])  # the half of each neighbour
    near = near * 450 + rng.integers(0, 450, (1000, 9)) + near * 50
    near[950:] = rng.integers(950, 1000, (50, 9))
    near = np.where(rare[:, None] == 1, near, near.clip(max=949))[:, None]
    own, other = merits([torch.from_numpy(x) for x in (rare, halves)], torch.from_numpy(near), 2)
    assert other.information > 1.5 * own.information
    assert other.score < own.score
    assert not rules.clearly_better(other, own)


def test_what_was_found_earlier_is_not_kept_for_telling_more():
    own, other = Merit(0.5, 0.5, 1.0), Merit(0.5, 0.5, 9.0)
    assert [rules.clearly_better(other, own, name) for name in ("k-means", "earlier")] == [True, False]
    assert rules.clearly_better(Merit(0.63, 0.1, 0.1), own, "earlier")
    assert rules.clearly_better(Merit(0.1, 0.548, 0.952), own, "earlier")


@pytest.mark.parametrize(
    ("own", "other", "better", "of_graph", "of_tree"),
    [
        (Merit(0.9, 0.9, 2.0), Merit(0.9, 0.9, 2.10), False, False, False),  # 2 * exp(0.05) is 2.1025
        (Merit(0.9, 0.9, 2.0), Merit(0.9, 0.9, 2.11), True, False, False),
        (Merit(0.9, 0.9, 0.02), Merit(0.9, 0.9, 0.0210), False, False, False),
        (Merit(0.9, 0.9, 0.02), Merit(0.9, 0.9, 0.0211), True, False, False),
        (Merit(0.9, 0.9, 1.5), Merit(0.92, 0.1, 1.0), False, False, False),  # 0.08 leave: 0.1 / exp(0.3) is 0.0741
        (Merit(0.9, 0.9, 1.5), Merit(0.93, 0.1, 1.6), True, False, False),
        (Merit(0.9, 0.9, 1.5), Merit(0.93, 0.1, 1.66), True, True, False),  # 1.5 * exp(0.1) is 1.6578
        (Merit(0.9, 0.9, 1.5), Merit(0.905, 0.905, 1.57), False, False, True),  # 0.1 / exp(0.04) is 0.0961
        (Merit(0.9, 0.9, 1.5), Merit(0.905, 0.905, 1.56), False, False, False),  # 1.5 * exp(0.04) is 1.5612
        (Merit(0.9, 0.9, 0.0), Merit(0.1, 0.1, 0.0), False, False, False),  # nothing is told by either
        (Merit(0.9, 0.9, 0.0), Merit(0.9, 0.9, 1e-6), True, False, False),
        (Merit(0.9, 0.9, 0.0), Merit(0.9, 0.9, 1.0e-9), False, False, False),
        (Merit(0.9, 0.9, 1.0), Merit(0.1, 0.95, 0.0), False, False, False),
        (Merit(0.9, 0.9, 0.0), Merit(0.1, 0.95, 0.0), True, False, False),
    ],
)
def test_what_clusters_tell_is_compared_with_what_the_own_ones_tell(own, other, better, of_graph, of_tree):
    found = [rules.clearly_better(other, own, *way) for way in ((), ("graph",), ("tree",))]
    assert found == [better, of_graph, of_tree]


def test_scalings_weights_and_verdicts_are_those_of_the_documents():
    assert rules.SCALINGS == ("mixed", "standard", "minmax")
    assert (rules.clustering_weight(2.0), rules.clustering_weight(None)) == (1.4, 0.1)
    assert rules.best_scaling({"a": 0.5, "b": 0.5 + 0.04, "c": 0.5 + 0.041}) == "c"


@pytest.mark.parametrize(
    ("scores", "squares", "best"),
    [
        ([0.5, 0.6], [1000.0, 1000.9], 1),  # a thousandth more is the same
        ([0.5, 0.6], [1000.0, 1001.1], 0),
        ([0.5, 0.629], [1000.0, 1001.1], 0),
        ([0.5, 0.630], [1000.0, 1001.1], 1),
        ([0.5, 0.8, 0.9], [1000.0, 1001.1, 1001.2], 2),
        ([0.9, 0.5, 0.8], [1001.1, 1000.0, 1000.5], 0),
    ],
)
def test_the_start_is_that_of_the_literal_rule(scores, squares, best):
    merits = [Merit(own, 0.0, 1.0) for own in scores]
    assert best_start(merits, squares) == literal.best_start(scores, squares) == best


def test_of_equal_trainings_the_one_with_the_least_finite_loss_is_kept():
    found = [Candidate("s", np.zeros(2, dtype=np.int64), torch.zeros(0), loss) for loss in (nan, 0.5, 0.4, -1.0)]
    assert rules.best_of_each(found, [0.5, 0.5, 0.5 + 1e-11, 0.4]) == {"s": 2}
    assert rules.best_of_each(found[:1], [0.5]) == {"s": 0}


def test_the_most_typical_samples_are_five_and_the_surest_come_first():
    sure = np.array([0.5, 0.9, 0.70001, 0.70004, 0.2, 0.95, 0.70002, 0.1])
    # Of samples that four digits do not tell apart the first comes first; row 5 belongs to another cluster.
    assert typical_samples(np.array([0, 1, 2, 3, 4, 6, 7]), sure).tolist() == [1, 2, 3, 6, 0]
    assert typical_samples(np.array([4, 3]), sure).tolist() == [3, 4]


def rows_of(n, limit):
    """Row numbers from the first to the last, evenly."""
    return [int(i * (n - 1) / (limit - 1)) for i in range(limit)] if n > limit else [*range(n)]


@pytest.mark.parametrize(("limit", "unit"), [(5_000, 1.0), (40, 1.0), (40, 4.0)])
def test_taught_centres_are_those_of_least_cross_entropy_on_evenly_spread_rows(monkeypatch, limit, unit):
    """Samples are sorted by cluster, so that the first rows would hold one cluster only."""
    monkeypatch.setattr(linkage, "_TAUGHT_ROWS", limit)
    rng, labels = np.random.default_rng(0), np.repeat([0, 1, 2], [70, 30, 20])
    points = torch.from_numpy(unit * (rng.normal(size=(120, 4)) + 2 * rng.normal(size=(3, 4))[labels] + 5))
    means = torch.stack([points[labels == c].mean(dim=0) for c in range(3)])
    own, wanted = points[rows_of(120, limit)], torch.from_numpy(labels[rows_of(120, limit)])
    first, second = torch.cdist(own, means).square().sort(dim=1).values.unbind(dim=1)[:2]
    scale = (second - first).mean()

    def slope(at):
        at = at.clone().requires_grad_()
        entropy = functional.cross_entropy(-torch.cdist(own, at).square() / scale, wanted)
        return torch.autograd.grad(entropy + 1e-3 * (at - means).square().sum() / scale, at)[0].norm()

    assert slope(linkage.centers_of(points, labels, 3)) < 1e-3 * slope(means)


def test_what_is_learned_is_judged_with_the_centres_that_are_taught(monkeypatch):
    seen, given = [], {}

    def fitted(points, wanted, means):
        seen.append((len(points), means.ravel().tolist()))
        return np.array(given["centers"])[:, None]

    monkeypatch.setattr(linkage, "_fitted", fitted)
    labels = np.repeat([0, 1], 10)

    def taught(points, *centers):
        given["centers"] = centers
        found = linkage.centers_of(torch.tensor(points)[:, None], labels, 2)
        return found if found is None else found.ravel().tolist()

    right = [0.0] * 10 + [1.0] * 10
    assert taught(right, 0.0, 1.0) == [0.0, 1.0]
    assert taught(right, 1.0, 0.0) is None
    assert taught([1.0] * 2 + [0.0] * 8 + [1.0] * 10, 0.0, 1.0) == [0.0, 1.0]  # nine in ten
    assert taught([1.0] * 3 + [0.0] * 7 + [1.0] * 10, 0.0, 1.0) is None
    assert seen[2] == (20, pytest.approx([0.2, 1.0]))
    assert linkage.centers_of(torch.zeros(20, 1), labels, 3) is None
    long = torch.arange(5_001.0)[:, None]
    given["centers"] = (1_250.0, 3_750.0)
    linkage.centers_of(long, (long[:, 0] > 2_500).long().numpy(), 2)
    assert seen[-1] == (5_000, pytest.approx([1_250.0, 3_750.5]))  # means are those of all


def test_a_power_of_one_leaves_assignments_alone():
    even = np.full((4, 2), 0.5, dtype=np.float32)
    assert confidence.sharpened(even, 1.0) is even


def kmeans_calls(monkeypatch, n, limit, seed=5):
    """The rows of each table that is filled, and what the centres start from."""
    monkeypatch.setattr(kmeans, "_ROWS", limit)
    rows, starts, own, start = [], [], kmeans.filled_table, kmeans.initial_centers
    monkeypatch.setattr(kmeans, "filled_table", lambda s, some: rows.append(some.tolist()) or own(s, some))
    monkeypatch.setattr(kmeans, "initial_centers", lambda *args: starts.append(args) or start(*args))
    values = torch.cat([torch.zeros(n // 2, 1), torch.ones(n - n // 2, 1)]) + torch.arange(n)[:, None] / (100 * n)
    samples = index_training_set([values], torch.ones(n, 1, dtype=torch.bool), 9)
    labels = kmeans.filled_kmeans(samples, 2, seed)
    assert labels.tolist() == [0] * (n // 2) + [1] * (n - n // 2)
    return samples, values, rows, starts


def test_k_means_on_few_samples_takes_all_of_them_and_their_neighbours(monkeypatch):
    samples, values, rows, starts = kmeans_calls(monkeypatch, 30, 30)
    assert rows == [[*range(30)]] * 2
    table, *rest = starts[0]
    assert torch.equal(table, values)
    assert rest[:2] == [2, 5]
    assert rest[2] is samples.neighbor_ids


def test_k_means_on_many_samples_takes_some_at_random(monkeypatch):
    _, values, rows, starts = kmeans_calls(monkeypatch, 30, 12)
    drawn = np.sort(np.random.default_rng([5, 2]).choice(30, 12, replace=False))
    assert rows == [drawn.tolist(), [*range(12)], [*range(12, 24)], [*range(24, 30)]]
    table, *rest = starts[0]
    assert torch.equal(table, values[drawn])
    assert rest == [2, 5, None, None, None]  # neighbours of some are not among them, and all count the same


def test_five_thousand_samples_are_enough_for_k_means():
    assert (kmeans._ROWS, kmeans._DONORS, linkage._TAUGHT_ROWS) == (5_000, 5, 5_000)


SCALED = ScalingChoice("mixed", {"mixed": 0.5, "minmax": 0.52}, as_a_whole=[], diverged=[], asked=False)
STAGE = JointStageLength(3, {}, lasted=5, planned=9, ended="")
TRUSTED = Trust("some", {"again": 0.75, "low": 0.5, "high": 0.875, "chance": 0.2}, n_clusters=5)
REDUCED = ViewReduction(
    {"a": "none", "b": "pca"}, {"b": {"name": "wide", "transform": "none", "kept": 0.905}}, {"b": (20_000, 50)}, []
)
LISTED = "(score: minmax 0.520, mixed 0.500)"
NO_OTHER = "as no other gives clusters that agree clearly better with the neighbours in all views"
BEST = "as its clusters agree best with the neighbours in all views"
AGAIN = "put 75% of the samples (50 to 88%) into the same clusters"


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (SCALED, f"mixed, {NO_OTHER} {LISTED}; every column has its own scale"),
        (
            replace(SCALED, evidence={"standard": 0.1, "mixed": 0.5, "minmax": 0.52}),
            f"mixed, {NO_OTHER} {LISTED[:-1]}, standard 0.100); every column has its own scale",
        ),
        (
            replace(SCALED, chosen="minmax", diverged=["standard"]),
            f"minmax, {BEST} {LISTED}; training diverged with standard",
        ),
        (
            replace(SCALED, chosen="minmax", evidence={"standard": 0.1, "minmax": 0.2}),
            f"minmax, {BEST} (score: minmax 0.200, standard 0.100); mixed was not tried, "
            "as it does the same as standard here",
        ),
        (
            replace(SCALED, chosen="standard", evidence={"standard": 0.1}),
            "standard, as all others do the same here",
        ),
        (
            replace(SCALED, chosen="minmax", evidence={"minmax": 0.1}, diverged=["mixed"]),
            "minmax, the only one that could be trained; training diverged with mixed",
        ),
        (
            replace(SCALED, clear=True, single=True),
            "mixed, as with one cluster no other can be better; every column has its own scale",
        ),
        (replace(SCALED, quick=True), "mixed; others were not tried (effort='quick'); every column has its own scale"),
        (replace(SCALED, asked=True, as_a_whole=["a", "b"]), "mixed, as asked; one scale for all columns of a, b"),
        (PretrainingLength(3, {}, planned=5), "3 of 5 epochs, as the clusters are clear by then"),
        (
            PretrainingLength(3, {"agreement": 0.875}, planned=5),
            "3 of 5 epochs, as trainings agree by then (adjusted Rand index 0.88)",
        ),
        (PretrainingLength(3, {"agreement": 1.0}, planned=5, single=True), "3 of 5 epochs, as there is one cluster"),
        (PretrainingLength(5, {}, planned=5), "all 5 epochs"),
        (PretrainingLength(0, {}, planned=0), "none"),
        (STAGE, "the network after 3 of 5 epochs is kept, when its clusters were the best"),
        (replace(STAGE, chosen=0), "undone after 5 epochs, as it made the clusters no better"),
        (replace(STAGE, chosen=5), "5 of 9 epochs, as its clusters hardly got better"),
        (replace(STAGE, chosen=5, planned=5), "all 5 epochs"),
        (replace(STAGE, ended="it broke"), "ended early, it broke; the network after 3 epochs is kept"),
        (replace(STAGE, chosen=0, lasted=0, single=True), "none, as there is one cluster"),
        (replace(STAGE, chosen=0, lasted=0), "none, k-means on the embedding gives the clusters"),
        (TRUSTED, f"some: repeated fits would {AGAIN} (an estimate; luck alone would put 20% there)"),
        (
            replace(TRUSTED, refits=5),
            f"some: repeated fits {AGAIN} (measured by 5 repeated fits; luck alone would put 20% there)",
        ),
        (replace(TRUSTED, chosen="high", n_clusters=1), "not judged, as there is one cluster"),
        (
            ClusterSource("network", {"network": 0.5, "k-means": 0.25}),
            "those of the network (score: network 0.500, k-means 0.250)",
        ),
        (ClusterSource("network", {"network": 0.5}), "those of the network"),
        (
            MeanConfidence(0.5, {"again": 0.75}, n_clusters=5),
            "0.50 on average: the chance that a sample is in the same cluster again if the fit is repeated (other "
            "stages and trainings of this fit put 75% there, where luck counts as 0%)",
        ),
        (MeanConfidence(1.0, {"again": 1.0}, n_clusters=1), "not judged, as there is one cluster"),
        (MeanConfidence(0.5, {}, 5), "0.50 on average: the paper's soft labels, which are not calibrated"),
        (REDUCED, "b, wide, from 20,000 to 50 columns (principal components; 90% of the variance)"),
        (replace(REDUCED, chosen={"a": "none"}), "none, every view is narrow enough"),
        (replace(REDUCED, chosen={}, asked=["a"]), "none, as asked"),
        (CellFilling("median", {}), "none"),
    ],
)
def test_decisions_in_words(decision, said):
    name = {"joint_stage": "joint stage", "pretraining": "pre-training", "empty_cells": "empty cells"}.get(
        decision.name, decision.name
    )
    assert (label(decision), words(decision)) == (name, said)
    record = records(decision)
    assert record == {decision.name: {**asdict(decision), "why": f"{name}: {said}"}}
    again = restored(json.loads(json.dumps(record)))[decision.name]
    assert type(again) is type(decision)
    assert words(again) == said


def test_parameters_are_spelled_when_a_decision_is_put_in_words():
    def flag(setting):
        return f"--{setting.name} {setting.value}"

    assert words(replace(SCALED, quick=True), flag).startswith("mixed; others were not tried (--effort quick);")


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": "mixed", "why": "scaling: mixed, as it was"},
        {"chosen": "mixed", "evidence": None, "as_a_whole": [], "diverged": [], "asked": False,
         "why": "scaling: mixed, as it was"},
        {"chosen": "mixed", "evidence": {"mixed": {"gain": 1.0}, "minmax": {}}, "as_a_whole": [], "diverged": [],
         "asked": False, "why": "scaling: mixed, as it was"},
    ],
)  # fmt: skip
def test_decisions_of_an_older_form_keep_their_sentence(record):
    (found,) = restored({"scaling": record}).values()
    assert isinstance(found, SavedSentence)
    assert (label(found), words(found), found.chosen) == ("scaling", "mixed, as it was", "mixed")


def test_decisions_that_are_not_known_keep_their_sentence():
    (found,) = restored({"odd_one": {"why": "for reasons"}}).values()
    assert (label(found), words(found), found.chosen, found.evidence) == ("odd one", "for reasons", None, {})
