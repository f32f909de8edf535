"""Probabilities that mean something, without labels: soft assignments sharpened until they are as sure as they may be.

The soft assignment of the paper ranks samples, but its values depend on the width of the embedding: .3 for samples that
are right in 99 of 100 cases, and .3 in pure noise. How sure the clusters are **on average** can be estimated from the
data: a partition that a network and k-means on the filled views find independently counts as real. On data without
structure the two agree, corrected for chance, by about a fifth; that counts as nothing. The assignments are raised to
the power that makes their mean confidence this level, which changes no label and no order of samples within a cluster.
"""

from __future__ import annotations

from math import exp

import numpy as np
from numpy.typing import NDArray

from viewfuse.selection.decisions import MeanConfidence
from viewfuse.selection.scores import matched_share

_AGREEMENT_ON_NOISE = 0.2
_LEAST, _MOST = 0.01, 0.995
"""Of a level above chance: even noise keeps its order, and nothing is certain."""
_LOG_POWERS = (-7.0, 9.0)
_ROUNDS = 50
_ROWS = 20_000
"""Samples that are enough to find the power."""


def confidence_decision(labels: NDArray[np.int64], reference: NDArray[np.int64], n_clusters: int) -> MeanConfidence:
    """How sure the clusters are on average, given those that k-means finds in the filled views."""
    shared = matched_share(labels, reference)
    return MeanConfidence(confidence_level(shared, n_clusters), {"shared_with_kmeans": shared}, n_clusters)


def plain_confidence(assignment: NDArray[np.float32]) -> MeanConfidence:
    """How sure soft assignments of shape (samples, clusters) are on average where they stay as they are."""
    return MeanConfidence(float(assignment.max(axis=1).mean()), {}, assignment.shape[1])


def confidence_level(shared: float, n_clusters: int) -> float:
    """The mean probability of the best cluster, from 1/k to 1.

    Parameters
    ----------
    shared : share of the samples that both partitions put into the same cluster
    """
    if n_clusters == 1:
        return 1.0
    chance = 1.0 / n_clusters
    kappa = (shared - chance) / (1.0 - chance)
    above = (kappa - _AGREEMENT_ON_NOISE) / (1.0 - _AGREEMENT_ON_NOISE)
    return chance + (1.0 - chance) * min(max(above, _LEAST), _MOST)


def sharpness(assignment: NDArray[np.float32], level: float) -> float:
    """The power that gives soft assignments of shape (samples, clusters) this mean confidence, by bisection."""
    some = assignment[:: max(1, len(assignment) // _ROWS)]
    low, high = _LOG_POWERS
    if _mean_confidence(some, high) < level:
        return 1.0  # samples as far from one centre as from another: nothing makes them sure
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_confidence(some, middle) < level else (low, middle)
    return exp((low + high) / 2)


def _mean_confidence(assignment: NDArray[np.float32], log_power: float) -> float:
    return float(sharpened(assignment, exp(log_power)).max(axis=1).mean())


def sharpened(assignment: NDArray[np.float32], power: float) -> NDArray[np.float32]:
    """Soft assignments, of shape (samples, clusters), raised to a power; rows sum to 1."""
    if power == 1.0:
        return assignment
    logs = power * np.log(np.maximum(assignment.astype(np.float64), 1e-300))
    raised = np.exp(logs - logs.max(axis=1, keepdims=True))
    found = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
    # What was the best stays so, also where rounding makes it equal to the next.
    rows, best = np.arange(len(found)), assignment.argmax(axis=1)
    tied = (found >= found[rows, best][:, None]).sum(axis=1) > 1
    found[rows[tied], best[tied]] = np.nextafter(found[tied].max(axis=1), np.float32(2))
    return found
