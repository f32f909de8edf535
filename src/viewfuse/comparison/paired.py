"""One method against each of the others over data sets: Wilcoxon's test with Holm's correction, and effect sizes.

Runs on masks of one data set share its samples, so a test over them would find differences everywhere; tests count data
sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from viewfuse.errors import DataError, SettingError


@dataclass(frozen=True)
class PairedTest:
    """One's own method beside another one.

    Attributes
    ----------
    difference : own less other, mean over data sets
    wins, ties, losses : data sets on which the own method is better, equal, worse
    effect : rank-biserial correlation, the share of ranks in favour less that against: 1 is better everywhere, -1 worse
    p_value : of Wilcoxon's signed-rank test, exact, two-sided
    corrected : the same for all methods at once (Holm)
    """

    method: str
    difference: float
    wins: int
    ties: int
    losses: int
    effect: float
    p_value: float
    corrected: float


def paired_tests(names: Sequence[str], scores: NDArray[np.float64], own: str) -> list[PairedTest]:
    """Test one method against each other one; methods without a score on some data set are left out.

    Parameters
    ----------
    scores : of shape (data sets, methods), the higher the better
    own : one of `names`
    """
    if own not in names:
        raise SettingError(f"method {own!r} was not compared; choose from {', '.join(names)}")
    mine = scores[:, list(names).index(own)]
    if np.isnan(mine).any():
        raise DataError(f"method {own!r} failed on some data set, so it cannot be tested; give another one")
    there = [(name, column) for name, column in zip(names, scores.T, strict=True) if not np.isnan(column).any()]
    apart = {name: mine - column for name, column in there if name != own}
    found = {name: signed_ranks(one) for name, one in apart.items()}
    corrected = holm([p_value for _, p_value in found.values()])
    return [
        PairedTest(name, float(one.mean()), int((one > 0).sum()), int((one == 0).sum()), int((one < 0).sum()), *test, p)
        for (name, one), test, p in zip(apart.items(), found.values(), corrected, strict=True)
    ]


def signed_ranks(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Rank-biserial correlation and the exact p-value of Wilcoxon's test; differences of zero are left out.

    All ways to give the ranks signs are counted, ties sharing their mean rank.
    """
    left = differences[differences != 0]
    if not len(left):
        return 0.0, 1.0
    doubled = np.round(2 * rankdata(np.abs(left))).astype(np.int64)  # whole numbers, as ties have halves
    total, favour = int(doubled.sum()), int(doubled[left > 0].sum())
    ways = np.zeros(total + 1)
    ways[0] = 1.0
    for rank in doubled.tolist():
        ways[rank:] = (ways[rank:] + ways[:-rank]) / 2
        ways[:rank] /= 2
    tail = float(ways[: min(favour, total - favour) + 1].sum())
    return (2 * favour - total) / total, min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, so that a true one among them is found false in one of twenty cases at 0.05."""
    order = np.argsort(p_values, kind="stable")
    found, highest = [0.0] * len(p_values), 0.0
    for place, number in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[number]))
        found[number] = highest
    return found
