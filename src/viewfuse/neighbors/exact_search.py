"""Exact nearest neighbours, by squared Euclidean distance.

Distances of all pairs are products of matrices. In float32 they only name candidates; float64 ranks these. A bound on
rounding says for which rows the neighbours must be among them. For all other rows every distance is in float64.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from viewfuse.neighbors.lots import Lots

NO_NEIGHBOR = -1
"""Stands in a neighbour or donor list where there is no sample."""

_BYTES_PER_CHUNK = 8_000_000
"""Of distances held at a time: few enough for the cache of a CPU; a GPU holds four times as many."""
_BLOCK = 8
"""Columns of distances that are compared at once; every so many-th column is in the same block."""
_SPARE_CANDIDATES = 4
_CELLS_FOR_CANDIDATES = 1_000_000
"""From so many distances on, on a CPU, float32 names candidates."""
_ROWS_FOR_CANDIDATES, _ROWS_PER_GATHERED = 1_000, 0.6
"""Of the pool, at least, and per cell that is gathered for a query: else that takes longer than it saves."""
_USUAL_SQUARES = (1e-20, 1e30)
"""Squares of rows for which float32 neither overflows nor underflows."""

_GRAIN = 1e-11
"""Differences of squared distances below this share of the largest square are rounding."""
_TINY = 1e-300
_ROUNDING = 2.0**-24
"""Of a number in float32, relative."""


def nearest(queries: Tensor, pool: Tensor, lots: Lots, count: int, *, same: bool) -> Tensor:
    """Rows of `pool` closest to each query, in Euclidean distance, exactly; of equally far ones by lot.

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
    return nearest_points(queries, Points.of(pool), lots, count, same=same)


class Points(NamedTuple):
    """A pool that queries can be compared with.

    Attributes
    ----------
    n_rows : of the pool
    centre : of the pool, of shape (columns,)
    points : float64, less their centre, of shape (rows, columns); zeros fill the last block
    squares : of every point, of shape (rows,); infinite where a point only fills the last block: it is near to nobody
    largest : square of a row of the pool
    """

    n_rows: int
    centre: Tensor
    points: Tensor
    squares: Tensor
    largest: Tensor

    @classmethod
    def of(cls, pool: Tensor) -> Points:
        """The rows of `pool`, of shape (rows, columns)."""
        # Centred float64 keeps |a|^2 + |b|^2 - 2ab exact enough where a column has a large offset.
        exact = pool.double()
        centre = exact.mean(dim=0)
        points = functional.pad(exact - centre, (0, 0, 0, -len(pool) % _BLOCK))
        squares = points.square().sum(dim=1)
        largest = squares.max()
        squares[len(pool) :] = torch.inf
        return cls(len(pool), centre, points, squares, largest)


class _Queries(NamedTuple):
    """Some queries, less the centre of the pool.

    Attributes
    ----------
    points : float64, of shape (queries, columns)
    squares : of every point, of shape (queries, 1)
    lots : of these queries and all points of the pool
    own : the row of the pool that each is, of shape (queries,); None if they are not of the pool
    """

    points: Tensor
    squares: Tensor
    lots: Lots
    own: Tensor | None

    def take(self, some: Tensor | slice) -> _Queries:
        own = None if self.own is None else self.own[some]
        return _Queries(self.points[some], self.squares[some], self.lots.take(some), own)

    def distances(self, points: Tensor, squares: Tensor) -> Tensor:
        """Squared distances to `points`, less the own squares, of shape (queries, rows); infinite to itself."""
        found = torch.addmm(squares, self.points.to(points.dtype), points.T, alpha=-2)
        if self.own is not None:
            found.scatter_(1, self.own[:, None], torch.inf)
        return found


def nearest_points(queries: Tensor, pool: Points, lots: Lots, count: int, *, same: bool) -> Tensor:
    """As `nearest`, for a pool that is kept."""
    found, device = min(count, pool.n_rows - same), pool.points.device
    neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=device)
    lots = lots.padded(len(pool.points))
    rough = _in_float32(pool) if _candidates_pay(len(queries), pool, found) else None
    wanted = _BYTES_PER_CHUNK * (4 if pool.points.is_cuda else 1)
    step = max(1, wanted // pool.n_rows // (8 if rough is None else 4))
    for start in range(0, len(queries), step):
        points = queries[start : start + step].double() - pool.centre
        own = torch.arange(start, start + len(points), device=device) if same else None
        some = lots.take(slice(start, start + step))
        chunk = _Queries(points, points.square().sum(dim=1, keepdim=True), some, own)
        best = _among_all(chunk, pool, found) if rough is None else _among_candidates(chunk, pool, rough, found)
        neighbor_ids[start : start + step, :found] = best
    return neighbor_ids


def _candidates_pay(n_queries: int, pool: Points, count: int) -> bool:
    (rows, columns), wanted = pool.points.shape, count + _SPARE_CANDIDATES
    least = max(_ROWS_FOR_CANDIDATES + _ROWS_PER_GATHERED * wanted * columns, _CELLS_FOR_CANDIDATES / n_queries)
    if pool.points.is_cuda or rows < least or rows <= 2 * _BLOCK * wanted or not _products_are_float32():
        return False
    return bool(_USUAL_SQUARES[0] < pool.largest < _USUAL_SQUARES[1])


def _products_are_float32() -> bool:
    """Whether products of float32 on a CPU are rounded to float32, not to fewer digits as users may allow."""
    backends: Any = torch.backends
    asked = (backends.fp32_precision, backends.mkldnn.fp32_precision, backends.mkldnn.matmul.fp32_precision)
    modes = [os.environ.get(f"{name}_DEFAULT_FPMATH_MODE", "STRICT") for name in ("ONEDNN", "DNNL")]
    return set(asked) <= {"none", "ieee"} and set(modes) == {"STRICT"}


def _in_float32(pool: Points) -> tuple[Tensor, Tensor]:
    """Points and their squares."""
    return pool.points.float(), pool.squares.float()


def _among_all(queries: _Queries, pool: Points, count: int) -> Tensor:
    """The nearest rows of each query, of shape (queries, count), by float64 distances to all."""
    distances = queries.distances(pool.points, pool.squares).add_(queries.squares)
    return _closest(distances, grain(pool.largest, queries.squares), queries.lots, count)


def _among_candidates(queries: _Queries, pool: Points, rough: tuple[Tensor, Tensor], count: int) -> Tensor:
    """As `_among_all`, by float64 distances to candidates where these must hold the nearest rows."""
    roughly, columns = _smallest(queries.distances(*rough), count + _SPARE_CANDIDATES)
    gathered = torch.unflatten(pool.points.index_select(0, columns.flatten()), 0, columns.shape)
    squares = gathered.sub_(queries.points[:, None]).square_().sum(dim=2)
    unit = grain(pool.largest, queries.squares)
    ranks, columns = ranked((squares / unit).round_(), columns, queries.lots)
    farthest = (ranks[:, count - 1 : count] + 3) * unit
    # No other row is nearer than the last candidate, but for rounding.
    certain = farthest < roughly.amax(dim=1, keepdim=True) + queries.squares - _rounding(queries, pool)
    certain &= queries.squares < _USUAL_SQUARES[1]
    found, open_ = columns[:, :count], ~certain.squeeze(1)
    if open_.any():
        some = slice(None) if open_.all() else open_
        found[some] = _among_all(queries.take(some), pool, count)
    return found


def _rounding(queries: _Queries, pool: Points) -> Tensor:
    """How far a distance in float32 can be from the true one, of shape (queries, 1), in whatever order it is summed."""
    longest = (queries.squares * pool.largest).sqrt_()
    columns = pool.points.shape[1]
    return _ROUNDING * ((2 * columns + 8) * longest + (columns + 4) * pool.largest)


def _closest(distances: Tensor, grain: Tensor, lots: Lots, count: int) -> Tensor:
    """The columns of the `count` smallest distances of each row, nearest first.

    Rounding differs with the shape of a chunk. Distances that only rounding tells apart are equal here, so that a
    sample's neighbours are the same in any batch. They are rounded for the likely columns; for all where those tie.

    Parameters
    ----------
    distances : float64 tensor of shape (rows, columns), the latter a multiple of `_BLOCK`; it is written over
    grain : what distances are rounded to, of shape (rows, 1)
    """
    smallest, columns = _smallest(distances, min(count + _SPARE_CANDIDATES, distances.shape[1]))
    ranks, columns = ranked((smallest / grain).round_(), columns, lots)
    best, last = columns[:, :count], ranks[:, count - 1 : count]
    tied = ranks[:, -1] <= last.squeeze(1)
    if tied.any():
        some = slice(None) if tied.all() else tied  # a slice is no copy
        equal = distances[some].div_(grain[some]).round_() == last[some]
        nearer = (ranks[some] < last[some]).sum(dim=1, keepdim=True)
        best[some] = _filled_up(best[some], nearer, equal, lots.take(some))
    return best


def _filled_up(best: Tensor, nearer: Tensor, equal: Tensor, lots: Lots) -> Tensor:
    """The columns in `best`, of shape (rows, count), of which the last are drawn anew from all that are as near.

    Parameters
    ----------
    nearer : how many are nearer, and stay, of shape (rows, 1)
    equal : the columns of which some are drawn, of shape (rows, columns)
    """
    count = best.shape[1]
    drawn, columns = _smallest(torch.where(equal, lots.of_all(), torch.inf), count)
    columns = columns.gather(1, drawn.argsort(dim=1))
    places = torch.arange(count, device=best.device) - nearer
    return torch.where(places < 0, best, columns.gather(1, places.clamp(min=0)))


def ranked(ranks: Tensor, columns: Tensor, lots: Lots) -> tuple[Tensor, Tensor]:
    """Ranks in ascending order and their columns, of shape (rows, columns); lots decide between equal ranks."""
    ranks, places = ranks.sort(dim=1)
    columns = columns.gather(1, places)
    tied = (ranks[:, 1:] == ranks[:, :-1]).any(dim=1)
    if tied.any():
        some, equal = columns[tied], ranks[tied]
        by_lot = lots.take(tied).of(some).argsort(dim=1)
        places = by_lot.gather(1, equal.gather(1, by_lot).argsort(dim=1, stable=True))
        columns[tied] = some.gather(1, places)
    return ranks, columns


def _smallest(distances: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest distances of each row with their columns, in any order.

    They lie in the `count` blocks of columns with the smallest minima, which are found in one pass over the memory.
    """
    n_blocks = distances.shape[1] // _BLOCK
    if n_blocks <= 2 * count:
        smallest, columns = distances.topk(count, dim=1, largest=False, sorted=False)
        return smallest, columns
    minima = distances.view(len(distances), _BLOCK, n_blocks).amin(dim=1)
    blocks = minima.topk(count, dim=1, largest=False, sorted=False).indices
    firsts = n_blocks * torch.arange(_BLOCK, device=distances.device)
    columns = (blocks[:, None, :] + firsts[None, :, None]).flatten(1)
    smallest, places = distances.gather(1, columns).topk(count, dim=1, largest=False, sorted=False)
    return smallest, columns.gather(1, places)


def grain(largest: Tensor | float, squares: Tensor) -> Tensor:
    """What squared distances are rounded to, given the largest square of the pool and the squares of queries."""
    return _GRAIN * (largest + squares) + _TINY
