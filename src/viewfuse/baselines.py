"""The simple alternatives: fill the gaps, then k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import nan_euclidean_distances

from viewfuse.scaling import fit_scaler
from viewfuse.views import Views

_DONORS = 5


def kmeans_after_mean(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value with its column's mean over observed rows; labels of shape (samples,)."""
    return kmeans_labels(mean_filled(views), n_clusters, random_state)


def kmeans_after_knn(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value from the 5 samples nearest in all common columns; labels of shape (samples,)."""
    return kmeans_labels(knn_filled(views), n_clusters, random_state)


def kmeans_labels(table: NDArray[Any], n_clusters: int, random_state: int) -> NDArray[np.int32]:
    """The best of ten runs of k-means on a table of shape (samples, columns); labels of shape (samples,)."""
    return KMeans(n_clusters, n_init=10, random_state=random_state).fit_predict(table)


def mean_filled(data: Any) -> NDArray[np.float32]:
    """All views as one min-max scaled table of shape (samples, all columns), gaps filled with means of columns."""
    views = _scaled(data)
    return np.concatenate([_mean_filled(views, v) for v in range(len(views.names))], axis=1)


def knn_filled(data: Any) -> NDArray[np.float32]:
    """As `mean_filled`, but filled with the mean of the nearest samples that have the view.

    The same as scikit-learn's KNNImputer, which looks for donors column by column: all columns of a view are missing
    together, so looking once per view is enough, and hundreds of times faster.
    """
    views = _scaled(data)
    gaps = [np.where(views.mask[:, v, None], a, np.float32(np.nan)) for v, a in enumerate(views.arrays)]
    apart = nan_euclidean_distances(np.concatenate(gaps, axis=1))
    return np.concatenate([_knn_filled(views, v, apart) for v in range(len(views.names))], axis=1)


def _scaled(data: Any) -> Views:
    views = Views.of(data)
    return fit_scaler(views, "minmax").apply(views)


def _mean_filled(views: Views, v: int) -> NDArray[np.float32]:
    if not views.mask[:, v].any():
        return views.arrays[v]  # all zero: nothing is known of such columns
    mean = views.arrays[v][views.mask[:, v]].mean(axis=0, dtype=np.float64)
    return np.where(views.mask[:, v, None], views.arrays[v], mean.astype(np.float32))


def _knn_filled(views: Views, v: int, apart: NDArray[np.float64]) -> NDArray[np.float32]:
    """A view of shape (samples, columns), given distances of shape (samples, samples), NaN where nothing is common."""
    filled, (here,), (gone,) = _mean_filled(views, v), np.nonzero(views.mask[:, v]), np.nonzero(~views.mask[:, v])
    if not len(gone) or not len(here):
        return filled
    far = apart[np.ix_(gone, here)]
    count = min(_DONORS, len(here))
    nearest = np.argpartition(far, count - 1, axis=1)[:, :count]
    usable = ~np.isnan(np.take_along_axis(far, nearest, axis=1))  # of shape (samples with a gap, donors)
    helped = usable.any(axis=1)  # the others share no view with any donor: they keep the mean
    sums = np.einsum("gd,gdc->gc", usable.astype(np.float32), views.arrays[v][here[nearest]])
    filled[gone[helped]] = (sums / np.maximum(usable.sum(axis=1), 1)[:, None])[helped]
    return filled
