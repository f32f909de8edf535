"""Samples with their neighbours among the training samples, and donors of missing views (Algorithm 1).

Stored samples are recognised, so that a training sample is placed as it was in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from viewfuse.neighbors.index import MultiViewIndex
from viewfuse.neighbors.search import NO_NEIGHBOR, fingerprints


@dataclass(frozen=True)
class Samples:
    """Scaled samples with their neighbours among stored samples.

    Attributes
    ----------
    values : per view a tensor of shape (samples, columns); missing rows are zero
    present : boolean tensor of shape (samples, views)
    neighbor_ids : int64 tensor of shape (samples, views, depth)
    index : finds neighbours among these samples; None where none are needed
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


@dataclass(frozen=True)
class RowIndex:
    """Fingerprints of stored samples in ascending order, and the row that each belongs to."""

    keys: Tensor
    rows: Tensor

    def to(self, device: torch.device) -> RowIndex:
        """The same index on `device`."""
        return RowIndex(self.keys.to(device), self.rows.to(device))


def index_rows(values: Sequence[Tensor], present: Tensor) -> RowIndex:
    """Index samples by all their values and by which views they have."""
    keys, rows = fingerprints(values, present).sort(stable=True)
    return RowIndex(keys, rows)


def find_rows(
    index: RowIndex, values: Sequence[Tensor], present: Tensor, new_values: Sequence[Tensor], new_present: Tensor
) -> Tensor:
    """Which stored sample each new one is, to the bit: int64 tensor of shape (new samples,), NO_NEIGHBOR if none."""
    keys = fingerprints(new_values, new_present)
    place = torch.searchsorted(index.keys, keys)
    found, likely = torch.full_like(place, NO_NEIGHBOR), torch.arange(len(keys), device=keys.device)
    while True:
        likely = likely[place[likely] < len(index.keys)]
        likely = likely[index.keys[place[likely]] == keys[likely]]
        if not len(likely):
            return found
        rows = index.rows[place[likely]]
        # Different samples can have one fingerprint, so the values decide; the next row may have it, too.
        equal = (present[rows] == new_present[likely]).all(dim=1)
        for view, new_view in zip(values, new_values, strict=True):
            equal &= (view[rows] == new_view[likely]).all(dim=1)
        found[likely[equal]] = rows[equal]
        likely = likely[~equal]
        place[likely] += 1


def neighbor_lists(neighbor_ids: Tensor, available: Tensor, present: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """KNNI in the paper (Algorithm 1), for a batch and all its views at once.

    A view that the sample has lists the sample itself and its nearest neighbours. A view that it lacks lists
    donors: neighbours in the views that it has, which themselves have the missing view. Only where the printed
    algorithm finds no donor, more distant neighbours are tried: an empty view would help no sample.

    Parameters
    ----------
    neighbor_ids : int64 tensor of shape (batch, views, depth): stored samples nearest to each sample, without itself
    available : boolean tensor of shape (batch, views): the views that the sample may use
    present : boolean tensor of shape (stored samples, views)
    length : entries of a list, the sample itself included; k in the paper

    Returns
    -------
    members : int64 tensor of shape (batch, views, list length) of stored samples. NO_NEIGHBOR where padded, and in
        the first place of a view that the sample has: there stands the sample itself.
    valid : boolean tensor of the same shape: False where padded (m-bar in the paper).
    """
    donors = _donors(neighbor_ids, available, present, length)
    own = torch.full_like(donors[:, :, :1], NO_NEIGHBOR)
    known = torch.cat([own, neighbor_ids[:, :, : length - 1]], dim=2)
    members = torch.where(available[:, :, None], known, donors)
    valid = members != NO_NEIGHBOR
    valid[:, :, 0] |= available
    return members, valid


def _donors(neighbor_ids: Tensor, available: Tensor, present: Tensor, length: int) -> Tensor:
    """The first `length` donors of every view, in the order in which Algorithm 1 meets them."""
    usable = torch.where(available[:, :, None], neighbor_ids, NO_NEIGHBOR)
    candidates = usable.transpose(1, 2).flatten(1)  # (batch, met): nearness outside, views inside
    helps = present[candidates.clamp(min=0)] & (candidates != NO_NEIGHBOR)[:, :, None]  # (batch, met, views)
    # The printed algorithm counts the sample itself as neighbour 0, so its k neighbours are k - 1 others.
    printed = (length - 1) * available.shape[1]
    helps[:, printed:] &= ~helps[:, :printed].any(dim=1, keepdim=True)
    return _first(candidates, helps.transpose(1, 2), length)


def _first(candidates: Tensor, helps: Tensor, length: int) -> Tensor:
    """The first `length` entries of `candidates` for which `helps`, of shape (batch, views, met), holds."""
    rank = helps.cumsum(dim=2) - 1
    # Entries that do not help, or come too late, are written to a last place that is cut off.
    place = torch.where(helps & (rank < length), rank, length)
    chosen = torch.full((*helps.shape[:2], length + 1), NO_NEIGHBOR, dtype=torch.int64, device=candidates.device)
    chosen.scatter_(2, place, candidates[:, None, :].expand_as(place))
    return chosen[:, :, :length]
