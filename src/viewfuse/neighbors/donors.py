"""Nearest neighbours per view, and the donors that stand in for missing views (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from viewfuse.neighbors.view_index import NO_NEIGHBOR, ViewIndex
from viewfuse.settings import Settings


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
        self._searchers = [ViewIndex(view[rows]) for view, rows in zip(values, self._rows, strict=True)]

    def neighbors_of_own(self, depth: int) -> Tensor:
        """Neighbours of the samples, none of which is its own, see `table`."""
        return self._table(self.values, self.present, depth, same=True)

    def neighbors_of_new(self, values: Sequence[Tensor], present: Tensor, depth: int) -> Tensor:
        """Neighbours of other samples."""
        return self._table(values, present, depth, same=False)

    def _table(self, values: Sequence[Tensor], present: Tensor, depth: int, *, same: bool) -> Tensor:
        """Int64 tensor of shape (samples, views, depth); NOBODY where the view is missing or the list ends."""
        table = torch.full((*present.shape, depth), NO_NEIGHBOR, dtype=torch.int64, device=present.device)
        for v, (rows, searcher) in enumerate(zip(self._rows, self._searchers, strict=True)):
            asked = present[:, v].nonzero().squeeze(1)
            neighbor_ids = searcher.nearest(values[v][asked], depth, same=same)
            if len(rows):
                table[asked, v] = torch.where(neighbor_ids == NO_NEIGHBOR, NO_NEIGHBOR, rows[neighbor_ids.clamp(min=0)])
        return table


def neighbor_lists(
    neighbor_ids: Tensor, available: Tensor, present: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """KNNI in the paper (Algorithm 1), for a batch and all its views at once.

    A view that the sample has lists the sample itself and its nearest neighbours. A view that it lacks lists
    donors: neighbours in the views that it has, which themselves have the missing view. Only where the printed
    algorithm finds nobody, more distant neighbours are tried: a view without any content helps nobody.

    Parameters
    ----------
    neighbor_ids : int64 tensor of shape (batch, views, depth): stored samples nearest to each sample, without itself
    available : boolean tensor of shape (batch, views): the views that the sample may use
    present : boolean tensor of shape (stored samples, views)

    Returns
    -------
    members : int64 tensor of shape (batch, views, list length) of stored samples. NOBODY where padded, and in
        the first place of a view that the sample has: there stands the sample itself.
    valid : boolean tensor of the same shape: False where padded (m-bar in the paper).
    """
    length = settings.list_length
    donors = _donors(neighbor_ids, available, present, settings)
    own = torch.full_like(donors[:, :, :1], NO_NEIGHBOR)
    known = torch.cat([own, neighbor_ids[:, :, : length - 1]], dim=2)
    members = torch.where(available[:, :, None], known, donors)
    valid = members != NO_NEIGHBOR
    valid[:, :, 0] |= available
    return members, valid


def _donors(neighbor_ids: Tensor, available: Tensor, present: Tensor, settings: Settings) -> Tensor:
    """The first `list_length` donors of every view, in the order in which Algorithm 1 meets them."""
    usable = torch.where(available[:, :, None], neighbor_ids, NO_NEIGHBOR)
    candidates = usable.transpose(1, 2).flatten(1)  # (batch, met): nearness outside, views inside
    helps = present[candidates.clamp(min=0)] & (candidates != NO_NEIGHBOR)[:, :, None]  # (batch, met, views)
    # The printed algorithm counts the sample itself as neighbour 0, so its k neighbours are k - 1 others.
    printed = (settings.list_length - 1) * available.shape[1]
    helps[:, printed:] &= ~helps[:, :printed].any(dim=1, keepdim=True)
    return _first(candidates, helps.transpose(1, 2), settings.list_length)


def _first(candidates: Tensor, helps: Tensor, length: int) -> Tensor:
    """The first `length` entries of `candidates` for which `helps`, of shape (batch, views, met), holds."""
    rank = helps.cumsum(dim=2) - 1
    # Entries that do not help, or come too late, are written to a last place that is cut off.
    place = torch.where(helps & (rank < length), rank, length)
    chosen = torch.full((*helps.shape[:2], length + 1), NO_NEIGHBOR, dtype=torch.int64, device=candidates.device)
    chosen.scatter_(2, place, candidates[:, None, :].expand_as(place))
    return chosen[:, :, :length]
