"""Partitions that are found without a network, beside which its own are judged.

k-means on the filled views likes round groups of even size. The neighbour graph has no such wish: groups of any shape
and size that few neighbours join fall apart there. What is found in the graph agrees well with the neighbours by
construction, so it must beat the network by more (`viewfuse.selection.rules`). The network is then taught its centres.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.optimize import minimize
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.kmeans import filled_kmeans
from viewfuse.selection.scores import AGREEMENT_DEPTH
from viewfuse.selection.tree import cluster_tree, principal

_Table = NDArray[np.float64]
_GRAPH_ROWS = 20_000
"""More samples take the eigenvectors longer than the training of a network on a GPU."""
_TREE_ROWS = 5_000
"""More samples need all distances between them, more than 100 MB."""
_PRECISION = 1e-4
_TAUGHT_ROWS = 5_000
_ROUNDS = 60
_GAIN = 1e-12
"""Relative gain below which no further round is made."""
_PULL = 1e-3
"""Of the means, without which centres of separable clusters would never stop moving."""
_LEARNED = 0.9
"""Share of the samples that must fall into their cluster: what an embedding does not hold cannot be taught."""


def candidate_partitions(
    samples: Samples, n_clusters: int, seed: int, weights: Tensor | None = None, views: Sequence[float] | None = None
) -> dict[str, NDArray[np.int64]]:
    """By name the clusters of the training samples, each of shape (samples,), that are found without a network."""
    found = {"k-means": filled_kmeans(samples, n_clusters, seed, weights, views).cpu().numpy()}
    if 1 < n_clusters < len(samples) <= _GRAPH_ROWS:
        found["graph"] = graph_clusters(neighbor_graph(samples.neighbor_ids), n_clusters)
    return found


def tree_clusters(embedding: Tensor, neighbor_ids: Tensor, n_clusters: int, seed: int) -> NDArray[np.int64] | None:
    """The tree of an embedding, cut into clusters, of shape (samples,); None of very many samples."""
    if not 1 < n_clusters <= len(embedding) <= _TREE_ROWS:
        return None
    return cluster_tree(principal(embedding), neighbor_ids, seed % 2**32).cut(n_clusters)


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


def centers_of(embedding: Tensor, labels: NDArray[np.int64], n_clusters: int) -> Tensor | None:
    """Centres of shape (clusters, embedding) whose nearest samples are those of each cluster, as far as possible.

    The means of the clusters, moved until the nearest centre tells the clusters apart: multinomial regression on the
    squared distances. None where a cluster is empty, or too many samples stay nearest to another centre.

    Parameters
    ----------
    embedding : tensor of shape (samples, embedding)
    labels : of shape (samples,)
    """
    if len(np.unique(labels)) < n_clusters:
        return None
    own = embedding.detach().cpu().double().numpy()
    means = np.stack([own[labels == c].mean(axis=0) for c in range(n_clusters)])
    rows = np.linspace(0, len(own) - 1, min(_TAUGHT_ROWS, len(own))).astype(np.int64)
    points, wanted = own[rows], labels[rows]
    centers = _fitted(points, wanted, means)
    learned = _squared(points, centers).argmin(axis=1) == wanted
    return embedding.new_tensor(centers) if learned.mean() >= _LEARNED else None


def _fitted(points: _Table, wanted: NDArray[np.int64], means: _Table) -> _Table:
    """The centres of least cross-entropy, from the means on."""
    nearest = np.sort(_squared(points, means), axis=1)[:, :2]
    unit = max(float((nearest[:, -1] - nearest[:, 0]).mean()), 1e-12)  # distances differ by about one of these
    one_hot = np.eye(len(means))[wanted]

    def loss(flat: _Table) -> tuple[float, _Table]:
        """The loss and its gradient, written out: autograd takes ten times as long for so few numbers."""
        centers = flat.reshape(means.shape)
        away, scores = centers - means, -_squared(points, centers) / unit
        scores -= scores.max(axis=1, keepdims=True)
        sums = np.exp(scores).sum(axis=1, keepdims=True)
        value = (np.log(sums[:, 0]) - (scores * one_hot).sum(axis=1)).mean() + _PULL * np.square(away).sum() / unit
        excess = (np.exp(scores) / sums - one_hot) / len(points)
        slope = excess.T @ points - excess.sum(axis=0)[:, None] * centers + _PULL * away
        return float(value), 2 / unit * slope.ravel()

    found = minimize(loss, means.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ROUNDS, "ftol": _GAIN})
    moved: _Table = found.x.reshape(means.shape)
    return moved


def _squared(points: _Table, centers: _Table) -> _Table:
    """Squared distances of shape (points, centers)."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centers).sum(axis=1)
    distances: _Table = np.maximum(squares - 2 * points @ centers.T, 0)
    return distances
