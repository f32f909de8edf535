"""The simple alternatives: fill the gaps, then k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.data.filling import fit_filler
from viewfuse.data.views import Views
from viewfuse.methods.estimator import prepared_source, scaler_for
from viewfuse.methods.network import embeddings
from viewfuse.methods.published.filled_kmeans import DONORS, KNNKMeans, MeanKMeans, distances, fill_from_nearest
from viewfuse.selection.kmeans import kmeans_centers, nearest_center


def kmeans_after_mean(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int64]:
    """Fill every missing value with its column's mean over observed rows; labels of shape (samples,)."""
    return MeanKMeans(n_clusters, random_state=random_state).fit_predict(views)


def kmeans_after_knn(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int64]:
    """Fill every missing value from the 5 samples nearest in all common columns; labels of shape (samples,)."""
    return KNNKMeans(n_clusters, random_state=random_state).fit_predict(views)


def kmeans_labels(table: NDArray[Any], n_clusters: int, random_state: int) -> NDArray[np.int64]:
    """The best of twenty runs of k-means on a table of shape (samples, columns); labels of shape (samples,)."""
    points = torch.from_numpy(np.asarray(table, dtype=np.float32))
    return nearest_center(points, kmeans_centers(points, n_clusters, random_state)).numpy()


def mean_filled(data: Any) -> NDArray[np.float32]:
    """All views as one min-max scaled table of shape (samples, all columns), gaps filled with means of columns.

    Wide and sparse views are reduced as for the method itself, so that both start alike.
    """
    return _table(MeanKMeans(1), data)


def knn_filled(data: Any) -> NDArray[np.float32]:
    """As `mean_filled`, but filled with the mean of the nearest samples that have the view, see `KNNKMeans`."""
    return _table(KNNKMeans(1), data)


def _table(method: MeanKMeans, data: Any) -> NDArray[np.float32]:
    (trained,) = method.train_many([Views.of(data)], [0])
    return embeddings(trained.network, trained.samples).cpu().numpy()


def filled_by_mean(data: Any) -> list[NDArray[np.float32]]:
    """Per view an array of shape (samples, columns) in the units of the data, gaps filled with means of columns."""
    return _filled(Views.of(data), None)


def filled_by_nearest(data: Any, count: int = DONORS) -> list[NDArray[np.float32]]:
    """As `filled_by_mean`, but filled from `count` samples, found as by `knn_filled`; their values are not reduced."""
    views = Views.of(data)
    source = prepared_source(KNNKMeans(1), views)
    scaled = scaler_for("minmax", source).apply(source.reduced)
    return _filled(views, distances(scaled.arrays, scaled.mask, scaled.arrays, scaled.mask), count)


def _filled(views: Views, apart: NDArray[np.float64] | None, count: int = DONORS) -> list[NDArray[np.float32]]:
    """Per view an array of shape (samples, columns), given distances of shape (samples, samples), if any.

    Empty cells are filled first, as for the method itself.
    """
    whole = fit_filler(views).apply(views)[0].dense()
    pairs = ((array, whole.mask[:, v]) for v, array in enumerate(whole.arrays))
    return [fill_from_nearest(own, own, apart, count) for own in pairs]
