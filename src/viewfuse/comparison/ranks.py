"""Which methods are better than others over several data sets, and which differ by chance (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

from viewfuse.comparison.results import Comparison
from viewfuse.errors import DataError, SettingError

LEVEL = 0.05


@dataclass(frozen=True)
class Ranks:
    """Methods by their mean ranks, the best first.

    Attributes
    ----------
    mean_ranks : 1 is the best
    critical_difference : methods whose mean ranks differ by more do so not by chance (Nemenyi, 5 %)
    p_value : of Friedman's test, that all methods are alike
    count : of data sets
    left_out : methods that have no score on some data set
    """

    names: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    critical_difference: float
    p_value: float
    count: int
    left_out: tuple[str, ...] = ()

    def alike(self) -> list[tuple[int, int]]:
        """Longest runs of methods that no difference tells apart: places of the first and the last of each."""
        last = [
            max(b for b, other in enumerate(self.mean_ranks) if other - own <= self.critical_difference)
            for own in self.mean_ranks
        ]
        return [(a, b) for a, b in enumerate(last) if b > a and (a == 0 or last[a - 1] < b)]


def ranks_over(sets: Mapping[str, Comparison], metric: str = "acc") -> Ranks:
    """Rank methods over comparisons on different data sets; a method of which any run failed is left out.

    The score of a method on a data set is its mean over missing rates and masks: runs on the same samples are not
    independent, so the tests count data sets.

    Parameters
    ----------
    sets : comparisons by the name of their data set
    metric : "acc", "nmi", "ari" or "held_out"; each comparison must have measured it
    """
    return ranks_of(*mean_scores(sets, metric))


def mean_scores(sets: Mapping[str, Comparison], metric: str) -> tuple[list[str], NDArray[np.float64]]:
    """Names of all methods, and scores of shape (data sets, methods); see `ranks_over`."""
    lacking = [name for name, found in sets.items() if metric not in found.metrics]
    if lacking:
        raise SettingError(f"metric {metric!r} was not measured on {', '.join(lacking)}")
    names = list(dict.fromkeys(name for found in sets.values() for name in found.methods))
    return names, np.array([[_score(found, name, metric) for name in names] for found in sets.values()])


def _score(found: Comparison, method: str, metric: str) -> float:
    """The mean of all runs of a method; NaN where one failed, or where there is none."""
    scores = [found.scores(run)[metric] for run in found.runs if run.method == method]
    return mean(scores) if scores else np.nan


def ranks_of(names: Sequence[str], scores: NDArray[np.float64]) -> Ranks:
    """Rank methods on every data set, and test whether their mean ranks differ.

    Parameters
    ----------
    scores : of shape (data sets, methods), the higher the better; a method with a NaN is left out
    """
    places = [i for i in range(len(names)) if not np.isnan(scores[:, i]).any()]
    count, k = len(scores), len(places)
    if k < 2 or count < 2:
        raise DataError(
            f"{k} methods with scores on each of {count} data sets cannot be ranked; give two of each at least"
        )
    own = np.apply_along_axis(rankdata, 1, -scores[:, places])
    means = own.mean(axis=0)
    order = np.argsort(means, kind="stable")
    ordered = tuple(names[places[i]] for i in order), tuple(float(means[i]) for i in order)
    left_out = tuple(name for i, name in enumerate(names) if i not in places)
    return Ranks(*ordered, nemenyi(k, count), _friedman(own), count, left_out)


def nemenyi(n_methods: int, count: int, level: float = LEVEL) -> float:
    """The critical difference of mean ranks over `count` data sets."""
    q = float(studentized_range.ppf(1 - level, n_methods, np.inf)) / sqrt(2)
    return q * sqrt(n_methods * (n_methods + 1) / (6 * count))


def _friedman(ranks: NDArray[np.float64]) -> float:
    """The chance of mean ranks that differ as much; 1 where all are equal."""
    count, k = ranks.shape
    spread = ((ranks - (k + 1) / 2) ** 2).sum() / (count * (k - 1))  # less than k (k + 1) / 12 where methods tie
    if spread == 0:
        return 1.0
    statistic = count * ((ranks.mean(axis=0) - (k + 1) / 2) ** 2).sum() / spread
    return float(chi2.sf(statistic, k - 1))
