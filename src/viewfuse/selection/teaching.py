"""Centres with which a network's clusters become those of a partition that was found elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from viewfuse.nn.optimizers import LBFGS

_ROWS = 5_000
_ROUNDS = 60
_PULL = 1e-3
"""Of the means, without which centres of clusters that can be told apart would move on for ever."""
_LEARNED = 0.9
"""Share of the samples that must fall into their cluster: what an embedding does not hold cannot be taught."""


def centers_of(embedding: Tensor, labels: NDArray[np.int64], n_clusters: int) -> Tensor | None:
    """Centres of shape (clusters, embedding) whose nearest samples are those of each cluster, as far as possible.

    The means of the clusters, moved until the nearest centre tells the clusters apart: multinomial regression on the
    squared distances. None where a cluster is empty, or too many samples stay nearest to another centre.

    Parameters
    ----------
    embedding : tensor of shape (samples, embedding)
    labels : of shape (samples,)
    """
    if len(np.unique(labels)) < n_clusters:
        return None
    own, wanted = embedding.detach().cpu(), torch.from_numpy(labels)
    means = torch.stack([own[wanted == c].double().mean(dim=0) for c in range(n_clusters)])
    rows = torch.linspace(0, len(own) - 1, min(_ROWS, len(own))).long()
    points, wanted = own[rows].double(), wanted[rows]
    centers = _fitted(points, wanted, means)
    learned = _squared(points, centers).argmin(dim=1) == wanted
    return centers.to(embedding) if learned.double().mean() >= _LEARNED else None


def _fitted(points: Tensor, wanted: Tensor, means: Tensor) -> Tensor:
    """The centres of least cross-entropy, from the means on."""
    nearest = _squared(points, means).topk(min(2, len(means)), dim=1, largest=False).values
    unit = (nearest[:, -1] - nearest[:, 0]).mean().clamp(min=1e-12)  # distances differ by about one of these
    centers = means.clone().requires_grad_()
    steps = LBFGS([centers], max_iter=_ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        steps.zero_grad()
        pulled = _PULL * (centers - means).square().sum() / unit
        total = functional.cross_entropy(-_squared(points, centers) / unit, wanted) + pulled
        total.backward()  # type: ignore[no-untyped-call]
        return total

    steps.step(loss)  # type: ignore[no-untyped-call]
    return centers.detach()


def _squared(points: Tensor, centers: Tensor) -> Tensor:
    """Squared distances of shape (points, centers)."""
    squares = points.square().sum(dim=1)[:, None] + centers.square().sum(dim=1)
    return torch.addmm(squares, points, centers.T, alpha=-2).clamp(min=0)
