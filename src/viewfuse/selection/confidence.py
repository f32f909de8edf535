"""Confidence: the chance that a sample is in its cluster again if the fit were repeated.

Repeated: on other samples of the same kind, with another seed, and with the views that the sample has. What every fit
knows tells most of it: `margins` between centres, `near_shares` of its neighbours in the views, what was found again by
other trainings, and how far clusters lie apart in the embedding (`apart_shares`). docs/decisions.md has the formula.
Its constants were fitted to whole fits that were repeated on 80 % of the samples of 15 real sets, and of synthetic ones
(results/trust). `validate` repeats the fit, and makes the mean of each cluster the frequency that was measured.

The soft assignment of each sample is raised to the power that makes its largest entry the chance, so no label changes.

Sets of clusters that together hold a sample with a chance that is asked for follow by split conformal prediction, with
labels drawn from the soft assignments of the training samples, as the labels that these have are right more often than
those of new samples would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.selection.decisions import MeanConfidence
from viewfuse.selection.scores import stability

OFFSET, MARGIN, AGAIN, WHOLE = -0.25, 1.5, 2.75, 0.75
"""Of the logistic function: fitted as -0.24, 1.51, 2.75 and 0.83, and rounded, at no cost (results/trust)."""
ALPHA = 0.1
"""The share of samples whose set of clusters may lack theirs, where nothing else is asked for."""
_MOST_APART = 2_000
"""Samples whose neighbours in the embedding are looked for: of more, as many at even distances; means need no more."""
_ELSEWHERE = 0.15
"""Share of the doubt that is spread over all other clusters: a repeated fit may divide the samples in another way."""


@dataclass(frozen=True)
class Calibration:
    """What the training samples tell of how sure clusters are."""

    labels: Tensor  # their clusters, int32 of shape (training samples,)
    again: NDArray[np.float64]  # per cluster the share found again, less chance, times how far it lies apart
    shifts: NDArray[np.float64]  # what is added to the logits of each cluster as a whole

    @classmethod
    def of(
        cls, labels: NDArray[np.int64], others: Sequence[NDArray[np.int64]], embedding: Tensor, neighbor_ids: Tensor,
        n_clusters: int,
    ) -> Calibration:  # fmt: skip
        """From the clusters and embedding of the training samples, and what other trainings made of them."""
        own = torch.from_numpy(labels).to(embedding.device)
        near = near_shares(own, neighbor_ids, own, n_clusters).clamp(min=0).cpu().numpy()
        apart = apart_shares(embedding, own, n_clusters)
        again = chance_corrected_again(labels, others, n_clusters) * apart
        return cls(own.int(), again, WHOLE * apart * _means(near, labels, n_clusters))

    def to(self, device: torch.device) -> Calibration:
        """The same on `device`."""
        return replace(self, labels=self.labels.to(device))

    def take(self, rows: NDArray[np.int64]) -> Calibration:
        """With some of the training samples only."""
        return replace(self, labels=self.labels[torch.from_numpy(rows).to(self.labels.device)])

    def validated(
        self, logits: NDArray[np.float64], labels: NDArray[np.int64], frequencies: NDArray[np.float64]
    ) -> Calibration:
        """With shifts that make each cluster's mean chance the frequency that was measured, inside of 0 and 1.

        The logits of the samples have no shifts; those of clusters without samples are 0.
        """

        def shift(c: int) -> float:
            own, share = logits[labels == c], frequencies[c]
            return float(_bisected(lambda x: logistic(own + x).mean() < share, -20.0, 20.0)) if len(own) else 0.0

        return replace(self, shifts=np.array([shift(c) for c in range(len(frequencies))]))


def chance_corrected_again(
    labels: NDArray[np.int64], others: Sequence[NDArray[np.int64]], n_clusters: int
) -> NDArray[np.float64]:
    """Per cluster the share of its samples that other partitions put together, 0 by chance; 0 where it is empty."""
    shares = stability(labels, others) if others else np.ones(len(labels))
    sizes, means = np.bincount(labels, minlength=n_clusters), _means(shares, labels, n_clusters)
    chance = sizes / len(labels)
    return np.where((sizes > 0) & (chance < 1), (means - chance) / np.maximum(1 - chance, 1e-9), sizes > 0)


def _means(values: NDArray[np.floating], labels: NDArray[np.int64], n_clusters: int) -> NDArray[np.float64]:
    """Of shape (clusters,); 0 where one is empty."""
    sizes = np.bincount(labels, minlength=n_clusters)
    return np.asarray(np.bincount(labels, weights=values, minlength=n_clusters) / np.maximum(sizes, 1))


def apart_shares(embedding: Tensor, labels: Tensor, n_clusters: int) -> NDArray[np.float64]:
    """Per cluster the share of its samples' neighbours in the embedding that it holds, 0 by chance or less.

    1 where there is but one cluster. It sees long clusters, of which centres tell little, and doubts what was found
    again only because the joint stage changed nothing.
    """
    rows = torch.linspace(0, len(labels) - 1, min(len(labels), _MOST_APART), device=labels.device).round().long()
    labels, points = labels[rows], embedding[rows].double()
    far = torch.cdist(points, points).fill_diagonal_(torch.inf)
    # Ten neighbours, or as many as the others of a smaller cluster are.
    around = far.topk(min(10, len(rows) - 1), largest=False).indices
    sizes = torch.bincount(labels, minlength=n_clusters)
    looked_at = (sizes[labels] - 1).clamp(1, around.shape[1])
    within = torch.arange(around.shape[1], device=labels.device) < looked_at[:, None]
    same = ((labels[around] == labels[:, None]) & within).sum(dim=1) / looked_at
    shares = _means(same.double().cpu().numpy(), labels.cpu().numpy(), n_clusters)
    chance = sizes.cpu().numpy() / len(rows)
    return np.where(chance < 1, np.maximum(shares - chance, 0) / np.maximum(1 - chance, 1e-9), 1.0)


def _bisected(is_less: Callable[[Any], Any], low: Any, high: Any) -> NDArray[np.float64]:
    """Where something that rises is no longer less, between two numbers, or two arrays."""
    for _ in range(60):
        middle = (low + high) / 2
        less = is_less(middle)
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return np.asarray((low + high) / 2)


def logistic(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x))."""
    return np.asarray(0.5 + 0.5 * np.tanh(logits / 2))


def sample_logits(
    calibration: Calibration, embedding: Tensor, centers: Tensor, labels: Tensor, neighbor_ids: Tensor
) -> NDArray[np.float64]:
    """The logits of the chances, without shifts, of samples whose labels are the nearest centres; of shape (samples,).

    Their neighbours, of shape (samples, views, neighbours), are training samples.
    """
    margin = margins(embedding, centers, labels).cpu().numpy()
    near = near_shares(labels, neighbor_ids, calibration.labels, len(centers)).cpu().numpy()
    again = np.maximum(calibration.again[labels.cpu().numpy()], 0.0)
    return np.asarray(OFFSET + np.maximum(near, 0.0) * (MARGIN * margin + AGAIN * again))


def margins(embedding: Tensor, centers: Tensor, labels: Tensor) -> Tensor:
    """(next - own) / (next + own) of the distances to centres where the centres lie, in float64; 0 for one centre.

    Infinite centres, of numbers without a cluster, are left out.
    """
    used = centers.isfinite().all(dim=1)
    centers, labels = centers[used], (used.cumsum(dim=0) - 1)[labels]
    middle = centers.double().mean(dim=0)
    _, sizes, directions = torch.linalg.svd(centers.double() - middle, full_matrices=False)
    basis = directions[sizes > 1e-6 * sizes[0]]  # others are rounding

    def places(points: Tensor) -> Tensor:
        """Products one by one: those of matrices may round a row in another way when there are more rows."""
        return ((points.double() - middle)[:, None, :] * basis).sum(dim=2)

    corners, shares = places(centers), []
    for points, at in zip(torch.split(embedding, 1_024), torch.split(labels, 1_024), strict=True):
        far = (places(points)[:, None, :] - corners).square().sum(dim=2).sqrt()
        own, following = far.gather(1, at[:, None])[:, 0], far.scatter(1, at[:, None], torch.inf).amin(dim=1)
        shares.append((following - own) / (following + own))
    share = torch.cat(shares)
    return torch.where(torch.isfinite(share), share, 0.0)


def near_shares(labels: Tensor, neighbor_ids: Tensor, stored: Tensor, n_clusters: int) -> Tensor:
    """The share of the neighbours that are in a sample's cluster, 0 by chance, in float64; 0 without neighbours.

    `stored` are the clusters of the training samples.
    """
    there = neighbor_ids != NO_NEIGHBOR
    same = (stored[neighbor_ids.clamp(min=0)] == labels[:, None, None]) & there
    counts = there.sum(dim=(1, 2))
    shares = same.sum(dim=(1, 2)).double() / counts.clamp(min=1)
    chance = (torch.bincount(stored, minlength=n_clusters).double() / len(stored))[labels]
    corrected = (shares - chance) / (1.0 - chance).clamp(min=1e-9)
    return torch.where((counts > 0) & (chance < 1.0), corrected, 0.0)


def with_chances(assignment: NDArray[np.float32], chances: NDArray[np.float64]) -> NDArray[np.float32]:
    """Soft assignments, of shape (samples, clusters), whose largest entries are the chances; rows sum to 1.

    Each row is raised to a power of its own. Of the doubt, a small part is spread evenly over the other clusters.
    """
    n, k = assignment.shape
    if k == 1:
        return np.ones_like(assignment)
    rows, best = np.arange(n), assignment.argmax(axis=1)
    logs = np.log(np.maximum(assignment.astype(np.float64), 1e-300))
    logs -= logs.max(axis=1, keepdims=True)
    wanted = np.clip(chances, 1.0 / k, 0.995)  # nothing is certain
    low, high = (np.full(n, bound) for bound in (-20.0, 9.0))
    powers = _bisected(lambda power: 1.0 / np.exp(np.exp(power)[:, None] * logs).sum(axis=1) < wanted, low, high)
    raised = np.exp(np.exp(powers)[:, None] * logs)
    raised[rows, best] = 0.0
    left = raised.sum(axis=1, keepdims=True)
    doubt = np.where(left > 0, raised / np.where(left > 0, left, 1.0), 1.0 / (k - 1))
    found = (1.0 - wanted)[:, None] * ((1.0 - _ELSEWHERE) * doubt + _ELSEWHERE / (k - 1))
    found[rows, best] = wanted
    return _with_best(found.astype(np.float32), best)


def _with_best(found: NDArray[np.float32], best: NDArray[np.int64]) -> NDArray[np.float32]:
    """What was the best stays so, also where rounding makes it equal to the next."""
    rows = np.arange(len(found))
    tied = (found >= found[rows, best][:, None]).sum(axis=1) > 1
    found[rows[tied], best[tied]] = np.nextafter(found[tied].max(axis=1), np.float32(2))
    return found


def sharpened(assignment: NDArray[np.float32], power: float) -> NDArray[np.float32]:
    """Soft assignments raised to one power, as models of earlier versions have it; rows sum to 1."""
    if power == 1.0:
        return assignment
    logs = power * np.log(np.maximum(assignment.astype(np.float64), 1e-300))
    raised = np.exp(logs - logs.max(axis=1, keepdims=True))
    return _with_best((raised / raised.sum(axis=1, keepdims=True)).astype(np.float32), assignment.argmax(axis=1))


def mean_confidence(assignment: NDArray[np.float32], calibration: Calibration | None) -> MeanConfidence:
    """How sure soft assignments of shape (samples, clusters) are on average; the paper's are not calibrated."""
    evidence = {} if calibration is None else {"again": float(calibration.again.mean())}
    return MeanConfidence(float(assignment.max(axis=1).mean()), evidence, assignment.shape[1])


def bounds(soft: NDArray[np.float32], n_present: NDArray[np.int64], alpha: float) -> dict[int, float]:
    """By number of views the least chance of a cluster in the sets; those of fewer than 30 samples share that of 0.

    Of the training samples `soft` are the chances and `n_present` the numbers of views; a share of `alpha` of samples
    may lack their cluster.
    """
    drawn = drawn_chances(soft)
    found = {0: _bound(np.sort(drawn), alpha)}
    for count, size in zip(*np.unique(n_present, return_counts=True), strict=True):
        if size >= 30:
            found[int(count)] = _bound(np.sort(drawn[n_present == count]), alpha)
    return found


def drawn_chances(soft: NDArray[np.float32]) -> NDArray[np.float64]:
    """The chance of a cluster that is drawn by the chances, of shape (samples,); the same at every call."""
    wide = soft.astype(np.float64)
    places = np.random.default_rng(0).random(len(soft))[:, None] * wide.sum(axis=1, keepdims=True)
    labels = np.minimum((places >= wide.cumsum(axis=1)).sum(axis=1), soft.shape[1] - 1)
    return np.asarray(wide[np.arange(len(soft)), labels])


def _bound(scores: NDArray[np.float64], alpha: float) -> float:
    """The conformal quantile: of n scores in rising order that with the number floor(alpha (n + 1)), at least all."""
    place = len(scores) + 1 - ceil((1 - alpha) * (len(scores) + 1))
    return float(scores[place - 1]) if place >= 1 else 0.0


def label_sets(soft: NDArray[np.float32], n_present: NDArray[np.int64], known: dict[int, float]) -> NDArray[np.bool_]:
    """Which clusters are in the set of each sample, of shape (samples, clusters).

    Those above the bound of its number of views, see `bounds`, and as many of the likeliest as hold it with an even
    chance: the bound holds for all samples together, and clear ones must not pay for those that could be anywhere.
    """
    least = np.array([known.get(count, known[0]) for count in n_present.tolist()])
    order = np.argsort(-soft, axis=1, kind="stable")
    sorted_chances = np.take_along_axis(soft, order, axis=1).astype(np.float64)
    likelier = sorted_chances.cumsum(axis=1) - sorted_chances
    inside = np.zeros(soft.shape, dtype=bool)
    np.put_along_axis(inside, order, likelier < 0.5, axis=1)
    return np.asarray(inside | (soft >= least[:, None]))
