"""One score of partitions that needs no labels and has no favourite size of clusters.

**Macro agreement** of a partition. For each view and cluster: which share of the members' nine nearest neighbours in
that view lies in the same cluster? The share is taken at the lower end of its Wilson interval (one standard error,
a member counts once), so that six samples whose neighbours are all their own count 6/7, and corrected for chance by the
cluster's own size, as in Cohen's kappa. The score is the mean over *clusters*, then over views: a rare group counts as
much as a common one. It cannot see which structure the user has in mind; where clusters overlap in every view the
choice is close to arbitrary, and `decisions_` shows it.

Two groups of 950 and 50 samples, the second of which no neighbour leaves, score higher than a cut through the large
group into even halves, most of whose neighbours stay together:

>>> true = torch.tensor([0] * 950 + [1] * 50)
>>> halves = torch.arange(1000) // 20 % 2
>>> line = (torch.arange(1000)[:, None] + torch.tensor([-2, -1, 1, 2])).clamp(0, 999)  # neighbours of points on a line
>>> line[948:950], line[950:952] = 940, 960  # the groups are apart
>>> round(macro_agreement(true, line[:, None], 2), 2), round(macro_agreement(halves, line[:, None], 2), 2)
(0.98, 0.82)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, log, prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from viewfuse.neighbors.index import NO_NEIGHBOR

AGREEMENT_DEPTH = 9
"""Neighbours of a sample that count, whatever the method itself looks at."""
_SEEN = 2_000
_PAIRS_TOGETHER = 4_000_000
"""Pairs of neighbours that are counted at once, in some 100 MB: one after the other, the twenty partitions of a small
set took a third of its fit."""
_SAME_SQUARES = 1.001
QUARTER_FEWER = 0.3
"""The logarithm of the ratio of neighbours that leave their cluster where a quarter fewer do."""


class Merit(NamedTuple):
    """How good a partition is: its `macro_agreement`, its `neighbor_agreement`, and a mutual information.

    That is what the cluster of a sample tells of its neighbour's cluster, in nats, mean over views; unlike a share it
    falls where clusters are merged or emptied, however pure the rest is.
    """

    score: float
    agreement: float
    information: float


def macro_agreement(labels: Tensor, neighbor_ids: Tensor, n_clusters: int) -> float:
    """How well clusters keep their members' neighbours, on average over clusters and views; for arguments see `merits`.

    Clusters without members count 0.
    """
    return merits([labels], neighbor_ids, n_clusters)[0].score


def neighbor_agreement(labels: Tensor, neighbor_ids: Tensor) -> float:
    """How much more often than by chance samples share the cluster of their neighbours, on average over views.

    A view whose samples all lie in one cluster tells nothing and is left out.
    """
    return merits([labels], neighbor_ids, int(labels.max()) + 1)[0].agreement


def merits(
    partitions: Sequence[Tensor], neighbor_ids: Tensor, n_clusters: int, asked: Sequence[float] | None = None
) -> list[Merit]:
    """The merit of each of several partitions, int64 tensors of shape (samples,).

    Neighbours are of shape (samples, views, neighbours), nearest first, NO_NEIGHBOR where there is none; `n_clusters`
    there should be; `asked` is what the user asked each view to count.
    """
    weights, (n, n_views) = view_weights(neighbor_ids, asked), neighbor_ids.shape[:2]
    together = max(1, _PAIRS_TOGETHER // (n_views * max(n * AGREEMENT_DEPTH, n_clusters**2)))
    found: list[Merit] = []
    for some in torch.split(torch.stack(list(partitions)), together):
        sizes, pairs, empty = _counts(some, neighbor_ids, n_clusters)
        kinds = (_view_scores(sizes, pairs, empty), _view_agreements(sizes, pairs), _view_information(pairs))
        for by_view in zip(*(kind.tolist() for kind in kinds), strict=True):
            found.append(Merit(*(_mean_of_known(kind, weights) for kind in by_view)))
    return found


def _mean_of_known(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of all that are numbers; 0 without any."""
    known = [(score, weight) for score, weight in zip(scores, weights, strict=True) if not isnan(score)]
    return sum(score * weight for score, weight in known) / sum(weight for _, weight in known) if known else 0.0


def view_weights(neighbor_ids: Tensor, asked: Sequence[float] | None = None) -> list[float]:
    """Per view one over the number of views that repeat it, itself included: 1 for a view like no other.

    Each counts by the square of the share of neighbours that they have in common, which some of many samples show.
    The weights are multiplied by what the user asked each view to count.
    """
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there, every = (nearest != NO_NEIGHBOR).any(dim=2), -(-len(nearest) // _SEEN)
    found: list[float] = (1.0 / _shared(nearest[::every], there).square().sum(dim=1)).tolist()
    return found if asked is None else [own * weight for own, weight in zip(found, asked, strict=True)]


def _shared(nearest: Tensor, there: Tensor) -> Tensor:
    """The share of the neighbours in a view that are neighbours in another; of shape (views, views), 1 for itself.

    Only samples and neighbours that have both views count: `there`, of shape (samples, views), says who has which.
    """
    known = nearest != NO_NEIGHBOR
    # By sample, view, neighbour in it, and the other view.
    usable = known[..., None] & there[nearest.clamp(min=0)] & known.any(dim=2)[:, None, None]
    counts, same = usable.sum(dim=(0, 2)), []
    for v, theirs in enumerate(usable.unbind(dim=3)):
        alike = nearest[:, v, :, None, None] == nearest[:, None]  # neighbours in this view, and in each one
        same.append((alike & usable[:, v, :, :, None] & theirs[:, None]).sum(dim=(0, 1, 3)))
    shared = torch.stack(same).double() / torch.minimum(counts, counts.T).clamp(min=1)
    return shared.fill_diagonal_(1.0)


def _counts(partitions: Tensor, neighbor_ids: Tensor, n_clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    """How partitions, of shape (partitions, samples), lie among neighbours, for all and in all views together.

    Samples that have a view, (partitions, views, clusters); those of one cluster with a neighbour in another,
    (partitions, views, clusters, clusters); and which clusters have no sample, (partitions, 1, clusters).
    """
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there, shape = nearest != NO_NEIGHBOR, (len(partitions), nearest.shape[1], n_clusters, n_clusters)
    groups = torch.arange(prod(shape[:2]), device=partitions.device).view(shape[0], 1, shape[1])
    own = n_clusters * groups + partitions[:, :, None]
    pairs = n_clusters * own[..., None] + partitions[:, nearest.clamp(min=0)]
    sizes = own[:, there.any(dim=2)].flatten().bincount(minlength=prod(shape[:3])).view(shape[:3])
    counted = pairs[:, there].flatten().bincount(minlength=prod(shape)).view(shape)
    empty = torch.ones_like(sizes[:, 0], dtype=torch.bool).scatter_(1, partitions, False)
    return sizes.double(), counted.double(), empty[:, None]


def _view_agreements(sizes: Tensor, pairs: Tensor) -> Tensor:
    """Per partition and view; NaN where a view tells nothing."""
    n, counted = sizes.sum(dim=-1), pairs.sum(dim=(-2, -1))
    # The chance that two different samples share a cluster; 1 for fewer than two.
    both = n * (n - 1)
    chances = torch.where(both > 0, (sizes * (sizes - 1)).sum(dim=-1) / both.clamp(min=1), 1.0)
    shares = pairs.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / counted.clamp(min=1)
    return torch.where((counted > 0) & (chances < 1.0), (shares - chances) / (1.0 - chances), torch.nan)


def _view_information(pairs: Tensor) -> Tensor:
    """Per partition and view the mutual information of the clusters of two neighbours; 0 where there are none."""
    joint = (pairs + pairs.mT) / (2 * pairs.sum(dim=(-2, -1), keepdim=True)).clamp(min=1)
    entropy = torch.special.entr(joint.sum(dim=-2)).sum(dim=-1)
    return 2 * entropy - torch.special.entr(joint).sum(dim=(-2, -1))


def _view_scores(sizes: Tensor, pairs: Tensor, empty: Tensor) -> Tensor:
    """Per partition and view the mean over clusters; empty ones count 0.

    A cluster of which no sample has the view counts what it does on average in those views that samples of it have:
    left out, a single sample with one view would raise the score of all other views.
    NaN where a view tells nothing: no sample has it, or all that do lie in one cluster.
    """
    total = sizes.sum(dim=-1, keepdim=True)
    seen = (sizes > 0) & (sizes < total)
    chance = (sizes - 1) / (total - 1)
    share, count = pairs.diagonal(dim1=-2, dim2=-1) / pairs.sum(dim=-1).clamp(min=1), sizes.clamp(min=1)
    # The lower end of the Wilson interval, one standard error wide on each side.
    middle = share + 0.5 / count
    spread = (share * (1.0 - share) / count + 0.25 / count.square()).sqrt()
    lower = (middle - spread) / (1.0 + 1.0 / count)
    scores = torch.where(seen, (lower - chance) / (1.0 - chance), 0.0)
    in_views = seen.sum(dim=-2, keepdim=True)
    scores = torch.where(seen, scores, scores.sum(dim=-2, keepdim=True) / in_views.clamp(min=1))
    means = scores.sum(dim=-1) / ((in_views > 0) | empty).sum(dim=-1)
    return torch.where((sizes == total).any(dim=-1), torch.nan, means)


def size_entropy(labels: Tensor, n_clusters: int) -> float:
    """Entropy of the cluster sizes over that of equal sizes: 1 where all are equal, 0 where one cluster has all."""
    shares = labels.bincount().double() / len(labels)
    return float(torch.special.entr(shares).sum() / log(n_clusters)) if n_clusters > 1 else 1.0


def best_start(merits: Sequence[Merit], squares: Sequence[float]) -> int:
    """Which of several k-means solutions, with these sums of squares, the joint stage begins with.

    Sums of squares that differ by a thousandth tell nothing: among such solutions that with the highest score is taken.
    One with a larger sum must lose a quarter fewer neighbours: the best of twenty is the best by chance, too.
    """
    smallest = min(squares)

    def worth(i: int) -> tuple[float, float]:
        # Rounding must not decide between one solution and the same found from another start.
        return round(merits[i].score, 9), -squares[i]

    best = max((i for i, own in enumerate(squares) if own <= smallest * _SAME_SQUARES), key=worth)
    better = [i for i, own in enumerate(merits) if fewer_leave(own.score, merits[best].score) > QUARTER_FEWER]
    return max([best, *better], key=worth)


def fewer_leave(other: float, own: float) -> float:
    """The logarithm of the share that leaves its cluster in one's own partition, over that in the other."""
    return log(max(1.0 - own, 1e-9) / max(1.0 - other, 1e-9))


@dataclass(frozen=True)
class Candidate:
    """What one training found; its `objective`, the loss of the last epoch, decides between equals."""

    scaling: str
    labels: NDArray[np.int64]
    neighbor_ids: Tensor  # the neighbours under its scaling
    objective: float


def candidate_scores(
    candidates: Sequence[Candidate], n_clusters: int, asked: Sequence[float] | None = None
) -> list[float]:
    """The score of each partition, on average over views, and in each over the neighbours that scalings give it.

    That favours no scaling. Scalings that treat a view alike count once there.
    """
    graphs = list({one.scaling: one.neighbor_ids for one in candidates}.values())
    different = [_different([ids[:, v] for ids in graphs]) for v in range(graphs[0].shape[1])]
    weights = np.mean([view_weights(ids, asked) for ids in graphs], axis=0).tolist()

    def score(one: Candidate) -> float:
        own = torch.from_numpy(one.labels).to(one.neighbor_ids.device)
        found = [_view_scores(*_counts(own[None], ids, n_clusters))[0].tolist() for ids in graphs]
        means = [float(np.mean([found[place][v] for place in places])) for v, places in enumerate(different)]
        return _mean_of_known(means, weights)

    return [score(one) for one in candidates]


def _different(graphs: Sequence[Tensor]) -> list[int]:
    """The places of those that are not the same as one before."""
    return [i for i, ids in enumerate(graphs) if not any(torch.equal(ids, other) for other in graphs[:i])]


def agreement(labels: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> float | None:
    """Mean adjusted Rand index of a partition with others; None without others."""
    return float(np.mean([adjusted_rand_score(labels, other) for other in others])) if others else None


def stability(labels: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """Per sample the share of the other partitions that put it where this one does; NaN without others.

    Clusters of two partitions are matched one to one, so that as many samples as possible agree.
    """
    if not others:
        return np.full(len(labels), np.nan, dtype=np.float32)
    return np.mean([_matched(labels, other) == labels for other in others], axis=0, dtype=np.float32)


def matched_share(labels: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """The share of the samples that two partitions put into the same cluster, matched as in `stability`."""
    return float((_matched(labels, other) == labels).mean())


def matched_kappa(labels: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Cohen's kappa of two partitions, matched as in `stability`: 1 is the same, 0 what their sizes share by chance.

    >>> rare = np.arange(1000) < 30
    >>> other = np.arange(1000) >= 970
    >>> matched_share(rare * 1, other * 1), round(matched_kappa(rare * 1, other * 1), 2)
    (0.94, -0.03)
    """
    found = _matched(labels, other)
    size = int(max(labels.max(), found.max())) + 1
    shared = float((found == labels).mean())
    chance = float(np.bincount(labels, minlength=size) @ np.bincount(found, minlength=size)) / len(labels) ** 2
    return 1.0 if chance == 1.0 else (shared - chance) / (1.0 - chance)


def _matched(labels: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The other partition with the cluster numbers of this one."""
    return matched_numbers(other, labels, int(max(labels.max(), other.max())) + 1)[other]


def matched_numbers(labels: NDArray[np.int64], wanted: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """New numbers of `size` clusters, with which as many samples as possible have the number that is wanted."""
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (labels, wanted), 1)
    return np.asarray(linear_sum_assignment(-table)[1])
