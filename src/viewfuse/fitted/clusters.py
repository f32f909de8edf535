"""What sets clusters apart, feature by feature, samples that stand for them, and which clusters join first."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from viewfuse.data.input_types import dense_rows
from viewfuse.data.views import Views
from viewfuse.utils.settings import wrong

_CELLS_PER_CHUNK = 4_000_000
"""Values held in float64 at a time: 32 MB."""
N_TYPICAL = 5
_DIGITS = 4
"""As many as files have, so that who reads these finds the same samples."""
FOUND_AGAIN, PARTLY = 0.75, 0.5
"""Hennig's bounds."""


class Difference(NamedTuple):
    """One feature in which a cluster differs from the other samples.

    Attributes
    ----------
    difference : the effect size: mean of the cluster minus mean of the others, in deviations of the feature over all
        of them; 0 for a feature that never changes
    mean, mean_of_others : in the units of the data
    """

    label: int
    view: str
    feature: Hashable
    difference: float
    mean: float
    mean_of_others: float


@dataclass(frozen=True, eq=False)
class ViewEffects:
    """How far each column of a view sets each cluster apart, over the rows that are there; see `Difference`.

    `labels` are the clusters that have such rows, and others beside them; a column that is not `varying` never changes.
    """

    view: str
    columns: Sequence[Hashable]
    labels: NDArray[np.int64]
    difference: NDArray[np.float64]
    mean: NDArray[np.float64]
    mean_of_others: NDArray[np.float64]
    varying: NDArray[np.bool_]

    def of_cluster(self, label: int, top: int | None) -> Iterator[Difference]:
        """Features by the size of their effect, those that never change last; `top` of the others, or all."""
        for row in np.flatnonzero(self.labels == label).tolist():
            order = np.argsort(-np.where(self.varying, np.abs(self.difference[row]), -1.0), kind="stable")
            for column in (order if top is None else order[: min(top, int(self.varying.sum()))]).tolist():
                facts = (part[row, column] for part in (self.difference, self.mean, self.mean_of_others))
                yield Difference(label, self.view, self.columns[column], *map(float, facts))


def differences(effects: Sequence[ViewEffects], n_clusters: int, top: int | None) -> Iterator[Difference]:
    """Cluster by cluster and view by view the `top` features, or all, the largest effect first."""
    return (found for label in range(n_clusters) for one in effects for found in one.of_cluster(label, top))


def view_effects(views: Views, v: int, labels: NDArray[np.int64], n_clusters: int) -> ViewEffects:
    """Compare the clusters of shape (samples,) in one view.

    Values are measured from a row of the data: a constant column is zero, and a large offset costs no digits.
    """
    values, rows = views.arrays[v], np.flatnonzero(views.mask[:, v])
    n, counts = max(len(rows), 1), np.bincount(labels[rows], minlength=n_clusters)
    origin = dense_rows(values, rows[:1]).astype(np.float64).sum(axis=0)
    sums, squares = np.zeros((n_clusters, values.shape[1])), np.zeros(values.shape[1])
    step = max(1, _CELLS_PER_CHUNK // max(n_clusters, values.shape[1]))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        apart = dense_rows(values, chunk).astype(np.float64) - origin
        sums += (labels[chunk] == np.arange(n_clusters)[:, None]) @ apart
        squares += (apart**2).sum(axis=0)
    total = sums.sum(axis=0)
    deviation = np.sqrt(np.maximum(squares / n - (total / n) ** 2, 0.0))
    found = np.flatnonzero((counts > 0) & (counts < len(rows)))
    own = counts[found][:, None]
    mean, others = sums[found] / own, (total - sums[found]) / (len(rows) - own)
    size = np.divide(mean - others, deviation, out=np.zeros_like(mean), where=deviation > 0)
    origin += views.offsets[v]
    return ViewEffects(views.names[v], views.columns[v], found, size, origin + mean, origin + others, deviation > 0)


def typical_samples(rows: NDArray[np.int64], confidence: NDArray[np.floating]) -> NDArray[np.int64]:
    """The rows that are surest of their cluster, the surest first; of equals those that come first."""
    sure = np.round(confidence[rows].astype(np.float64), _DIGITS)
    return rows[np.argsort(-sure, kind="stable")[:N_TYPICAL]]


def representatives(labels: NDArray[np.int64], present: NDArray[np.bool_], keep: int | None) -> NDArray[np.int64]:
    """Row numbers, in order: every cluster gives its share, samples with many views first; all for None.

    Samples with many views are neighbours in all of them and donors of any; among equals chance decides.
    """
    n = len(labels)
    if keep is None:
        return np.arange(n)
    if not isinstance(keep, Integral) or isinstance(keep, bool) or not 1 <= keep <= n:
        raise wrong("keep", f"a number of training samples from 1 to {n}", keep)
    chance = np.random.default_rng(0).random(n)
    order = np.lexsort((chance, -present.sum(axis=1)))
    rank = np.empty(n)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)  # the share of the cluster that comes before
    return np.sort(np.lexsort((chance, rank))[: int(keep)])


def in_a_word(again: float) -> str:
    """What the chance that a cluster's samples are found there again means."""
    if np.isnan(again):
        return "unknown"
    return "found again" if again >= FOUND_AGAIN else "partly" if again >= PARTLY else "dissolves"


class Merge(NamedTuple):
    """Two groups of clusters that join, `left` groups remain.

    `distance` is by how much that raises the sum of squares, as scipy's Ward linkage tells it.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    distance: float
    left: int


def merge_tree(centers: NDArray[Any], sizes: NDArray[Any]) -> tuple[Merge, ...]:
    """The merges in their order, down to one group; numbers without a cluster, of infinite centres, are left out.

    scipy's linkage begins with single points, and clusters have sizes; so Ward's update of the distances stands here.
    """
    used = np.flatnonzero(np.isfinite(centers).all(axis=1))
    centers, sizes = centers[used], sizes[used]
    weights, squares = np.maximum(sizes, 1).astype(float), squareform(pdist(centers.astype(np.float64), "sqeuclidean"))
    squares *= 2 * weights * weights[:, None] / (weights + weights[:, None])
    np.fill_diagonal(squares, np.inf)
    labels: list[tuple[int, ...]] = [(c,) for c in used.tolist()]
    merges = []
    for left in range(len(centers) - 1, 0, -1):
        first, second = sorted(divmod(int(squares.argmin()), len(squares)))
        distance = float(np.sqrt(squares[first, second]))
        merges.append(Merge(labels[first], labels[second], distance, left))
        labels[first] = tuple(sorted(labels[first] + labels[second]))
        # The first becomes both, the second is gone: the update of Lance and Williams for Ward.
        here, there = weights[first], weights[second]
        joined = (here + weights) * squares[first] + (there + weights) * squares[second]
        joined = (joined - weights * squares[first, second]) / (here + there + weights)
        weights[first] += there
        squares[first], squares[:, first] = joined, joined
        squares[second], squares[:, second], squares[first, first] = np.inf, np.inf, np.inf
    return tuple(merges)
