"""The simple alternatives: fill the gaps, then k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.impute import KNNImputer, SimpleImputer

from viewfuse.scaling import fit_scaler
from viewfuse.views import Views


def kmeans_after_mean(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value with its column's mean over observed rows; labels of shape (samples,)."""
    return _kmeans(SimpleImputer().fit_transform(_side_by_side(views)), n_clusters, random_state)


def kmeans_after_knn(views: Any, n_clusters: int, random_state: int = 0) -> NDArray[np.int32]:
    """Fill every missing value from the 5 samples nearest in all common columns; labels of shape (samples,)."""
    return _kmeans(KNNImputer(n_neighbors=5).fit_transform(_side_by_side(views)), n_clusters, random_state)


def _kmeans(table: NDArray[Any], n_clusters: int, random_state: int) -> NDArray[np.int32]:
    return KMeans(n_clusters, n_init=10, random_state=random_state).fit_predict(table)


def _side_by_side(data: Any) -> NDArray[np.float32]:
    """All views as one table of shape (samples, all columns), min-max scaled on observed rows, NaN where missing."""
    views = Views.of(data)
    scaled = fit_scaler(views, "minmax").apply(views)
    blanked = [np.where(scaled.mask[:, v, None], a, np.float32(np.nan)) for v, a in enumerate(scaled.arrays)]
    return np.concatenate(blanked, axis=1)
