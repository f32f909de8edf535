"""Samples with their nearest neighbours among the training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from viewfuse.neighbors.exact_search import NO_NEIGHBOR
from viewfuse.neighbors.multi_view_index import MultiViewIndex
from viewfuse.neighbors.row_lookup import find_rows, index_rows


@dataclass(frozen=True)
class Samples:
    """Scaled samples with their neighbours among stored samples.

    Attributes
    ----------
    values : per view a tensor of shape (samples, columns); missing rows are zero
    present : boolean tensor of shape (samples, views)
    neighbor_ids : int64 tensor of shape (samples, views, depth)
    index : finds neighbours among these samples; None where nobody asks for them
    """

    values: Sequence[Tensor]
    present: Tensor
    neighbor_ids: Tensor
    index: MultiViewIndex | None = None

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Tensor | slice) -> Samples:
        """The samples at `rows`."""
        return Samples([view[rows] for view in self.values], self.present[rows], self.neighbor_ids[rows])

    def to(self, device: torch.device) -> Samples:
        """The same samples on `device`."""
        values, present = [view.to(device) for view in self.values], self.present.to(device)
        return Samples(values, present, self.neighbor_ids.to(device), self.index and MultiViewIndex(values, present))


def index_training_set(values: Sequence[Tensor], present: Tensor, depth: int) -> Samples:
    """Samples that are each other's neighbours: the training set. Equal samples have one list of neighbours.

    Parameters
    ----------
    values : per view a tensor of shape (samples, columns)
    present : boolean tensor of shape (samples, views)
    depth : neighbours, other than the sample itself, that are kept of each sample and view
    """
    index = MultiViewIndex(values, present)
    neighbor_ids = index.neighbors_of_own(depth)
    first = find_rows(index_rows(values, present), values, present, values, present)
    return Samples(values, present, neighbor_ids[first], index)


def index_new_samples(values: Sequence[Tensor], present: Tensor, stored: Samples, known: Tensor) -> Samples:
    """Samples whose neighbours are stored ones.

    Parameters
    ----------
    known : int64 tensor of shape (samples,): the stored sample that this is, whose neighbours it has; else NO_NEIGHBOR
    """
    neighbor_ids = stored.neighbor_ids[known.clamp(min=0)]
    new = (known == NO_NEIGHBOR).nonzero().squeeze(1)
    new_values = [view[new] for view in values]
    index = stored.index or MultiViewIndex(stored.values, stored.present)
    neighbor_ids[new] = index.neighbors_of_new(new_values, present[new], neighbor_ids.shape[2])
    return Samples(values, present, neighbor_ids)
