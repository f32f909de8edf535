"""k-means on the views themselves, missing ones filled from donors: what a simple method finds in the same data.

It knows nothing of the network, so that a partition which both find is more than an artefact of either.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from viewfuse.errors import Diverged
from viewfuse.neighbors.samples import Samples, neighbor_lists
from viewfuse.selection.centers import initial_centers, nearest_center
from viewfuse.utils.settings import Setting

_DONORS = 5
_ROWS = 5_000
"""Samples that are enough to find the centres."""


def filled_kmeans(samples: Samples, n_clusters: int, seed: int) -> Tensor:
    """The clusters of the training samples, of shape (samples,)."""
    rows = torch.arange(len(samples), device=samples.present.device)
    some = rows if len(rows) <= _ROWS else _drawn(rows, seed)
    table = filled_table(samples, some)
    if not torch.isfinite(table).all():
        fault = "values are so large that their means are not finite; use "
        raise Diverged(fault, Setting("scaling", "minmax"), " or 'standard'")
    neighbors = samples.neighbor_ids if some is rows else None  # neighbours of some are not among them
    centers = torch.from_numpy(initial_centers(table, n_clusters, seed, neighbors)).to(table)
    parts = [nearest_center(filled_table(samples, part), centers) for part in torch.split(rows, _ROWS)]
    return torch.cat(parts)


def _drawn(rows: Tensor, seed: int) -> Tensor:
    chosen = np.random.default_rng([seed, 2]).choice(len(rows), _ROWS, replace=False)
    return torch.from_numpy(np.sort(chosen)).to(rows)


def filled_table(samples: Samples, rows: Tensor) -> Tensor:
    """All views of some training samples side by side, of shape (rows, all columns).

    A missing view is the mean of its donors; where there are none, of all samples that have it.
    """
    some = samples.take(rows)
    members, valid = neighbor_lists(some.neighbor_ids, some.present, samples.present, _DONORS)
    return torch.cat([_filled(samples, some, members, valid, v) for v in range(len(samples.values))], dim=1)


def _filled(samples: Samples, some: Samples, members: Tensor, valid: Tensor, v: int) -> Tensor:
    table, lacking = some.values[v].clone(), (~some.present[:, v]).nonzero().flatten()
    if not len(lacking):
        return table
    weights = valid[lacking, v].to(table.dtype)[:, None]  # (lacking, 1, donors)
    donors = samples.values[v][members[lacking, v].clamp(min=0)]
    counts = weights.sum(dim=2)
    table[lacking] = (weights @ donors).squeeze(1) / counts.clamp(min=1)
    alone = lacking[counts.squeeze(1) == 0]
    if len(alone):
        table[alone] = samples.values[v][samples.present[:, v]].mean(dim=0)
    return table
