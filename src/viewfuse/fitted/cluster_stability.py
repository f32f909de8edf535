"""Which clusters would be found again: with half of the views hidden, and without a fifth of the samples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.engine.passes import clusters, embed, rows_for_all
from viewfuse.fitted.model import Model
from viewfuse.selection.cluster_number import contingency, principal, with_half_the_views
from viewfuse.selection.kmeans import partitions

_ROWS = 2_500
_DRAWS = 3
_SHARE = 0.8
FOUND_AGAIN, PARTLY = 0.75, 0.5
"""Hennig's bounds of the mean Jaccard index."""


def in_a_word(stability: float) -> str:
    """What a number of `cluster_stability` means."""
    if np.isnan(stability):
        return "unknown"
    return "found again" if stability >= FOUND_AGAIN else "partly" if stability >= PARTLY else "dissolves"


def cluster_stability(model: Model, embedding: Tensor, labels: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    """Per cluster how well it is found again: the mean Jaccard index with the best match (Hennig 2007).

    Half of it comes from the model's own clusters of the training samples with half of their views hidden, half by
    k-means on the embeddings of four fifths of them. 1 is the same cluster; an empty one has 0. Of more than 2,500
    samples so many are looked at.

    Parameters
    ----------
    embedding, labels : of the training samples

    Returns
    -------
    float32 array of shape (clusters,)
    """
    n_clusters, draws = len(model.network.centers), torch.Generator().manual_seed(seed)
    rows = _drawn(len(labels), seed)
    own = torch.from_numpy(labels[rows]).to(embedding.device)
    places = torch.from_numpy(rows).to(embedding.device)
    hidden = [_with_hidden_views(model, places, draws) for _ in range(_DRAWS)]
    thinned = _thinned(principal(embedding[places]), n_clusters, draws)
    halves = [_mean_overlap(own, others, n_clusters) for others in (hidden, thinned)]
    return torch.stack(halves).mean(dim=0).nan_to_num(0.0).float().cpu().numpy()


def _drawn(n: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng([seed, 4]).choice(n, min(n, _ROWS), replace=False))


def _with_hidden_views(model: Model, rows: Tensor, draws: torch.Generator) -> Tensor:
    samples = with_half_the_views(model.stored.take(rows), draws)
    size = rows_for_all(len(samples), rows.device)
    return clusters(model.method, model.network, embed(model.method, model.network, samples, model.stored, size))


def _thinned(points: Tensor, n_clusters: int, draws: torch.Generator) -> list[Tensor]:
    """k-means of several parts of the points, extended to all."""
    parts = [(torch.rand(len(points), generator=draws) < _SHARE).to(points) for _ in range(_DRAWS)]
    return [partitions(points, [n_clusters], draws, part if part.any() else None)[0] for part in parts]


def _mean_overlap(labels: Tensor, others: list[Tensor], n_clusters: int) -> Tensor:
    return torch.stack([best_overlaps(contingency(labels, other, n_clusters)) for other in others]).mean(dim=0)


def best_overlaps(shared: Tensor) -> Tensor:
    """Per cluster of the first partition the best Jaccard index with one of the second, of shape (..., clusters).

    NaN for empty clusters.
    """
    first, second = shared.sum(dim=-1), shared.sum(dim=-2)
    union = first[..., :, None] + second[..., None, :] - shared
    return torch.where(first > 0, (shared / union.clamp(min=1)).amax(dim=-1), torch.nan)
