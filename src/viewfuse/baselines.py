"""The simple alternatives: fill the gaps, then k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.filling import fit_filler
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.methods.published.filled_kmeans import DONORS, best_kmeans, column_means, distances, fill_from_nearest
from viewfuse.reduction.frontend import fit_reduction


def kmeans_after_mean(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value with its column's mean over observed rows; labels of shape (samples,)."""
    return kmeans_labels(mean_filled(views), n_clusters, random_state)


def kmeans_after_knn(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value from the 5 samples nearest in all common columns; labels of shape (samples,)."""
    return kmeans_labels(knn_filled(views), n_clusters, random_state)


def kmeans_labels(table: NDArray[Any], n_clusters: int, random_state: int) -> NDArray[np.int32]:
    """The best of ten runs of k-means on a table of shape (samples, columns); labels of shape (samples,)."""
    return best_kmeans(table, n_clusters, random_state).labels_


def mean_filled(data: Any) -> NDArray[np.float32]:
    """All views as one min-max scaled table of shape (samples, all columns), gaps filled with means of columns."""
    views = _scaled(data)
    return np.concatenate([_mean_filled(views, v) for v in range(len(views.names))], axis=1)


def knn_filled(data: Any) -> NDArray[np.float32]:
    """As `mean_filled`, but filled with the mean of the nearest samples that have the view.

    The same as scikit-learn's KNNImputer, which looks for donors column by column: all columns of a view are missing
    together, so looking once per view is enough, and takes much less time.
    """
    views = _scaled(data)
    apart = _distances(views)
    return np.concatenate([_knn_filled(views, v, apart) for v in range(len(views.names))], axis=1)


def filled_by_mean(data: Any) -> list[NDArray[np.float32]]:
    """Per view an array of shape (samples, columns) in the units of the data, gaps filled with means of columns."""
    views = _complete(data).dense()
    return [_mean_filled(views, v) for v in range(len(views.names))]


def filled_by_nearest(data: Any, count: int = DONORS) -> list[NDArray[np.float32]]:
    """As `filled_by_mean`, but filled from `count` samples, found as by `knn_filled`; their values are not reduced."""
    views, apart = _complete(data).dense(), _distances(_scaled(data))
    return [_knn_filled(views, v, apart, count) for v in range(len(views.names))]


def _complete(data: Any) -> Views:
    """Views whose empty cells are filled as for the method itself."""
    views = Views.of(data)
    return fit_filler(views).apply(views)[0]


def _scaled(data: Any) -> Views:
    """Min-max scaled views, wide and sparse ones reduced as for the method itself, so that both start alike."""
    views = _complete(data)
    reduction = fit_reduction(views)
    reduced = reduction.apply(views)
    return fit_scaler(reduced, "minmax", reduction.units).apply(reduced)


def _mean_filled(views: Views, v: int) -> NDArray[np.float32]:
    mean = column_means(views.arrays[v], views.mask[:, v])
    return np.where(views.mask[:, v, None], views.arrays[v], mean)


def _distances(views: Views) -> NDArray[np.float64]:
    """Of shape (samples, samples); NaN where two samples have no view in common."""
    return distances(views.arrays, views.mask, views.arrays, views.mask)


def _knn_filled(views: Views, v: int, apart: NDArray[np.float64], donors: int = DONORS) -> NDArray[np.float32]:
    """A view of shape (samples, columns), given distances of shape (samples, samples)."""
    own = views.arrays[v], views.mask[:, v]
    return fill_from_nearest(own, own, apart, donors)
