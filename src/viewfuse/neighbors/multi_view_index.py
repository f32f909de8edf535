"""Nearest neighbours of samples in every view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from viewfuse.neighbors.exact_search import NO_NEIGHBOR
from viewfuse.neighbors.lots import row_keys
from viewfuse.neighbors.row_lookup import content_keys, fingerprints
from viewfuse.neighbors.view_index import ViewIndex


class MultiViewIndex:
    """Finds the neighbours of samples in every view, among the samples that have the view.

    Parameters
    ----------
    values : per view a tensor of shape (samples, columns)
    present : boolean tensor of shape (samples, views)
    """

    def __init__(self, values: Sequence[Tensor], present: Tensor) -> None:
        self.values, self.present = values, present
        self._rows = [present[:, v].nonzero().squeeze(1) for v in range(len(values))]
        self._keys = content_keys(values, present)
        self._searchers = [
            ViewIndex(view, row_keys(self._keys[rows], v), None if len(rows) == len(view) else rows)
            for v, (view, rows) in enumerate(zip(values, self._rows, strict=True))
        ]

    def __reduce__(self) -> tuple[type[MultiViewIndex], tuple[Sequence[Tensor], Tensor]]:
        """Copies and pickles hold the samples, and what finds them is made anew."""
        return MultiViewIndex, (self.values, self.present)

    def neighbors_of_own(self, depth: int) -> Tensor:
        """Neighbours of the samples, none of which is its own, see `table`."""
        return self._table(self.values, self.present, self._keys, depth, same=True)

    def neighbors_of_new(self, values: Sequence[Tensor], present: Tensor, depth: int) -> Tensor:
        """Neighbours of other samples."""
        return self._table(values, present, fingerprints(values, present), depth, same=False)

    def _table(self, values: Sequence[Tensor], present: Tensor, keys: Tensor, depth: int, *, same: bool) -> Tensor:
        """Int64 tensor of shape (samples, views, depth); NO_NEIGHBOR where the view is missing or the list ends."""
        table = torch.full((*present.shape, depth), NO_NEIGHBOR, dtype=torch.int64, device=present.device)
        for v, (rows, searcher) in enumerate(zip(self._rows, self._searchers, strict=True)):
            asked = present[:, v].nonzero().squeeze(1)
            neighbor_ids = searcher.nearest(values[v][asked], keys[asked], depth, same=same)
            if len(rows):
                table[asked, v] = torch.where(neighbor_ids == NO_NEIGHBOR, NO_NEIGHBOR, rows[neighbor_ids.clamp(min=0)])
        return table
