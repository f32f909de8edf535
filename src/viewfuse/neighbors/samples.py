"""Samples with their neighbours among the training samples, and donors of missing views (Algorithm 1).

Stored samples are recognised, so that a training sample is placed as it was in training. Neighbours are exact among
some rows; among many they are looked for among likely candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from viewfuse.neighbors.search import (
    NO_NEIGHBOR,
    SPARE,
    InvertedLists,
    Points,
    TieKeys,
    content_keys,
    fingerprints,
    grain,
    nearest,
    nearest_points,
    ranked,
    roughly_nearest,
    row_keys,
)
from viewfuse.utils.console import how_to_install

_CELLS_AMONG_CANDIDATES = 4_000_000
_EXACT_ROWS = {"cpu": 30_000, "cuda": 50_000}
"""Beyond so many rows candidates are found first: on a GPU in float32, else by FAISS where it is installed."""
_ROWS_AT_A_TIME = 65_536
_CELLS_KEPT = 8_000_000
"""Cells of a pool that are kept in float64 as well, at most 64 MB: converting them takes longer than one search."""


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


class ViewIndex:
    """Finds rows of a pool: the rows of a view, or some of them, of which it keeps no copy.

    Parameters
    ----------
    view : tensor of shape (samples, columns)
    keys : of the rows of the pool, see `row_keys`
    rows : of the view that are the pool; None if all are
    """

    def __init__(self, view: Tensor, keys: Tensor, rows: Tensor | None = None) -> None:
        self._view, self._keys, self._rows = view, keys, rows
        self._lists: InvertedLists | None = None

    @property
    def pool(self) -> Tensor:
        """The rows, of shape (rows, columns); a copy where they are not all of the view."""
        return self._view if self._rows is None else self._view[self._rows]

    def nearest(self, queries: Tensor, keys: Tensor, count: int, *, same: bool) -> Tensor:
        """As `nearest`, among the rows of the pool; for large pools nearly so (see `InvertedLists`).

        Parameters
        ----------
        keys : of the queries, see `content_keys`
        """
        kind, ties, wanted = self._view.device.type, TieKeys(keys, self._keys), count + same + SPARE
        if len(self._keys) <= max(_EXACT_ROWS[kind], wanted) or not len(queries):
            if same or not len(queries) or not 0 < len(self._keys) * self._view.shape[1] <= _CELLS_KEPT:
                return nearest(queries, self.pool, ties, count, same=same)
            return nearest_points(queries, self._points, ties, count, same=False)
        if kind == "cuda":
            return self.among(queries, roughly_nearest(queries, self.pool, wanted), ties, count, same=same)
        lists = self._inverted_lists()
        if lists is None:
            return nearest(queries, self.pool, ties, count, same=same)
        return self.among(queries, lists.candidates(queries, wanted), ties, count, same=same)

    @cached_property
    def _points(self) -> Points:
        """Kept for new samples, which often come one by one: the rest of a search takes a fifth of the time."""
        return Points.of(self.pool)

    @cached_property
    def _largest(self) -> float:
        """The largest square of a row, found once: for a single query it would take longer than the search."""
        return max(float(part.square().sum(dim=1).max()) for part in torch.split(self.pool, _ROWS_AT_A_TIME))

    def among(self, queries: Tensor, candidates: Tensor, ties: TieKeys, count: int, *, same: bool) -> Tensor:
        """As `nearest`, but among `candidates`: rows of shape (queries, candidates), NO_NEIGHBOR if there is none."""
        device, width = self._view.device, self._view.shape[1]
        neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=device)
        step = max(1, _CELLS_AMONG_CANDIDATES // (candidates.shape[1] * width))
        for start in range(0, len(queries), step):
            rows = candidates[start : start + step]
            chunk = queries[start : start + step].double()[:, None]
            some = rows.clamp(min=0)
            there = self._view[some if self._rows is None else self._rows[some]]
            squares = (there.double() - chunk).square().sum(dim=2)
            whole = squares.div_(grain(self._largest, chunk.square().sum(dim=2))).round_()
            whole.masked_fill_(rows == NO_NEIGHBOR, torch.inf)
            if same:
                whole[rows == torch.arange(start, start + len(rows), device=device)[:, None]] = torch.inf
            ranks, found = ranked(whole, some, ties.take(slice(start, start + step)))
            found = found.masked_fill_(ranks.isinf(), NO_NEIGHBOR)[:, :count]
            neighbor_ids[start : start + step, : found.shape[1]] = found
        return neighbor_ids

    def _inverted_lists(self) -> InvertedLists | None:
        """Made when they are first needed; None without FAISS."""
        if self._lists is None:
            try:
                import faiss
            except ImportError:
                hint = "%d rows are searched exactly, which takes long; FAISS is faster: %s"
                logging.getLogger(__name__).warning(hint, len(self._keys), how_to_install("faiss-cpu", "ann"))
                return None
            self._lists = InvertedLists(faiss, self.pool, self._keys)
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own lists when they need them."""
        return {"_view": self._view, "_keys": self._keys, "_rows": self._rows, "_lists": None}


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
