"""Scores of clusters beside known labels, overall and by the number of views that a sample has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.experiments.catalogue import is_known
from viewfuse import metrics

_METRICS = {"acc": metrics.clustering_accuracy, "nmi": metrics.nmi, "ari": metrics.ari}


def scored(known: NDArray[Any], found: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Accuracy, NMI and ARI in percent over the samples whose label is known.

    Parameters
    ----------
    known, found : labels of shape (samples,)
    mask : of shape (samples, views); given, `by_views` has how many samples have so many views, and their accuracy
    """
    there = is_known(known)
    own, labels = known[there], found[there]
    scores: dict[str, Any] = {name: round(100 * score(own, labels), 4) for name, score in _METRICS.items()}
    if mask is not None:
        right, count = matched(own, labels)[labels] == own, mask[there].sum(axis=1)
        scores["by_views"] = {
            str(number): [int((count == number).sum()), round(100 * float(right[count == number].mean()), 4)]
            for number in np.unique(count).tolist()
        }
    return scores


def matched(known: NDArray[Any], found: NDArray[Any], n_clusters: int | None = None) -> NDArray[Any]:
    """The class of each cluster, of shape (clusters,), under the best one-to-one match of clusters and classes.

    A cluster beyond the number of classes gets a class of its own, that of no sample.

    Parameters
    ----------
    found : numbers of clusters from 0
    """
    classes, place = np.unique(known, return_inverse=True)
    counts = np.zeros((max(n_clusters or 0, int(found.max()) + 1), len(classes)), dtype=np.int64)
    np.add.at(counts, (found, place), 1)
    names = np.full(len(counts), classes.max() + 1, dtype=np.int64)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    names[rows] = classes[columns]
    return names
