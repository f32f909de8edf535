"""Data without clusters that look like given data, and data with views hidden: with these stability is compared.

Clusters are found twice in any data, most of all few of them. What is found again more often than in a Gaussian of the
same covariance, of which the same views are missing, is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from viewfuse.neighbors.samples import Samples, index_training_set
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.filled_kmeans import filled_table


def gaussian_like(table: Tensor, generator: torch.Generator) -> Tensor:
    """A Gaussian of the mean and covariance of a table, of the same shape."""
    rows = table.double()
    middle = rows.mean(dim=0)
    rows, (n, width) = rows - middle, table.shape
    drawn = torch.randn(n, min(n, width), generator=generator, dtype=torch.float64).to(rows)
    if n <= width:  # random sums of the rows have their covariance
        return (drawn @ rows / n**0.5 + middle).to(table)
    values, vectors = torch.linalg.eigh(rows.T @ rows / n)
    return (drawn * values.clamp(min=0).sqrt() @ vectors.T + middle).to(table)


def structureless(samples: Samples, generator: torch.Generator) -> Samples:
    """Training samples without clusters: a Gaussian of all views together, of which the same are missing."""
    table = filled_table(samples, torch.arange(len(samples), device=samples.present.device))
    parts = torch.split(gaussian_like(table, generator), [view.shape[1] for view in samples.values], dim=1)
    values = [torch.where(samples.present[:, v, None], part, 0.0).contiguous() for v, part in enumerate(parts)]
    return index_training_set(values, samples.present, samples.neighbor_ids.shape[2])


def with_half_the_views(samples: Samples, generator: torch.Generator) -> Samples:
    """Samples of which every other view, drawn anew for each, is hidden; one at least stays."""
    present = samples.present
    draws = torch.rand(present.shape, generator=generator).to(present.device)
    places = torch.where(present, draws, 2.0).argsort(dim=1).argsort(dim=1)
    kept = present & (places < (present.sum(dim=1, keepdim=True) + 1) // 2)
    values = [torch.where(kept[:, v, None], view, 0.0) for v, view in enumerate(samples.values)]
    return Samples(values, kept, torch.where(kept[:, :, None], samples.neighbor_ids, NO_NEIGHBOR))


def spectrum(samples: Samples, depth: int, count: int) -> Tensor:
    """The largest eigenvalues of the graph that joins neighbours in any view, the largest first, of shape (count,).

    An edge weighs the share of the views, among those that both samples have, in which one is a neighbour of the
    other. As many eigenvalues are near 1 as there are groups that are hardly connected.
    """
    n, present = len(samples), samples.present.float()
    joined = torch.zeros(n, n, device=present.device)
    for v in range(present.shape[1]):
        ids = samples.neighbor_ids[:, v, :depth]
        edges = torch.zeros(n, n + 1, device=present.device)
        edges.scatter_(1, torch.where(ids == NO_NEIGHBOR, n, ids), 1.0 / depth)
        joined += (edges[:, :n] + edges[:, :n].T) / 2
    joined = (joined / (present @ present.T).clamp(min=1)).fill_diagonal_(0.0)
    scale = joined.sum(dim=1).clamp(min=1e-9).rsqrt()
    values = torch.linalg.eigvalsh(scale[:, None] * joined * scale).flip(0)
    return _padded(values, count)


def _padded(values: Tensor, count: int) -> Tensor:
    """The first values, with zeros where there are fewer."""
    return torch.cat([values, values.new_zeros(count)])[:count]
