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
from math import inf, isnan, log

from viewfuse.selection.scores import Candidate, Merit

SCALINGS = ("mixed", "standard", "minmax")
"""Those that are tried, in this order: the one that looks at other views, too, comes first, and the one that depends on
the two outermost values of a column comes last."""
_SCALING_MARGIN = 0.04
"""By which the score of the clusters under a scaling must be higher than under those before it."""
_SAME_SQUARES = 1.001
_SHARE = 0.7
_USUAL_WEIGHT = 0.1
STABLE = 0.8
"""Agreement of trainings from which on they found the same."""

CLEAR = 0.85
"""Cohen's kappa with k-means on the filled views from which on clusters are clear.

On 19 real and synthetic sets nothing was lost where from 0.7 on no other scaling was tried (chance was one over the
number of clusters then, which is the same for even sizes).
"""
_PER_CLUSTER = 5
"""Fewer samples in a cluster, on average, than this make nothing clear: with as many clusters as samples all agree."""
_QUARTER, _TENTH, _TWENTIETH = 0.3, 0.1, 0.05
"""Logarithms of the ratios in `clearly_better`.

Chosen on 15 real and 6 synthetic sets at three missing rates (masks 0 to 2), where k-means in the network's place gains
0.4 points of accuracy on real and 5.6 on synthetic sets. With 0.02 or 0.03 for a twentieth real sets gain 0.2 to 0.4.
"""
_IN_ALL = 0.04
"""The same for the tree, in all three. On masks 5 to 9, with which it was chosen, 0.03 to 0.05 lose on none of 23 sets;
on masks 0 to 4 the tree gains 1.1 points on average and loses 0.6 on one set (Caltech)."""


def clustering_weight(reconstruction: float | None) -> float:
    """lambda_2 from the mean reconstruction loss of the last pre-training epoch; the paper's where there was none."""
    return _USUAL_WEIGHT if reconstruction is None else _SHARE * reconstruction


def best_start(merits: Sequence[Merit], squares: Sequence[float]) -> int:
    """Which of several k-means solutions the joint stage begins with.

    Sums of squares that differ by a thousandth tell nothing: among such solutions that with the highest score is taken.
    One with a larger sum must lose a quarter fewer neighbours: the best of twenty is the best by chance, too.

    Parameters
    ----------
    squares : their sums of squares
    """
    smallest = min(squares)

    def worth(i: int) -> tuple[float, float]:
        # Rounding must not decide between one solution and the same found from another start.
        return round(merits[i].score, 9), -squares[i]

    least = [i for i, own in enumerate(squares) if own <= smallest * _SAME_SQUARES]
    best = max(least, key=worth)
    better = [i for i, own in enumerate(merits) if _fewer_leave(own.score, merits[best].score) > _QUARTER]
    return max([best, *better], key=worth)


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


def clearly_better(other: Merit, own: Merit, found_in: str = "k-means") -> bool:
    """Whether another partition is so much better than one's own that it takes its place.

    That is where a quarter fewer neighbours leave their cluster, on average over clusters, which finds small groups; a
    tenth fewer on average over samples, while the clusters tell as much of each other (few pure clusters beside one
    that holds all the rest lose no neighbours, and tell little); or where clusters tell clearly more, which k-means
    does where they overlap so far that every partition loses most neighbours. What is found in the neighbour graph was
    found by looking at these neighbours: it must lose a quarter fewer, and tell more. The tree looks at the embedding
    as well: it must be better in all three.

    Parameters
    ----------
    found_in : "k-means", "graph" or "tree", see `viewfuse.selection.candidates`
    """
    by_cluster, by_sample = _fewer_leave(other.score, own.score), _fewer_leave(other.agreement, own.agreement)
    more = log(max(other.information, 1e-9) / max(own.information, 1e-9))
    if found_in == "tree":
        return min(by_cluster, by_sample, more) > _IN_ALL
    if found_in == "graph":
        return by_cluster > _QUARTER and more > _TENTH
    return by_cluster > _QUARTER or more > _TWENTIETH or (by_sample > _TENTH and more > -_TWENTIETH)


def _fewer_leave(other: float, own: float) -> float:
    """The logarithm of the share that leaves its cluster in one's own partition, over that in the other."""
    return log(max(1.0 - own, 1e-9) / max(1.0 - other, 1e-9))
