"""Metrics, masks, the shipped data and the simple alternatives."""

from __future__ import annotations

import itertools
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import KNNImputer, SimpleImputer

from conftest import make_blobs
from viewfuse import DataError, SettingError, metrics
from viewfuse.baselines import kmeans_after_knn, kmeans_after_mean, knn_filled, mean_filled
from viewfuse.datasets import HANDWRITTEN_VIEWS, load_handwritten
from viewfuse.missing import (
    apply_mask,
    cells_mask,
    describe,
    nested_mask,
    one_view_mask,
    paper_mask,
    real_mask,
)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_accuracy_is_the_best_over_all_matches(pairs):
    true, pred = np.array(pairs).T
    best = max(np.mean([match[p] == t for t, p in pairs]) for match in permutations(range(4)))
    assert metrics.clustering_accuracy(true, pred) == pytest.approx(best)


def test_metrics_of_known_cases():
    assert metrics.clustering_accuracy(["a", "a", "b"], [5, 5, 1]) == 1.0
    assert metrics.clustering_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 0.5
    assert metrics.nmi([0, 0, 1, 1], [1, 1, 0, 0]) == pytest.approx(1.0)
    assert metrics.ari([0, 0, 1, 1], [1, 1, 0, 0]) == pytest.approx(1.0)
    assert metrics.ari([0, 0, 1, 1], [0, 1, 0, 1]) < 0.1
    with pytest.raises(DataError, match=r"shapes \(2,\) and \(3,\) cannot be compared"):
        metrics.ari([0, 1], [0, 1, 2])


@pytest.mark.parametrize(("n", "n_views"), [(40, 2), (33, 6), (7, 3), (5, 1), (0, 4)])
def test_every_protocol_hides_as_many_cells_as_it_says(n, n_views):
    for rate, seed in itertools.product((0, 0.3, 0.5, 1), range(3)):
        check_protocols(n, n_views, rate, seed)


def check_protocols(n, n_views, rate, seed):
    rows = round(n * rate)
    lost = {
        one_view_mask: rows * (n_views - 1),
        cells_mask: rows if n_views > 1 else 0,
        nested_mask: round(rows * rate) if n_views > 1 else 0,
    }
    for protocol, count in lost.items():
        mask = protocol(n, n_views, rate, seed)
        assert mask.shape == (n, n_views)
        assert mask.any(axis=1).all()
        assert (~mask).sum() == count
        assert (mask == protocol(n, n_views, rate, seed)).all()
        if count and n > 30:
            assert (mask != protocol(n, n_views, rate, seed + 1)).any()
    assert (~one_view_mask(n, n_views, rate, seed).all(axis=1)).sum() == (rows if n_views > 1 else 0)
    assert (~nested_mask(n, n_views, rate, seed).all(axis=1)).sum() <= rows


def test_half_means_what_published_programs_mean():
    two, six = ([str(describe(protocol(2000, v, 0.5, 0))) for protocol in (cells_mask, nested_mask, one_view_mask)]
                for v in (2, 6))  # fmt: skip
    assert [one.rsplit(", ", 1)[0] for one in two] == [
        "50 % of samples complete, 25 % of cells missing", "75 % of samples complete, 12 % of cells missing",
        "50 % of samples complete, 25 % of cells missing",
    ]  # fmt: skip
    assert [one.split(", ")[1] for one in six] == [
        "8 % of cells missing", "4 % of cells missing", "42 % of cells missing",
    ]  # fmt: skip


def test_nested_masks_draw_views_anew():
    assert len({tuple((~nested_mask(200, 3, 0.5, seed)).sum(axis=0)) for seed in range(4)}) > 1


def test_real_gaps_are_drawn_from_those_observed():
    observed = [[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 0, 1]]
    mask = real_mask(4000, observed, 0)
    found, counts = np.unique(mask, axis=0, return_counts=True)
    assert found.tolist() == [[False, False, True], [True, False, True], [True, True, True]]
    assert np.abs(counts - [1000, 2000, 1000]).max() < 120


def test_gaps_are_counted():
    gaps = describe(np.array([[1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]]))
    assert (gaps.samples, gaps.views, gaps.complete, gaps.missing, gaps.patterns) == (5, 3, 2, 4, 3)
    assert str(gaps) == "40 % of samples complete, 27 % of cells missing, 3 patterns"
    assert str(describe(np.ones((4, 2), dtype=bool))) == "100 % of samples complete, 0 % of cells missing, 1 pattern"
    assert str(describe([[1, 0], [1, 1]])).endswith(", 2 patterns")
    for wrong in (np.ones(4), 3, [[2, 1]]):
        with pytest.raises(DataError, match="mask"):
            describe(wrong)
    with pytest.raises(DataError, match="no rows"):
        real_mask(4, np.ones((0, 2)), 0)
    with pytest.raises(DataError, match="row 1 of the observed mask has no view at all; leave out such samples"):
        real_mask(4, [[1, 0], [0, 0], [1, 1]], 0)
    with pytest.raises(ValueError, match="n_views must be a whole number of at least 1"):
        cells_mask(4, 0, 0.5)


@given(st.integers(1, 60), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_the_papers_mask(n, n_views, rate, seed):
    number = seed % n_views
    mask = paper_mask(n, n_views, rate, number, random_state=seed)
    lost = (~mask).sum(axis=1)
    assert set(lost) <= {0, number}
    assert number == 0 or (lost > 0).sum() == round(n * rate)
    assert (mask == paper_mask(n, n_views, rate, number, random_state=seed)).all()


def test_every_view_is_as_likely_to_go():
    lost = (~paper_mask(20_000, 4, 1.0, 2, random_state=0)).mean(axis=0)
    assert lost == pytest.approx([0.5] * 4, abs=0.02)


@pytest.mark.parametrize(
    ("rate", "number", "words"),
    [
        (1.5, 1, "missing_rate must be from 0 to 1"),
        ("0.5", 1, "missing_rate must be from 0 to 1"),
        (0.5, 3, "from 0 to 2"),
        (0.5, -1, "missing_number must be a whole number"),
        (0.5, 1.0, "missing_number must be a whole number"),
    ],
)
def test_impossible_masks_are_refused(rate, number, words):
    with pytest.raises(SettingError, match=words):
        paper_mask(10, 3, rate, number)


def test_masks_are_applied_to_copies():
    views = [np.arange(6).reshape(3, 2), np.ones((3, 1))]
    mask = [[1, 1], [0, 1], [1, 0]]
    hidden = apply_mask(views, mask)
    assert np.isnan(hidden[0][1]).all()
    assert np.isnan(hidden[1][2]).all()
    assert np.isnan(hidden[0]).sum() + np.isnan(hidden[1]).sum() == 3
    assert views[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert list(apply_mask({"a": views[0], "b": views[1]}, mask)) == ["a", "b"]
    with pytest.raises(DataError, match=r"mask has shape \(3, 2\), but 3 rows of 1 views need \(3, 1\)"):
        apply_mask(views[:1], mask)
    with pytest.raises(DataError, match=r"view 1 has shape \(2, 1\), but the mask has 3 rows"):
        apply_mask([views[0], views[1][:2]], mask)


def test_masked_frames_stay_frames():
    frame = pd.DataFrame({"g": [1, 2, 3]}, index=["p1", "p2", "p3"])
    hidden = apply_mask([frame, np.ones((3, 1))], [[1, 1], [0, 1], [1, 0]])
    assert hidden[0].index.tolist() == ["p1", "p2", "p3"]
    assert hidden[0]["g"].isna().tolist() == [False, True, False]
    with pytest.raises(DataError, match="other than True/False"):
        apply_mask([frame, frame], [[1, np.nan]] * 3)
    with pytest.raises(DataError, match="one table or Views were given"):
        apply_mask(np.ones((3, 2)), [[1]] * 3)


def test_rows_of_frames_are_hidden_by_id():
    first = pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=list("abc"))
    mask = pd.DataFrame({"p": [0, 1, 1], "q": [1, 1, 0]}, index=list("bca"))
    hidden = apply_mask({"q": first, "p": first.iloc[::-1]}, mask)
    assert hidden["q"]["x"].isna().to_dict() == {"a": True, "b": False, "c": False}
    assert hidden["p"]["x"].isna().to_dict() == {"a": False, "b": True, "c": False}
    with pytest.raises(DataError, match="views 'q' and 'p' have row labels that differ, but the mask has none"):
        apply_mask({"q": first, "p": first.iloc[::-1]}, mask.to_numpy())
    with pytest.raises(DataError, match="no row for 1 of 3 samples, such as 'c'"):
        apply_mask({"q": first, "p": first}, mask.set_axis(list("bda")))


@pytest.mark.parametrize("labels", [[0, 1, np.nan], ["a", None, "b"]])
def test_missing_labels_are_not_a_class(labels):
    for score in (metrics.clustering_accuracy, metrics.nmi, metrics.ari):
        with pytest.raises(DataError, match=r"y_true, row \d: the label is missing"):
            score(labels, [0, 1, 1])


def test_handwritten_is_what_the_paper_says():
    views, labels = load_handwritten()
    assert [view.shape for view in views] == [(2000, width) for width in (240, 76, 216, 47, 64, 6)]
    assert all(view.dtype == np.float32 and np.isfinite(view).all() for view in views)
    assert np.bincount(labels).tolist() == [200] * 10
    assert len(HANDWRITTEN_VIEWS) == 6


def test_shipped_handwritten_is_the_shared_one(shared_data):
    with np.load(shared_data / "handwritten.npz") as shared:
        views, labels = load_handwritten()
        assert all(np.array_equal(view, shared[f"view_{v}"]) for v, view in enumerate(views))
        assert np.array_equal(labels, shared["labels"])


@pytest.mark.parametrize("cluster", [kmeans_after_mean, kmeans_after_knn])
def test_simple_alternatives_find_easy_groups(cluster):
    views, labels, _ = make_blobs(90, 3, missing=0.1)
    assert metrics.clustering_accuracy(labels, cluster(views, 3)) >= 0.9


@pytest.mark.parametrize("missing", [0.2, 0.6])  # of the second, some samples share no view with any donor
def test_gaps_are_filled_as_scikit_learn_fills_them(missing):
    views = make_blobs(40, 3, missing=missing, seed=5)[0]
    low, high = (np.concatenate([f(view, axis=0) for view in views]) for f in (np.nanmin, np.nanmax))
    table = (np.concatenate(views, axis=1) - low) / (high - low)
    assert np.allclose(mean_filled(views), SimpleImputer().fit_transform(table), atol=1e-6)
    assert np.allclose(knn_filled(views), KNNImputer(n_neighbors=5).fit_transform(table), atol=1e-6)
