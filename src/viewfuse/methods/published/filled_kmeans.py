"""The simple alternatives: fill missing views, then k-means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics.pairwise import euclidean_distances
from torch import Tensor

from viewfuse.engine.training import History
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork
from viewfuse.neighbors.index import Samples

DONORS = 5
Arrays = Sequence[NDArray[np.float32]]


def distances(
    own: Arrays, has: NDArray[np.bool_], others: Arrays, others_have: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Euclidean, of shape (rows, other rows), over common columns and as if there were more of them in proportion.

    NaN where two samples have no view in common. `has` and `others_have` are of shape (rows, views).
    """
    squares, common = np.zeros((2, len(has), len(others_have)))
    for v, (mine, theirs) in enumerate(zip(own, others, strict=True)):
        (here,), (there,) = np.nonzero(has[:, v]), np.nonzero(others_have[:, v])
        if len(here) and len(there):
            apart = euclidean_distances(mine[here].astype(np.float64), theirs[there].astype(np.float64), squared=True)
            squares[np.ix_(here, there)] += apart
            common[np.ix_(here, there)] += mine.shape[1]
    common[common == 0] = np.nan
    return np.sqrt(squares * (sum(view.shape[1] for view in own) / common))


def fill_from_nearest(
    own: tuple[NDArray[np.float32], NDArray[np.bool_]],
    others: tuple[NDArray[np.float32], NDArray[np.bool_]],
    apart: NDArray[np.float64] | None,
    donors: int = DONORS,
) -> NDArray[np.float32]:
    """A view of shape (rows, columns), missing rows filled with the mean of the nearest others that have it.

    `own` and `others` are values and who has them; who has nothing in common with others, which distances of NaN say,
    gets the mean of columns. Without distances all do.
    """
    (values, has), (theirs, they_have) = own, others
    means = np.zeros(values.shape[1], dtype=np.float32)  # nothing is known of a view that no sample has
    if they_have.any():
        means = theirs[they_have].mean(axis=0, dtype=np.float64).astype(np.float32)
    filled = np.where(has[:, None], values, means)
    (there,), (gone,) = np.nonzero(they_have), np.nonzero(~has)
    if apart is None or not len(gone) or not len(there):
        return filled
    # In float32 donors that only rounding tells apart are equally far: a sample has the same ones in any batch.
    far = apart[np.ix_(gone, there)].astype(np.float32)
    count = min(donors, len(there))
    nearest = np.argpartition(far, count - 1, axis=1)[:, :count]
    usable = ~np.isnan(np.take_along_axis(far, nearest, axis=1))  # of shape (rows with a gap, donors)
    helped = usable.any(axis=1)
    sums = np.einsum("gd,gdc->gc", usable.astype(np.float32), theirs[there[nearest]])
    filled[gone[helped]] = (sums / np.maximum(usable.sum(axis=1), 1)[:, None])[helped]
    return filled


class _FilledTable(ClusterNetwork):
    """All views side by side, of shape (samples, all columns); nothing is learned but centres."""

    stackable = True

    def __init__(self, n_clusters: int, widths: Sequence[int], donors: int) -> None:
        super().__init__(n_clusters, sum(widths))
        self._donors = donors

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        own, others = ([view.cpu().numpy() for view in one.values] for one in (samples, stored))
        has, they_have = (one.present.cpu().numpy() for one in (samples, stored))
        apart, filled = distances(own, has, others, they_have) if self._donors else None, []
        for v, view in enumerate(own):
            filled.append(fill_from_nearest((view, has[:, v]), (others[v], they_have[:, v]), apart, self._donors))
        return torch.from_numpy(np.concatenate(filled, axis=1)).to(self.centers)


@dataclass(eq=False, repr=False, kw_only=True)
class MeanKMeans(PublishedMethod):
    """k-means after every missing view was filled with the means of its columns.

    Parameters
    ----------
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.

    Attributes
    ----------
    labels_, embedding_, soft_labels_, cluster_centers_ : see :class:`viewfuse.URRL`; the embedding is the filled table
    """

    reduction: str | Mapping[str, str] = "auto"
    name: ClassVar[str] = "kmeans-mean"
    donors: ClassVar[int] = 0

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """The filled table."""
        return _FilledTable(self.n_clusters, widths, self.donors)

    def train(self, networks: Sequence[ClusterNetwork], sets: Sequence[Samples], seeds: Sequence[int]) -> list[History]:
        """There is nothing to train."""
        return [{"epoch": [], "stage": [], "total": [], "seconds": []} for _ in networks]


@dataclass(eq=False, repr=False, kw_only=True)
class KNNKMeans(MeanKMeans):
    """k-means after every missing view was filled with the mean of the five nearest samples that have it.

    The same as scikit-learn's KNNImputer, which looks for donors column by column: all columns of a view are missing
    together, so looking once per view is enough, and takes much less time. Parameters: see :class:`MeanKMeans`.
    """

    name: ClassVar[str] = "kmeans-knn"
    donors: ClassVar[int] = DONORS
