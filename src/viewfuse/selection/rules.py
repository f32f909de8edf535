"""What the paper decided by hand, with labels in view, decided from scores alone.

Rules return data, `viewfuse.selection.decisions`; `viewfuse.selection.messages` turns them into words.

**The weight of the clustering loss.** Reconstruction losses of different data, and of one data set scaled in different
ways, differ by a factor of a hundred, so a fixed weight is idle on some and tears the clusters of others apart. The
weight is therefore a fixed share of the reconstruction loss that pre-training ended with.

**Which scaling is chosen, which clusters the joint stage begins with, and which training is kept** depends on the
score of the clusters (`viewfuse.selection.scores`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan

from viewfuse.selection.decisions import Reliability
from viewfuse.selection.scores import Candidate

SCALINGS = ("mixed", "standard", "minmax")
"""Those that are tried, in this order: the one that looks at other views, too, comes first, and the one that depends on
the two outermost values of a column comes last."""
_SCALING_MARGIN = 0.04
"""By which the score of the clusters under a scaling must be higher than under those before it."""
_SAME_SQUARES, _CLEARLY = 1.001, 0.03
_SHARE = 0.7
_USUAL_WEIGHT = 0.1
STABLE, _DOUBTFUL = 0.8, 0.5
"""Bounds of the agreement of trainings."""

CLEAR = 0.85
"""Cohen's kappa with k-means on the filled views from which on clusters are clear.

On 19 real and synthetic sets nothing was lost where from 0.7 on no other scaling was tried.
"""
_PER_CLUSTER = 5
"""Fewer samples in a cluster, on average, than this make nothing clear: with as many clusters as samples all agree."""
MARGINS = {"k-means": 0.06, "graph": 0.15}
"""By how much the score of a partition that was found without the network must be higher than that of the network's.

Over 47 cells of 15 real sets margins of 0.04 to 0.1 for k-means lose nothing; what is found in the neighbour graph is
judged by the same neighbours, and up to 0.14 higher than the network's clusters without being better.
"""


def clustering_weight(reconstruction: float | None) -> float:
    """lambda_2 from the mean reconstruction loss of the last pre-training epoch; the paper's where there was none."""
    return _USUAL_WEIGHT if reconstruction is None else _SHARE * reconstruction


def best_start(scores: Sequence[float], squares: Sequence[float]) -> int:
    """Which of several k-means solutions the joint stage begins with.

    Sums of squares that differ by a thousandth tell nothing: among such solutions that with the highest score is taken.
    One with a larger sum needs a clearly higher score.

    Parameters
    ----------
    squares : their sums of squares
    """
    smallest = min(squares)

    def worth(i: int) -> tuple[float, float]:
        is_larger = squares[i] > smallest * _SAME_SQUARES
        # Rounding must not decide between one solution and the same found from another start.
        return round(scores[i] - _CLEARLY * is_larger, 9), -squares[i]

    return max(range(len(scores)), key=worth)


def best_of_each(candidates: Sequence[Candidate], scores: Sequence[float]) -> dict[str, int]:
    """Per scaling which training is kept: that with the highest score."""
    best: dict[str, int] = {}
    # A stage that was taken back may have ended with a loss of NaN, which has no place in an order.
    losses = [inf if isnan(one.objective) else one.objective for one in candidates]
    for i in sorted(range(len(scores)), key=lambda i: (-round(scores[i], 9), losses[i])):
        best.setdefault(candidates[i].scaling, i)
    return best


def best_scaling(scores: Mapping[str, float]) -> str:
    """The first one, unless one that comes later is clearly better."""
    best, *others = scores
    for scaling in others:
        if scores[scaling] > scores[best] + _SCALING_MARGIN:
            best = scaling
    return best


def are_clear(kappa: float, n_samples: int, n_clusters: int) -> bool:
    """Whether clusters are clear, given Cohen's kappa with those of k-means on the filled views."""
    return n_samples >= _PER_CLUSTER * n_clusters and kappa >= CLEAR


def clearly_better(network: float, others: Mapping[str, float]) -> list[str]:
    """The partitions found without the network whose scores are clearly higher than that of its own, best first."""
    gains = {name: score - network - MARGINS[name] for name, score in others.items()}
    return sorted((name for name, gain in gains.items() if gain > 0), key=lambda name: -gains[name])


def reliability(agreed: float, n_trainings: int, *, final: bool, alone: bool) -> Reliability:
    """Call clusters stable, partly stable or doubtful by the mean adjusted Rand index `agreed`; see `Reliability`."""
    name = "stable" if agreed >= STABLE else "doubtful" if agreed < _DOUBTFUL else "partly stable"
    return Reliability(name, {"agreement": agreed}, n_trainings, final, alone)
