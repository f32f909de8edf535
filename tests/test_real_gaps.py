"""Data sets whose gaps are real: their own mask, labels that are not known, accuracy by number of views."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from benchmarks.experiments import catalogue, plans, runner, tables
from benchmarks.experiments.catalogue import CATALOGUE, DataSet, load
from benchmarks.experiments.records import read_records, write_records
from benchmarks.experiments.run_folders import mark_done, write_run
from benchmarks.experiments.scoring import macro_accuracy, matched, scored
from viewfuse import DataError
from viewfuse.missing import Gaps

HOLED = DataSet(
    "holed", "Holed", 30, (5, 3, 4), 3, 0, in_paper=False, gaps=Gaps(30, 3, complete=16, missing=18, patterns=5)
)
CONDITIONS = (plans.Condition("raw", method="kmeans-mean"), plans.Condition("two", method="kmeans-mean", views=2))
PLAN = plans.Plan("own", "Own", ("holed",), (0.25, 0.5), 2, ("default",), CONDITIONS)


@pytest.fixture
def file(tmp_path):
    """Three clusters of unequal sizes; 14 samples lack views, 4 of these two; 5 labels are not known."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [16, 9, 5])
    views = {f"view_{v}": rng.normal(size=(30, d)) * 10**v + 40 * 10**v * np.eye(3, d)[labels] + 7
             for v, d in enumerate(HOLED.widths)}  # fmt: skip
    mask = np.ones((30, 3), dtype=int)
    mask[np.arange(0, 28, 2), np.arange(14) % 3] = 0
    mask[[0, 6, 12, 18], 1] = 0
    labels[25:] = -1
    labels[:3] = 2  # so that three classes are left
    path = tmp_path / "holed.npz"
    np.savez(path, **views, mask=mask, labels=labels)
    return path


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(CATALOGUE, "holed", HOLED)


def test_a_set_with_gaps_runs_once_with_its_own_mask(file, known):
    data = load(file.parent, HOLED)
    runs = plans.expand(PLAN, HOLED, conditions=["raw"])
    assert [(run.method, run.missing_rate, run.seed) for run in runs] == [("kmeans-mean", 0.47, s) for s in (0, 1)]
    with np.load(file) as stored:
        for run in runs:
            shown = runner.masked(run, data.views, data.mask)
            assert np.array_equal(shown.mask, stored["mask"].astype(bool))
    assert data.checksum() != data._replace(mask=~data.mask).checksum()


def test_a_method_for_two_views_leaves_out_who_has_neither(file, known):
    data = load(file.parent, HOLED)
    runs = plans.expand(PLAN, HOLED, conditions=["two"])
    with np.load(file) as stored:
        there = stored["mask"][:, :2].any(axis=1)
    assert 0 < (~there).sum() < 5
    for run, outcome in zip(runs, runner.run_group(runs, data, torch.device("cpu")), strict=True):
        assert np.array_equal(runner.masked(run, data.views, data.mask).mask, data.mask[there, :2])
        assert np.array_equal(outcome.arrays["found"] == HOLED.classes, ~there)
        assert set(outcome.arrays["found"][there]) == {0, 1, 2}
        labelled = data.labels >= 0
        assert outcome.scores["acc"] == slow(data.labels[labelled], outcome.arrays["found"][labelled])[0]


def test_a_set_with_other_gaps_is_refused(file):
    other = DataSet("holed", "Holed", 30, (5, 3, 4), 3, 1, in_paper=False)
    with pytest.raises(
        DataError, match="gaps: 53 % of samples complete, 20 % of cells missing, 5 patterns instead of none"
    ):
        catalogue.load(file.parent, other)


def test_runs_and_tables_have_the_accuracy_by_number_of_views(file, known, tmp_path):
    data = load(file.parent, HOLED)
    runs = plans.expand(PLAN, HOLED, conditions=["raw"])
    for run, outcome in zip(runs, runner.run_group(runs, data, torch.device("cpu")), strict=True):
        write_run(tmp_path / "runs" / run.folder, run.facts(), outcome, {})
        mark_done(tmp_path / "runs" / run.folder, "whole")
        there = data.labels >= 0
        assert outcome.scores["acc"] == slow(data.labels[there], outcome.arrays["found"][there])[0]
    records = read_records(tmp_path / "runs")
    write_records(tmp_path / "all.csv", records)
    assert read_records(tmp_path / "all.csv") == records
    whole, by_views = tables.make_tables(records)
    assert whole.name == "own"
    assert by_views.header[-4:] == ("all", "1 view", "2 views", "3 views")
    assert [cell.rpartition(" ")[2] for cell in by_views.rows[0][-3:]] == ["(4)", "(9)", "(12)"]


def slow(known, found):
    """Accuracy under the best of all ways to name clusters, and which samples are right then."""
    size = max(known.max(), found.max()) + 1
    best = max(
        permutations(range(size)), key=lambda names: sum(names[f] == k for f, k in zip(found, known, strict=True))
    )
    right = np.array([best[f] == k for f, k in zip(found, known, strict=True)])
    return round(100 * right.mean(), 4), right


def test_scores_are_those_of_the_best_names():
    rng = np.random.default_rng(1)
    for _ in range(20):
        known, found = rng.integers(0, 4, 40), rng.integers(0, 3, 40)
        mask = rng.random((40, 4)) < 0.6
        mask[:, 0] |= ~mask.any(axis=1)
        scores = scored(known, found, mask)
        accuracy, _ = slow(known, found)
        groups = scores["by_views"].values()
        assert scores["acc"] == accuracy == pytest.approx(sum(n * own for n, own in groups) / 40, abs=1e-3)
        assert [n for n, _ in groups] == [
            int((mask.sum(axis=1) == number).sum()) for number in map(int, scores["by_views"])
        ]


def macro(known, found):
    """Each class counts alike; of all ways to name clusters with the most samples right, that with the highest mean."""
    size = max(known.max(), found.max()) + 1
    best = (0, 0.0)
    for names in permutations(range(size)):
        right = [names[f] == k for f, k in zip(found.tolist(), known.tolist(), strict=True)]
        shares = []
        for one in sorted(set(known.tolist())):
            own = [is_right for is_right, k in zip(right, known.tolist(), strict=True) if k == one]
            shares.append(sum(own) / len(own))
        best = max(best, (sum(right), sum(shares) / len(shares)))
    return best[1]


@pytest.mark.parametrize(("n_classes", "n_clusters"), [(4, 4), (5, 3), (3, 5)])
def test_each_class_counts_alike(n_classes, n_clusters):
    """Sizes 1 : 2 : 4 and so on, the order of classes and clusters mixed; ties are frequent with so few samples."""
    rng = np.random.default_rng([7, n_classes])
    for _ in range(15):
        known = rng.permutation(np.repeat(rng.permutation(n_classes), 2 ** np.arange(n_classes)))
        found = np.where(rng.random(len(known)) < 0.4, known % n_clusters, rng.integers(0, n_clusters, len(known)))
        assert macro_accuracy(known, found) == pytest.approx(macro(known, found), abs=1e-12)
        assert scored(known + 5, found)["macro"] == round(100 * macro_accuracy(known, found), 4)


def test_a_class_that_is_not_found_costs_its_share_of_the_classes():
    """Of 95 and 5 samples, one cluster holds all: 95 % right, and half of the classes."""
    known = np.repeat(["a", "b"], (95, 5))
    assert (scored(known, np.zeros(100, dtype=int))["acc"], scored(known, np.zeros(100, dtype=int))["macro"]) == (
        95,
        50,
    )


def test_clusters_beyond_the_classes_are_those_of_no_sample():
    known, found = np.array([5, 5, 7, 7, 7]), np.array([1, 1, 0, 0, 2])
    assert matched(known, found, 4).tolist() == [7, 5, 8, 8]


def test_labels_below_zero_count_nowhere():
    known, found = np.array([0, 0, 1, 1, -1, -1]), np.array([1, 1, 0, 0, 2, 2])
    assert set(scored(known, found).values()) == {100}
    assert scored(known, found).keys() == {"acc", "macro", "nmi", "ari"}
