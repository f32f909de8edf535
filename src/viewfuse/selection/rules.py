"""What the paper decided by hand, with labels in view, decided from scores alone.

Rules return data, `viewfuse.selection.decisions`; `viewfuse.selection.messages` turns them into words.

**The weight of the clustering loss.** Reconstruction losses of different data, and of one data set scaled in different
ways, differ by a factor of a hundred, so a fixed weight is idle on some and tears the clusters of others apart. The
weight is therefore a fixed share of the reconstruction loss that pre-training ended with.

**Which scaling is chosen, which clusters the joint stage begins with, and which training is kept** depends on the
neighbour agreement of the clusters (`viewfuse.selection.scores`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan

from viewfuse.selection.decisions import ClusterSource
from viewfuse.selection.scores import Candidate, chance_corrected

SCALINGS = ("mixed", "standard", "minmax")
"""Those that are tried, in this order: the one that looks at other views, too, comes first, and the one that depends on
the two outermost values of a column comes last."""
_SCALING_MARGIN = 0.04
"""By which the score of the clusters under a scaling must be higher than under those before it."""
_SAME_SQUARES, _CLEARLY, _MUCH_LESS_EVEN = 1.001, 0.03, 0.2
_SHARE = 0.7
_USUAL_WEIGHT = 0.1
STABLE = 0.8
"""Agreement of trainings from which on they found the same."""

CLEAR = 0.85
"""Agreement, corrected for chance, with k-means on the filled views from which on clusters are clear.

On 19 real and synthetic sets nothing was lost where from 0.7 on no other scaling was tried.
"""
_PER_CLUSTER = 5
"""Fewer samples in a cluster, on average, than this make nothing clear: with as many clusters as samples all agree."""
_BETTER = 0.0025
"""By which share k-means must score higher than the network: a tie is the network's."""


def clustering_weight(reconstruction: float | None) -> float:
    """lambda_2 from the mean reconstruction loss of the last pre-training epoch; the paper's where there was none."""
    return _USUAL_WEIGHT if reconstruction is None else _SHARE * reconstruction


def best_start(scores: Sequence[float], squares: Sequence[float], entropies: Sequence[float]) -> int:
    """Which of several k-means solutions the joint stage begins with.

    Sums of squares that differ by a thousandth tell nothing: among such solutions that with the highest neighbour
    agreement is taken. One with a larger sum needs a clearly higher agreement, and must not have it by merging most
    samples.

    Parameters
    ----------
    scores : their neighbour agreements
    squares : their sums of squares
    entropies : those of their cluster sizes
    """
    smallest = min(range(len(squares)), key=lambda i: squares[i])

    def worth(i: int) -> tuple[bool, float, float]:
        is_larger = squares[i] > squares[smallest] * _SAME_SQUARES
        # Rounding must not decide between one solution and the same found from another start.
        score = round(scores[i] - _CLEARLY * is_larger, 9)
        return entropies[i] >= entropies[smallest] - _MUCH_LESS_EVEN, score, -squares[i]

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


def are_clear(shared: float, n_samples: int, n_clusters: int) -> bool:
    """Whether clusters are clear, given the share of the samples that k-means on the filled views puts there, too."""
    return n_samples >= _PER_CLUSTER * n_clusters and chance_corrected(shared, n_clusters) >= CLEAR


def cluster_source(network: float, kmeans: float | None) -> ClusterSource:
    """Whose clusters are kept: those of the network, or those of k-means on the filled views.

    Parameters
    ----------
    network, kmeans : their scores, see `viewfuse.selection.scores.partition_score`; None leaves no choice
    """
    better = kmeans is not None and kmeans > network + _BETTER * abs(network)
    evidence = {"network": network} | ({} if kmeans is None else {"k-means": kmeans})
    return ClusterSource("k-means" if better else "network", evidence)
