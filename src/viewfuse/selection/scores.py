"""Scores of partitions, none of which needs labels.

**Neighbour agreement** of a partition: draw a view, a sample that has it, and one of the sample's nearest neighbours in
that view. How much more often than two samples of that view drawn at random do they fall into one cluster? As with
Cohen's kappa the share is corrected for chance, view by view, so that few, unequal, or unequally observed clusters gain
nothing: 1 is the most, 0 is chance. Clusters that hold together in every view, although the network was free to follow
any of them, have a high agreement. Partitions found under different scalings are compared on the neighbours of all of
these scalings, which favours none. Views that repeat each other count as one: the weight of a view is one over the
number of views with its neighbours, each counted by the square of the share that they have in common.

Merging clusters that overlap raises the agreement, too. It shows in the **size entropy**: the entropy of the cluster
sizes over the largest possible one. Partitions of different trainings, and of k-means, are compared by the agreement
times the entropy. During a joint stage a training is only compared with itself, so the entropy may not fall there.

What they cannot see: structure that is in the data and not in the labels that the user has in mind. Sets whose clusters
overlap in every view differ little in agreement, and there the choice is close to arbitrary; `decisions_` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, log

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
_ENTRIES = 2**22
"""Neighbours that are looked at together: of small sets those of all partitions, of large ones those of one."""


def neighbor_agreement(labels: Tensor, neighbor_ids: Tensor) -> float:
    """How much more often than by chance samples share the cluster of their neighbours, on average over views.

    A view whose samples all lie in one cluster tells nothing and is left out.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    neighbor_ids : int64 tensor of shape (samples, views, neighbours): nearest first, NO_NEIGHBOR where there is none
    """
    return partition_agreements([labels], neighbor_ids)[0]


def partition_agreements(partitions: Sequence[Tensor], neighbor_ids: Tensor) -> list[float]:
    """The `neighbor_agreement` of each of several partitions; views are compared once for all of them."""
    weights, some = view_weights(neighbor_ids), max(1, _ENTRIES // max(1, neighbor_ids.numel()))
    parts = [torch.stack(list(partitions[i : i + some])) for i in range(0, len(partitions), some)]
    return [_mean_of_known(own, weights) for labels in parts for own in _view_agreements(labels, neighbor_ids).tolist()]


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
    """Per partition and view, of shape (partitions, views), in float64; NaN where a view tells nothing.

    Parameters
    ----------
    labels : int64 tensor of shape (partitions, samples)
    """
    nearest = neighbor_ids[:, :, :AGREEMENT_DEPTH]
    there = nearest != NO_NEIGHBOR
    chances = _chance_agreement(labels, there.any(dim=2))
    same = (labels[:, nearest.clamp(min=0)] == labels[:, :, None, None]) & there
    counts = there.sum(dim=(0, 2))
    shares = same.sum(dim=(1, 3)).double() / counts.clamp(min=1)
    return torch.where((counts > 0) & (chances < 1.0), (shares - chances) / (1.0 - chances), torch.nan)


def _chance_agreement(labels: Tensor, members: Tensor) -> Tensor:
    """Per partition and view the chance that two different samples that have it share a cluster; 1 for fewer than two.

    Parameters
    ----------
    labels : int64 tensor of shape (partitions, samples)
    members : boolean tensor of shape (samples, views)
    """
    count, n_clusters = len(labels), int(labels.max()) + 1
    places = labels + n_clusters * torch.arange(count, device=labels.device)[:, None]
    empty = torch.zeros(count * n_clusters, members.shape[1], dtype=torch.int64, device=labels.device)
    sizes = empty.index_add_(0, places.flatten(), members.long().repeat(count, 1)).view(count, n_clusters, -1)
    n = sizes.sum(dim=1)
    pairs = (n * (n - 1)).double()
    return torch.where(pairs > 0, (sizes * (sizes - 1)).sum(dim=1) / pairs.clamp(min=1.0), 1.0)


def size_entropy(labels: Tensor, n_clusters: int) -> float:
    """Entropy of the cluster sizes over that of equal sizes: 1 where all are equal, 0 where one cluster has all.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    """
    shares = labels.bincount().double() / len(labels)
    return float(torch.special.entr(shares).sum() / log(n_clusters)) if n_clusters > 1 else 1.0


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


def neighbor_agreements(candidates: Sequence[Candidate]) -> list[float]:
    """The agreement of each partition, on average over views, and in each over the neighbours that scalings give it.

    Scalings that treat a view alike count once there.
    """
    graphs = list({one.scaling: one.neighbor_ids for one in candidates}.values())
    labels = [torch.from_numpy(one.labels).to(one.neighbor_ids.device) for one in candidates]
    views = [_different([ids[:, v : v + 1] for ids in graphs]) for v in range(graphs[0].shape[1])]
    weights = np.mean([view_weights(ids) for ids in graphs], axis=0).tolist()

    def score(own: Tensor) -> float:
        found = [[float(_view_agreements(own[None], ids)) for ids in view] for view in views]
        return _mean_of_known([float(np.mean(view)) for view in found], weights)

    return [score(own) for own in labels]


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


def chance_corrected(shared: float, n_clusters: int) -> float:
    """A share of samples in the same clusters: 1 is the most, 0 what equal clusters share by chance."""
    return 1.0 if n_clusters == 1 else (shared - 1.0 / n_clusters) / (1.0 - 1.0 / n_clusters)


def partition_score(labels: NDArray[np.int64], neighbor_ids: Tensor, n_clusters: int) -> float:
    """Neighbour agreement times size entropy, with which partitions of any origin are compared.

    Without the entropy a partition would gain by merging clusters that overlap.
    """
    own = torch.from_numpy(labels).to(neighbor_ids.device)
    return neighbor_agreement(own, neighbor_ids) * size_entropy(own, n_clusters)


def candidate_scores(candidates: Sequence[Candidate], n_clusters: int) -> list[float]:
    """The same of what several trainings found, each judged by the neighbours under all of their scalings."""
    entropies = [size_entropy(torch.from_numpy(one.labels), n_clusters) for one in candidates]
    return [own * even for own, even in zip(neighbor_agreements(candidates), entropies, strict=True)]


def _matched(labels: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The other partition with the cluster numbers of this one."""
    size = int(max(labels.max(), other.max())) + 1
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (other, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    names = np.empty(size, dtype=np.int64)
    names[rows] = columns
    return names[other]
