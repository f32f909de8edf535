"""Which methods are better than others, and which differ by chance (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

from viewfuse.errors import DataError

LEVEL = 0.05


@dataclass(frozen=True)
class Ranks:
    """Methods by their mean ranks, the best first.

    Attributes
    ----------
    mean_ranks : 1 is the best
    critical_difference : methods whose mean ranks differ by more do so not by chance (Nemenyi, 5 %)
    p_value : of Friedman's test, that all methods are alike
    count : in how many comparisons they were ranked
    """

    names: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    critical_difference: float
    p_value: float
    count: int

    def alike(self) -> list[tuple[int, int]]:
        """Longest runs of methods that no difference tells apart: places of the first and the last of each."""
        last = [
            max(b for b, other in enumerate(self.mean_ranks) if other - own <= self.critical_difference)
            for own in self.mean_ranks
        ]
        return [(a, b) for a, b in enumerate(last) if b > a and (a == 0 or last[a - 1] < b)]


def ranks_of(names: Sequence[str], scores: NDArray[np.float64]) -> Ranks:
    """Rank methods in every comparison, and test whether their mean ranks differ.

    Parameters
    ----------
    scores : of shape (comparisons, methods), the higher the better; NaN is the worst
    """
    count, k = scores.shape
    if k < 2 or not count:
        raise DataError(f"{k} methods on {count} masks cannot be ranked; give at least two methods and a mask")
    own = np.apply_along_axis(rankdata, 1, -np.nan_to_num(scores, nan=-np.inf))
    means = own.mean(axis=0)
    order = np.argsort(means, kind="stable")
    return Ranks(
        tuple(names[i] for i in order),
        tuple(float(means[i]) for i in order),
        nemenyi(k, count),
        _friedman(own),
        count,
    )


def nemenyi(n_methods: int, count: int, level: float = LEVEL) -> float:
    """The critical difference of mean ranks over `count` comparisons."""
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
