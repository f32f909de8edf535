"""Samples with their neighbours among the training samples, and donors of missing views (Algorithm 1).

Neighbours are the nearest by squared Euclidean distance. Distances of all pairs are float64 products of matrices, a
chunk at a time; scikit-learn's search takes as long (results/speed), but leaves ties to the order of the rows. Equal
distances are common in binary views. A tie-break key is a hash of a view, a query and a row, by their values. So it
depends neither on the order of the rows nor on the batch.

Stored samples are recognised, so that a training sample is placed as it was in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from viewfuse.neighbors.approximate import SPARE, inverted_lists, roughly_nearest

NO_NEIGHBOR = -1
"""Stands in a neighbour or donor list where there is no sample."""
_BYTES_PER_CHUNK = 8_000_000
"""Of distances held at a time: few enough for the cache of a CPU; a GPU holds four times as many."""
_GRAIN, _TINY = 1e-11, 1e-300
"""Differences of squared distances below this share of the largest square are rounding."""
STRIDE = 0x9E3779B97F4A7C15 - 2**64
"""SplitMix64's increment: an odd number whose multiples are spread evenly over all 64-bit numbers."""
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""SplitMix64's multipliers, as the signed numbers that torch has."""
_CELLS_AT_A_TIME = 8_000_000
_CELLS_AMONG_CANDIDATES, _TUNED_FOR, _SPARE_CANDIDATES = 4_000_000, 9, 4
_EXACT_ROWS = {"cpu": 30_000, "cuda": 50_000}
"""Beyond so many rows candidates are found first, see `viewfuse.neighbors.approximate`."""
_ROWS_AT_A_TIME, _CELLS_KEPT = 65_536, 8_000_000
"""Cells of a pool that are kept in float64 as well, at most 64 MB: converting them takes longer than one search."""


def centred(pool: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The centre of rows, of shape (columns,), the rows less the centre, in float64, and the square of each."""
    # Centred float64 keeps |a|^2 + |b|^2 - 2ab exact enough where a column has a large offset.
    exact = pool.double()
    centre = exact.mean(dim=0)
    return centre, exact - centre, (exact - centre).square().sum(dim=1)


def nearest(queries: Tensor, pool: tuple[Tensor, Tensor, Tensor], ties: TieKeys, count: int, *, same: bool) -> Tensor:
    """Rows of a pool, which is `centred`, closest to each query, in Euclidean distance; random keys break ties.

    Returns an int64 tensor of shape (queries, count): row numbers, nearest first, NO_NEIGHBOR where the pool is too
    small. With `same` the queries are the pool, and no row is its own neighbour.
    """
    neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=queries.device)
    centre, rows, lengths = pool
    found = min(count, len(rows) - same)
    if found <= 0 or not len(queries):
        return neighbor_ids
    step = max(1, _BYTES_PER_CHUNK * (4 if rows.is_cuda else 1) // (8 * len(rows)))
    for start in range(0, len(queries), step):
        some = slice(start, start + step)
        points = queries[some].double() - centre
        squares = points.square().sum(dim=1, keepdim=True)
        distances = torch.addmm(lengths, points, rows.T, alpha=-2)
        if same:
            distances.scatter_(1, torch.arange(start, start + len(points), device=rows.device)[:, None], torch.inf)
        distances.add_(squares)
        neighbor_ids[some, :found] = _closest(distances, grain(lengths.max(), squares), ties.take(some), found)
    return neighbor_ids


def _closest(distances: Tensor, grain: Tensor, ties: TieKeys, count: int) -> Tensor:
    """The columns of the `count` smallest distances of each row, nearest first.

    Rounding differs with the shape of a chunk. Distances that only `grain` tells apart are equal here, so that a
    sample's neighbours are the same in any batch. They are rounded for the likely columns; for all where those tie,
    in place.
    """
    likely = min(count + _SPARE_CANDIDATES, distances.shape[1])
    smallest, columns = distances.topk(likely, dim=1, largest=False, sorted=False)
    ranks, columns = ranked((smallest / grain).round_(), columns, ties)
    best, last = columns[:, :count], ranks[:, count - 1 : count]
    tied = ranks[:, -1] <= last.squeeze(1)
    if tied.any():
        some = slice(None) if tied.all() else tied  # a slice is no copy
        equal = distances[some].div_(grain[some]).round_() == last[some]
        nearer = (ranks[some] < last[some]).sum(dim=1, keepdim=True)
        # The last ones are drawn anew from all that are as near.
        drawn = torch.where(equal, ties.take(some).of(), torch.inf).topk(count, dim=1, largest=False).indices
        places = torch.arange(count, device=best.device) - nearer
        best[some] = torch.where(places < 0, best[some], drawn.gather(1, places.clamp(min=0)))
    return best


def ranked(ranks: Tensor, columns: Tensor, ties: TieKeys) -> tuple[Tensor, Tensor]:
    """Ranks in ascending order and their columns, of shape (rows, columns); keys decide between equal ranks."""
    ranks, places = ranks.sort(dim=1)
    columns = columns.gather(1, places)
    tied = (ranks[:, 1:] == ranks[:, :-1]).any(dim=1)
    if tied.any():
        some, equal = columns[tied], ranks[tied]
        by_key = ties.take(tied).of(some).argsort(dim=1)
        places = by_key.gather(1, equal.gather(1, by_key).argsort(dim=1, stable=True))
        columns[tied] = some.gather(1, places)
    return ranks, columns


def grain(largest: Tensor | float, squares: Tensor) -> Tensor:
    """What squared distances are rounded to, given the largest square of the pool and the squares of queries."""
    return _GRAIN * (largest + squares) + _TINY


class TieKeys(NamedTuple):
    """Random tie-break keys of one view: of queries, see `content_keys`, and of rows of the pool, see `row_keys`."""

    queries: Tensor
    rows: Tensor

    def take(self, some: Tensor | slice) -> TieKeys:
        """Those of some queries."""
        return TieKeys(self.queries[some], self.rows)

    def of(self, rows: Tensor | None = None) -> Tensor:
        """Keys of `rows`, or all, of shape (queries, rows): float64 numbers from 0 to below 2; the smaller is nearer.

        The product wraps around: its upper bits depend on all bits of both. Positive floats are in the order of their
        bits, and torch finds the least of floats twenty times as fast as that of integers.
        """
        keys = self.rows if rows is None else self.rows[rows]
        return (keys ^ self.queries[:, None]).mul_(STRIDE).bitwise_and_(2**62 - 1).view(torch.float64)


def row_keys(keys: Tensor, view: int) -> Tensor:
    """What `TieKeys` needs of the rows of a view, given their keys, see `content_keys`."""
    keys = scramble(keys + view)
    return keys ^ (keys >> 31)


def scramble(states: Tensor) -> Tensor:
    """SplitMix64's hash, in place, without its last shift, which only changes the lower bits.

    Torch shifts in copies of the sign where SplitMix64 shifts in zeros; that costs one of 64 bits.
    """
    states.bitwise_xor_(states >> 30).mul_(_FIRST)
    return states.bitwise_xor_(states >> 27).mul_(_SECOND)


def fingerprints(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample, from the bits of the values in float32; int64 tensor of shape (samples,)."""
    numbers = [present, *values]
    weights = _weights(tuple(part.shape[1] for part in numbers)).to(present.device)
    step = max(1, _CELLS_AT_A_TIME // len(weights))
    found = []
    for there, *views in zip(*(torch.split(part, step) for part in numbers), strict=True):
        # Adding 0.0 makes the two zeros one.
        bits = [there.long(), *((view.float() + 0.0).view(torch.int32).long() for view in views)]
        # Products of the bits and the weights wrap around, which is what a fingerprint wants.
        found.append((torch.cat(bits, dim=1) * weights).sum(dim=1))
    return torch.cat(found)


def content_keys(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample that depends on what it holds, and among equal samples on which copy it is."""
    keys, rows = fingerprints(values, present).sort(stable=True)
    copies = torch.arange(len(rows), device=rows.device) - torch.searchsorted(keys, keys)
    return torch.empty_like(keys).scatter_(0, rows, keys + STRIDE * copies)


@cache
def _weights(widths: tuple[int, ...]) -> Tensor:
    """Fixed odd numbers, one for every column."""
    generator = np.random.default_rng(20240825)
    drawn = [generator.integers(-(2**63), 2**63, size=width, dtype=np.int64) | 1 for width in widths]
    return torch.from_numpy(np.concatenate(drawn))


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

    So many neighbours as `depth` says are kept of each sample and view, other than the sample itself.
    """
    index = MultiViewIndex(values, present)
    neighbor_ids = index.neighbors_of_own(depth)
    first = RowIndex(values, present).find(values, present)
    return Samples(values, present, neighbor_ids[first], index)


def index_new_samples(values: Sequence[Tensor], present: Tensor, stored: Samples, known: Tensor) -> Samples:
    """Samples whose neighbours are stored ones; `known`, of `RowIndex.find`, says who has those of a stored sample."""
    neighbor_ids, new = stored.neighbor_ids[known.clamp(min=0)], known == NO_NEIGHBOR
    index = stored.index or MultiViewIndex(stored.values, stored.present)
    new_values = [view[new] for view in values]
    neighbor_ids[new] = index.neighbors_of_new(new_values, present[new], neighbor_ids.shape[2])
    return Samples(values, present, neighbor_ids)


class RowIndex:
    """Finds samples by all their values and by which views they have."""

    def __init__(self, values: Sequence[Tensor], present: Tensor) -> None:
        self._values, self._present = values, present
        self._keys, self._rows = fingerprints(values, present).sort(stable=True)

    def find(self, values: Sequence[Tensor], present: Tensor) -> Tensor:
        """The row of each sample, of shape (samples,): the first that is equal to the bit, NO_NEIGHBOR if none is."""
        keys = fingerprints(values, present)
        place = torch.searchsorted(self._keys, keys)
        found, likely = torch.full_like(place, NO_NEIGHBOR), torch.arange(len(keys), device=keys.device)
        while True:
            likely = likely[place[likely] < len(self._keys)]
            likely = likely[self._keys[place[likely]] == keys[likely]]
            if not len(likely):
                return found
            rows = self._rows[place[likely]]
            # Different samples can have one fingerprint, so the values decide; the next row may have it, too.
            equal = (self._present[rows] == present[likely]).all(dim=1)
            for known, view in zip(self._values, values, strict=True):
                equal &= (known[rows] == view[likely]).all(dim=1)
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
    usable = torch.where(available[:, :, None], neighbor_ids, NO_NEIGHBOR)
    candidates = usable.transpose(1, 2).flatten(1)  # (batch, met): nearness outside, views inside
    helps = present[candidates.clamp(min=0)] & (candidates != NO_NEIGHBOR)[:, :, None]  # (batch, met, views)
    # The printed algorithm counts the sample itself as neighbour 0, so its k neighbours are k - 1 others.
    printed = (length - 1) * available.shape[1]
    helps[:, printed:] &= ~helps[:, :printed].any(dim=1, keepdim=True)
    helps = helps.transpose(1, 2)
    rank = helps.cumsum(dim=2) - 1
    # Entries that do not help, or come too late, are written to a last place that is cut off.
    place = torch.where(helps & (rank < length), rank, length)
    donors = torch.full((*helps.shape[:2], length + 1), NO_NEIGHBOR, dtype=torch.int64, device=candidates.device)
    donors = donors.scatter_(2, place, candidates[:, None, :].expand_as(place))[:, :, :length]
    own = torch.full_like(donors[:, :, :1], NO_NEIGHBOR)
    known = torch.cat([own, neighbor_ids[:, :, : length - 1]], dim=2)
    members = torch.where(available[:, :, None], known, donors)
    valid = members != NO_NEIGHBOR
    valid[:, :, 0] |= available
    return members, valid


class ViewIndex:
    """Finds rows of a pool, which have `keys` of their own (see `row_keys`): some rows of a view, or all; no copy.

    For large pools candidates are found first, see `viewfuse.neighbors.approximate`.
    """

    def __init__(self, view: Tensor, keys: Tensor, rows: Tensor | None = None) -> None:
        self._view, self._keys, self._rows = view, keys, rows

    def nearest(self, queries: Tensor, keys: Tensor, count: int, *, same: bool) -> Tensor:
        """As `nearest`, among the rows of the pool; `keys` are those of the queries, see `content_keys`."""
        kind, ties, wanted = self._view.device.type, TieKeys(keys, self._keys), count + same + SPARE
        is_large = len(self._keys) > max(_EXACT_ROWS[kind], wanted) and len(queries)
        if is_large and kind == "cuda":
            return self.among(queries, roughly_nearest(queries, self._pool(), wanted), ties, count, same=same)
        if is_large and self._lists is not None:
            return self.among(queries, self._lists(queries, wanted), ties, count, same=same)
        is_kept = not same and not is_large and len(self._keys) * self._view.shape[1] <= _CELLS_KEPT
        return nearest(queries, self._points if is_kept else centred(self._pool()), ties, count, same=same)

    def _pool(self) -> Tensor:
        return self._view if self._rows is None else self._view[self._rows]

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor, Tensor]:
        """Kept for new samples, which often come one by one: the rest of a search takes a fifth of the time."""
        return centred(self._pool())

    @cached_property
    def _largest(self) -> float:
        """The largest square of a row, found once: for a single query it would take longer than the search."""
        return max(float(part.square().sum(dim=1).max()) for part in torch.split(self._pool(), _ROWS_AT_A_TIME))

    @cached_property
    def _lists(self) -> Callable[[Tensor, int], Tensor] | None:
        """Made when they are first needed; None without FAISS."""
        pool = self._pool()

        def exactly(rows: Tensor) -> Tensor:
            return nearest(pool[rows], centred(pool), TieKeys(self._keys[rows], self._keys), _TUNED_FOR, same=False)

        return inverted_lists(pool, exactly)

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


class MultiViewIndex:
    """Finds the neighbours of samples in every view, among those that have the view; arguments as for `Samples`."""

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
        """Neighbours of the samples, none of which is its own; see `neighbors_of_new`."""
        return self.neighbors_of_new(self.values, self.present, depth, own=self._keys)

    def neighbors_of_new(
        self, values: Sequence[Tensor], present: Tensor, depth: int, *, own: Tensor | None = None
    ) -> Tensor:
        """Neighbours of other samples, or of those with keys of their `own`.

        Int64 tensor of shape (samples, views, depth); NO_NEIGHBOR where the view is missing or the list ends.
        """
        keys = fingerprints(values, present) if own is None else own
        table = torch.full((*present.shape, depth), NO_NEIGHBOR, dtype=torch.int64, device=present.device)
        for v, (rows, searcher) in enumerate(zip(self._rows, self._searchers, strict=True)):
            asked = present[:, v].nonzero().squeeze(1)
            neighbor_ids = searcher.nearest(values[v][asked], keys[asked], depth, same=own is not None)
            if len(rows):
                table[asked, v] = torch.where(neighbor_ids == NO_NEIGHBOR, NO_NEIGHBOR, rows[neighbor_ids.clamp(min=0)])
        return table
