"""Whether clusters differ in what is known of the samples: tests of known columns, and survival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.precision import is_number
from viewfuse.errors import DataError
from viewfuse.io.writers import OUTLIER
from viewfuse.report import charts
from viewfuse.report.comparison import MOST_LEVELS, Column
from viewfuse.report.html import filled
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.selection.decision_texts import p_value

_EXPECTED, _MOST_BELOW = 5.0, 0.2
"""Cochran's rule: chi-squared holds where at most a fifth of the cells expect fewer than five samples, none below 1."""
_SHUFFLES = 9_999
_SEEN = {"yes": 1.0, "true": 1.0, "dead": 1.0, "no": 0.0, "false": 0.0, "alive": 0.0}


class Association(NamedTuple):
    """A test of one column; `corrected` is the p-value for all columns together (Benjamini and Hochberg)."""

    column: str
    test: str
    samples: int
    statistic: float
    p: float
    corrected: float = np.nan


def survival_pair(columns: Sequence[Column], names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The times of samples, and 1 where the event was seen then, else 0; NaN where either is not known."""
    found = {one.name: one for one in columns}
    absent = [name for name in names if name not in found]
    if absent:
        there = ", ".join(found) or "none"
        raise DataError(f"no known column is called {absent[0]!r}; those that are there: {there}")
    if names[0] == names[1]:
        raise DataError(f"the column {names[0]!r} cannot hold both times and events; name two columns")
    times, seen = _numbers(found[names[0]], {}), _numbers(found[names[1]], _SEEN)
    if np.isin(times, (np.inf,)).any() or (times < 0).any():
        raise DataError(f"the column {names[0]!r} must hold times: numbers of at least 0")
    if not np.isin(seen[np.isfinite(seen) | np.isinf(seen)], (0, 1)).all():
        raise DataError(f"the column {names[1]!r} must hold 1 where the event was seen, else 0")
    gone = np.isnan(times) | np.isnan(seen)
    return np.where(gone, np.nan, times), np.where(gone, np.nan, seen)


def _numbers(column: Column, words: Mapping[str, float]) -> NDArray[np.float64]:
    """The numbers of a column, also where they are few; infinite where its text is neither a number nor a word."""
    if not column.levels:
        return column.values
    known = [words.get(one.lower(), float(one) if is_number(one) else np.inf) for one in column.levels]
    return np.array([np.nan if np.isnan(value) else known[int(value)] for value in column.values])


def associations(run: FinishedRun, columns: Sequence[Column], survival: Sequence[str] = ()) -> list[Association]:
    """One test per column that more than one cluster knows; those of a survival pair are one."""
    from scipy.stats import false_discovery_control

    found = [_tested(run, one) for one in columns if one.name not in survival and len(one.levels) <= MOST_LEVELS]
    if survival:
        times, seen = survival_pair(columns, survival)
        there = np.isfinite(times) & (run.labels != OUTLIER)
        statistic, p = log_rank(times[there], seen[there] == 1, run.labels[there])
        found.append(Association(" and ".join(survival), "log-rank", int(there.sum()), statistic, p))
    sure = [one for one in found if one is not None and np.isfinite(one.p)]
    corrected = false_discovery_control([one.p for one in sure]).tolist() if sure else []
    return [one._replace(corrected=p) for one, p in zip(sure, corrected, strict=True)]


def _tested(run: FinishedRun, column: Column) -> Association | None:
    """The test that suits a column; None where it or the clusters never change."""
    from scipy.stats import chi2_contingency, fisher_exact, kruskal

    there = np.isfinite(column.values) & (run.labels != OUTLIER)
    values, n = column.values[there], int(there.sum())
    (groups, rows), (kinds, places) = (np.unique(one, return_inverse=True) for one in (run.labels[there], values))
    shape = len(groups), len(kinds)

    def made(test: str, statistic: float, p: float) -> Association:
        return Association(column.name, test, n, float(statistic), float(p))

    def counts(columns: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)

    if min(shape) < 2:
        return None
    if not column.levels:
        return made("Kruskal-Wallis", *kruskal(*(values[rows == group] for group in range(len(groups)))))
    statistic, p, _, expected = chi2_contingency(counts(places), correction=False)
    if (expected < _EXPECTED).mean() <= _MOST_BELOW and expected.min() >= 1:
        return made("chi-squared", statistic, p)
    if shape == (2, 2):
        return made("Fisher", *fisher_exact(counts(places)))
    draws, inverse = np.random.default_rng(0), 1 / expected
    as_large = sum(
        float((counts(draws.permutation(places)) ** 2 * inverse).sum()) - n >= statistic - 1e-9
        for _ in range(_SHUFFLES)
    )
    return made("chi-squared by shuffling", statistic, (1 + as_large) / (1 + _SHUFFLES))


def log_rank(times: NDArray[np.float64], seen: NDArray[np.bool_], groups: NDArray[np.int64]) -> tuple[float, float]:
    """Statistic and p-value of the log-rank test that all groups have one survival; NaN where there is one group.

    Groups without a sample at the time of the first event count as none. scipy.stats.logrank compares two.
    """
    from scipy.stats import chi2

    names = np.unique(groups[times >= times[seen].min()]) if seen.any() else groups[:0]
    if len(names) < 2:
        return np.nan, np.nan
    excess, covariance = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for moment in np.unique(times[seen]):
        at_risk = np.array([((times >= moment) & (groups == name)).sum() for name in names], dtype=float)
        events = np.array([((times == moment) & seen & (groups == name)).sum() for name in names], dtype=float)
        n, d, share = at_risk.sum(), events.sum(), at_risk / at_risk.sum()
        excess += events - d * share
        if n > 1:
            covariance += d * (n - d) / (n - 1) * (np.diag(share) - np.outer(share, share))
    statistic = float(excess[1:] @ np.linalg.pinv(covariance[1:, 1:]) @ excess[1:])
    return statistic, float(chi2.sf(statistic, len(names) - 1))


def kaplan_meier(times: NDArray[np.float64], seen: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """The share that is left after each time of a sample, from 1 at 0."""
    from scipy.stats import CensoredData, ecdf

    left = ecdf(CensoredData.right_censored(times, ~seen)).sf
    return [(0.0, 1.0), *zip(left.quantiles.tolist(), left.probabilities.tolist(), strict=True)]


def association_section(
    run: FinishedRun, columns: Sequence[Column], survival: Sequence[str], found: Sequence[Association]
) -> Section | None:
    """The tests that were found, and a curve of survival per cluster, all with the same axes."""
    if not found and not survival:
        return None
    curves = None
    if survival:
        times, seen = survival_pair(columns, survival)
        curves, axes = [], ((0.0, float(np.nanmax(times, initial=0))), (0.0, 1.0))
        for label in range(run.n_clusters):
            own = (run.labels == label) & np.isfinite(times)
            if own.any():
                points = kaplan_meier(times[own], seen[own] == 1)
                steps = [one for a, b in pairwise(points) for one in (a, (b[0], a[1]))]
                title = f"Cluster {run.called(label)}: share left (Kaplan-Meier, {own.sum()} samples)"
                curves.append(charts.line_chart([*steps, points[-1]], title, survival[0], axes=axes))
    body = filled(
        "associations.html",
        tests=sorted(found, key=lambda one: one.p),
        is_untested=bool(survival) and " and ".join(survival) not in [one.column for one in found],
        curves=curves,
        p_value=p_value,
    )
    return Section("associations", "Do clusters differ in what you know?", body)
