"""Scores of clusters beside known labels, overall and by the number of views that a sample has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.experiments.catalogue import is_known
from viewfuse import metrics


def macro_accuracy(known: NDArray[Any], found: NDArray[Any]) -> float:
    """Mean over classes of the share of a class that is in its cluster: each class counts alike, however small.

    Clusters and classes are matched one to one as for the accuracy; of several matches with the same accuracy, that
    with the highest mean counts. A class without a cluster counts 0.

    >>> macro_accuracy(np.array([0] * 8 + [1] * 2), np.array([0] * 7 + [1] * 2 + [0]))
    0.6875
    """
    classes, of_class = np.unique(known, return_inverse=True)
    _, of_cluster = np.unique(found, return_inverse=True)
    counts = np.zeros((len(classes), of_cluster.max() + 1), dtype=np.int64)
    np.add.at(counts, (of_class, of_cluster), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    pairs = linear_sum_assignment(
        counts + shares / (len(classes) + 1), maximize=True
    )  # shares decide between ties only
    return float(shares[pairs].sum() / len(classes))


_METRICS = {"acc": metrics.clustering_accuracy, "macro": macro_accuracy, "nmi": metrics.nmi, "ari": metrics.ari}


def scored(known: NDArray[Any], found: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Accuracy, macro-averaged accuracy, NMI and ARI in percent over the samples whose label is known.

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
