"""Partitions that are found without a network, beside which its own are judged.

k-means on the filled views likes round groups of even size. The neighbour graph has no such wish: groups of any shape
and size that few neighbours join fall apart there. What is found in the graph agrees well with the neighbours by
construction, so it must beat the network by more (`viewfuse.selection.rules`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.kmeans import filled_kmeans
from viewfuse.selection.scores import AGREEMENT_DEPTH

_Table = NDArray[np.float64]
_GRAPH_ROWS = 20_000
"""More samples take the eigenvectors longer than the training of a network on a GPU."""
_PRECISION = 1e-4


def candidate_partitions(samples: Samples, n_clusters: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """By name the clusters of the training samples, each of shape (samples,), that are found without a network."""
    found = {"k-means": filled_kmeans(samples, n_clusters, seed).cpu().numpy()}
    if 1 < n_clusters < len(samples) <= _GRAPH_ROWS:
        found["graph"] = graph_clusters(neighbor_graph(samples.neighbor_ids), n_clusters)
    return found


def neighbor_graph(neighbor_ids: Tensor) -> csr_array:
    """The graph that joins neighbours in any view, of shape (samples, samples), symmetric.

    An edge weighs the share of the views, among those that both samples have, in which one is a neighbour of the
    other; half of it where the other is not a neighbour in return.

    Parameters
    ----------
    neighbor_ids : int64 tensor of shape (samples, views, neighbours): nearest first, NO_NEIGHBOR where there is none
    """
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH].cpu().numpy()
    there = nearest != NO_NEIGHBOR
    n, has = len(nearest), there.any(axis=2)
    rows, views, places = np.nonzero(there)
    joined = coo_array((np.full(len(rows), 0.5), (rows, nearest[rows, views, places])), shape=(n, n)).tocsr()
    graph = (joined + joined.T).tocoo()
    shared = (has[graph.row] & has[graph.col]).sum(axis=1)
    return coo_array((graph.data / np.maximum(shared, 1), (graph.row, graph.col)), shape=(n, n)).tocsr()


def graph_clusters(graph: csr_array, n_clusters: int) -> NDArray[np.int64]:
    """The normalised cut of a graph into clusters, of shape (samples,).

    The leading eigenvectors of the normalised graph are rotated towards those samples that a pivoted QR finds to be the
    most different (Damle, Minden, Ying 2019): no start, no random number. Scikit-learn's `spectral_clustering` gives
    the same clusters in 10 to 25 times the time (0.97 s for 0.04 s, 2,000 samples), as it inverts the graph.
    """
    scale = 1.0 / np.sqrt(np.maximum(graph.sum(axis=1), 1e-12))
    normalised = diags_array(scale) @ graph @ diags_array(scale)
    vectors = _leading_vectors(normalised, n_clusters) * scale[:, None]
    pivots = qr(vectors.T, mode="r", pivoting=True)[-1][:n_clusters]
    left, _, right = np.linalg.svd(vectors[pivots].T)
    return np.abs(vectors @ (left @ right)).argmax(axis=1).astype(np.int64)


def _leading_vectors(matrix: Any, count: int) -> _Table:
    n = matrix.shape[0]
    if count >= n - 1 or n < 3 * count:  # few samples: Lanczos needs more rows than vectors
        dense: _Table = np.linalg.eigh(matrix.toarray())[1][:, -count:]
        return dense
    start = np.random.default_rng(0).uniform(-1.0, 1.0, n)
    width = min(n, max(2 * count + 1, 40))
    vectors: _Table = eigsh(matrix, count, which="LA", v0=start, tol=_PRECISION, ncv=width)[1]
    return vectors
