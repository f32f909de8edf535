"""What is known of samples in a fit: what they teach, where the centres of known classes start, which are doubtful.

The cluster with the number of a class is that of the class. Clusters beyond them are free: classes that are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedKFold
from torch import Tensor

from viewfuse.data.side_information.knowledge import Guidance, Knowledge
from viewfuse.data.side_information.known_labels import UNKNOWN
from viewfuse.engine.training import Training
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples
from viewfuse.selection.decisions import Decision, KnownClasses, KnownPairs, KnownWeights
from viewfuse.selection.kmeans import initial_centers, k_means, nearest_center, squared_distances
from viewfuse.selection.linkage import principal
from viewfuse.selection.scores import AGREEMENT_DEPTH, matched_numbers, merits

_FOLDS, _REPEATS = 5, 2  # hints are left out in five parts, twice; five of each class are needed on average
_CLEARLY = 1.5
"""Standard errors by which classes must be ahead of clusters. With one, LandUse-21 lost .6 more (masks 0 to 4)."""


def pair_loss_of(training: Training, prepared: Callable[[Tensor], Any]) -> Callable[[], Tensor]:
    """From nothing to the loss of pairs that are drawn anew for each step; all runs share their pairs.

    A batch of the step would seldom hold both samples of a pair. Beside its 64 samples 16 pairs are drawn: half as many
    samples, of which nothing is rebuilt.
    """
    method, all_pairs, together = training.runs[0].method, training.runs[0].known.pairs, training.runs[0].known.together
    assert all_pairs is not None
    assert together is not None
    count = min(16, len(all_pairs))

    def loss() -> Tensor:
        drawn = (training.random.uniform(count) * len(all_pairs)).long().clamp(max=len(all_pairs) - 1)
        rows = all_pairs[drawn].mT.flatten(1)
        return method.pair_loss(training.network, prepared(rows), together[drawn])

    return loss


def known_centers(
    embedding: Tensor, known: Guidance, n_clusters: int, seed: int, neighbor_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Centres of shape (clusters, embedding), each with the number of its class, and which hints are `set_aside`.

    Those of k-means without hints, unless k-means from the means of the known classes puts more of these samples with
    their class, in clusters of no lower score (`viewfuse.selection.scores`): then hints that are wrong do no harm.
    """
    assert known.classes is not None
    found = initial_centers(embedding, n_clusters, seed, neighbor_ids, known.weights, known.views)
    usual = torch.from_numpy(found).to(embedding)
    placed, codes = nearest_center(embedding, usual).cpu().numpy(), known.classes.cpu().numpy()
    doubted = set_aside(codes, class_numbers(placed, codes, n_clusters)[placed], neighbor_ids.cpu().numpy())
    codes = np.where(doubted, UNKNOWN, codes)
    # The means of the classes, each in the place of one of the nearest centres.
    there = torch.from_numpy(codes).to(known.classes)
    means = torch.stack([embedding[there == c].mean(dim=0) for c in np.unique(codes) if c != UNKNOWN])
    start = usual.clone()
    start[linear_sum_assignment(squared_distances(means, usual).cpu().numpy())[1]] = means
    weights = torch.ones_like(embedding[:, 0]) if known.weights is None else known.weights
    drawn = k_means(embedding, weights, start[None], 100)[0][0].to(usual)
    both = [placed, nearest_center(embedding, drawn).cpu().numpy()]
    numbers = [class_numbers(own, codes, n_clusters) for own in both]
    shares = [share_of_hints(number[own], codes) for number, own in zip(numbers, both, strict=True)]
    labels = [torch.from_numpy(own).to(neighbor_ids.device) for own in both]
    own, others = merits(labels, neighbor_ids, n_clusters, known.views)
    best = int(shares[1] > shares[0] and others.score >= own.score)
    return (usual, drawn)[best][np.argsort(numbers[best])], torch.from_numpy(doubted).to(known.classes.device)


def class_numbers(labels: NDArray[np.int64], known: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """New numbers of the clusters, (clusters,): as many known samples as possible have that of their class."""
    there = known != UNKNOWN
    return matched_numbers(labels[there], known[there], n_clusters)


def share_of_hints(labels: NDArray[np.int64], known: NDArray[np.int64]) -> float:
    """The share of the known samples that are in the cluster of their class."""
    there = known != UNKNOWN
    return float((labels[there] == known[there]).mean())


def class_centers(
    embedding: Tensor, labels: NDArray[np.int64], known: NDArray[np.int64], n_clusters: int
) -> Tensor | None:
    """Centres of the classes that the hints teach, of shape (clusters, embedding).

    Logistic regression on the embedding, taught by the hints, gives every sample a class; the centres are the means of
    these classes. The nearest mean is right more often than the regression itself: clusters outvote a wrong hint.

    None unless the nearest of such means is right for clearly more samples than the clusters are (`labels`), where
    these get the classes of the same hints: by more than `_CLEARLY` standard errors, over hints that were left out in
    turn. Where clusters are not the classes, hints say how to cut (results/hints).
    """
    rows = np.flatnonzero(known != UNKNOWN)
    wanted, count = known[rows], np.bincount(known[rows], minlength=n_clusters)
    several = np.flatnonzero(count[wanted] > 1)
    if count.min() == 0 or len(rows) < _FOLDS * n_clusters or len(several) < _FOLDS:
        return None
    points = principal(embedding).double().cpu().numpy()
    points /= points.std()
    gain, differ = 0, 0
    for _, asked in RepeatedKFold(n_splits=_FOLDS, n_repeats=_REPEATS, random_state=0).split(several):
        ask = several[asked]
        left = np.delete(np.arange(len(rows)), ask)
        found = _taught_classes(points, rows[left], wanted[left])
        there = np.unique(found)
        means = np.stack([points[found == c].mean(axis=0) for c in there])
        nearest = there[cdist(points[rows[ask]], means).argmin(axis=1)] == wanted[ask]
        inside = class_numbers(labels[rows[left]], wanted[left], n_clusters)[labels[rows[ask]]] == wanted[ask]
        gain, differ = gain + int(nearest.sum()) - int(inside.sum()), differ + int((nearest != inside).sum())
    if gain <= _CLEARLY * sqrt(_REPEATS * differ):  # every hint was left out so many times
        return None
    classes = torch.from_numpy(_taught_classes(points, rows, wanted)).to(embedding.device)
    return torch.stack([embedding[classes == c].mean(dim=0) for c in range(n_clusters)])


def _taught_classes(
    points: NDArray[np.float64], rows: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The class of every point by logistic regression that is taught some rows, which keep their own classes."""
    if len(np.unique(wanted)) == 1:
        return np.full(len(points), wanted[0])
    found = np.asarray(LogisticRegression(max_iter=1_000).fit(points[rows], wanted).predict(points))
    found[rows] = wanted
    return found


def doubtful(known: NDArray[np.int64], labels: NDArray[np.int64], neighbor_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Known samples that all of their views place elsewhere, of shape (samples,).

    In every view that they have, another cluster has more of their nine nearest neighbours than that of their class.
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


def set_aside(
    known: NDArray[np.int64], labels: NDArray[np.int64], neighbor_ids: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which hints are not followed, of shape (samples,): those that are `doubtful` in clusters found without hints.

    Clusters that are not the classes say nothing against hints: none is set aside where more than 40 % of all are
    doubtful, and none of a class of which more than half are. With one wrong in five, 23 to 29 % were doubtful where
    clusters are nearly the classes (Handwritten and BDGP), and 45 % or more where they are not (Scene15, LandUse-21).
    """
    doubts = doubtful(known, labels, neighbor_ids)
    given = np.bincount(known[known != UNKNOWN])
    against = np.bincount(known[doubts], minlength=len(given))
    if against.sum() > 0.4 * given.sum():
        return np.zeros_like(doubts)
    doubts[doubts] = (2 * against <= given)[known[doubts]]
    return doubts


def what_became(
    known: Knowledge, guided: Guidance, labels: NDArray[np.int64], stored: Samples, ids: NDArray[Any],
    names: Sequence[str],
) -> Iterator[Decision]:  # fmt: skip
    """What became of all that was known, given the clusters of the training samples, and the names of the views."""
    if known.hints is not None:
        hints, unused = known.hints, np.zeros(len(labels), dtype=bool)
        if guided.doubted is not None:
            unused = guided.doubted.cpu().numpy() & (labels != hints.codes)
        marked = np.flatnonzero(unused | doubtful(hints.codes, labels, stored.neighbor_ids.cpu().numpy()))
        doubts = {str(ids[i]): hints.classes[hints.codes[i]] for i in marked}
        agreed = round(share_of_hints(labels, hints.codes) * len(hints))
        own = np.bincount(labels[labels == hints.codes], minlength=len(hints.classes)).tolist()
        with_class = {str(name): count for name, count in zip(hints.classes, own, strict=True)}
        found = hints.by_class(ids), len(labels), agreed, doubts, int(unused.sum()), with_class
        yield KnownClasses(len(hints), *found)
    if known.pairs is not None:
        count, broken = len(known.pairs), known.pairs.broken(labels)
        yield KnownPairs(count, known.pairs.by_ids(ids), count - len(broken), broken.by_ids(ids))
    if known.weights is not None or known.views is not None:
        weights = np.ones(len(ids)) if known.weights is None else known.weights
        by_id = {str(one): weight for one, weight in zip(ids.tolist(), weights.tolist(), strict=True)}
        by_view = dict(zip(names, known.views or [1.0] * len(names), strict=True))
        yield KnownWeights(int((weights > 0).sum()), {"samples": by_id, "views": by_view})
