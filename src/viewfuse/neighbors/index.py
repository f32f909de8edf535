"""Nearest neighbours of samples in every view: exact among some rows, among likely candidates for many."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viewfuse.neighbors.search import (
    NO_NEIGHBOR,
    Points,
    TieKeys,
    content_keys,
    fingerprints,
    grain,
    nearest,
    nearest_points,
    ranked,
    row_keys,
)
from viewfuse.utils.optional import how_to_install

_CELLS_AMONG_CANDIDATES = 4_000_000
_CELLS_PER_CHUNK_ON_GPU = 200_000_000
_EXACT_ROWS = {"cpu": 30_000, "cuda": 50_000}
"""Beyond so many rows candidates are found first: on a GPU in float32, else by FAISS where it is installed."""
_ROWS_AT_A_TIME = 65_536
_CELLS_KEPT = 8_000_000
"""Cells of a pool that are kept in float64 as well, at most 64 MB: converting them takes longer than one search."""
_SPARE_CANDIDATES = 8
_LEAST_RECALL = 0.98


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
        self._lists: _InvertedLists | None = None

    @property
    def pool(self) -> Tensor:
        """The rows, of shape (rows, columns); a copy where they are not all of the view."""
        return self._view if self._rows is None else self._view[self._rows]

    def nearest(self, queries: Tensor, keys: Tensor, count: int, *, same: bool) -> Tensor:
        """As `nearest`, among the rows of the pool; for large pools nearly so (see `_LEAST_RECALL`).

        Parameters
        ----------
        keys : of the queries, see `content_keys`
        """
        kind, ties, wanted = self._view.device.type, TieKeys(keys, self._keys), count + same + _SPARE_CANDIDATES
        if len(self._keys) <= max(_EXACT_ROWS[kind], wanted) or not len(queries):
            if same or not len(queries) or not 0 < len(self._keys) * self._view.shape[1] <= _CELLS_KEPT:
                return nearest(queries, self.pool, ties, count, same=same)
            return nearest_points(queries, self._points, ties, count, same=False)
        if kind == "cuda":
            return self.among(queries, _roughly_nearest(queries, self.pool, wanted), ties, count, same=same)
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

    def _inverted_lists(self) -> _InvertedLists | None:
        """Made when they are first needed; None without FAISS."""
        if self._lists is None:
            try:
                import faiss
            except ImportError:
                hint = "%d rows are searched exactly, which takes long; FAISS is faster: %s"
                logging.getLogger(__name__).warning(hint, len(self._keys), how_to_install("faiss-cpu", "ann"))
                return None
            self._lists = _InvertedLists(faiss, self.pool, self._keys)
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own lists when they need them."""
        return {"_view": self._view, "_keys": self._keys, "_rows": self._rows, "_lists": None}


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
            found = self.candidates(pool[rows], count + _SPARE_CANDIDATES)
            recall = (truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean()
            if recall >= _LEAST_RECALL:
                return
            self._index.nprobe = min(2 * self._index.nprobe, self._index.nlist)

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """Rows near each query, of shape (queries, count); NO_NEIGHBOR where too few were found."""
        _, rows = self._index.search(np.ascontiguousarray(queries.numpy(), dtype=np.float32), count)
        return torch.from_numpy(rows)


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
