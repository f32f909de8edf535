"""Sets of clusters that together hold a sample with a chance that is asked for.

Split conformal prediction, with labels drawn from the soft assignments of the training samples, as the labels that
these have are right more often than those of new samples would be. A cluster is in the set if its chance is at least a
bound, one for each number of views that samples have.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

_LEAST = 30
"""Training samples with a number of views from which on they have a bound of their own; the others share one."""


def bounds(soft: NDArray[np.float32], n_present: NDArray[np.int64], alpha: float) -> dict[int, float]:
    """By number of views the least chance of a cluster in the sets; 0 stands for numbers that are not there.

    Parameters
    ----------
    soft : of shape (training samples, clusters)
    n_present : of shape (training samples,): how many views each has
    alpha : the share of samples whose cluster may be missing in their set
    """
    scores = np.sort(drawn_chances(soft))
    groups = [int(count) for count in np.unique(n_present) if (n_present == count).sum() >= _LEAST]
    drawn = drawn_chances(soft)
    return {0: _bound(scores, alpha)} | {count: _bound(np.sort(drawn[n_present == count]), alpha) for count in groups}


def drawn_chances(soft: NDArray[np.float32]) -> NDArray[np.float64]:
    """The chance of a cluster that is drawn by the chances, of shape (samples,); the same at every call."""
    wide = soft.astype(np.float64)
    places = np.random.default_rng(0).random(len(soft))[:, None] * wide.sum(axis=1, keepdims=True)
    labels = np.minimum((places >= wide.cumsum(axis=1)).sum(axis=1), soft.shape[1] - 1)
    return np.asarray(wide[np.arange(len(soft)), labels])


def _bound(scores: NDArray[np.float64], alpha: float) -> float:
    """The conformal quantile: of n scores in rising order that with the number floor(alpha (n + 1)), at least all."""
    place = len(scores) + 1 - ceil((1 - alpha) * (len(scores) + 1))
    return float(scores[place - 1]) if place >= 1 else 0.0


def label_sets(soft: NDArray[np.float32], n_present: NDArray[np.int64], known: dict[int, float]) -> NDArray[np.bool_]:
    """Which clusters are in the set of each sample, of shape (samples, clusters); the best one always is."""
    least = np.array([known.get(count, known[0]) for count in n_present.tolist()])
    inside = soft >= least[:, None]
    inside[np.arange(len(soft)), soft.argmax(axis=1)] = True
    return np.asarray(inside)
