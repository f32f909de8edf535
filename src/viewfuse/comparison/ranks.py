"""Which methods are better than others over several data sets, and which differ by chance (Demšar, JMLR 2006).

Mean ranks of all with a picture of them, and one method against each of the others: Wilcoxon's test with Holm's
correction, and effect sizes. Runs on masks of one data set share its samples, so a test over them would find
differences everywhere; tests count data sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

from viewfuse.comparison.results import Comparison
from viewfuse.errors import DataError, SettingError
from viewfuse.fitted.drift import holm
from viewfuse.plots.layout import shortened
from viewfuse.plots.pictures import picture
from viewfuse.plots.style import ON_SCREEN, PictureStyle

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
    """Names of all methods, and scores of shape (data sets, methods): the mean of all runs, NaN where one failed."""
    lacking = [name for name, found in sets.items() if metric not in found.metrics]
    if lacking:
        raise SettingError(f"metric {metric!r} was not measured on {', '.join(lacking)}")
    names = list(dict.fromkeys(name for found in sets.values() for name in found.methods))
    means = np.full((len(sets), len(names)), np.nan)
    for row, found in zip(means, sets.values(), strict=True):
        for i, name in enumerate(names):
            scores = [found.scores(run)[metric] for run in found.runs if run.method == name]
            row[i] = mean(scores) if scores else np.nan
    return names, means


def ranks_of(names: Sequence[str], scores: NDArray[np.float64]) -> Ranks:
    """Rank methods on every data set, and test whether their mean ranks differ; a method with a NaN is left out."""
    places = [i for i in range(len(names)) if not np.isnan(scores[:, i]).any()]
    count, k = len(scores), len(places)
    if k < 2 or count < 2:
        raise DataError(
            f"{k} methods with scores on each of {count} data sets cannot be ranked; give two of each at least"
        )
    ranks = np.apply_along_axis(rankdata, 1, -scores[:, places])
    means = ranks.mean(axis=0)
    spread = ((ranks - (k + 1) / 2) ** 2).sum() / (count * (k - 1))  # less than k (k + 1) / 12 where methods tie
    p_value = 1.0 if spread == 0 else float(chi2.sf(count * ((means - (k + 1) / 2) ** 2).sum() / spread, k - 1))
    order = np.argsort(means, kind="stable")
    ordered = tuple(names[places[i]] for i in order), tuple(float(means[i]) for i in order)
    left_out = tuple(name for i, name in enumerate(names) if i not in places)
    return Ranks(*ordered, nemenyi(k, count), p_value, count, left_out)


def nemenyi(n_methods: int, count: int) -> float:
    """The critical difference of mean ranks over `count` data sets."""
    q = float(studentized_range.ppf(1 - LEVEL, n_methods, np.inf)) / sqrt(2)
    return q * sqrt(n_methods * (n_methods + 1) / (6 * count))


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


_LINE, _BAR = 0.55, 0.22
"""Inches between names, and between bars."""
_TICKS = 8
"""Numbers that one column of a journal has room for."""


def draw_critical_difference(path: Path, ranks: Ranks, *, title: str, style: PictureStyle = ON_SCREEN) -> None:
    """Draw methods along an axis of mean ranks, the best on the left, with the critical difference above it.

    Below the axis are a bar per group of methods that are alike, and a line per method that leads to its name.
    """
    bars, k = ranks.alike(), len(ranks.names)
    half, length = (k + 1) // 2, ranks.critical_difference
    below = -0.25 * (len(bars) + 1) - 0.15
    letters, longest = ("x-small", 16) if style.columns == 1 else ("medium", 40)
    with picture(path, "pictures of ranks", (9, 1.6 + _BAR * len(bars) + 0.34 * half), dpi=130, style=style) as figure:
        axes = figure.subplots()
        axes.plot((1, k), (0, 0), color="black", linewidth=1.2)
        for tick in range(1, k + 1):
            axes.plot((tick, tick), (0, 0.12), color="black", linewidth=1.2)
        for tick in range(1, k + 1, -(-k // _TICKS)):
            axes.text(tick, 0.2, str(tick), ha="center", va="bottom", fontsize="x-small")
        axes.plot((1, 1 + length), (0.85, 0.85), color="#d55e00", linewidth=2)
        for end in (1, 1 + length):
            axes.plot((end, end), (0.78, 0.92), color="#d55e00", linewidth=2)
        words = f"critical difference {length:.2f}"
        axes.text(1 + length / 2, 0.97, words, ha="center", va="bottom", fontsize="small")
        for place, (first, last) in enumerate(bars):
            depth, ends = -0.25 - 0.25 * place, (ranks.mean_ranks[first] - 0.04, ranks.mean_ranks[last] + 0.04)
            axes.plot(ends, (depth, depth), color="0.25", linewidth=4, solid_capstyle="round")
        for i, (name, rank) in enumerate(zip(ranks.names, ranks.mean_ranks, strict=True)):
            left, short = i < half, shortened(name, longest)
            depth, tip = below - _LINE * (i if left else k - 1 - i), 0.85 if left else k + 0.15
            color = "#0072b2" if rank == ranks.mean_ranks[0] else "0.5"
            axes.plot((rank, rank, tip), (0, depth, depth), color=color, linewidth=1)
            text = f"{short}  {rank:.2f} " if left else f" {rank:.2f}  {short}"
            axes.text(tip, depth, text, ha="right" if left else "left", va="center", fontsize=letters)
        axes.set_xlim(1 - 0.3 * k, max(k + 0.3 * k, 1.1 + length))
        axes.set_ylim(below - _LINE * half, 1.35)
        axes.axis("off")
        words = f"mean ranks over {ranks.count} data sets; bars join what may differ by chance (Nemenyi, 5 %)"
        if not style.columns:  # captions have that
            figure.suptitle(f"{title}\n{words}; Friedman p = {ranks.p_value:.2g}", fontsize=10)
