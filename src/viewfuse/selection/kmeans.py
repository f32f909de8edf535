"""k-means, and where the cluster centres begin: which of its solutions, Ward's clusters, and those of filled views.

Scikit-learn's k-means runs its starts one after another, on a CPU only: twenty starts of 2,000 points took 7.7 s for
4.2 s. Of 10,000 points it is faster (3.0 s for 9.9 s); there groups stand for the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional

from viewfuse.errors import Diverged
from viewfuse.neighbors.index import Samples, neighbor_lists
from viewfuse.selection.scores import Merit, best_start, merits
from viewfuse.utils.settings import Setting

_ROWS_AT_A_TIME = 65_536
_ROWS_PER_GROUPING = 8_192
_TOLERANCE = 1e-4
"""Ends where the centres move by less, in squares over the variance of a column, as scikit-learn's do."""
_LEAST_WEIGHT = 1e-12
"""Of a cluster, by which is divided: one without weight has nothing to divide."""
_DRAWN_STARTS = 20
_STARTS_BY_K, _ROUNDS_BY_K, _SEED = 4, 24, 398764591
"""Of `partition`; any seed would do."""
_WARD_ROWS = 1_000
"""Ward's method takes rows x rows of memory and time; larger sets are represented by micro-clusters."""
_WARD_ALL_ROWS = 10_000
_GROUPS = 1_000
_ROUNDS = 100
_ROUNDS_WITH_ALL = 20
_DONORS = 5
_ROWS = 5_000
"""Samples that are enough to find the centres."""


def k_means(points: Tensor, weights: Tensor, starts: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Lloyd's rounds from several starts at once, in float64, on the device of the points.

    Centres of the shape of `starts`, (starts, clusters, embedding), and the weighted sums of squares around them,
    (starts,). Weights, of shape (points,), are not negative.
    """
    centers, variance = starts.double(), points.var(dim=0, correction=0).mean().double()
    sums, sizes = _sums(points, weights, centers)
    for _ in range(rounds):
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=_LEAST_WEIGHT), centers)
        still = (moved - centers).square().sum(dim=(1, 2)) <= _TOLERANCE * variance
        centers = moved
        if still.all():
            break
        sums, sizes = _sums(points, weights, centers)
    middle = sums[0].sum(dim=0) / sizes[0].sum()
    between = ((sums - sizes * middle).square() / sizes.clamp(min=_LEAST_WEIGHT)).sum(dim=(1, 2))
    parts = zip(torch.split(points, _ROWS_AT_A_TIME), torch.split(weights, _ROWS_AT_A_TIME), strict=True)
    whole = torch.stack([((rows - middle).square().sum(dim=1) * own).sum() for rows, own in parts]).sum()
    return centers, (whole - between).clamp(min=0)


def _sums(points: Tensor, weights: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Per start and centre the weighted sum of the points that it is nearest to, and their weight."""
    sums, sizes = torch.zeros_like(centers), torch.zeros_like(centers[..., :1])
    half_squares, flat = centers.square().sum(dim=2).flatten() / 2, centers.flatten(0, 1)
    for rows, own in zip(torch.split(points, _ROWS_AT_A_TIME), torch.split(weights, _ROWS_AT_A_TIME), strict=True):
        chunk = rows.double()
        far = torch.addmm(half_squares, chunk, flat.T, alpha=-1).view(len(chunk), *centers.shape[:2])
        members = functional.one_hot(far.argmin(dim=2), centers.shape[1]).double() * own[:, None, None]
        # A product adds up in the same order every time, unlike index_add_ on a GPU.
        sums += (members.flatten(1).T @ chunk).view_as(centers)
        sizes += members.sum(dim=0)[..., None]
    return sums, sizes


def nearest_center(points: Tensor, centers: Tensor) -> Tensor:
    """The nearest centre of each point, of shape (points,)."""
    middle = centers.mean(dim=0)  # centred, as large offsets would leave few digits to the differences
    moved = (centers - middle).to(points)
    half_squares = moved.square().sum(dim=1) / 2
    parts = torch.split(points, _ROWS_PER_GROUPING)
    return torch.cat(
        [torch.addmm(half_squares, rows - middle.to(rows), moved.T, alpha=-1).argmin(dim=1) for rows in parts]
    )


def drawn_centers(
    points: Tensor, weights: Tensor, n_clusters: int, state: np.random.RandomState, n_starts: int
) -> Tensor:
    """Starts by greedy k-means++, all at once, of shape (starts, clusters, embedding); the first k are a start for k.

    A candidate is drawn with a chance in proportion to its weight times its squared distance from the nearest centre
    so far: the winner of a race in which every point's time is exponential with that rate. Of several candidates the
    one that leaves the smallest sum of squares is taken.
    """
    tries, starts = 2 + int(log(n_clusters)), torch.arange(n_starts, device=points.device)
    far = torch.full((n_starts, len(points)), inf, dtype=torch.float64, device=points.device)
    chances, centers = weights.double().expand_as(far), []
    for _ in range(n_clusters):
        times = state.standard_exponential((n_starts, tries, len(points)))
        rows = (chances[:, None] / torch.from_numpy(times).to(points.device)).argmax(dim=2)
        left = torch.minimum(far[:, None], squared_distances(points[rows.flatten()], points).view(times.shape))
        best = (left * weights).sum(dim=2).argmin(dim=1)
        centers.append(points[rows[starts, best]])
        far = left[starts, best]
        chances = weights * far
    return torch.stack(centers, dim=1)


def squared_distances(some: Tensor, points: Tensor) -> Tensor:
    """Of shape (some, points), in float64, of tensors of shape (some or points, embedding)."""
    middle = points.double().mean(dim=0)
    left, right = some.double() - middle, points.double() - middle
    squares = right.square().sum(dim=1)
    return torch.addmm(squares, left, right.T, alpha=-2).add_(left.square().sum(dim=1)[:, None]).clamp_(min=0)


def in_order(centers: NDArray[np.float32], points: NDArray[np.float32]) -> NDArray[np.float32]:
    """The centres in the order in which the points meet them: rounding may decide which of equal starts is the best."""
    nearest = nearest_center(torch.from_numpy(points), torch.from_numpy(centers)).tolist()
    return centers[list(dict.fromkeys([*nearest, *range(len(centers))]))]


def micro_clusters(
    embedding: Tensor, n_groups: int, state: np.random.RandomState, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Means of groups around random samples, of shape (groups, embedding), and their sizes: one step of k-means.

    Samples count by their `weights`, all of them above 0; all the same without any.
    """
    n_groups = min(n_groups, len(embedding))
    chosen = np.sort(state.choice(len(embedding), n_groups, replace=False))
    seeds = embedding[torch.from_numpy(chosen).to(embedding.device)]
    group = nearest_center(embedding, seeds)
    sums = seeds.new_zeros(n_groups, seeds.shape[1] + 1)  # and sizes
    counted = torch.ones_like(embedding[:, :1]) if weights is None else weights[:, None].to(embedding)
    for rows in torch.split(torch.arange(len(embedding), device=group.device), _ROWS_PER_GROUPING):
        values = torch.cat([embedding[rows] * counted[rows], counted[rows]], dim=1)
        if values.is_cuda:  # where index_add_ adds as it comes, in another order every time
            members = functional.one_hot(group[rows], n_groups).double()
            sums += (members.T @ values.double()).to(sums.dtype)
        else:
            sums.index_add_(0, group[rows], values)
    means, sizes = sums[:, :-1], sums[:, -1]
    kept = sizes > 0  # of equal samples only one leads a group
    return means[kept] / sizes[kept, None], sizes[kept]


def kmeans_centers(points: Tensor, n_clusters: int, seed: int) -> Tensor:
    """The centres of shape (clusters, embedding) with the least sum of squares, of twenty starts of k-means."""
    state = np.random.RandomState(np.random.SeedSequence([seed, 4]).generate_state(1)[0])
    best = best_centers(points, n_clusters, state, _DRAWN_STARTS, 300).cpu().numpy().astype(np.float32)
    return torch.from_numpy(in_order(best, points.cpu().numpy())).to(points)


def best_centers(points: Tensor, n_clusters: int, state: np.random.RandomState, n_starts: int, rounds: int) -> Tensor:
    """The same of drawn starts, in float64, and in no order."""
    ones = torch.ones_like(points[:, 0])
    found, spread = k_means(points, ones, drawn_centers(points, ones, n_clusters, state, n_starts), rounds)
    return found[int(spread.argmin())]


def partition(points: Tensor, n_clusters: int) -> Tensor:
    """The best of four k-means solutions, int64 of shape (points,); the same one every time."""
    centers = best_centers(points, n_clusters, np.random.RandomState(_SEED), _STARTS_BY_K, _ROUNDS_BY_K)
    return nearest_center(points, centers)


def initial_centers(
    embedding: Tensor, n_clusters: int, seed: int, neighbor_ids: Tensor | None = None, counted: Tensor | None = None,
    views: Sequence[float] | None = None,
) -> NDArray[np.float32]:  # fmt: skip
    """Centres of shape (clusters, embedding): k-means from Ward's clusters and from twenty k-means++ starts.

    The paper takes Ward's clusters. Now and then these are far off (2 of 10 Handwritten runs), and k-means ends in
    other clusters from every start; `best_start` tells which are taken. Many samples are represented by the means of
    small groups, which count as much as they have members; a few rounds with all samples follow. Samples count by the
    weights `counted`, views by those of `views`; without neighbours sums of squares decide.
    """
    state = np.random.RandomState(np.random.SeedSequence([seed, 0, 1]).generate_state(1)[0])
    counted = torch.ones_like(embedding[:, 0]) if counted is None else counted.to(embedding)
    points, weights = embedding[counted > 0], counted[counted > 0]
    if len(points) > _WARD_ROWS:
        points, weights = micro_clusters(points, max(_GROUPS, 5 * n_clusters), state, weights)
    # Samples of fewer kinds than clusters: some stand there twice, and leave clusters empty, as in small sets.
    places = torch.arange(max(len(points), n_clusters), device=points.device) % len(points)
    points, weights = points[places], weights[places]
    if n_clusters == 1:
        return np.average(points.cpu().numpy(), axis=0, weights=weights.cpu().numpy())[None].astype(np.float32)
    ward = torch.from_numpy(ward_centers(points, n_clusters)).to(points)
    starts = torch.cat([ward[None], drawn_centers(points, weights, n_clusters, state, _DRAWN_STARTS)])
    found, spread = k_means(points, weights, starts, _ROUNDS)
    labels = [nearest_center(embedding, own) for own in found]
    unknown = [Merit(0.0, 0.0, 0.0)] * len(labels)
    known = unknown if neighbor_ids is None else merits(labels, neighbor_ids, n_clusters, views)
    best = found[best_start(known, spread.tolist())]
    if len(points) < len(embedding):
        best = k_means(embedding, counted, best[None], _ROUNDS_WITH_ALL)[0][0]
    return in_order(best.cpu().numpy().astype(np.float32), points.cpu().numpy())


def paper_centers(embedding: Tensor, n_clusters: int) -> NDArray[np.float32]:
    """theta_C in the paper: the means of Ward's clusters of all samples, of shape (clusters, embedding).

    Beyond `_WARD_ALL_ROWS` samples, where Ward's method takes too much memory, of the means of small groups.
    """
    points = embedding
    if len(embedding) > _WARD_ALL_ROWS:
        points = micro_clusters(embedding, max(_GROUPS, 5 * n_clusters), np.random.RandomState(0))[0]
    return in_order(ward_centers(points, n_clusters), points.cpu().numpy())


@dataclass(frozen=True)
class Tree:
    """Nested partitions."""

    groups: NDArray[np.int64]  # the small cluster of each sample, of shape (samples,)
    merges: NDArray[np.int64]  # (small clusters - 1, 2): which join; the i-th pair is called small clusters + i

    @property
    def n_groups(self) -> int:
        """How many small clusters there are."""
        return len(self.merges) + 1

    def cut(self, n_clusters: int) -> NDArray[np.int64]:
        """The cluster of each sample, numbered in the order in which the samples meet them.

        With more clusters than there are small ones, the small ones.
        """
        root = np.arange(2 * self.n_groups - 1)
        joined = max(0, self.n_groups - max(1, n_clusters))
        for i in range(joined - 1, -1, -1):
            root[self.merges[i]] = root[self.n_groups + i]
        return in_order_met(root[: self.n_groups][self.groups])


def in_order_met(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same partition, whose clusters are numbered as the samples meet them."""
    _, first, place = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place]


def ward_centers(points: Tensor, n_clusters: int) -> NDArray[np.float32]:
    """Means of Ward's clusters, of shape (clusters, embedding): of all merges of its tree but the last ones."""
    means = points.cpu().numpy()
    # Distances by a product on the points' device: scipy's and scikit-learn's took five times as long as the tree.
    merges = linkage(squareform(squared_distances(points, points).sqrt_().cpu().numpy(), checks=False), "ward")
    labels = Tree(np.arange(len(points)), merges[:, :2].astype(np.int64)).cut(n_clusters)
    return np.stack([means[labels == c].mean(axis=0) for c in range(n_clusters)])


def filled_kmeans(
    samples: Samples, n_clusters: int, seed: int, weights: Tensor | None = None, views: Sequence[float] | None = None
) -> Tensor:
    """k-means on the views themselves, missing ones filled from donors: the training samples' clusters, (samples,).

    It knows nothing of the network, so that a partition which both find is more than an artefact of either. Samples
    count by their `weights`, and views in the score by those of `views`; scaled values are weighed already.
    """
    rows = some = torch.arange(len(samples), device=samples.present.device)
    neighbors: Tensor | None = samples.neighbor_ids
    if len(rows) > _ROWS:
        chosen = np.random.default_rng([seed, 2]).choice(len(rows), _ROWS, replace=False)
        some, neighbors = torch.from_numpy(np.sort(chosen)).to(rows), None  # neighbours of some are not among them
    table = filled_table(samples, some)
    if not torch.isfinite(table).all():
        fault = "values are so large that their means are not finite; use "
        raise Diverged(fault, Setting("scaling", "minmax"), " or 'standard'")
    own = None if weights is None else weights[some]
    centers = torch.from_numpy(initial_centers(table, n_clusters, seed, neighbors, own, views)).to(table)
    parts = [nearest_center(filled_table(samples, part), centers) for part in torch.split(rows, _ROWS)]
    return torch.cat(parts)


def filled_table(samples: Samples, rows: Tensor) -> Tensor:
    """All views of some training samples side by side, of shape (rows, all columns).

    A missing view is the mean of its donors; where there are none, of all samples that have it.
    """
    some, tables = samples.take(rows), []
    members, valid = neighbor_lists(some.neighbor_ids, some.present, samples.present, _DONORS)
    for v, view in enumerate(samples.values):
        table, lacking = some.values[v].clone(), (~some.present[:, v]).nonzero().flatten()
        tables.append(table)
        if not len(lacking):
            continue
        weights = valid[lacking, v].to(table.dtype)[:, None]  # (lacking, 1, donors)
        donors = view[members[lacking, v].clamp(min=0)]
        counts = weights.sum(dim=2)
        table[lacking] = (weights @ donors).squeeze(1) / counts.clamp(min=1)
        alone = lacking[counts.squeeze(1) == 0]
        if len(alone):
            table[alone] = view[samples.present[:, v]].mean(dim=0)
    return torch.cat(tables, dim=1)


def gaussian_like(table: Tensor, generator: torch.Generator) -> Tensor:
    """A Gaussian of the mean and covariance of a table, of the same shape: random sums of its rows."""
    n, middle = len(table), table.double().mean(dim=0).to(table)
    drawn = torch.randn(n, n, generator=generator, dtype=table.dtype).to(table)
    return drawn @ (table - middle) / n**0.5 + middle
