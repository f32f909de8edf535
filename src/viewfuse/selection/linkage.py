"""A tree of clusters, and clusters that are found in the graph of neighbours without a network.

In the tree small clusters of the embedding are joined two at a time. Two groups are the nearer, the more neighbours
they share for their size: the edges between them over the product of the edges that each has (average linkage on the
graph of neighbours). No size is favoured, and long groups stay together. Half of the edges are neighbours in the
embedding, half neighbours in the views, which the network cannot draw apart. Where no neighbours are shared, means tell
what is near. Real sets are cut a little better than by Ward's tree (results/clusters), clusters of very unequal sizes
much better (adjusted Rand index 0.83 for 0.60).

k-means on the filled views likes round groups of even size. The graph of neighbours in the views has no such wish:
groups of any shape and size that few neighbours join fall apart there. What is found in it agrees well with the
neighbours by construction, so it must beat the network by more (`viewfuse.selection.rules`). The network is then
taught its centres.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.linalg import qr
from scipy.optimize import minimize
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree
from sklearn.decomposition import PCA
from torch import Tensor

from viewfuse.neighbors.index import NO_NEIGHBOR, Samples
from viewfuse.selection.kmeans import Tree, best_centers, filled_kmeans, in_order_met, nearest_center, squared_distances
from viewfuse.selection.scores import AGREEMENT_DEPTH

PER_GROUP, MOST_GROUPS = 8, 200
"""Samples of a small cluster on average, and how many small clusters there are at most: as of clusters themselves."""
_DIMENSIONS = 24
"""Principal components that are clustered; more do not change the neighbours."""


def principal(table: Tensor) -> Tensor:
    """The first principal components of a table, of shape (rows, components), with a mean square length of 1."""
    rows = table.double().cpu().numpy()
    if len(rows) < 2:  # a single row lies at its own mean
        return table.new_zeros(len(rows), 1, dtype=torch.float32)
    solver = "covariance_eigh" if rows.shape[0] >= rows.shape[1] else "full"
    with np.errstate(invalid="ignore"):  # rows that are all equal have no variance to explain
        found = PCA(min(_DIMENSIONS, *rows.shape), svd_solver=solver).fit_transform(rows)
    return table.new_tensor(found / max(np.sqrt(np.square(found).sum(axis=1).mean()), 1e-12), dtype=torch.float32)


def cluster_tree(points: Tensor, neighbor_ids: Tensor, seed: int) -> Tree:
    """The tree of clusters of up to a few thousand samples, embedded as points; k-means finds the small ones.

    Their neighbours are as of `viewfuse.neighbors.index.Samples`.
    """
    count = max(1, min(len(points) // PER_GROUP, MOST_GROUPS))
    centers = best_centers(points, count, np.random.RandomState(seed), 1, 15)
    groups = in_order_met(nearest_center(points, centers).cpu().numpy())
    graph = neighbor_graph(nearest(points), neighbor_ids)
    return Tree(groups, joined_groups(graph, groups, points, int(groups.max()) + 1))


def coarser(
    labels: NDArray[np.int64], embedding: NDArray[np.floating], neighbor_ids: Tensor, left: int
) -> NDArray[np.int64]:
    """Labels of `left` clusters, each of which is one or several of the given ones; the nearest join first.

    Labels and embedding are of all samples, of which 2,500 are enough to see which clusters are near.
    """
    rows = np.linspace(0, len(labels) - 1, min(len(labels), 2_500)).round().astype(np.int64)
    points, ids = torch.from_numpy(embedding[rows].astype(np.float32)), neighbor_ids[rows].cpu().numpy()
    place = np.full(len(labels) + 1, NO_NEIGHBOR)
    place[rows] = np.arange(len(rows))
    some = torch.from_numpy(place[ids])  # the last place stands for no neighbour
    merges = joined_groups(neighbor_graph(nearest(points), some), labels[rows], points, int(labels.max()) + 1)
    return Tree(labels, merges).cut(left)


def nearest(points: Tensor) -> Tensor:
    """The nearest others of each point, int64 tensor of shape (points, nine or all others)."""
    far = squared_distances(points, points).fill_diagonal_(torch.inf)
    return far.topk(min(AGREEMENT_DEPTH, len(points) - 1), dim=1, largest=False).indices


def nearest_different(points: Tensor) -> Tensor:
    """The nearest points that are no copies of a point, as of `nearest`; NO_NEIGHBOR where nothing is known.

    Copies lie in the same group, whatever it is: texts of a few words, each of which is there three times, would fall
    into as many clear clusters. Of a point that is there more than nine times no others are asked.
    """
    copies = torch.unique(points, dim=0, return_inverse=True)[1]
    far = squared_distances(points, points).masked_fill_(copies[:, None] == copies, torch.inf)
    found = far.topk(min(AGREEMENT_DEPTH, len(points) - 1), dim=1, largest=False)
    known = found.values.isfinite() & (copies.bincount()[copies] <= AGREEMENT_DEPTH)[:, None]
    return torch.where(known, found.indices, NO_NEIGHBOR)


def neighbor_graph(embedded: Tensor, neighbor_ids: Tensor) -> csr_array:
    """Who is whose neighbour, a symmetric matrix of shape (samples, samples) with a sum of 2.

    Edges of the embedding (`nearest`) sum up to 1, as do those of all views (`view_graph`).
    """
    parts = [edges(embedded.cpu().numpy()), view_graph(neighbor_ids)]
    return csr_array(sum(part / (part.sum() or 1.0) for part in parts))


def view_graph(neighbor_ids: Tensor) -> csr_array:
    """The graph that joins neighbours in any view, of shape (samples, samples), symmetric.

    An edge weighs the share of the views, among those that both samples have, in which one is a neighbour of the
    other; half of it where the other is not a neighbour in return.
    """
    ids = neighbor_ids[:, :, :AGREEMENT_DEPTH].cpu().numpy()
    has = (ids != NO_NEIGHBOR).any(axis=2)
    graph = coo_array(sum(edges(ids[:, v]) for v in range(ids.shape[1])))
    shared = np.maximum((has[graph.row] & has[graph.col]).sum(axis=1), 1)
    return coo_array((graph.data / (2 * shared), (graph.row, graph.col)), shape=graph.shape).tocsr()


def edges(ids: NDArray[np.int64]) -> csr_array:
    """How often, 0, 1 or 2 times, one of two samples is a neighbour of the other, of shape (samples, samples)."""
    there, n = ids != NO_NEIGHBOR, len(ids)
    rows = np.broadcast_to(np.arange(n)[:, None], ids.shape)[there]
    found = coo_array((np.ones(len(rows)), (rows, ids[there])), shape=(n, n)).tocsr()
    return found + found.T


def joined_groups(graph: csr_array, groups: NDArray[np.int64], points: Tensor, count: int) -> NDArray[np.int64]:
    """Which groups of samples join, nearest first, of shape (count - 1, 2), see `Tree`; an empty one is anywhere.

    The means of the points, of shape (samples, columns), tell how far groups without shared neighbours are.
    """
    tiny = 1e-6  # what distances weigh beside a shared neighbour
    member = coo_array((np.ones(len(groups)), (np.arange(len(groups)), groups)), shape=(len(groups), count)).tocsr()
    between = np.asarray((member.T @ graph @ member).todense(), dtype=np.float64)
    weights = np.maximum(between.sum(axis=1), tiny)
    where = points.double().cpu().numpy()
    means = (member.T @ (where - where.mean(axis=0))) / np.maximum(member.sum(axis=0), 1.0)[:, None]
    far = np.square(means[:, None] - means[None]).sum(axis=2)
    between += tiny * np.outer(weights, weights) / (1.0 + far / max(far.mean(), 1e-12))
    closeness = between / np.outer(weights, weights)
    np.fill_diagonal(closeness, -np.inf)
    names, merges = np.arange(count), np.zeros((count - 1, 2), dtype=np.int64)
    for step in range(count - 1):
        first, second = sorted(divmod(int(closeness.argmax()), count))
        merges[step] = names[first], names[second]
        # The first becomes both, the second is no longer near to any.
        names[first] = count + step
        between[first] += between[second]
        between[:, first] += between[:, second]
        weights[first] += weights[second]
        gone = np.isneginf(closeness).all(axis=1)
        closeness[first] = np.where(gone, -np.inf, between[first] / (weights[first] * weights))
        closeness[:, first] = closeness[first]
        closeness[second], closeness[:, second], closeness[first, first] = -np.inf, -np.inf, -np.inf
    return merges


_Table = NDArray[np.float64]
_GRAPH_ROWS = 20_000
"""More samples take the eigenvectors longer than the training of a network on a GPU."""
_TREE_ROWS = 5_000
"""More samples need all distances between them, more than 100 MB."""
_TAUGHT_ROWS = 5_000
LEAST_GROUP = 5
"""Samples of a group that may be a cluster of unequal ones."""
_LEARNED = 0.9
"""Share of the samples that must fall into their cluster: what an embedding does not hold cannot be taught."""


def candidate_partitions(
    samples: Samples, n_clusters: int, seed: int, weights: Tensor | None = None, views: Sequence[float] | None = None
) -> dict[str, NDArray[np.int64]]:
    """By name the clusters of the training samples, each of shape (samples,), that are found without a network."""
    found = {"k-means": filled_kmeans(samples, n_clusters, seed, weights, views).cpu().numpy()}
    if 1 < n_clusters < len(samples) <= _GRAPH_ROWS:
        found["graph"] = graph_clusters(view_graph(samples.neighbor_ids), n_clusters)
    return found


def tree_clusters(embedding: Tensor, neighbor_ids: Tensor, n_clusters: int, seed: int) -> NDArray[np.int64] | None:
    """The tree of an embedding, cut into clusters, of shape (samples,); None of very many samples."""
    if not 1 < n_clusters <= len(embedding) <= _TREE_ROWS:
        return None
    return cluster_tree(principal(embedding), neighbor_ids, seed % 2**32).cut(n_clusters)


def unequal_clusters(embedding: Tensor, n_clusters: int) -> NDArray[np.int64] | None:
    """Average linkage of an embedding, which asks for no even sizes, of shape (samples,); None of very many samples.

    It is cut where so many groups have `LEAST_GROUP` samples; those of smaller groups, which would be outliers, belong
    where their nearest sample in a larger one does. None as well where no cut has as many groups.
    """
    if not 1 < n_clusters <= len(embedding) <= _TREE_ROWS:
        return None
    points = principal(embedding).cpu().numpy()
    merges = linkage(points, "average")
    pairs, large = merges[:, :2].astype(np.int64), np.append(np.ones(len(points)), merges[:, 3]) >= LEAST_GROUP
    more = large[pairs].sum(axis=1) - large[len(points) :]  # large groups of which there is one more before each merge
    (cuts,) = np.nonzero(1 + np.cumsum(more[::-1]) == n_clusters)  # into two groups, three, ...
    if not len(cuts):
        return None
    labels = Tree(np.arange(len(points)), pairs).cut(int(cuts[0]) + 2)
    inside = np.flatnonzero((np.bincount(labels) >= LEAST_GROUP)[labels])
    nearest = inside[cKDTree(points[inside]).query(points)[1]]
    return in_order_met(labels[nearest])


def graph_clusters(graph: csr_array, n_clusters: int) -> NDArray[np.int64]:
    """The normalised cut of a graph into clusters, of shape (samples,).

    The leading eigenvectors of the normalised graph are rotated towards those samples that a pivoted QR finds to be the
    most different (Damle, Minden, Ying 2019): no start, no random number. Scikit-learn's `spectral_clustering` gives
    the same clusters in 10 to 25 times the time (0.97 s for 0.04 s, 2,000 samples), as it inverts the graph.
    """
    scale, n = 1.0 / np.sqrt(np.maximum(graph.sum(axis=1), 1e-12)), graph.shape[0]
    normalised = diags_array(scale) @ graph @ diags_array(scale)
    if n < 3 * n_clusters:  # few samples: Lanczos needs more rows than vectors
        leading = np.linalg.eigh(normalised.toarray())[1][:, -n_clusters:]
    else:
        start, width = np.random.default_rng(0).uniform(-1.0, 1.0, n), min(n, max(2 * n_clusters + 1, 40))
        leading = eigsh(normalised, n_clusters, which="LA", v0=start, tol=1e-4, ncv=width)[1]
    vectors = leading * scale[:, None]
    pivots = qr(vectors.T, mode="r", pivoting=True)[-1][:n_clusters]
    left, _, right = np.linalg.svd(vectors[pivots].T)
    return np.abs(vectors @ (left @ right)).argmax(axis=1).astype(np.int64)


def centers_of(embedding: Tensor, labels: NDArray[np.int64], n_clusters: int) -> Tensor | None:
    """Centres of shape (clusters, embedding) whose nearest samples are those of each cluster, as far as possible.

    The means of the clusters, moved until the nearest centre tells the clusters apart: multinomial regression on the
    squared distances. None where a cluster is empty, or too many samples stay nearest to another centre.
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
    pull = 1e-3  # of the means, without which centres of separable clusters would never stop moving

    def loss(flat: _Table) -> tuple[float, _Table]:
        """The loss and its gradient, written out: autograd takes ten times as long for so few numbers."""
        centers = flat.reshape(means.shape)
        away, scores = centers - means, -_squared(points, centers) / unit
        scores -= scores.max(axis=1, keepdims=True)
        sums = np.exp(scores).sum(axis=1, keepdims=True)
        value = (np.log(sums[:, 0]) - (scores * one_hot).sum(axis=1)).mean() + pull * np.square(away).sum() / unit
        excess = (np.exp(scores) / sums - one_hot) / len(points)
        slope = excess.T @ points - excess.sum(axis=0)[:, None] * centers + pull * away
        return float(value), 2 / unit * slope.ravel()

    found = minimize(loss, means.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60, "ftol": 1e-12})
    moved: _Table = found.x.reshape(means.shape)
    return moved


def _squared(points: _Table, centers: _Table) -> _Table:
    """Squared distances of shape (points, centers)."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centers).sum(axis=1)
    distances: _Table = np.maximum(squares - 2 * points @ centers.T, 0)
    return distances
