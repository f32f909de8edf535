"""Batch effects: what shifts and stretches the columns of a batch is estimated beside the clusters, and taken out.

In each view a column is the sum of an effect of the sample's group and one of its batch, by least squares (two-way
analysis of variance); groups are those of k-means on the corrected columns, in a few rounds. The mean of each batch
alone would take out classes as well where batches have other shares of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from viewfuse.data.categories import blocks_of
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.selection.decisions import BatchEffects
from viewfuse.selection.kmeans import partitions
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Setting

_GROUPS, _PER_GROUP = (1, 2, 3, 5, 10, 15), 10
"""Numbers of groups of k-means that are tried, and the fewest samples per group. Few mix classes, many the batches."""
_COMPARED = 3
"""Centres around which samples lie closest where batches are well corrected; ten of them follow batches again."""
_ROUNDS = 3
_PRIOR = 3.0
"""Samples without a batch effect that are added to each batch: one of three samples is corrected by half."""
_TINY = 1e-6
_MOST_ROWS, _ROWS_PER_BATCH = 2_000, 50
"""Samples of which effects are estimated."""
_FEWEST = 2
_ALONE = 0.95
"""Share of a cluster's samples from one batch that is said, where the batch has less than `_LARGE` of all samples."""
_LARGE = 0.8
_FOLLOWS = 0.5
"""Adjusted mutual information of clusters and batches: above it, they are much the same."""


@dataclass(frozen=True, eq=False)
class Batches:
    """What was found of each batch: per view float64 arrays of shape (batches, columns).

    Attributes
    ----------
    shifts, factors : a value of a batch is corrected by subtracting the one and dividing by the other
    """

    names: tuple[str, ...]
    shifts: tuple[NDArray[np.float64], ...]
    factors: tuple[NDArray[np.float64], ...]

    def codes(self, views: Views) -> NDArray[np.int64]:
        """The number of each sample's batch; batches that are not known are refused."""
        if views.batch is None:
            raise DataError(
                f"the model was fitted with batches ({', '.join(self.names[:5])}, ...); name that of each sample in ",
                Setting("batch"),
            )
        place = {name: code for code, name in enumerate(self.names)}
        new = next((name for name in views.batch.tolist() if name not in place), None)
        if new is not None:
            raise DataError(
                f"the batch {new!r} is new, so its effect is not known; fit again with its samples (",
                Setting("like"),
                " keeps the numbers of clusters)",
            )
        return np.array([place[name] for name in views.batch.tolist()], dtype=np.int64)

    def apply(self, views: Views) -> Views:
        """Reduced views without the effects of batches; missing rows stay zero."""
        codes, arrays = self.codes(views), []
        for array, shift, factor, own in zip(views.arrays, self.shifts, self.factors, views.mask.T, strict=True):
            found = ((array - shift[codes]) / factor[codes]).astype(np.float32)
            arrays.append(np.where(own[:, None], found, np.float32(0)))
        return views.replace(arrays=tuple(arrays))

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name, as they are saved."""
        pairs = [*((f"batch_shift.{v}", one) for v, one in enumerate(self.shifts)),
                 *((f"batch_factor.{v}", one) for v, one in enumerate(self.factors))]  # fmt: skip
        return {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in pairs}

    @classmethod
    def of(cls, names: Any, widths: list[int], tensors: Mapping[str, Tensor]) -> Batches | None:
        """What `tensors` gave, or None; arrays of another shape are refused."""
        if not names:
            return None
        shifts, factors = (
            tuple(tensors[f"batch_{kind}.{v}"].numpy() for v in range(len(widths))) for kind in ("shift", "factor")
        )
        for width, *pair in zip(widths, shifts, factors, strict=True):
            if any(x.shape != (len(names), width) or x.dtype != np.float64 or not np.isfinite(x).all() for x in pair):
                raise ValueError("the effects of batches do not fit the columns")
        return cls(tuple(map(str, names)), shifts, factors)


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
    pairs = [_effects(views, v, codes.astype(np.int64), len(names)) for v in range(len(views.names))]
    return Batches(tuple(names.tolist()), tuple(one for one, _ in pairs), tuple(one for _, one in pairs))


def _effects(views: Views, v: int, codes: NDArray[np.int64], n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shift and factor of the columns of one view in each batch; 0 and 1 of categories."""
    rows = np.flatnonzero(views.mask[:, v])
    rows = np.sort(np.random.RandomState(0).permutation(rows)[: max(_MOST_ROWS, _ROWS_PER_BATCH * n)])
    values = views.arrays[v][rows].astype(np.float64)
    shift, factor = np.zeros((n, values.shape[1])), np.ones((n, values.shape[1]))
    if len(rows) < _FEWEST * n:
        return shift, factor
    middle, deviation = values.mean(axis=0), values.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    effect, stretch = two_way((values - middle) / deviation, codes[rows], n)
    plain = np.ones(values.shape[1], dtype=bool)
    plain[[c for block in blocks_of(views.columns[v], views.arrays[v], views.mask[:, v]) for c in block]] = False
    factor[:, plain] = stretch[:, plain]
    shift[:, plain] = (effect * deviation + middle * (1 - stretch))[:, plain]
    return shift, factor


def two_way(
    values: NDArray[np.float64], codes: NDArray[np.int64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The effect of each batch on columns, and how far it stretches them, both of shape (batches, columns).

    Of several numbers of groups that is taken whose effects leave the samples closest together.
    """
    batches = np.eye(n)[codes]
    most = max(1, len(values) // _PER_GROUP)
    found = [_in_groups(values, batches, k) for k in _GROUPS if k <= most or k == 1]
    _, groups = min(found, key=lambda one: _spread(values - batches @ one[0], min(_COMPARED, most)))
    return _least_squares(values, batches, groups, _PRIOR)


def _in_groups(values: NDArray[np.float64], batches: NDArray[np.float64], n_groups: int) -> tuple[Any, Any]:
    """Effects of batches, uncorrected for their sizes: what is left of one must be no group; and the groups."""
    groups = np.ones((len(values), 1))
    effect, stretch = _least_squares(values, batches, groups, _TINY)
    for _ in range(_ROUNDS if n_groups > 1 else 0):
        points = torch.from_numpy((values - batches @ effect) / (batches @ stretch)).float()
        points = points / points.std(dim=0).clamp_min(1e-12)
        groups = np.eye(n_groups)[_grouped(points, n_groups).numpy()]
        effect, stretch = _least_squares(values, batches, groups, _TINY)
    return effect, groups


def _spread(values: NDArray[np.float64], k: int) -> float:
    """The sum of squares around the nearest of `k` centres."""
    points = torch.from_numpy(values).float()
    groups = _grouped(points, k)
    parts = [points[groups == c] for c in range(k)]
    return float(sum((own - own.mean(dim=0)).square().sum() for own in parts if len(own)))


def _grouped(points: Tensor, k: int) -> Tensor:
    """The groups of k-means, of shape (points,), the same ones every time."""
    return partitions(points, [k], torch.Generator().manual_seed(0))[0]


def _least_squares(values: Any, batches: Any, groups: Any, prior: float) -> tuple[Any, Any]:
    """Effects of batches beside those of groups, with a prior of none, and how far what is left is stretched."""
    design = np.concatenate([groups, batches], axis=1)
    added = np.diag([_TINY] * groups.shape[1] + [prior] * batches.shape[1])
    found = np.linalg.solve(design.T @ design + added, design.T @ values)
    rest = values - design @ found
    pooled = np.maximum((rest**2).mean(axis=0), 1e-12)
    counts = batches.sum(axis=0)[:, None]
    stretch = np.sqrt((batches.T @ rest**2 + prior * pooled) / (counts + prior) / pooled)
    return found[groups.shape[1] :], stretch


def batch_effects(views: Views, before: Views, labels: NDArray[np.int64]) -> BatchEffects:
    """How far clusters follow the batches, and would without a correction; warns where both are confounded.

    Parameters
    ----------
    views : the samples, with their batches
    before : the same as they were before the correction
    """
    batch = np.asarray(views.batch, dtype=str)
    names, counts = np.unique(batch, return_counts=True)
    after, n_clusters = float(adjusted_mutual_info_score(batch, labels)), len(np.unique(labels))
    plain = float(np.mean([_without(before, v, n_clusters) for v in range(len(before.names))]))
    alone = {}
    for cluster in np.unique(labels):
        shares = np.array([(batch[labels == cluster] == name).mean() for name in names])
        if shares.max() >= _ALONE and counts[shares.argmax()] < _LARGE * len(batch):
            alone[str(cluster)] = str(names[shares.argmax()])
    found = BatchEffects(
        dict(zip(names.tolist(), counts.tolist(), strict=True)), {"before": plain, "after": after}, alone
    )
    if alone or after > _FOLLOWS:
        what = ", ".join(f"cluster {cluster} is in batch {name!r} alone" for cluster, name in alone.items())
        warn(SuspiciousDataWarning(f"{what or 'clusters follow the batches'}: a class and its batch are confounded, "
                                   "so these samples do not say what is one and what the other"))  # fmt: skip
    return found


def _without(views: Views, v: int, n_clusters: int) -> float:
    """Adjusted mutual information of batches and k-means in one view, columns of deviation 1."""
    rows = np.flatnonzero(views.mask[:, v])[:_MOST_ROWS]
    if len(rows) <= n_clusters:
        return 0.0
    points = torch.from_numpy(np.array(views.arrays[v][rows]))
    points = (points - points.mean(dim=0)) / points.std(dim=0).clamp_min(1e-12)
    labels = _grouped(points, n_clusters).numpy()
    return float(adjusted_mutual_info_score(np.asarray(views.batch, dtype=str)[rows], labels))
