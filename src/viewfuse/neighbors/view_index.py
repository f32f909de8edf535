"""Nearest neighbours of one view: exact for some rows, exact among likely candidates for many."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from viewfuse.utils.optional import how_to_install

NO_NEIGHBOR = -1
"""Stands in a neighbour or donor list where there is no sample."""

_CELLS_PER_CHUNK = 1_000_000
"""Distances held at a time: few enough for the cache of a CPU; a GPU holds four times as many."""
_CELLS_AMONG_CANDIDATES = 4_000_000
_CELLS_PER_CHUNK_ON_GPU = 200_000_000
_EXACT_ROWS = {"cpu": 30_000, "cuda": 50_000}
"""Beyond so many rows candidates are found first: on a GPU in float32, else by FAISS where it is installed."""
_ROWS_AT_A_TIME = 65_536
_CELLS_KEPT = 8_000_000
"""Cells of a pool that are kept in float64 as well, at most 64 MB: converting them takes longer than one search."""
_SPARE_CANDIDATES = 8
_BLOCK = 8
"""Columns of distances that are compared at once; every so many-th column is in the same block."""
_CELLS_TO_RANK = 4_096
"""So many distances are ranked as they are: finding the likely ones first would take longer."""
_LEAST_RECALL = 0.98

_GRAIN = 1e-11
"""Differences of squared distances below this share of the largest square are rounding."""
_TINY = 1e-300


def nearest(queries: Tensor, pool: Tensor, count: int, *, same: bool) -> Tensor:
    """Rows of `pool` closest to each query, in Euclidean distance, exactly.

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
    return _nearest_points(queries, _Points.of(pool), count, same=same)


class _Points(NamedTuple):
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
    def of(cls, pool: Tensor) -> _Points:
        # Centred float64 keeps |a|^2 + |b|^2 - 2ab exact enough where a column has a large offset.
        exact = pool.double()
        centre = exact.mean(dim=0)
        points = functional.pad(exact - centre, (0, 0, 0, -len(pool) % _BLOCK))
        squares = points.square().sum(dim=1)
        largest = squares.max()
        squares[len(pool) :] = torch.inf
        return cls(len(pool), centre, points, squares, largest)


def _nearest_points(queries: Tensor, pool: _Points, count: int, *, same: bool) -> Tensor:
    """As `nearest`."""
    found, device = min(count, pool.n_rows - same), pool.points.device
    neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=device)
    step = max(1, _CELLS_PER_CHUNK * (4 if pool.points.is_cuda else 1) // pool.n_rows)
    for start in range(0, len(queries), step):
        chunk = queries[start : start + step].double() - pool.centre
        own_squares = chunk.square().sum(dim=1, keepdim=True)
        distances = torch.addmm(pool.squares, chunk, pool.points.T, alpha=-2).add_(own_squares)
        if same:
            own = torch.arange(len(chunk), device=device)
            distances[own, start + own] = torch.inf
        grain = _GRAIN * (pool.largest + own_squares) + _TINY
        neighbor_ids[start : start + step, :found] = _closest(distances, grain, found)
    return neighbor_ids


def _closest(distances: Tensor, grain: Tensor, count: int) -> Tensor:
    """The columns of the `count` smallest distances of each row, nearest first.

    Rounding differs with the shape of a chunk. Distances that only rounding tells apart are equal here, so that a
    sample's neighbours are the same in any batch. They are rounded for the likely columns; for all where those tie.

    Parameters
    ----------
    distances : float64 tensor of shape (rows, columns), the latter a multiple of `_BLOCK`
    grain : what distances are rounded to, of shape (rows, 1)
    """
    if distances.numel() <= _CELLS_TO_RANK:
        return _first_ranked(distances, grain, count)
    columns = _smallest(distances, min(count + _SPARE_CANDIDATES, distances.shape[1]))
    ranks = (distances.gather(1, columns) / grain).round_()
    order = ranks.sort(dim=1).values
    best = columns.gather(1, (ranks + _tie_breakers(columns)).topk(count, dim=1, largest=False).indices)
    tied = order[:, -1] <= order[:, count - 1]
    if tied.any():
        best[tied] = _first_ranked(distances[tied], grain[tied], count)
    return best


def _first_ranked(distances: Tensor, grain: Tensor, count: int) -> Tensor:
    """As `_closest`, with all distances rounded."""
    lots = _tie_breakers(torch.arange(distances.shape[1], device=distances.device))
    return (distances / grain).round_().add_(lots).topk(count, dim=1, largest=False).indices


def _smallest(distances: Tensor, count: int) -> Tensor:
    """The columns of the `count` smallest distances of each row, in any order.

    They lie in the `count` blocks of columns with the smallest minima, which are found in one pass over the memory.
    """
    n_blocks = distances.shape[1] // _BLOCK
    if n_blocks <= 2 * count:
        return distances.topk(count, dim=1, largest=False, sorted=False).indices
    minima = distances.view(len(distances), _BLOCK, n_blocks).amin(dim=1)
    blocks = minima.topk(count, dim=1, largest=False, sorted=False).indices
    firsts = n_blocks * torch.arange(_BLOCK, device=distances.device)
    columns = (blocks[:, None, :] + firsts[None, :, None]).flatten(1)
    best = distances.gather(1, columns).topk(count, dim=1, largest=False, sorted=False).indices
    return columns.gather(1, best)


def _tie_breakers(rows: Tensor) -> Tensor:
    """Numbers in 0..1 that decide between equal distances: fixed, and blind to the order of the rows in a file."""
    return (rows * 2_654_435_761 % 2**32).double() / 2**32


class ViewIndex:
    """Finds rows of a pool.

    Parameters
    ----------
    pool : tensor of shape (rows, columns)
    """

    def __init__(self, pool: Tensor) -> None:
        self.pool = pool
        self._lists: _InvertedLists | None = None

    def nearest(self, queries: Tensor, count: int, *, same: bool) -> Tensor:
        """As `nearest`, among the rows of the pool; for large pools nearly so (see `_LEAST_RECALL`)."""
        kind = self.pool.device.type
        wanted = count + same + _SPARE_CANDIDATES
        if len(self.pool) <= max(_EXACT_ROWS[kind], wanted) or not len(queries):
            if same or not len(queries) or not 0 < self.pool.numel() <= _CELLS_KEPT:
                return nearest(queries, self.pool, count, same=same)
            return _nearest_points(queries, self._points, count, same=False)
        if kind == "cuda":
            return self.among(queries, _roughly_nearest(queries, self.pool, wanted), count, same=same)
        lists = self._inverted_lists()
        if lists is None:
            return nearest(queries, self.pool, count, same=same)
        return self.among(queries, lists.candidates(queries, wanted), count, same=same)

    @cached_property
    def _points(self) -> _Points:
        """Kept for new samples, which often come one by one: the rest of a search takes a fifth of the time."""
        return _Points.of(self.pool)

    @cached_property
    def _largest(self) -> float:
        """The largest square of a row, found once: for a single query it would take longer than the search."""
        return max(float(part.square().sum(dim=1).max()) for part in torch.split(self.pool, _ROWS_AT_A_TIME))

    def among(self, queries: Tensor, candidates: Tensor, count: int, *, same: bool) -> Tensor:
        """As `nearest`, but among `candidates`: rows of shape (queries, candidates), NO_NEIGHBOR if there is none."""
        pool = self.pool
        neighbor_ids = torch.full((len(queries), count), NO_NEIGHBOR, dtype=torch.int64, device=pool.device)
        step = max(1, _CELLS_AMONG_CANDIDATES // (candidates.shape[1] * pool.shape[1]))
        for start in range(0, len(queries), step):
            rows = candidates[start : start + step]
            chunk = queries[start : start + step].double()[:, None]
            squares = (pool[rows.clamp(min=0)].double() - chunk).square().sum(dim=2)
            grain = _GRAIN * (self._largest + chunk.square().sum(dim=2)) + _TINY
            order = squares.div_(grain).round_().add_(_tie_breakers(rows)).masked_fill_(rows == NO_NEIGHBOR, torch.inf)
            if same:
                order[rows == torch.arange(start, start + len(rows), device=pool.device)[:, None]] = torch.inf
            best = order.topk(min(count, rows.shape[1]), dim=1, largest=False)
            found = rows.gather(1, best.indices).masked_fill_(best.values.isinf(), NO_NEIGHBOR)
            neighbor_ids[start : start + step, : found.shape[1]] = found
        return neighbor_ids

    def _inverted_lists(self) -> _InvertedLists | None:
        """Made when they are first needed; None without FAISS."""
        if self._lists is None:
            try:
                import faiss
            except ImportError:
                hint = "%d rows are searched exactly, which takes long; FAISS is faster: %s"
                logging.getLogger(__name__).warning(hint, len(self.pool), how_to_install("faiss-cpu", "ann"))
                return None
            self._lists = _InvertedLists(faiss, self.pool)
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own lists when they need them."""
        return {"pool": self.pool, "_lists": None}


def _roughly_nearest(queries: Tensor, pool: Tensor, count: int) -> Tensor:
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


class _InvertedLists:
    """FAISS's inverted file: rows in lists around centres, of which the nearest are searched.

    How many lists are searched is decided on the data: so many that a sample of the rows finds its neighbours.
    """

    def __init__(self, faiss: Any, pool: Tensor) -> None:
        points = np.ascontiguousarray(pool.numpy(), dtype=np.float32)
        n, width = points.shape
        n_lists = int(4 * n**0.5)
        self._index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
        self._index.cp.seed = 0
        self._index.cp.niter = 8
        chosen = np.random.default_rng(0).permutation(n)
        self._index.train(points[np.sort(chosen[: 40 * n_lists])])
        self._index.add(points)
        self._tune(pool, torch.from_numpy(np.sort(chosen[:300])))

    def _tune(self, pool: Tensor, rows: Tensor) -> None:
        count = 9
        truth = nearest(pool[rows], pool, count, same=False)
        self._index.nprobe = 4
        while self._index.nprobe < self._index.nlist:
            found = self.candidates(pool[rows], count + _SPARE_CANDIDATES)
            recall = (truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean()
            if recall >= _LEAST_RECALL:
                return
            self._index.nprobe = min(2 * self._index.nprobe, self._index.nlist)

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """Rows near each query, of shape (queries, count); NO_NEIGHBOR where too few were found."""
        _, rows = self._index.search(np.ascontiguousarray(queries.numpy(), dtype=np.float32), count)
        return torch.from_numpy(rows)
