"""Candidates among many rows: by float32 distances on a GPU, else by FAISS where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable

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


def inverted_lists(pool: Tensor, nearest: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor] | None:
    """Find rows of a pool near queries by FAISS's inverted file: in the lists around the nearest centres.

    What is returned takes queries and a count, and gives rows of shape (queries, count), NO_NEIGHBOR where too few were
    found. How many lists are searched is decided on the data: so many that a sample of the rows finds its neighbours,
    which `nearest` finds exactly. None without FAISS.
    """
    try:
        import faiss
    except ImportError:
        hint = "%d rows are searched exactly, which takes long; FAISS is faster: %s"
        logging.getLogger(__name__).warning(hint, len(pool), how_to_install("faiss-cpu", "ann"))
        return None
    points = np.ascontiguousarray(pool.numpy(), dtype=np.float32)
    n, width = points.shape
    n_lists = int(4 * n**0.5)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
    index.cp.seed, index.cp.niter = 0, 8
    chosen = np.random.default_rng(0).permutation(n)
    index.train(points[np.sort(chosen[: 40 * n_lists])])
    index.add(points)

    def candidates(queries: Tensor, count: int) -> Tensor:
        _, rows = index.search(np.ascontiguousarray(queries.numpy(), dtype=np.float32), count)
        return torch.from_numpy(rows)

    rows = torch.from_numpy(np.sort(chosen[:300]))
    truth = nearest(rows)
    index.nprobe = 4
    while index.nprobe < n_lists:
        found = candidates(pool[rows], truth.shape[1] + SPARE)
        if (truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean() >= _LEAST_RECALL:
            break
        index.nprobe = min(2 * index.nprobe, n_lists)
    return candidates
