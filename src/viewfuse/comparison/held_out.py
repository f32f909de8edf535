"""How well clusters fit a view that the fit did not see: a measure without labels that no method can optimise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.data.filling import fit_filler
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.fitted.model import scaled_tensors
from viewfuse.neighbors.index import MultiViewIndex
from viewfuse.reduction.frontend import fit_reduction

LEAST_VIEWS = 3
"""With fewer, one view or none is left to the fit, and nothing is fused."""
_DEPTH = 10
"""Neighbours of a sample that count; fewer in clusters that have fewer other members."""


def without_view(views: Views, view: int) -> tuple[Views, NDArray[np.bool_]]:
    """All views but one, of the samples that have any of them; and which samples these are, of shape (samples,)."""
    others = [v for v in range(len(views.names)) if v != view]
    rows: NDArray[np.bool_] = np.any(views.mask[:, others], axis=1)
    return _part(views[rows], others), rows


def held_out_agreement(views: Views, view: int, labels: NDArray[np.int64], n_clusters: int) -> float:
    """How much more often than by chance neighbours in a view share a cluster: 1 is the most, 0 is chance.

    Every cluster counts the same, whatever its size. Of a cluster with m of n samples, chance is (m - 1) / (n - 1):
    the mean over all ways to shuffle the labels. Clusters that are asked for but not found count as 0, and so does one
    cluster of all samples.

    Parameters
    ----------
    labels : of shape (samples,); -1 where a sample has none
    """
    rows = views.mask[:, view] & (labels >= 0)
    own, n = labels[rows], int(rows.sum())
    if n < 3:
        return np.nan
    nearest = _neighbors(_part(views[rows], [view]), min(_DEPTH, n - 1))
    found, sizes = np.unique(own, return_counts=True)
    scores = [_cluster_score(own, nearest, *one) for one in zip(found.tolist(), sizes.tolist(), strict=True)]
    return sum(scores) / max(n_clusters, len(found))


def _cluster_score(labels: NDArray[np.int64], nearest: NDArray[np.int64], cluster: int, size: int) -> float:
    if not 1 < size < len(labels):
        return 0.0
    share = float((labels[nearest[labels == cluster, : size - 1]] == cluster).mean())
    chance = (size - 1) / (len(labels) - 1)
    return (share - chance) / (1 - chance)


def _neighbors(view: Views, depth: int) -> NDArray[np.int64]:
    """Per sample its nearest others in one view, nearest first, of shape (samples, depth)."""
    filled, _ = fit_filler(view, "neighbors").apply(view)
    reduction = fit_reduction(filled, "auto")
    reduced = reduction.apply(filled)
    values, present = scaled_tensors(reduced, fit_scaler(reduced, "mixed", reduction.units), torch.device("cpu"))
    nearest: NDArray[np.int64] = MultiViewIndex(values, present).neighbors_of_own(depth)[:, 0].numpy()
    return nearest


def _part(views: Views, places: Sequence[int]) -> Views:
    """Some of the views."""
    named = {name: tuple(getattr(views, name)[v] for v in places) for name in ("names", "arrays", "columns")}
    return views.replace(mask=views.mask[:, list(places)], **named)
