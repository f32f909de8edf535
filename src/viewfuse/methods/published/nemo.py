"""NEMO (Rappoport and Shamir, Bioinformatics 2019): neighbourhood similarities, averaged over the views in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import SpectralClustering
from sklearn.metrics.pairwise import euclidean_distances

from viewfuse.engine.replicates import replicate_seeds
from viewfuse.fitted.model import warn_of_empty_clusters
from viewfuse.methods.clusterer import ViewsClusterer
from viewfuse.methods.estimator import checked, prepared_source, scaler_for
from viewfuse.utils import memory

Matrix = NDArray[np.float64]
_WIDTH = 0.5
"""mu of SNF's kernel."""
_SHARE = 6
"""One in so many samples of a view is a neighbour."""
_MATRICES = 5
"""Of samples by samples that are there at a time."""
_LINK = 1e-9
"""Of the mean similarity, which all samples have at least."""


def scaled_kernel(squares: Matrix, k: int) -> Matrix:
    """SNF's kernel of squared distances: a normal density as wide as the `k` nearest others of both samples are far."""
    near = np.sort(squares, axis=1)[:, 1 : k + 1]
    radius = near.mean(axis=1) if near.shape[1] else np.zeros(len(squares))
    width = _WIDTH * ((radius[:, None] + radius[None]) / 3 + squares / 3 + np.finfo(np.float64).eps)
    return np.exp(-0.5 * (squares / width) ** 2) / (width * np.sqrt(2 * np.pi))


def average_similarity(arrays: Sequence[NDArray[np.float32]], mask: NDArray[np.bool_]) -> Matrix:
    """Of shape (samples, samples): the mean over common views; the mean of all others without a common view."""
    n = len(mask)
    total, common = np.zeros((n, n)), mask.astype(np.int64) @ mask.T.astype(np.int64)
    for v, array in enumerate(arrays):
        (here,) = np.nonzero(mask[:, v])
        k = min(len(here), max(1, round(len(here) / _SHARE)))
        kernel = scaled_kernel(euclidean_distances(array[here].astype(np.float64), squared=True), k)
        # Of each row the k largest, as shares of their sum; then both directions are added.
        least = np.partition(kernel, -k, axis=1)[:, -k]
        kept = np.where(kernel >= least[:, None], kernel, 0.0)
        sums = kept.sum(axis=1, keepdims=True)
        shares = kept / np.where(sums > 0, sums, 1.0)
        total[np.ix_(here, here)] += shares + shares.T
    known = common > 0
    total[known] /= common[known]
    total[~known] = total[known].mean()
    return total


@dataclass(eq=False, repr=False)
class NEMO(ViewsClusterer):
    """Spectral clustering of similarities that are averaged over the views that two samples share.

    In every view a sample is similar to the n/6 nearest others only. It takes memory and time of samples x samples.
    There is no `predict`: clusters are those of a graph of the training samples. There is nothing to save but labels.

    Parameters
    ----------
    n_clusters, scaling, fill, reduction, random_state :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    device, verbose : ignored; it runs on the CPU.

    Attributes
    ----------
    labels_ : int array of shape (samples,)
    affinity_ : float64 array of shape (samples, samples)
    """

    n_clusters: int = 8
    _: KW_ONLY
    scaling: str = "minmax"
    fill: str = "neighbors"
    reduction: str | Mapping[str, str] = "auto"
    device: str = "auto"
    random_state: Any = None
    verbose: bool = False
    name: ClassVar[str] = "nemo"

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the samples.

        Parameters
        ----------
        X : views, see :meth:`viewfuse.URRL.fit`
        y : ignored
        """
        plain, views = checked(self), self._checked_views(X, y)
        (seed,) = replicate_seeds(self.random_state, 1)
        memory.require(_MATRICES * 8 * len(views) ** 2, f"NEMO of {len(views):,} samples", "use fewer samples or URRL")
        source = prepared_source(plain, views)
        scaled = scaler_for(plain.scaling, source).apply(source.reduced)
        self.affinity_ = average_similarity(scaled.arrays, scaled.mask)
        self.labels_ = plain._labels(self.affinity_, seed)
        self._remember_columns(X, views)
        warn_of_empty_clusters(self.labels_, plain.n_clusters)
        return self

    def _labels(self, affinity: Matrix, seed: int) -> NDArray[np.int64]:
        """Eigenvectors, turned until each sample points along one axis (Yu and Shi, ICCV 2003)."""
        if self.n_clusters == 1 or self.n_clusters >= len(affinity):
            return np.arange(len(affinity)) % self.n_clusters
        how = {"affinity": "precomputed", "assign_labels": "discretize", "random_state": seed % 2**32}
        spectral = SpectralClustering(self.n_clusters, **how)
        linked = np.maximum(affinity, _LINK * affinity.mean())  # in several pieces eigenvectors would be arbitrary
        return spectral.fit_predict(linked).astype(np.int64)
