"""Batch effects: what shifts and stretches the columns of a batch is estimated beside the clusters, and taken out.

A batch moves all samples by one shift in each column, and has its own shares of the groups. Such a mixture of Gaussians
of all views together is fitted to a few principal components of each; Bayes' criterion tells how many groups there are.
The shifts of all columns follow from the groups by least squares. The mean of each batch alone would take out classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from sklearn.metrics import adjusted_mutual_info_score

from viewfuse.data.categories import blocks_of
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.selection.decisions import BatchEffects
from viewfuse.selection.kmeans import partition
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Advice, Setting

_GROUPS, _PER_GROUP = (1, 2, 3, 4, 6, 8, 12, 20), 10
"""Numbers of groups that are tried, and the fewest samples per group."""
_COMPONENTS = 5
"""Of each view. Three lose classes, and ten tell no more."""
_ROUNDS = 60
_PRIOR = 3.0
"""Samples without an effect that are added to each batch where the smallest has three: that is corrected by half. Where
it has more, fewer are added, so that the product is the same: clusters see a twentieth of a large shift."""
_TINY = 1e-6
_MOST_ROWS, _ROWS_PER_BATCH = 2_000, 50
"""Samples of which effects are estimated."""
_FEWEST = 2
_ALONE = 0.95
"""Share of a cluster's samples from one batch that is said, where the batch has less than `_LARGE` of all samples."""
_LARGE = 0.8
_FEW = 8
"""Samples of a cluster that may be in one batch by chance."""
_FOLLOWS = 0.5
"""Adjusted mutual information of clusters and batches: above it, they are much the same."""


@dataclass(frozen=True, eq=False)
class Batches:
    """What was found of each batch: a value is corrected by subtracting the shift and dividing by the factor.

    Per view float64 arrays of shape (batches, columns).
    """

    names: tuple[str, ...]
    shifts: tuple[NDArray[np.float64], ...]
    factors: tuple[NDArray[np.float64], ...]

    def apply(self, views: Views) -> Views:
        """Reduced views without the effects of batches; missing rows stay zero; batches must be known ones."""
        if views.batch is None:
            fault = f"the model was fitted with batches ({', '.join(self.names[:5])}, ...); name that of each sample"
            cure = Advice([", or give ", Setting("with_batch(X, batch)"), " in place of X"])
            raise DataError(f"{fault} in ", Setting("batch"), cure)
        place = {name: code for code, name in enumerate(self.names)}
        new = next((name for name in views.batch.tolist() if name not in place), None)
        if new is not None:
            fault = f"the batch {new!r} is new, so its effect is not known; fit again with its samples ("
            raise DataError(fault, Setting("like"), " keeps the numbers of clusters)")
        codes = np.array([place[name] for name in views.batch.tolist()], dtype=np.int64)
        arrays = []
        for array, shift, factor, own in zip(views.arrays, self.shifts, self.factors, views.mask.T, strict=True):
            found = ((array - shift[codes]) / factor[codes]).astype(np.float32)
            arrays.append(np.where(own[:, None], found, np.float32(0)))
        return views.replace(arrays=tuple(arrays))


def check_takes_batch(batches: Batches | None) -> None:
    """Refuse batches of new samples where a model has none: nothing would be taken out."""
    if batches is None:
        raise DataError("the model was fitted without batches, so it takes out none; leave out ", Setting("batch"))


def fit_batches(views: Views) -> Batches:
    """Estimate the effects of the batches of reduced views, of which there are two or more."""
    names, codes = np.unique(np.asarray(views.batch, dtype=str), return_inverse=True)
    counts = np.bincount(codes)
    if len(names) < _FEWEST or counts.min() < _FEWEST:
        least = f"batch {str(names[counts.argmin()])!r} of {len(names)} has {counts.min()} sample(s)"
        raise DataError(Setting("batch"), f": {least}; effects take two batches of two samples each or more")
    n, batches = len(names), np.eye(len(names))[codes]
    most = max(_MOST_ROWS, _ROWS_PER_BATCH * n)
    drawn = [np.random.RandomState(0).permutation(np.flatnonzero(own))[:most] for own in views.mask.T]
    rows = np.unique(np.concatenate(drawn))
    tables = [BatchTable.of(array[rows], own[rows]) for array, own in zip(views.arrays, views.mask.T, strict=True)]
    enough = [len(table.values) >= _FEWEST * n for table in tables]
    groups = groups_of([one for one, is_enough in zip(tables, enough, strict=True) if is_enough], batches[rows])
    shifts, factors = [], []
    for v, table in enumerate(tables):
        shift, factor = np.zeros((n, len(table.middle))), np.ones((n, len(table.middle)))
        if enough[v]:
            blocks = blocks_of(views.columns[v], views.arrays[v], views.mask[:, v])  # categories are left alone
            plain = np.setdiff1d(np.arange(len(table.middle)), [c for block in blocks for c in block])
            own = groups[table.there], table.values[:, plain], batches[rows][table.there]
            effect, stretch = beside(*own)
            factor[:, plain] = stretch
            shift[:, plain] = effect * table.deviation[plain] + table.middle[plain] * (1 - stretch)
        shifts.append(shift)
        factors.append(factor)
    return Batches(tuple(names.tolist()), tuple(shifts), tuple(factors))


class BatchTable(NamedTuple):
    """The rows that are `there` of a view, in columns of mean 0 and deviation 1, and what these were."""

    values: NDArray[np.float64]
    there: NDArray[np.bool_]
    middle: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, array: NDArray[Any], there: NDArray[np.bool_]) -> BatchTable:
        """Measure and scale the columns."""
        values = array[there].astype(np.float64)
        if not len(values):
            return cls(values, there, *np.ones((2, values.shape[1])))
        middle, deviation = values.mean(axis=0), values.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        return cls((values - middle) / deviation, there, middle, deviation)


def beside(groups: Any, values: NDArray[np.float64], batches: NDArray[np.float64]) -> tuple[Any, Any]:
    """The effect of each batch, of shape (batches, columns), and how far it stretches them, of shape (batches, 1).

    `groups` has the chances of shape (samples, groups), `batches` 1 for the batch of each sample.
    """
    counts = batches.sum(axis=0)[:, None]
    added = _PRIOR**2 / counts[counts > 0].min()
    centers, effect = _least_squares(values, batches, groups, added)
    squares = _squares(values - batches @ effect, groups, centers)
    squares = squares[:, squares.mean(axis=0) > _TINY**2]
    if not squares.size:
        return effect, np.ones_like(counts)
    pooled = squares.mean(axis=0)
    stretch = np.sqrt((batches.T @ squares + added * pooled) / (counts + added) / pooled)
    return effect, np.median(stretch, axis=1, keepdims=True)


def _least_squares(values: Any, batches: Any, groups: Any, prior: float) -> tuple[Any, Any]:
    """Centres of groups and effects of batches, with a prior of none, for samples that belong to groups in part."""
    shared, counts = groups.T @ batches, groups.sum(axis=0) + _TINY
    normal = np.block([[np.diag(counts), shared], [shared.T, np.diag(batches.sum(axis=0) + prior)]])
    found = np.linalg.solve(normal, np.concatenate([groups, batches], axis=1).T @ values)
    return found[: len(counts)], found[len(counts) :]


def _squares(left: Any, groups: Any, centers: Any) -> Any:
    """Expected squared distances from the centres, of the shape of `left`."""
    return np.maximum(left**2 - 2 * left * (groups @ centers) + groups @ centers**2, 0.0)


def groups_of(tables: Sequence[BatchTable], batches: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance of each group, of shape (samples, groups), in the best of several mixtures."""
    points = [(_components(table, batches), table.there) for table in tables]
    most = max(1, len(batches) // _PER_GROUP)
    return max((mixture(points, batches, k) for k in _GROUPS if k <= most), key=lambda found: found[0])[1]


def _components(table: BatchTable, batches: NDArray[np.float64]) -> NDArray[np.float64]:
    """Principal components of what is left within batches, whose mean square length is 1 there; of the rows."""
    own = batches[table.there]
    left = table.values - own @ _least_squares(table.values, own, own[:, :0], _TINY)[1]
    axes = np.linalg.svd(left, full_matrices=False)[2][:_COMPONENTS].T
    length = np.sqrt(np.square(left @ axes).sum(axis=1).mean())
    return np.asarray(table.values @ axes / max(length, _TINY))


def mixture(points: Sequence[tuple[Any, Any]], batches: NDArray[np.float64], k: int) -> tuple[float, Any]:
    """Bayes' criterion of a mixture of `k` groups with batches, the more the better, and the chance of each group.

    It begins with k-means where the means of batches are taken out. `points` are components per view, and who has it.
    """
    n, n_batches = batches.shape
    start = np.zeros((n, sum(own.shape[1] for own, _ in points)))
    place, likelihood = 0, -np.inf
    for own, there in points:
        effect = _least_squares(own, batches[there], batches[there][:, :0], _TINY)[1]
        start[there, place : place + own.shape[1]] = own - batches[there] @ effect
        place += own.shape[1]
    groups = np.eye(k)[partition(torch.from_numpy(start).float(), k).numpy()]
    for _ in range(_ROUNDS):
        chances = batches @ np.log((batches.T @ groups + 1) / (batches.sum(axis=0)[:, None] + k))
        for own, there in points:  # deviations along components are those of a batch, the same in all groups
            mine, theirs = batches[there], groups[there]
            centers, effect = _least_squares(own, mine, theirs, _TINY)
            left = own - mine @ effect
            squares, counts = _squares(left, theirs, centers), mine.sum(axis=0)[:, None]
            spread = (mine.T @ squares + _PRIOR * squares.mean(axis=0)) / (counts + _PRIOR) + _TINY
            far = ((left[:, None] - centers) ** 2 / (mine @ spread)[:, None]).sum(axis=2)
            chances[there] += -(far + mine @ np.log(2 * np.pi * spread).sum(axis=1, keepdims=True)) / 2
        before, likelihood = likelihood, float(logsumexp(chances, axis=1).sum())
        groups = softmax(chances, axis=1)
        if likelihood - before < _TINY * n:
            break
    numbers = place * (k + 2 * n_batches) + n_batches * (k - 1)
    return likelihood - numbers * np.log(n) / 2, groups


def batch_effects(views: Views, before: Views, labels: NDArray[np.int64]) -> BatchEffects:
    """How far clusters follow the batches, and would without a correction; warns where both are confounded."""
    batch = np.asarray(views.batch, dtype=str)
    names, counts = np.unique(batch, return_counts=True)
    after, n_clusters = float(adjusted_mutual_info_score(batch, labels)), len(np.unique(labels))
    plain = []  # of k-means in each view, columns of deviation 1
    for v, array in enumerate(before.arrays):
        rows, found = np.flatnonzero(before.mask[:, v])[:_MOST_ROWS], 0.0
        if len(rows) > n_clusters:
            points = torch.from_numpy(np.array(array[rows]))
            points = (points - points.mean(dim=0)) / points.std(dim=0).clamp_min(1e-12)
            found = float(adjusted_mutual_info_score(batch[rows], partition(points, n_clusters).numpy()))
        plain.append(found)
    alone = {}
    for cluster, size in zip(*np.unique(labels, return_counts=True), strict=True):
        if size < _FEW:
            continue
        shares = np.array([(batch[labels == cluster] == name).mean() for name in names])
        if shares.max() >= _ALONE and counts[shares.argmax()] < _LARGE * len(batch):
            alone[str(cluster)] = str(names[shares.argmax()])
    sizes = dict(zip(names.tolist(), counts.tolist(), strict=True))
    made = BatchEffects(sizes, {"before": float(np.mean(plain)), "after": after}, alone)
    if alone or after > _FOLLOWS:
        said = [f"cluster {cluster} is in batch {name!r} alone" for cluster, name in alone.items()]
        what = f"{', '.join(said) or 'clusters follow the batches'}: a class and its batch are confounded"
        warn(SuspiciousDataWarning(f"{what}, so these samples do not say what is one and what the other"))
    return made
