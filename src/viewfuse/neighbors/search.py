"""Exact nearest neighbours by squared Euclidean distance, and random tie-break keys for rows at equal distances.

Distances of all pairs are float64 products of matrices, a chunk at a time; scikit-learn's search takes as long
(results/speed), but leaves ties to the order of the rows. Equal distances are common in binary views. A
tie-break key is a hash of a view, a query and a row, by their values. So it depends neither on the order of the rows
nor on the batch, ties are spread evenly over the rows, and views break them independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

NO_NEIGHBOR = -1
"""Stands in a neighbour or donor list where there is no sample."""
_BYTES_PER_CHUNK = 8_000_000
"""Of distances held at a time: few enough for the cache of a CPU; a GPU holds four times as many."""
_SPARE_CANDIDATES = 4
_GRAIN = 1e-11
"""Differences of squared distances below this share of the largest square are rounding."""
_TINY = 1e-300
STRIDE = -0x61C8864680B583EB
"""An odd number whose multiples are spread evenly over all 64-bit numbers."""
_FACTORS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Of the finaliser of splitmix64."""
_CELLS_AT_A_TIME = 8_000_000
SPARE = 8
"""Candidates beyond those asked for, since float32 may order near ones otherwise."""
_CELLS_PER_CHUNK_ON_GPU = 200_000_000
_LEAST_RECALL = 0.98


def nearest(queries: Tensor, pool: Tensor, ties: TieKeys, count: int, *, same: bool) -> Tensor:
    """Rows of `pool` closest to each query, in Euclidean distance, exactly; ties are broken by random keys.

    Parameters
    ----------
    queries : tensor of shape (queries, columns)
    pool : tensor of shape (rows, columns)
    same : the queries are the pool, and no row is its own neighbour.

    Returns
    -------
    int64 tensor of shape (queries, count): row numbers, nearest first, NO_NEIGHBOR where the pool is too small.
    """
    if min(count, len(pool) - same) <= 0 or not len(queries):
        return torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=pool.device)
    return nearest_points(queries, Points.of(pool), ties, count, same=same)


class Points(NamedTuple):
    """A pool that queries can be compared with.

    Attributes
    ----------
    centre : of the pool, of shape (columns,)
    points : float64, less their centre, of shape (rows, columns)
    squares : of every point, of shape (rows,)
    """

    centre: Tensor
    points: Tensor
    squares: Tensor

    @classmethod
    def of(cls, pool: Tensor) -> Points:
        """The rows of `pool`, of shape (rows, columns)."""
        # Centred float64 keeps |a|^2 + |b|^2 - 2ab exact enough where a column has a large offset.
        exact = pool.double()
        centre = exact.mean(dim=0)
        return cls(centre, exact - centre, (exact - centre).square().sum(dim=1))


def nearest_points(queries: Tensor, pool: Points, ties: TieKeys, count: int, *, same: bool) -> Tensor:
    """As `nearest`, for a pool that is kept."""
    n, device = len(pool.points), pool.points.device
    found, largest = min(count, n - same), pool.squares.max()
    neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=device)
    step = max(1, _BYTES_PER_CHUNK * (4 if pool.points.is_cuda else 1) // (8 * n))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        points = queries[rows].double() - pool.centre
        squares = points.square().sum(dim=1, keepdim=True)
        distances = torch.addmm(pool.squares, points, pool.points.T, alpha=-2)
        if same:
            distances.scatter_(1, torch.arange(start, start + len(points), device=device)[:, None], torch.inf)
        distances.add_(squares)
        neighbor_ids[rows, :found] = _closest(distances, grain(largest, squares), ties.take(rows), found)
    return neighbor_ids


def _closest(distances: Tensor, grain: Tensor, ties: TieKeys, count: int) -> Tensor:
    """The columns of the `count` smallest distances of each row, nearest first.

    Rounding differs with the shape of a chunk. Distances that only rounding tells apart are equal here, so that a
    sample's neighbours are the same in any batch. They are rounded for the likely columns; for all where those tie.

    Parameters
    ----------
    distances : float64 tensor of shape (rows, columns); it is written over
    grain : what distances are rounded to, of shape (rows, 1)
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
        best[some] = _filled_up(best[some], nearer, equal, ties.take(some))
    return best


def _filled_up(best: Tensor, nearer: Tensor, equal: Tensor, ties: TieKeys) -> Tensor:
    """The columns in `best`, of shape (rows, count), of which the last are drawn anew from all that are as near.

    Parameters
    ----------
    nearer : how many are nearer, and stay, of shape (rows, 1)
    equal : the columns of which some are drawn, of shape (rows, columns)
    """
    count = best.shape[1]
    columns = torch.where(equal, ties.of_all(), torch.inf).topk(count, dim=1, largest=False).indices
    places = torch.arange(count, device=best.device) - nearer
    return torch.where(places < 0, best, columns.gather(1, places.clamp(min=0)))


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
    """Random tie-break keys of one view.

    Attributes
    ----------
    queries : int64 tensor of shape (queries,), see `content_keys`
    rows : int64 tensor of shape (rows of the pool,), see `row_keys`
    """

    queries: Tensor
    rows: Tensor

    def take(self, some: Tensor | slice) -> TieKeys:
        """Those of some queries."""
        return TieKeys(self.queries[some], self.rows)

    def of(self, rows: Tensor) -> Tensor:
        """Keys of `rows`, of shape (queries, rows): float64 numbers from 0 to below 2; the smaller is nearer."""
        return self._draw(self.rows[rows])

    def of_all(self) -> Tensor:
        """Keys of all rows, of shape (queries, rows of the pool)."""
        return self._draw(self.rows)

    def _draw(self, rows: Tensor) -> Tensor:
        # The product wraps around: its upper bits depend on all bits of both. Positive floats are in the order of their
        # bits, and torch finds the least of floats twenty times as fast as that of integers.
        return (rows ^ self.queries[:, None]).mul_(STRIDE).bitwise_and_(2**62 - 1).view(torch.float64)


def row_keys(keys: Tensor, view: int) -> Tensor:
    """What `TieKeys` needs of the rows of a view, given their keys, see `content_keys`."""
    return _mixed(keys + view)


def _mixed(keys: Tensor) -> Tensor:
    """The finaliser of splitmix64, with signed shifts: every bit of the result depends on every bit of the key."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        keys = (keys ^ (keys >> shift)) * factor
    return keys ^ (keys >> 31)


def fingerprints(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample, from the bits of the values in float32; int64 tensor of shape (samples,)."""
    numbers = [present, *values]
    weights = _weights(tuple(part.shape[1] for part in numbers)).to(present.device)
    step = max(1, _CELLS_AT_A_TIME // len(weights))
    chunks = zip(*(torch.split(part, step) for part in numbers), strict=True)
    # Products of the bits and the weights wrap around, which is what a fingerprint wants.
    return torch.cat([(torch.cat([_bits(part) for part in chunk], dim=1) * weights).sum(dim=1) for chunk in chunks])


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


def _bits(numbers: Tensor) -> Tensor:
    if numbers.dtype == torch.bool:
        return numbers.long()
    return (numbers.float() + 0.0).view(torch.int32).long()  # + 0.0 makes the two zeros one


def roughly_nearest(queries: Tensor, pool: Tensor, count: int) -> Tensor:
    """Candidates by float32 distances, of shape (queries, count)."""
    centre = pool.mean(dim=0)
    points = pool - centre
    squares = points.square().sum(dim=1)
    step = max(1, _CELLS_PER_CHUNK_ON_GPU // len(pool))
    chunks = [
        torch.addmm(squares, chunk - centre, points.T, alpha=-2).topk(count, dim=1, largest=False, sorted=False).indices
        for chunk in torch.split(queries, step)
    ]
    return torch.cat(chunks)


class InvertedLists:
    """FAISS's inverted file: rows in lists around centres, of which the nearest are searched.

    How many lists are searched is decided on the data: so many that a sample of the rows finds its neighbours.
    """

    def __init__(self, faiss: Any, pool: Tensor, keys: Tensor) -> None:
        points = np.ascontiguousarray(pool.numpy(), dtype=np.float32)
        n, width = points.shape
        n_lists = int(4 * n**0.5)
        self._index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
        self._index.cp.seed = 0
        self._index.cp.niter = 8
        chosen = np.random.default_rng(0).permutation(n)
        self._index.train(points[np.sort(chosen[: 40 * n_lists])])
        self._index.add(points)
        self._tune(pool, keys, torch.from_numpy(np.sort(chosen[:300])))

    def _tune(self, pool: Tensor, keys: Tensor, rows: Tensor) -> None:
        count = 9
        truth = nearest(pool[rows], pool, TieKeys(keys[rows], keys), count, same=False)
        self._index.nprobe = 4
        while self._index.nprobe < self._index.nlist:
            found = self.candidates(pool[rows], count + SPARE)
            recall = (truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean()
            if recall >= _LEAST_RECALL:
                return
            self._index.nprobe = min(2 * self._index.nprobe, self._index.nlist)

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """Rows near each query, of shape (queries, count); NO_NEIGHBOR where too few were found."""
        _, rows = self._index.search(np.ascontiguousarray(queries.numpy(), dtype=np.float32), count)
        return torch.from_numpy(rows)
