"""k-means for every number of clusters at once: what the choice of that number looks at.

One run of k-means++ gives the starts for all numbers: its first k centres are a start for k clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_STARTS = 4
_ROUNDS = 24
_LOOK_EVERY = 4
"""Rounds between two looks at whether the centres still move; a look waits for a GPU."""
_STILL = 1e-4
_DIMENSIONS = 24
"""Principal components that are clustered; partitions of up to thirty clusters need no more."""


def partitions(points: Tensor, ks: Sequence[int], generator: torch.Generator, weights: Tensor | None = None) -> Tensor:
    """The best of a few k-means solutions for each number of clusters.

    Parameters
    ----------
    points : tensor of shape (points, columns)
    ks : numbers of clusters, in rising order
    generator : on the CPU, so that every device draws the same
    weights : tensor of shape (points,); a point of weight 0 is placed, but does not count

    Returns
    -------
    int64 tensor of shape (numbers of clusters, points)
    """
    own = torch.ones_like(points[:, 0]) if weights is None else weights
    starts = _drawn_starts(points, own, max(ks), generator)
    return torch.stack([_best_partition(points, own, starts[:, :k]) for k in ks])


def principal(table: Tensor) -> Tensor:
    """The first principal components of a table, of shape (rows, components), with a mean square length of 1."""
    rows = table.double()
    rows = rows - rows.mean(dim=0)
    wide = rows.shape[1] > rows.shape[0]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    first, sizes = vectors.flip(1)[:, :_DIMENSIONS], values.flip(0)[:_DIMENSIONS].clamp(min=0).sqrt()
    found = first * sizes if wide else rows @ first
    return (found / found.square().sum(dim=1).mean().sqrt().clamp(min=1e-12)).float()


def _drawn_starts(points: Tensor, weights: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Centres by k-means++, of shape (starts, most, columns)."""
    squares, far, found = points.square().sum(dim=1), None, []
    for _ in range(most):
        chances = weights.expand(_STARTS, -1) if far is None else far * weights + 1e-12 * weights
        times = torch.empty(_STARTS, len(points)).exponential_(generator=generator).to(points)
        found.append(points[(chances / times).argmax(dim=1)])  # the winner of a race, as in `drawn_centers`
        near = squares - 2 * found[-1] @ points.T + found[-1].square().sum(dim=1, keepdim=True)
        far = near.clamp(min=0) if far is None else torch.minimum(far, near).clamp(min=0)
    return torch.stack(found, dim=1)


def _best_partition(points: Tensor, weights: Tensor, centers: Tensor) -> Tensor:
    """Of shape (points,): Lloyd's rounds from all starts, and the solution with the smallest sum of squares."""
    for number in range(1, _ROUNDS + 1):
        labels = _distances(points, centers).argmin(dim=2)
        members = functional.one_hot(labels, centers.shape[1]).to(points) * weights[:, None, None]
        sizes = members.sum(dim=0)[..., None]
        means = (members.flatten(1).T @ points).view_as(centers) / sizes.clamp(min=1e-9)
        moved = torch.where(sizes > 0, means, centers)
        still = number % _LOOK_EVERY == 0 and bool((moved - centers).abs().max() < _STILL)
        centers = moved
        if still:
            break
    near, labels = _distances(points, centers).min(dim=2)
    return labels[:, (near * weights[:, None]).sum(dim=0).argmin()]


def _distances(points: Tensor, centers: Tensor) -> Tensor:
    """Half the squared distances, less what they have in common, of shape (points, starts, clusters)."""
    flat = centers.flatten(0, 1)
    return torch.addmm(flat.square().sum(dim=1) / 2, points, flat.T, alpha=-1).view(len(points), *centers.shape[:2])


def contingency(first: Tensor, second: Tensor, n_clusters: int) -> Tensor:
    """How many points each pair of clusters shares, of shape (..., clusters, clusters), in float64."""
    left, right = (functional.one_hot(one, n_clusters).float() for one in (first, second))
    return (left.transpose(-1, -2) @ right).double()


def rand_index(shared: Tensor) -> Tensor:
    """The adjusted Rand index of each table of `contingency`, of shape (...)."""

    def pairs(counts: Tensor) -> Tensor:
        return counts * (counts - 1) / 2

    both, total = pairs(shared).sum(dim=(-1, -2)), pairs(shared.sum(dim=(-1, -2)))
    left, right = pairs(shared.sum(dim=-1)).sum(dim=-1), pairs(shared.sum(dim=-2)).sum(dim=-1)
    chance, most = left * right / total, (left + right) / 2
    return torch.where(most - chance < 1e-9, 1.0, (both - chance) / (most - chance).clamp(min=1e-9))


def best_overlaps(shared: Tensor) -> Tensor:
    """Per cluster of the first partition the best Jaccard index with one of the second, of shape (..., clusters).

    NaN for empty clusters.
    """
    first, second = shared.sum(dim=-1), shared.sum(dim=-2)
    union = first[..., :, None] + second[..., None, :] - shared
    return torch.where(first > 0, (shared / union.clamp(min=1)).amax(dim=-1), torch.nan)
