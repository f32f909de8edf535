"""How many clusters: k-means for every k, data without structure, the rule and its words."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from viewfuse.errors import SettingError
from viewfuse.neighbors.samples import Samples, index_training_set
from viewfuse.selection.cluster_number import (
    MEASURES,
    Look,
    candidate_numbers,
    contingency,
    curve_of,
    measured,
    number_decision,
    rand_index,
    spectrum,
    structureless,
    with_half_the_views,
)
from viewfuse.selection.kmeans import filled_table, partitions
from viewfuse.selection.messages import words


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(n=90, k=3, widths=(4, 6), seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    values = [rng.normal(size=(n, w)) + 5.0 * rng.normal(size=(k, w))[labels] for w in widths]
    present = torch.from_numpy(rng.random((n, len(widths))) < 0.8)
    present[:, 0] |= ~present.any(dim=1)
    tensors = [torch.where(present[:, v, None], torch.from_numpy(x).float(), 0.0) for v, x in enumerate(values)]
    return index_training_set(tensors, present, 9), labels


def test_k_means_finds_blobs_under_every_number_of_clusters():
    points = torch.from_numpy(np.repeat(np.arange(4.0), 20)[:, None] + np.zeros((80, 2))).float()
    found = partitions(points, [2, 4, 5], generator())
    assert found.shape == (3, 80)
    assert adjusted_rand_score(np.repeat(range(4), 20), found[1]) == 1.0
    assert len(found[0].unique()) == 2


def test_points_without_weight_are_placed_but_do_not_count():
    points = torch.tensor([[0.0], [0.1], [1.0], [1.1], [50.0]])
    (found,) = partitions(points, [2], generator(), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    assert found[0] == found[1] != found[2] == found[3] == found[4]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=40))
@settings(max_examples=15, deadline=None)
def test_the_rand_index_is_scikit_learns(pairs):
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    shared = contingency(first, second, 4)
    assert float(rand_index(shared)) == pytest.approx(adjusted_rand_score(first, second), abs=1e-9)


def test_the_graph_of_separate_groups_has_an_eigenvalue_of_one_for_each():
    values = spectrum(blobs(k=3)[0], 9, 5)
    assert values[:3].min() > 0.95 > values[3]


def seen(samples):
    """As by a network that only fills missing views."""
    rows = torch.arange(len(samples))
    hidden = with_half_the_views(samples, generator())
    filled = filled_table(Samples(samples.values, hidden.present, samples.neighbor_ids), rows)
    return Look(samples, filled_table(samples, rows), filled)


def test_measures_speak_of_three_blobs_and_not_of_a_gaussian():
    samples, ks = blobs(n=120)[0], [2, 3, 4]
    for own, wanted in ((samples, 3), (structureless(samples, generator()), 1)):
        both = [measured(seen(one), ks, generator()) for one in (own, structureless(own, generator(1)))]
        assert list(both[0]) == list(MEASURES)
        assert number_decision(curve_of(ks, *both), alone=True).chosen == wanted


def test_a_number_is_proposed_for_no_fewer_than_five_samples_a_cluster():
    assert candidate_numbers((2, 30), 1000) == list(range(2, 31))
    assert candidate_numbers((1, 30), 33) == [2, 3, 4, 5, 6]
    assert candidate_numbers((2, 30), 9) == []
    assert candidate_numbers((6, 30), 20) == [6]
    with pytest.raises(SettingError, match="begins at 6, above the number of samples, 4"):
        candidate_numbers((6, 30), 4)


@pytest.mark.parametrize("wrong", [(3, 2), (0, 5), (1, 1), "auto", 7, (2,), (2, 3.5), (True, 4), None])
def test_a_wrong_range_is_refused(wrong):
    with pytest.raises(SettingError, match="cluster_range must"):
        candidate_numbers(wrong, 100)


def test_the_score_is_the_weighted_excess_over_the_null():
    found = {"hidden_views": [0.9], "resampling": [0.8], "neighbors": [0.7], "gap": [0.3]}
    null = {"hidden_views": [0.1], "resampling": [0.3], "neighbors": [0.5], "gap": [0.1]}
    (point,) = curve_of([4], found, null)
    assert point["score"] == pytest.approx(1 * 0.5 + 3 * 0.2 + 2 * 0.2)
    assert (point["hidden_views"], point["hidden_views_null"]) == (0.9, 0.1)


def curve(scores, neighbors=0.5, gap=0.0):
    return [
        {"k": k, "score": s, "neighbors": neighbors, "neighbors_null": 0.0, "gap": gap, "gap_null": 0.0}
        for k, s in enumerate(scores, 2)
    ]


def test_of_peaks_that_are_nearly_as_high_the_smallest_number_is_chosen():
    decision = number_decision(curve([0.2, 1.0, 0.3, 0.95, 1.05, 0.1, 0.7, 0.2]), alone=True)
    assert (decision.chosen, decision.candidates, decision.runner_up) == (3, [3, 6], 6)
    assert number_decision(curve([0.2, 0.84, 0.3, 0.95, 1.05]), alone=True).chosen == 6


def test_one_cluster_is_an_answer_where_nothing_holds_together():
    weak = curve([0.2, 1.0, 0.3], neighbors=0.119, gap=0.069)
    assert number_decision(weak, alone=True).chosen == 1
    assert number_decision(weak, alone=True).runner_up == 3
    assert number_decision(weak, alone=False).chosen == 3
    for strong in (curve([0.2, 1.0], neighbors=0.13), curve([0.2, 1.0], neighbors=0.0, gap=0.08)):
        assert number_decision(strong, alone=True).chosen == 3
    assert number_decision([], alone=True).chosen == 1


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=29))
@settings(max_examples=50, deadline=None)
def test_what_is_chosen_is_a_peak_near_the_highest(scores):
    points = curve(scores)
    decision = number_decision(points, alone=False)
    own = next(one["score"] for one in points if one["k"] == decision.chosen)
    assert own >= max(scores) - 0.2
    assert decision.chosen == min(decision.candidates)
    assert decision.runner_up != decision.chosen


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (number_decision([], alone=True), "1, as there are too few samples to look for more"),
        (number_decision(curve([0.2, 1.0, 0.1], 0.0), alone=True), "; the next best is 3"),
        (number_decision(curve([0.2, 1.0, 0.1]), alone=True), r"3, which .* \(score 1.00\)$"),
        (number_decision(curve([0.2, 1.0, 0.1, 0.98]), alone=True), "next peak is 5 with 0.98.; 3 and 5 both hold"),
        (number_decision(curve([0.9, 0.2, 0.91, 0.1, 0.92]), alone=True), "2, 4 and 6 all hold"),
        (number_decision(curve([0.2, 1.0], 0.0), alone=False), "though hardly better than a Gaussian"),
    ],
)
def test_the_number_of_clusters_in_words(decision, said):
    assert re.search(said, words(decision))
