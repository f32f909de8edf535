"""What a comparison measures: stability, paired differences, agreement with held-out views, ranks over data sets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, rankdata
from sklearn.metrics import adjusted_rand_score

import viewfuse
from test_compare import Told
from viewfuse import DataError, SettingError, Views
from viewfuse.comparison.ranks import Ranks, draw_critical_difference, nemenyi, ranks_of, ranks_over
from viewfuse.comparison.results import Comparison, Run, cells, held_out_agreement, markdown, without_view


def made(by_method, known=None, held_out=None):
    """A comparison of given labels: per method one list per seed; None: the run failed."""
    runs = []
    for name, partitions in by_method.items():
        for seed, labels in enumerate(partitions):
            score = np.nan if held_out is None else held_out[name][seed]
            failed = "" if labels is not None else "of its own"
            own = None if labels is None else np.array(labels)
            runs.append(Run(name, 0.5, seed, own, held_out=score, failed=failed))
    return Comparison(tuple(by_method), tuple(runs), None if known is None else np.array(known, dtype=object))


def test_a_comparison_that_was_pickled_has_the_scores_of_its_runs():
    found = made({"a": [[0, 0, 1, 1]], "b": [[0, 1, 1, 1]]}, ["x", "x", "y", "y"])
    assert [found.scores(run)["acc"] for run in found.runs] == [100, 75]
    again = pickle.loads(pickle.dumps(found))
    assert again._scores.keys() == {("a", 0.5, 0), ("b", 0.5, 0)}  # places in the memory may be those of other runs
    assert [again.scores(run)["acc"] for run in again.runs] == [100, 75]


def test_stability_is_the_mean_rand_index_of_runs_and_one_cluster_has_none():
    a, b, c = [0, 0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 0, 2, 2], [0, 1, 2, 0, 1, 2, 0]
    found = made({"some": [a, b, c], "one cluster": [[0] * 7, [0] * 7, [4] * 7], "once": [a, None, None]}).rows()
    pairs = [adjusted_rand_score(x, y) for x, y in ((a, b), (a, c), (b, c))]
    assert found[0]["stability"] == pytest.approx(100 * sum(pairs) / 3)
    assert found[1]["stability"] == 0
    assert np.isnan(found[2]["stability"])


def test_differences_are_paired_and_methods_with_failed_runs_are_below_whole_ones():
    truth = ["a"] * 4 + ["b"] * 4
    good, fair, poor = [0] * 4 + [1] * 4, [0] * 3 + [1] * 5, [0] * 2 + [1] * 6  # 100, 87.5 and 75 percent
    by_method = {
        "broken": [None] * 3,
        "lucky": [good, None, None],
        "worse": [fair, poor, poor],
        "better": [good, good, fair],
    }
    found = made(by_method, truth)
    rows = {row["method"]: row for row in found.rows()}
    assert rows["worse"]["below_best"] == pytest.approx((12.5 + 25 + 12.5) / 3)
    assert rows["worse"]["below_best_sd"] == pytest.approx(np.std([12.5, 25, 12.5], ddof=1))
    assert rows["better"]["below_best"] == 0
    assert rows["lucky"]["below_best"] == 0  # on the one mask that it has in common
    assert np.isnan(rows["broken"]["below_best"])
    header, lines = cells(found)
    assert [line[1] for line in lines] == ["better", "worse", "lucky", "broken"]
    assert [line[-1] for line in lines] == ["3", "3", "1 of 3", "0 of 3"]
    assert lines[1][header.index("below the best")] == "16.7 ± 7.2"
    text = markdown(found, "8 samples")
    assert "- lucky failed in 2 of 3 runs at missing rate 0.5: of its own" in text
    assert "no test is made" in text


def literal_held_out(view, labels, n_clusters):
    """By hand: distances of standardised columns, neighbours one by one."""
    scaled, n = (view - view.mean(axis=0)) / view.std(axis=0), len(view)
    total = 0.0
    for cluster in sorted(set(labels)):
        size, hits, tries = sum(own == cluster for own in labels), 0, 0
        for i in range(n):
            if labels[i] != cluster or not 1 < size < n:
                continue
            distances = [(float(((scaled[i] - scaled[j]) ** 2).sum()), j) for j in range(n) if j != i]
            for _, j in sorted(distances)[: min(10, size - 1)]:
                hits, tries = hits + (labels[j] == cluster), tries + 1
        chance = (size - 1) / (n - 1)
        total += (hits / tries - chance) / (1 - chance) if tries else 0
    return total / n_clusters


def three_views(seed=0, sizes=(40, 20, 7)):
    """Three views in units of their own, with offsets; classes of unequal sizes."""
    rng, kind = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    views = [unit * (rng.normal(size=(len(kind), 6)) + 2 * np.eye(3, 6)[kind] + 5) for unit in (1, 1000, 0.01)]
    return views, kind


def test_held_out_agreement_is_that_of_a_slow_literal_version():
    views, kind = three_views()
    given, rng = Views(views), np.random.default_rng(1)
    for labels in (kind, rng.integers(0, 3, len(kind)), np.where(kind == 0, 0, 1), np.arange(len(kind)) // 66):
        slow = literal_held_out(views[1], labels.tolist(), 3)
        assert held_out_agreement(given, 1, labels, 3) == pytest.approx(slow, abs=1e-3)


def test_held_out_agreement_of_shuffled_labels_is_zero_whatever_the_sizes():
    views, kind = three_views(sizes=(50, 12, 5))
    rng = np.random.default_rng(0)
    shuffled = [held_out_agreement(Views(views), 2, rng.permutation(kind), 3) for _ in range(40)]
    assert np.mean(shuffled) == pytest.approx(0, abs=4 * np.std(shuffled) / np.sqrt(20))
    assert held_out_agreement(Views(views), 2, kind, 3) > 0.3
    assert held_out_agreement(Views(views), 2, np.zeros(67, int), 3) == 0


def test_samples_without_a_label_or_the_view_do_not_count_in_held_out_agreement():
    views, kind = three_views()
    labels, mask = kind.copy(), np.ones((67, 3), bool)
    labels[::5], mask[1::6, 0] = -1, False
    there = (labels >= 0) & mask[:, 0]
    part = held_out_agreement(Views([view[there] for view in views]), 0, labels[there], 3)
    assert held_out_agreement(Views(views, mask=mask), 0, labels, 3) == pytest.approx(part)


def test_the_fit_never_sees_the_view_that_is_held_out():
    class Nosy(Told):
        def fit(self, X, y=None):
            Told.seen.append(X)
            return super().fit(X)

    views, _ = three_views()
    Told.seen.clear()
    found = viewfuse.compare(
        views, {"one": Nosy()}, n_clusters=3, rates=(0.9,), missing_number=2, seeds=1, held_out=True
    )
    shown = [one for one in Told.seen if isinstance(one, Views)]
    assert [one.names for one in shown] == [
        ("view_0", "view_1", "view_2"),
        ("view_1", "view_2"),
        ("view_0", "view_2"),
        ("view_0", "view_1"),
    ]
    masked = shown[0].mask
    scores = []
    for v, part in enumerate(shown[1:]):
        others = np.delete(np.arange(3), v)
        rows = masked[:, others].any(axis=1)
        assert rows.sum() < 67  # some have that view only
        assert part.ids.tolist() == np.flatnonzero(rows).tolist()
        assert (part.mask == masked[rows][:, others]).all()
        labels = np.full(67, -1)
        labels[rows] = np.arange(rows.sum()) % 3
        scores.append(100 * literal_held_out(views[v][rows], labels[rows].tolist(), 3))
    assert found.metrics == ("held_out",)
    assert found.rows()[0]["held_out"] == pytest.approx(np.mean(scores), abs=0.1)
    assert without_view(Views(views), 0)[0].arrays[0] == pytest.approx(np.float32(views[1]))


def test_a_view_that_is_left_out_takes_its_offset_with_it():
    table = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    shown, _ = without_view(Views([1.7e9 + np.arange(20)[:, None] / 7, table]), 0)
    assert np.array_equal(shown.in_units().arrays[0], table)


def test_held_out_agreement_orders_methods_without_labels(tmp_path):
    views, _ = three_views()
    methods = {"nonsense": Told(), "kmeans": viewfuse.methods.MeanKMeans()}
    asked = {"n_clusters": 3, "seeds": 2, "out": tmp_path, "device": "cpu"}
    found = viewfuse.compare(views, methods, held_out=True, **asked)
    assert [line[1] for line in cells(found)[1]] == ["kmeans", "nonsense"]
    again = viewfuse.compare(views, methods, held_out=True, **asked)
    assert [run.held_out for run in again.runs] == [run.held_out for run in found.runs]
    with pytest.raises(viewfuse.CannotWrite, match="held_out was True, is False"):
        viewfuse.compare(views, methods, **asked)


def test_a_method_that_needs_all_views_fails_where_one_is_held_out():
    class Whole(Told):
        def fit(self, X, y=None):
            if len(X.names) < 3:
                raise DataError("needs three views")
            return super().fit(X)

    found = viewfuse.compare(three_views()[0], {"one": Whole()}, n_clusters=3, seeds=1, held_out=True)
    assert found.rows()[0]["failed"] == "without view 'view_0': needs three views"


def test_ranks_are_those_of_friedman_and_nemenyi():
    scores = np.random.default_rng(0).normal(size=(12, 4)) + np.arange(4)
    found = ranks_of("abcd", scores)
    assert found.names == ("d", "c", "b", "a")
    assert found.p_value == pytest.approx(friedmanchisquare(*scores.T).pvalue)
    assert found.count == 12
    assert nemenyi(4, 12) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 12)), rel=1e-3)  # Demšar's table 5


def test_ties_share_their_ranks():
    scores = np.array([[90.0, 90, 80], [70, 60, 60], [50, 50, 50], [95, 90, 91]])
    found = ranks_of("abc", scores)
    by_hand = {"a": (1.5 + 1 + 2 + 1) / 4, "b": (1.5 + 2.5 + 2 + 3) / 4, "c": (3 + 2.5 + 2 + 2) / 4}
    assert dict(zip(found.names, found.mean_ranks, strict=True)) == by_hand
    assert found.names == ("a", "b", "c")
    assert found.p_value == pytest.approx(friedmanchisquare(*scores.T).pvalue)
    assert found.critical_difference == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 4)), rel=1e-3)
    assert ranks_of("ab", np.ones((3, 2))).p_value == 1


def test_a_method_without_a_score_on_some_set_takes_no_rank():
    scores = np.random.default_rng(0).normal(size=(6, 4))
    scores[2, 1] = np.nan
    found, rest = ranks_of("abcd", scores), np.delete(scores, 1, axis=1)
    assert found.left_out == ("b",)
    means = np.mean([rankdata(-row) for row in rest], axis=0)
    assert dict(zip(found.names, found.mean_ranks, strict=True)) == pytest.approx(dict(zip("acd", means, strict=True)))
    assert found.p_value == pytest.approx(friedmanchisquare(*rest.T).pvalue)
    assert found.critical_difference == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 6)), rel=1e-3)


def test_ranks_are_over_data_sets_and_never_over_masks_of_one():
    truth, good, fair, poor = ["a"] * 4 + ["b"] * 4, [0] * 4 + [1] * 4, [0] * 3 + [1] * 5, [0] * 2 + [1] * 6
    first = made({"x": [good, poor], "y": [fair, fair], "z": [good, None]}, truth)  # x and y: 87.5 percent
    second = made({"x": [good] * 5, "y": [fair] * 5, "z": [good] * 5}, truth)
    found = ranks_over({"one": first, "two": second})
    assert (found.names, found.mean_ranks, found.count) == (("x", "y"), (1.25, 1.75), 2)
    assert found.left_out == ("z",)
    with pytest.raises(DataError, match="2 methods with scores on each of 1 data sets cannot be ranked"):
        ranks_over({"one": first})
    with pytest.raises(SettingError, match="metric 'held_out' was not measured on one, two"):
        ranks_over({"one": first, "two": second}, "held_out")
    assert ranks_over({"one": first, "two": made({"x": [good], "y": [poor]}, truth)}).left_out == ("z",)


def test_bars_join_what_no_difference_tells_apart():
    ranks = Ranks(tuple("abcde"), (1.0, 1.5, 2.6, 4.0, 4.5), 1.2, 0.01, 10)
    assert ranks.alike() == [(0, 1), (1, 2), (3, 4)]


def test_mean_ranks_are_drawn(tmp_path):
    found = ranks_of("abcd", np.random.default_rng(0).normal(size=(5, 4)))
    draw_critical_difference(tmp_path / "ranks.png", found, title="five data sets")
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
