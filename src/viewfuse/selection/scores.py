"""One score of partitions that needs no labels and has no favourite size of clusters.

**Macro agreement** of a partition. For each view and cluster: which share of the members' nine nearest neighbours in
that view lies in the same cluster? The share is taken at the lower end of its Wilson interval (one standard error,
a member counts once), so that a cluster of few members must be purer than a large one to count as much: six samples
whose neighbours are all their own count 6/7. It is corrected for chance by the cluster's own size, as in Cohen's kappa:
a cluster that holds half of the samples has half of the neighbours by chance. 1 is the most, 0 is chance. The score is
the mean over *clusters*, then over views: a rare group counts as much as a common one, an empty cluster counts 0.

Two groups of 950 and 50 samples, the second of which no neighbour leaves, score higher than a cut through the large
group into even halves, most of whose neighbours stay together:

>>> true = torch.tensor([0] * 950 + [1] * 50)
>>> halves = torch.arange(1000) // 20 % 2
>>> line = (torch.arange(1000)[:, None] + torch.tensor([-2, -1, 1, 2])).clamp(0, 999)  # neighbours of points on a line
>>> line[948:950], line[950:952] = 940, 960  # the groups are apart
>>> round(macro_agreement(true, line[:, None], 2), 2), round(macro_agreement(halves, line[:, None], 2), 2)
(0.98, 0.82)

Partitions found under different scalings are compared on the neighbours of all of these scalings, which favours none.
Views that repeat each other count as one: the weight of a view is one over the number of views with its neighbours,
each counted by the square of the share that they have in common.

What it cannot see: structure that is in the data and not in the labels that the user has in mind. Sets whose clusters
overlap in every view differ little in it, and there the choice is close to arbitrary; `decisions_` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from viewfuse.neighbors.search import NO_NEIGHBOR

AGREEMENT_DEPTH = 9
"""Neighbours of a sample that count, whatever the method itself looks at."""
_SEEN = 2_000
"""Samples that are enough to see which views repeat each other."""


def neighbor_agreement(labels: Tensor, neighbor_ids: Tensor) -> float:
    """How much more often than by chance samples share the cluster of their neighbours, on average over views.

    A view whose samples all lie in one cluster tells nothing and is left out.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    neighbor_ids : int64 tensor of shape (samples, views, neighbours): nearest first, NO_NEIGHBOR where there is none
    """
    return _mean_of_known(_view_agreements(labels, neighbor_ids).tolist(), view_weights(neighbor_ids))


def _mean_of_known(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of all that are numbers; 0 without any."""
    known = [(score, weight) for score, weight in zip(scores, weights, strict=True) if not isnan(score)]
    return sum(score * weight for score, weight in known) / sum(weight for _, weight in known) if known else 0.0


def view_weights(neighbor_ids: Tensor) -> list[float]:
    """Per view one over the number of views that repeat it, itself included: 1 for a view like no other.

    Parameters
    ----------
    neighbor_ids : see `neighbor_agreement`; of many samples some are enough
    """
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there, every = (nearest != NO_NEIGHBOR).any(dim=2), -(-len(nearest) // _SEEN)
    repeated = torch.stack([_shared(nearest[::every], there, v) for v in range(nearest.shape[1])]).square()
    return (1.0 / repeated.sum(dim=1)).tolist()


def _shared(nearest: Tensor, there: Tensor, view: int) -> Tensor:
    """The share of the neighbours in a view that are neighbours in each view; of shape (views,), 1 for the view itself.

    Only samples and neighbours that have both views count.

    Parameters
    ----------
    nearest : int64 tensor of shape (some samples, views, neighbours)
    there : boolean tensor of shape (samples, views): who has which view
    """
    known = nearest != NO_NEIGHBOR
    own, others = nearest[:, view, None, :], nearest.clamp(min=0)
    usable = known[:, view, None, :] & there[own.clamp(min=0)[:, 0]].transpose(1, 2) & known.any(dim=2, keepdim=True)
    theirs = known & there[:, view][others] & known[:, view].any(dim=1)[:, None, None]
    same = (own[..., None] == nearest[:, :, None, :]) & usable[..., None] & theirs[:, :, None, :]
    possible = torch.minimum(usable.sum(dim=(0, 2)), theirs.sum(dim=(0, 2)))
    shared = same.sum(dim=(0, 2, 3)).double() / possible.clamp(min=1)
    shared[view] = 1.0
    return shared


def _view_agreements(labels: Tensor, neighbor_ids: Tensor) -> Tensor:
    """Per view, of shape (views,), in float64; NaN where a view tells nothing."""
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there = nearest != NO_NEIGHBOR
    chances = _chance_agreement(labels, there.any(dim=2))
    same = (labels[nearest.clamp(min=0)] == labels[:, None, None]) & there
    counts = there.sum(dim=(0, 2))
    shares = same.sum(dim=(0, 2)).double() / counts.clamp(min=1)
    return torch.where((counts > 0) & (chances < 1.0), (shares - chances) / (1.0 - chances), torch.nan)


def _chance_agreement(labels: Tensor, members: Tensor) -> Tensor:
    """Per view the chance that two different samples that have it share a cluster; 1 for fewer than two.

    Parameters
    ----------
    members : boolean tensor of shape (samples, views)
    """
    empty = torch.zeros(int(labels.max()) + 1, members.shape[1], dtype=torch.int64, device=labels.device)
    sizes = empty.index_add_(0, labels, members.long())
    n = sizes.sum(dim=0)
    pairs = (n * (n - 1)).double()
    return torch.where(pairs > 0, (sizes * (sizes - 1)).sum(dim=0) / pairs.clamp(min=1.0), 1.0)


def macro_agreement(labels: Tensor, neighbor_ids: Tensor, n_clusters: int) -> float:
    """How well clusters keep their members' neighbours, on average over clusters and views.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    neighbor_ids : see `neighbor_agreement`
    n_clusters : how many there should be; those without members count 0
    """
    return _mean_of_known(_view_scores(labels, neighbor_ids, n_clusters), view_weights(neighbor_ids))


class Merit(NamedTuple):
    """How good a partition is.

    Attributes
    ----------
    score : its `macro_agreement`
    agreement : its `neighbor_agreement`, in which every sample counts the same
    information : what the cluster of a sample tells of its neighbour's cluster: mutual information in nats, mean over
        views; unlike a share it falls where clusters are merged or emptied, however pure the rest is
    """

    score: float
    agreement: float
    information: float


def merits(partitions: Sequence[Tensor], neighbor_ids: Tensor, n_clusters: int) -> list[Merit]:
    """The merit of each of several partitions; see `macro_agreement`."""
    weights = view_weights(neighbor_ids)

    def merit(labels: Tensor) -> Merit:
        by_cluster, shared = (work(labels, neighbor_ids, n_clusters) for work in (_view_scores, _view_information))
        by_sample = _view_agreements(labels, neighbor_ids).tolist()
        return Merit(*(_mean_of_known(found, weights) for found in (by_cluster, by_sample, shared)))

    return [merit(labels) for labels in partitions]


def _view_information(labels: Tensor, neighbor_ids: Tensor, n_clusters: int) -> list[float]:
    """Per view the mutual information of the clusters of two neighbours; 0 where there are none."""
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there, pairs = nearest != NO_NEIGHBOR, n_clusters * labels[:, None, None] + labels[nearest.clamp(min=0)]
    known = []
    for v in range(nearest.shape[1]):
        counts = pairs[:, v][there[:, v]].bincount(minlength=n_clusters**2).double().view(n_clusters, -1)
        joint = (counts + counts.T) / (2 * counts.sum()).clamp(min=1)
        entropy = torch.special.entr(joint.sum(dim=0)).sum()
        known.append(float(2 * entropy - torch.special.entr(joint).sum()))
    return known


def _view_scores(labels: Tensor, neighbor_ids: Tensor, n_clusters: int) -> list[float]:
    """Per view the mean over clusters; NaN where a view tells nothing."""
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there = nearest != NO_NEIGHBOR
    same = (labels[nearest.clamp(min=0)] == labels[:, None, None]) & there
    sizes, pairs, kept = (
        torch.zeros(n_clusters, there.shape[1], dtype=torch.int64, device=labels.device).index_add_(0, labels, counts)
        for counts in (there.any(dim=2).long(), there.sum(dim=2), same.sum(dim=2))
    )
    empty = labels.bincount(minlength=n_clusters) == 0
    return [_cluster_mean(*columns, empty) for columns in zip(sizes.T, pairs.T, kept.T, strict=True)]


def _cluster_mean(sizes: Tensor, pairs: Tensor, kept: Tensor, empty: Tensor) -> float:
    """The mean over the clusters that have samples with a view, and those that have none at all, which count 0.

    Parameters
    ----------
    sizes, pairs, kept : int64 tensors of shape (clusters,): samples with the view, their neighbours, and those of the
        neighbours that lie in the same cluster
    empty : boolean tensor of shape (clusters,)
    """
    total, members = int(sizes.sum()), sizes.double()
    seen = sizes > 0
    if total < 2 or bool((sizes == total).any()):
        return nan
    chance = (members - 1) / (total - 1)
    lowest = _wilson_bound(kept.double() / pairs.clamp(min=1), members.clamp(min=1))
    scores = torch.where(seen, (lowest - chance) / (1.0 - chance), 0.0)
    return float(scores.sum() / (seen | empty).sum())


def _wilson_bound(share: Tensor, count: Tensor) -> Tensor:
    """The lower end of the Wilson interval of a share among `count`, one standard error wide on each side."""
    middle = share + 0.5 / count
    spread = (share * (1.0 - share) / count + 0.25 / count.square()).sqrt()
    return (middle - spread) / (1.0 + 1.0 / count)


@dataclass(frozen=True)
class Candidate:
    """What one training found.

    Attributes
    ----------
    labels : int64 array of shape (samples,)
    neighbor_ids : the neighbours under its scaling, see `neighbor_agreement`
    objective : the loss of the last epoch, which decides between equals
    """

    scaling: str
    labels: NDArray[np.int64]
    neighbor_ids: Tensor
    objective: float


def candidate_scores(candidates: Sequence[Candidate], n_clusters: int) -> list[float]:
    """The score of each partition, on average over views, and in each over the neighbours that scalings give it.

    Scalings that treat a view alike count once there.
    """
    graphs = list({one.scaling: one.neighbor_ids for one in candidates}.values())
    views = [_different([ids[:, v : v + 1] for ids in graphs]) for v in range(graphs[0].shape[1])]
    weights = np.mean([view_weights(ids) for ids in graphs], axis=0).tolist()

    def score(one: Candidate) -> float:
        own = torch.from_numpy(one.labels).to(one.neighbor_ids.device)
        found = [[_view_scores(own, ids, n_clusters)[0] for ids in view] for view in views]
        return _mean_of_known([float(np.mean(view)) for view in found], weights)

    return [score(one) for one in candidates]


def _different(graphs: Sequence[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for ids in graphs:
        if not any(torch.equal(ids, other) for other in found):
            found.append(ids)
    return found


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
    size = int(max(labels.max(), other.max())) + 1
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (other, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    names = np.empty(size, dtype=np.int64)
    names[rows] = columns
    return names[other]
