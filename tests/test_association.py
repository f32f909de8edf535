"""Tests of known columns in the report: which test, its p-value, survival, and the correction for several columns."""

from __future__ import annotations

from itertools import combinations
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from run_folders import write_run
from viewfuse.cli import main
from viewfuse.errors import DataError
from viewfuse.io.labels import CsvTable
from viewfuse.report import association
from viewfuse.report.association import association_section, associations, kaplan_meier, log_rank, survival_pair
from viewfuse.report.comparison import Column, columns_for
from viewfuse.report.run_folder import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "one"))


def column(name, values, levels=()):
    return Column(name, levels, np.array(values, dtype=float))


def test_empty_cells_of_r_are_no_class(run, tmp_path):
    n = len(run.ids)
    ages, kinds = [f"{20 + i}.5" for i in range(n)], ["none", "drug"] * n
    ages[1], kinds[2], kinds[3] = "NA", "n/a", "NaN"
    known = CsvTable(tmp_path / "known.csv", {"id": run.ids, "age": ages, "kind": kinds[:n]})
    age, kind = columns_for(run, known)
    assert age.levels == ()
    assert np.flatnonzero(np.isnan(age.values)).tolist() == [1]
    assert kind.levels == ("drug", "none")
    assert np.flatnonzero(np.isnan(kind.values)).tolist() == [2, 3]


def test_each_column_has_the_test_that_suits_it(run):
    rng = np.random.default_rng(0)
    n = len(run.labels)
    first = run.labels == 0
    age = rng.normal(50, 9, n) + 12 * first
    age[::7] = np.nan
    group = np.where(rng.random(n) < 0.3, rng.integers(0, 2, n), first)
    rare = (np.arange(n) < 2).astype(int)
    known = [column("age", age), column("group", group, ("a", "b")), column("same", np.ones(n), ("x", "y")),
             column("rare", rare, ("no", "yes"))]  # fmt: skip
    found = {one.column: one for one in associations(run, known)}
    assert list(found) == ["age", "group", "rare"]
    there = np.isfinite(age)
    parts = [age[there & (run.labels == c)] for c in np.unique(run.labels)]
    assert found["age"].p == pytest.approx(scipy.stats.kruskal(*parts).pvalue)
    assert (found["age"].test, found["age"].samples) == ("Kruskal-Wallis", there.sum())
    table = np.array([[(group[run.labels == c] == g).sum() for g in (0, 1)] for c in np.unique(run.labels)])
    assert found["group"].p == pytest.approx(scipy.stats.chi2_contingency(table, correction=False).pvalue)
    assert found["rare"].test in ("Fisher", "chi-squared by shuffling")
    plain = sorted(one.p for one in found.values())
    literal = [min(min(1, p * 3 / (place + 1)) for place, p in enumerate(plain) if place >= own) for own in range(3)]
    assert sorted(one.corrected for one in found.values()) == pytest.approx(literal)


def test_what_no_shuffling_reaches_is_as_likely_as_one_of_them(run, monkeypatch):
    monkeypatch.setattr(association, "_SHUFFLES", 9)
    values = np.unique(run.labels, return_inverse=True)[1].astype(float)
    values[0] = values.max() + 1
    (found,) = associations(run, [column("same", values, tuple("abcdefghij")[: int(values[0]) + 1])])
    assert (found.test, found.p) == ("chi-squared by shuffling", pytest.approx(0.1))


def test_shuffling_is_close_to_the_exact_test(run):
    """Two of all samples have a value: the chance that they are as unequal, by all pairs."""
    labels = run.labels
    values = np.zeros(len(labels))
    values[np.flatnonzero(labels == labels[0])[:2]] = 1
    (found,) = associations(run, [column("rare", values, ("no", "yes"))])
    sizes = np.array([(labels == c).sum() for c in np.unique(labels)])

    def statistic(pair):
        counts = np.array([sum(labels[i] == c for i in pair) for c in np.unique(labels)])
        expected = 2 * sizes / len(labels)
        return float(((counts - expected) ** 2 / expected).sum())

    own = statistic(np.flatnonzero(values))
    as_large = sum(statistic(pair) >= own - 1e-9 for pair in combinations(range(len(labels)), 2))
    assert found.p == pytest.approx(as_large / comb(len(labels), 2), abs=0.02)


@pytest.mark.parametrize(("totals", "test"), [
    ((20, 20, 20, 20, 6), "chi-squared"),  # a fifth of the cells expect 3
    ((20, 20, 20, 6), "chi-squared by shuffling"),  # a quarter
    ((20, 20, 20, 9), "chi-squared by shuffling"),  # 4.5
    ((20, 20, 20, 10), "chi-squared"),  # 5
    ((20,) * 9 + (2,), "chi-squared"),  # 1
    ((20,) * 9 + (1,), "chi-squared by shuffling"),  # 0.5
    ((20, 10), "chi-squared"), ((20, 9), "Fisher"),
])  # fmt: skip
def test_chi_squared_is_taken_where_cells_expect_enough(monkeypatch, totals, test):
    """Two clusters of the same size, and samples without a cluster, which count nowhere."""
    monkeypatch.setattr(association, "_SHUFFLES", 19)
    if sum(totals) % 2:
        totals = (*totals[:-2], totals[-2] + 1, totals[-1])
    values = np.random.default_rng(0).permutation(np.repeat(np.arange(len(totals)), totals))
    labels = np.repeat([0, 1, -1], [len(values) // 2, len(values) // 2, 40])
    known = column("kind", [*values, *[0] * 40], tuple("abcdefghij"[: len(totals)]))
    (found,) = associations(SimpleNamespace(labels=labels), [known])
    assert (found.test, found.samples) == (test, len(values))
    table = np.array([[(values[labels[: len(values)] == c] == g).sum() for g in range(len(totals))] for c in (0, 1)])
    if test == "chi-squared":
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        statistic = ((table - expected) ** 2 / expected).sum()
        assert found.statistic == pytest.approx(statistic)
        assert found.p == pytest.approx(scipy.stats.chi2.sf(statistic, len(totals) - 1))


def test_log_rank_of_two_groups_is_that_of_scipy():
    rng = np.random.default_rng(1)
    group = np.repeat([3, 5], [25, 18])
    times, seen = np.ceil(rng.exponential(10, 43) * (1 + (group == 5))), rng.random(43) < 0.7  # with ties
    samples = [scipy.stats.CensoredData.right_censored(times[group == g], ~seen[group == g]) for g in (3, 5)]
    expected = scipy.stats.logrank(*samples)
    statistic, p = log_rank(times, seen, group)
    assert statistic == pytest.approx(expected.statistic**2)
    assert p == pytest.approx(expected.pvalue)


def test_log_rank_does_not_depend_on_the_order_of_groups():
    rng = np.random.default_rng(2)
    group, times, seen = rng.integers(0, 3, 60), rng.exponential(5, 60), rng.random(60) < 0.8
    assert log_rank(times, seen, group) == pytest.approx(log_rank(times, seen, 7 - group))
    p = [log_rank(rng.exponential(5, 60), seen, group)[1] for _ in range(200)]
    assert 0.01 <= np.mean(np.array(p) < 0.05) <= 0.1
    assert np.isnan(log_rank(times, seen, np.zeros(60, dtype=int))[1])


def test_kaplan_meier_is_the_empirical_one():
    times, seen = np.array([2.0, 3, 3, 5, 8, 8, 9]), np.array([True, True, False, True, True, True, False])
    expected = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(times, ~seen)).sf
    for moment, left in kaplan_meier(times, seen)[1:]:
        assert left == pytest.approx(float(expected.evaluate(moment)))


def test_the_last_time_and_the_last_sample_count():
    """By hand: three at risk, then two, then one, whose event tells nothing; the last time of a curve is the last."""
    statistic, _ = log_rank(np.array([1.0, 2, 3]), np.ones(3, dtype=bool), np.array([0, 1, 1]))
    assert statistic == pytest.approx((0 - 2 / 3) ** 2 / (2 / 9) / 1)
    assert np.isnan(log_rank(np.array([1.0, 2]), np.zeros(2, dtype=bool), np.array([0, 1]))).all()
    times, seen = np.array([2.0, 3, 3, 5, 9]), np.array([True, True, False, True, False])
    expected = np.array([(0, 1), (2, 0.8), (3, 0.6), (5, 0.3), (9, 0.3)])
    assert np.array(kaplan_meier(times, seen)) == pytest.approx(expected)


def test_times_and_events_that_are_not_known_or_no_such():
    times, event = column("t", [0, 4, np.nan, 7]), column("e", [0, np.nan, 1, 1], ("alive", "Dead"))
    found, seen = survival_pair([times, event], ("t", "e"))
    assert np.array_equal(found, [0, np.nan, np.nan, 7], equal_nan=True)
    assert np.array_equal(seen, [0, np.nan, np.nan, 1], equal_nan=True)
    for bad in (column("t", [-1, 4, 2, 7]), column("t", [0, 1, 0, 1], ("4", "late"))):
        with pytest.raises(DataError, match="'t' must hold times"):
            survival_pair([bad, event], ("t", "e"))


def test_the_section_orders_tests_and_draws_steps(monkeypatch):
    """Samples without a cluster have no curve and count in no test; those without a time have no curve either."""
    drawn = []
    monkeypatch.setattr(association.charts, "line_chart", lambda *given, **_: drawn.append(given[:2]))
    labels = np.repeat([0, 1, -1], [3, 3, 2])
    run = SimpleNamespace(labels=labels, n_clusters=2, called=str)
    known = [column("dose", [1, 2, 3, 3, 2, 1, 9, 9]), column("weight", [1, 2, 3, 7, 8, 9, 5, 5]),
             column("t", [1, 2, 4, 5, 6, np.nan, 0.5, 0.5]), column("e", [1, 0, 1, 1, 1, 1, 1, 1])]  # fmt: skip
    made = str(association_section(run, known, ("t", "e"), associations(run, known, ("t", "e"))).body)
    found = {one.column: one for one in associations(run, known, ("t", "e"))}
    assert {name: one.samples for name, one in found.items()} == {"dose": 6, "weight": 6, "t and e": 5}
    assert found["weight"].p < found["weight"].corrected
    shown = [f"{p:.4g}" for p in (found["weight"].p, found["weight"].corrected)]
    assert made.index("weight") < made.index(shown[0]) < made.index(shown[1]) < made.index("dose")
    assert [title for _, title in drawn] == [
        f"Cluster {c}: share left (Kaplan-Meier, {n} samples)" for c, n in ((0, 3), (1, 2))
    ]
    share = 2 / 3
    expected = np.array([(0, 1), (1, 1), (1, share), (2, share), (2, share), (4, share), (4, 0)])
    assert np.array(drawn[0][0]) == pytest.approx(expected)


def test_survival_pairs(run):
    n = len(run.labels)
    days, dead = column("days", np.linspace(1, 99, n)), column("dead", np.arange(n) % 2, ("No", "yes"))
    _, seen = survival_pair([days, dead], ("days", "dead"))
    assert seen[:3].tolist() == [0, 1, 0]
    few = column("days", np.arange(n) % 3, ("4", "9.5", "12"))
    assert survival_pair([few, dead], ("days", "dead"))[0][:4].tolist() == [4, 9.5, 12, 4]
    found = associations(run, [days, dead], ("days", "dead"))
    assert [(one.column, one.test) for one in found] == [("days and dead", "log-rank")]
    cases = {
        ("days", "born"): "no known column is called .born.", ("days", "days"): "both times and events",
        ("dead", "dead"): "both times and events", ("dead", "days"): "'dead' must hold times",
    }  # fmt: skip
    for bad, words in cases.items():
        with pytest.raises(DataError, match=words):
            survival_pair([days, dead], bad)


def test_the_report_has_tests_and_curves(tmp_path):
    from click.testing import CliRunner

    folder = write_run(tmp_path / "run")
    run = read_run(folder)
    rng = np.random.default_rng(0)
    rows = [f"{name},{rng.integers(1, 900)},{rng.integers(0, 2)},{rng.normal():.3f}" for name in run.ids]
    (tmp_path / "known.csv").write_text("id,days,dead,marker\n" + "\n".join(rows) + "\n")
    known = ["--known", str(tmp_path / "known.csv"), "--survival", "days", "dead"]
    done = CliRunner().invoke(main, ["report", str(folder), "--out", str(tmp_path / "page.html"), *known])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "the clusters were found in the same samples" in page
    assert "Kaplan-Meier" in page
    table = (tmp_path / "page_data" / "associations.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [["marker", "Kruskal-Wallis"], ["days and dead", "log-rank"]]
