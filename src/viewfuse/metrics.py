"""How well found clusters match known classes. For scoring only: labels never reach training.

scikit-learn is imported by who needs it: it takes as long as the rest of a command.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viewfuse.data.alignment import is_missing
from viewfuse.data.side_information.known_labels import as_objects
from viewfuse.errors import DataError


def clustering_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Share of samples in the right class under the best one-to-one match of clusters and classes."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    true, pred = _paired(y_true, y_pred)
    counts = contingency_matrix(true, pred)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / len(true))


def nmi(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Normalised mutual information, arithmetic mean in the denominator."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_paired(y_true, y_pred)))


def ari(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Adjusted Rand index: 1 for the same partition, 0 on average for random ones."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_paired(y_true, y_pred)))


def _paired(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    true, pred = np.asarray(y_true), np.asarray(y_pred)
    for name, given, found in (("y_true", y_true, true), ("y_pred", y_pred, pred)):
        if found.ndim != 1:
            raise DataError(f"{name} has {found.ndim} dimensions; give one label per sample")
        missing = [row for row, label in enumerate(as_objects(given).tolist()) if is_missing(label)]
        if missing:
            raise DataError(f"{name}, row {missing[0]}: the label is missing; leave such samples out of both lists")
    if true.shape != pred.shape or not len(true):
        shapes = f"labels of shapes {true.shape} and {pred.shape}"
        raise DataError(f"{shapes} cannot be compared; give two lists of one length")
    return true, pred
