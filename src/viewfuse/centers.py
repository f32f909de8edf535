"""Where the cluster centres begin: k-means on the embedding, from Ward's clusters or from a better start."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional

_WARD_ROWS = 2_500
"""Ward's method takes rows x rows of memory and time; larger sets are represented by micro-clusters."""
_GROUPS = 2_000
_ROWS_AT_A_TIME = 65_536
_ROUNDS = 20


def initial_centers(embedding: Tensor, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Centres of shape (clusters, embedding): k-means from Ward's clusters, or from a better start.

    The paper takes Ward's clusters. Now and then these are far off (2 of 10 Handwritten runs); the smallest sum of
    squares, over Ward's start and ten k-means++ ones, shows it without labels. Many samples are represented by the
    means of small groups, which count as much as they have members; a few rounds with all samples follow.
    """
    state = np.random.RandomState(np.random.SeedSequence([seed, 0, 1]).generate_state(1)[0])
    means, sizes = embedding, torch.ones(len(embedding))
    if len(embedding) > _WARD_ROWS:
        means, sizes = micro_clusters(embedding, max(_GROUPS, 5 * n_clusters), state)
        # Samples of fewer kinds than clusters: some stand there twice, and leave clusters empty, as in small sets.
        places = torch.arange(max(len(means), n_clusters), device=means.device) % len(means)
        means, sizes = means[places], sizes[places]
    points, weights = means.cpu().numpy(), sizes.cpu().numpy()
    if n_clusters == 1:
        return np.average(points, axis=0, weights=weights)[None].astype(np.float32)
    start = ward_centers(points, n_clusters)
    # K-means adds up in the order in which threads arrive: one thread gives the same sums every time. OpenMP counts
    # for each calling thread alone, so this must be said here, and after torch, which sets the number anew.
    with threadpool_limits(1, user_api="openmp"):
        from_ward = KMeans(n_clusters, init=start, n_init=1).fit(points, None, weights)
        from_draws = KMeans(n_clusters, n_init=10, random_state=state).fit(points, None, weights)
    best = min(from_ward, from_draws, key=lambda run: run.inertia_).cluster_centers_
    if len(embedding) > _WARD_ROWS:
        best = refined(embedding, torch.from_numpy(best).to(embedding)).cpu().numpy()
    return in_order(best, points)


def in_order(centers: NDArray[np.float32], points: NDArray[np.float32]) -> NDArray[np.float32]:
    """The centres in the order in which the points meet them.

    Several starts often end in the same clusters, and rounding decides which of them is the best. The numbers of the
    clusters must not hang on that.
    """
    nearest = (points @ centers.T - np.square(centers).sum(axis=1) / 2).argmax(axis=1)
    first = np.full(len(centers), len(points))
    np.minimum.at(first, nearest, np.arange(len(points)))
    return centers[np.argsort(first, kind="stable")]


def refined(embedding: Tensor, centers: Tensor) -> Tensor:
    """Centres of shape (clusters, embedding) after some more rounds of k-means, with all samples."""
    for _ in range(_ROUNDS):
        sums, sizes = torch.zeros_like(centers), torch.zeros_like(centers[:, :1])
        half_squares = centers.square().sum(dim=1) / 2
        for chunk in torch.split(embedding, _ROWS_AT_A_TIME):
            nearest = torch.addmm(half_squares, chunk, centers.T, alpha=-1).argmin(dim=1)
            members = functional.one_hot(nearest, len(centers)).to(chunk.dtype)
            sums += members.T @ chunk  # a product adds up in the same order every time, unlike index_add_ on a GPU
            sizes += members.sum(dim=0)[:, None]
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1), centers)
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers


def micro_clusters(embedding: Tensor, n_groups: int, state: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Means of groups around random samples, of shape (groups, embedding), and their sizes: one step of k-means."""
    n_groups = min(n_groups, len(embedding))
    rows = torch.from_numpy(np.sort(state.choice(len(embedding), n_groups, replace=False))).to(embedding.device)
    seeds = embedding[rows]
    half_squares = seeds.square().sum(dim=1) / 2
    sums, sizes = torch.zeros_like(seeds), torch.zeros(n_groups, device=embedding.device)
    for chunk in torch.split(embedding, _ROWS_AT_A_TIME):
        group = torch.addmm(half_squares, chunk, seeds.T, alpha=-1).argmin(dim=1)
        sums.index_add_(0, group, chunk)
        sizes += torch.bincount(group, minlength=n_groups)
    kept = sizes > 0  # of equal samples only one leads a group
    return sums[kept] / sizes[kept, None], sizes[kept]


def ward_centers(points: NDArray[np.float32], n_clusters: int) -> NDArray[np.float32]:
    """Means of Ward's clusters, of shape (clusters, embedding)."""
    n = len(points)
    # Distances from a matrix product, and a tree cut by hand, take a quarter of the time of the usual functions.
    merges = linkage(_pairwise(points), "ward")[: n - n_clusters, :2].astype(np.int64)
    nodes = np.repeat(np.arange(n, n + len(merges)), 2)
    edges = coo_array((np.ones(nodes.size), (nodes, merges.ravel())), shape=(n + len(merges),) * 2)
    labels = connected_components(edges, directed=False)[1][:n]
    return np.stack([points[labels == c].mean(axis=0) for c in np.unique(labels)])


def _pairwise(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Euclidean distances in the order that SciPy wants: (0, 1), (0, 2), ..."""
    doubled = torch.from_numpy(points).double()
    centred = doubled - doubled.mean(dim=0)
    squares = centred.square().sum(dim=1)
    distances = torch.addmm(squares, centred, centred.T, alpha=-2).add_(squares[:, None]).clamp_(min=0).sqrt_()
    rows, columns = torch.triu_indices(len(points), len(points), 1)
    return distances[rows, columns].numpy()
