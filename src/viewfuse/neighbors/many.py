"""Candidates among many rows: by float32 distances on a GPU, else by FAISS where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viewfuse.utils.console import how_to_install

SPARE = 8
"""Candidates beyond those asked for, since float32 may order near ones otherwise."""
_CELLS_PER_CHUNK_ON_GPU = 200_000_000
_LEAST_RECALL = 0.98


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


def inverted_lists(pool: Tensor, nearest: Callable[[Tensor], Tensor]) -> InvertedLists | None:
    """The lists of the rows of a pool, tuned by `nearest`, which finds neighbours of some rows; None without FAISS."""
    try:
        import faiss
    except ImportError:
        hint = "%d rows are searched exactly, which takes long; FAISS is faster: %s"
        logging.getLogger(__name__).warning(hint, len(pool), how_to_install("faiss-cpu", "ann"))
        return None
    return InvertedLists(faiss, pool, nearest)


class InvertedLists:
    """FAISS's inverted file: rows in lists around centres, of which the nearest are searched.

    How many lists are searched is decided on the data: so many that a sample of the rows finds its neighbours.
    """

    def __init__(self, faiss: Any, pool: Tensor, nearest: Callable[[Tensor], Tensor]) -> None:
        points = np.ascontiguousarray(pool.numpy(), dtype=np.float32)
        n, width = points.shape
        n_lists = int(4 * n**0.5)
        self._index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
        self._index.cp.seed = 0
        self._index.cp.niter = 8
        chosen = np.random.default_rng(0).permutation(n)
        self._index.train(points[np.sort(chosen[: 40 * n_lists])])
        self._index.add(points)
        rows = torch.from_numpy(np.sort(chosen[:300]))
        truth = nearest(rows)
        self._index.nprobe = 4
        while self._index.nprobe < self._index.nlist:
            found = self.candidates(pool[rows], truth.shape[1] + SPARE)
            recall = (truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean()
            if recall >= _LEAST_RECALL:
                return
            self._index.nprobe = min(2 * self._index.nprobe, self._index.nlist)

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """Rows near each query, of shape (queries, count); NO_NEIGHBOR where too few were found."""
        _, rows = self._index.search(np.ascontiguousarray(queries.numpy(), dtype=np.float32), count)
        return torch.from_numpy(rows)
