"""Evidence for each number of clusters, without labels: what is found in the data, and in data without clusters.

Four measures, each a number per k that is 1 at most:

- **hidden views**: the adjusted Rand index of the clusters and those that are found with half of the views hidden;
- **resampling**: that of clusters found in different four fifths of the samples, on average over the embedding and the
  filled views;
- **neighbours**: the neighbour agreement of the clusters in all views (`viewfuse.selection.scores`);
- **gap**: how far the k-th eigenvalue of the neighbour graph is above the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from viewfuse.neighbors.samples import Samples
from viewfuse.selection.filled_kmeans import filled_table
from viewfuse.selection.partitions_by_k import contingency, partitions, principal, rand_index
from viewfuse.selection.scores import AGREEMENT_DEPTH, partition_agreements
from viewfuse.selection.structureless import spectrum

MEASURES = ("hidden_views", "resampling", "neighbors", "gap")
_DRAWS = 4
_SHARE = 0.8


class Look(NamedTuple):
    """Samples as a network sees them.

    Attributes
    ----------
    embedding : tensor of shape (samples, embedding)
    hidden : the same with half of the views hidden
    """

    samples: Samples
    embedding: Tensor
    hidden: Tensor


def measured(look: Look, ks: Sequence[int], generator: torch.Generator) -> dict[str, list[float]]:
    """What each of `MEASURES` says of each number of clusters."""
    embedding, rows = principal(look.embedding), torch.arange(len(look.samples), device=look.embedding.device)
    table = principal(filled_table(look.samples, rows))
    found, hidden = (partitions(points, ks, generator) for points in (embedding, principal(look.hidden)))
    resampled = [_resampled(points, ks, generator) for points in (embedding, table)]
    said = {
        "hidden_views": rand_index(contingency(found, hidden, max(ks))),
        "resampling": torch.stack(resampled).mean(dim=0),
        "neighbors": torch.tensor(partition_agreements(list(found), look.samples.neighbor_ids)),
        "gap": _gaps(spectrum(look.samples, AGREEMENT_DEPTH, max(ks) + 1), ks),
    }
    return {name: values.double().tolist() for name, values in said.items()}


def _resampled(points: Tensor, ks: Sequence[int], generator: torch.Generator) -> Tensor:
    """The mean index of pairs of partitions that were found in parts of the points and extended to all."""
    parts = [(torch.rand(len(points), generator=generator) < _SHARE).to(points) for _ in range(_DRAWS)]
    found = [partitions(points, ks, generator, part) for part in parts]
    return torch.stack([rand_index(contingency(*pair, max(ks))) for pair in combinations(found, 2)]).mean(dim=0)


def _gaps(values: Tensor, ks: Sequence[int]) -> Tensor:
    places = torch.tensor(ks, device=values.device)
    return values[places - 1] - values[places]
