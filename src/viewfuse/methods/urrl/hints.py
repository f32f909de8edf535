"""Known classes of some samples: where their centres start, what others' partitions make of them, which are doubtful.

The cluster with the number of a class is that of the class. Clusters beyond them are free: classes that are not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from viewfuse.data.known.hints import UNKNOWN, Hints
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.decisions import KnownClasses
from viewfuse.selection.kmeans import initial_centers, k_means, nearest_center, squared_distances
from viewfuse.selection.scores import AGREEMENT_DEPTH, merits

_ROUNDS = 100


def known_centers(embedding: Tensor, known: Tensor, n_clusters: int, seed: int, neighbor_ids: Tensor) -> Tensor:
    """Centres of shape (clusters, embedding), each with the number of its class.

    Those of k-means without hints, unless k-means from the means of the known classes puts more of these samples with
    their class, in clusters of no lower score (`viewfuse.selection.scores`): then hints that are wrong do no harm.

    Parameters
    ----------
    known : int64 tensor of shape (samples,): the class, or UNKNOWN
    """
    usual = torch.from_numpy(initial_centers(embedding, n_clusters, seed, neighbor_ids)).to(embedding)
    start = _with_means(usual, embedding, known)
    drawn = k_means(embedding, torch.ones_like(embedding[:, 0]), start[None], _ROUNDS)[0][0].to(usual)
    codes, found = known.cpu().numpy(), [nearest_center(embedding, own).cpu().numpy() for own in (usual, drawn)]
    numbers = [class_numbers(own, codes, n_clusters) for own in found]
    shares = [share_of_hints(number[own], codes) for number, own in zip(numbers, found, strict=True)]
    own, others = merits([torch.from_numpy(one).to(neighbor_ids.device) for one in found], neighbor_ids, n_clusters)
    best = int(shares[1] > shares[0] and others.score >= own.score)
    return (usual, drawn)[best][np.argsort(numbers[best])]


def _with_means(centers: Tensor, embedding: Tensor, known: Tensor) -> Tensor:
    """Centres of which those nearest to the means of the known classes, one each, are replaced by them."""
    means = torch.stack([embedding[known == c].mean(dim=0) for c in np.unique(known.cpu().numpy()) if c != UNKNOWN])
    taken = linear_sum_assignment(squared_distances(means, centers).cpu().numpy())[1]
    replaced = centers.clone()
    replaced[taken] = means
    return replaced


def class_numbers(labels: NDArray[np.int64], known: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """New numbers of the clusters, (clusters,): as many known samples as possible have that of their class."""
    counts, there = np.zeros((n_clusters, n_clusters)), known != UNKNOWN
    np.add.at(counts, (labels[there], known[there]), 1)
    return np.asarray(linear_sum_assignment(-counts)[1])


def share_of_hints(labels: NDArray[np.int64], known: NDArray[np.int64]) -> float:
    """The share of the known samples that are in the cluster of their class."""
    there = known != UNKNOWN
    return float((labels[there] == known[there]).mean())


def doubtful(known: NDArray[np.int64], labels: NDArray[np.int64], neighbor_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Known samples that all of their views place elsewhere, of shape (samples,).

    In every view that they have, another cluster has more of their nine nearest neighbours than that of their class.

    Parameters
    ----------
    neighbor_ids : of shape (samples, views, neighbours), NO_NEIGHBOR where there is none
    """
    rows = np.flatnonzero(known != UNKNOWN)
    nearest = neighbor_ids[rows, :, :AGREEMENT_DEPTH]
    there, found = nearest != NO_NEIGHBOR, labels[nearest]
    counts = np.stack([((found == c) & there).sum(axis=2) for c in range(int(max(labels.max(), known.max())) + 1)])
    own = counts[known[rows], np.arange(len(rows))]
    elsewhere = (counts.max(axis=0) > own) | ~there.any(axis=2)
    mark = np.zeros(len(known), dtype=bool)
    mark[rows] = elsewhere.all(axis=1) & there.any(axis=(1, 2))
    return mark


def known_classes(hints: Hints, labels: NDArray[np.int64], neighbor_ids: Tensor, ids: NDArray[Any]) -> KnownClasses:
    """What became of the hints, given the clusters of the samples and their neighbours."""
    marked = doubtful(hints.codes, labels, neighbor_ids.cpu().numpy())
    doubts = {str(ids[i]): hints.classes[hints.codes[i]] for i in np.flatnonzero(marked)}
    agreed = round(share_of_hints(labels, hints.codes) * len(hints))
    return KnownClasses(len(hints), hints.by_class(ids), len(labels), agreed, doubts)
