"""What the paper decided by hand, with labels in view, decided from the data alone.

**The weight of the clustering loss.** Reconstruction losses of different data, and of one data set scaled in different
ways, differ by a factor of a hundred, so a fixed weight is idle on some and tears the clusters of others apart. The
weight is therefore a fixed share of the reconstruction loss that pre-training ended with.

**Which scaling goes on, which clusters the joint stage begins with, where it ends, and which training is kept**, is
told by one statistic of a partition, its *consistency*: draw a view, a sample that has it, and one of the sample's
nearest neighbours in that view. How much more often than two samples drawn at random do they fall into one cluster? As
with Cohen's kappa the share is corrected for chance, so that few or unequal clusters gain nothing: 1 is the most, 0 is
chance. Clusters that hold together in every view, although the network was free to follow any of them, have a high
consistency. Partitions found under different scalings are compared on the neighbours of all of these scalings, which
favours none.

Merging clusters that overlap raises the consistency, too. A joint stage that does so shows in the *evenness* of the
cluster sizes, their entropy over the largest possible one: a state in which it has fallen is not kept, however
consistent. A training is only compared with itself, so that sets of unequal clusters do not suffer.

What it cannot see: structure that is in the data and not in the labels that somebody has in mind. Sets whose clusters
overlap in every view differ little in consistency, and there the choice is close to arbitrary; `decisions_` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from viewfuse.neighbors.view_index import NO_NEIGHBOR

SCALINGS = ("mixed", "standard", "minmax")
"""Those that are tried; of equals the first is kept."""
_HANDICAPS = {"standard": 0.01, "minmax": 0.05}
"""Mixed scaling has the neighbours in other views on its side; ranges hang on the two outermost values of a column."""
_SAME_SQUARES, _CLEARLY, _MUCH_LESS_EVEN = 1.001, 0.03, 0.2
_SHARE = 0.7
_USUAL_WEIGHT = 0.1
STABLE, _DOUBTFUL = 0.8, 0.5
"""Bounds of the agreement of trainings."""


def clustering_weight(reconstruction: float | None) -> float:
    """lambda_2 from the mean reconstruction loss of the last pre-training epoch; the paper's where there was none."""
    return _USUAL_WEIGHT if reconstruction is None else _SHARE * reconstruction


def neighbor_agreement(labels: Tensor, neighbor_ids: Tensor) -> float:
    """How much more often than by chance samples share the cluster of their neighbours, on average over views.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    neighbor_ids : int64 tensor of shape (samples, views, neighbours): the nearest first, NOBODY where there is none
    """
    by_chance = float((labels.bincount() / len(labels)).square().sum())
    there = neighbor_ids != NO_NEIGHBOR
    known = there.any(dim=2).any(dim=0)
    if by_chance >= 1.0 or not known.any():
        return 0.0
    same = (labels[neighbor_ids.clamp(min=0)] == labels[:, None, None]) & there
    per_view = same.sum(dim=(0, 2))[known] / there.sum(dim=(0, 2))[known]
    return (float(per_view.mean()) - by_chance) / (1.0 - by_chance)


def size_entropy(labels: Tensor, n_clusters: int) -> float:
    """Entropy of the cluster sizes over that of equal sizes: 1 where all are equal, 0 where one cluster has all.

    Parameters
    ----------
    labels : int64 tensor of shape (samples,)
    """
    shares = labels.bincount().double() / len(labels)
    return float(torch.special.entr(shares).sum() / log(n_clusters)) if n_clusters > 1 else 1.0


def best_start(scores: Sequence[float], squares: Sequence[float], size_entropies: Sequence[float]) -> int:
    """Which of several k-means solutions the joint stage begins with.

    Sums of squares that differ by a thousandth tell nothing: among such solutions the most consistent one is taken. One
    with a larger sum has to be clearly more consistent than these, and must not be so by merging most samples.

    Parameters
    ----------
    scores : their consistencies
    squares : their sums of squares
    size_entropies : those of their cluster sizes
    """
    smallest = min(range(len(squares)), key=lambda i: squares[i])

    def worth(i: int) -> tuple[bool, float, float]:
        is_larger = squares[i] > squares[smallest] * _SAME_SQUARES
        # Rounding must not decide between one solution and the same found from another start.
        score = round(scores[i] - _CLEARLY * is_larger, 9)
        return size_entropies[i] >= size_entropies[smallest] - _MUCH_LESS_EVEN, score, -squares[i]

    return max(range(len(scores)), key=worth)


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
    """The consistency of each partition, on average over views, and in each over the neighbours that scalings give it.

    Scalings that treat a view alike count once there.
    """
    graphs = list({one.scaling: one.neighbor_ids for one in candidates}.values())
    labels = [torch.from_numpy(one.labels).to(one.neighbor_ids.device) for one in candidates]
    views = [_different([neighbor_ids[:, v : v + 1] for neighbor_ids in graphs]) for v in range(graphs[0].shape[1])]
    known = [own for own in views if (own[0] != NO_NEIGHBOR).any()] or views
    return [
        float(np.mean([np.mean([neighbor_agreement(own, neighbor_ids) for neighbor_ids in view]) for view in known]))
        for own in labels
    ]


def _different(graphs: Sequence[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for neighbor_ids in graphs:
        if not any(torch.equal(neighbor_ids, other) for other in found):
            found.append(neighbor_ids)
    return found


def best_of_each(candidates: Sequence[Candidate], scores: Sequence[float]) -> dict[str, int]:
    """Per scaling which training is kept: the most consistent one."""
    best: dict[str, int] = {}
    # A stage that was taken back may have ended with a loss of NaN, which has no place in an order.
    losses = [inf if isnan(one.objective) else one.objective for one in candidates]
    for i in sorted(range(len(scores)), key=lambda i: (-round(scores[i], 9), losses[i])):
        best.setdefault(candidates[i].scaling, i)
    return best


def best_scaling(scores: Mapping[str, float]) -> str:
    """The one with the highest score, less a handicap; of equals the first."""
    return max(scores, key=lambda scaling: scores[scaling] - _HANDICAPS.get(scaling, 0.0))


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


def _matched(labels: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The other partition with the cluster numbers of this one."""
    size = int(max(labels.max(), other.max())) + 1
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (other, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    names = np.empty(size, dtype=np.int64)
    names[rows] = columns
    return names[other]


def in_words(decisions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was decided and why, one sentence each."""
    return [str(decision["why"]) for decision in decisions.values()]


def scaling_decision(
    chosen: str, scores: Mapping[str, float], whole: Sequence[str], failed: Sequence[str]
) -> dict[str, Any]:
    """Facts and words on the scaling.

    Parameters
    ----------
    whole : names of the views whose columns have one scale in common
    failed : scalings with which no training kept finite losses
    """
    listed = ", ".join(f"{scaling} {score:.3f}" for scaling, score in sorted(scores.items(), key=lambda pair: -pair[1]))
    if scores[chosen] >= max(scores.values()):
        why = f"scaling {chosen}: its clusters agree best with the neighbours in all views (consistency: {listed})"
    else:
        why = f"scaling {chosen}: no other has clusters that agree clearly better with the neighbours in all views "
        why += f"(consistency: {listed})"
    if len(scores) == 1:
        why = f"scaling {chosen}: as asked" if not failed else f"scaling {chosen}: the only one that could be trained"
    if failed:
        why += f"; training diverged with {' and '.join(failed)}"
    if chosen == "mixed":
        why += f"; one scale for all columns of {', '.join(whole)}" if whole else "; every column has its own scale"
    elif len(scores) > 1 and "mixed" not in (*scores, *failed):
        why += "; mixed was not tried, as no view should have one scale for all of its columns"
    facts = {"as_a_whole": list(whole), "diverged": list(failed)}
    return {"chosen": chosen, "evidence": dict(scores), **facts, "why": why}


def reliability(agreed: float | None, n_trainings: int, *, final: bool, alone: bool) -> dict[str, Any]:
    """How sure the clustering is: whether independent trainings found the same.

    Parameters
    ----------
    final : whether they were compared as they ended, and not when the scaling was chosen
    alone : whether one training only went on from there
    """
    if agreed is None:
        return {
            "chosen": "unknown",
            "evidence": {},
            "why": "stability unknown: there was one training only; with n_init=3 it is known",
        }
    name = "stable" if agreed >= STABLE else "doubtful" if agreed < _DOUBTFUL else "partly stable"
    verb = "agree" if final else "agreed, when the scaling was chosen,"
    why = f"{name} clustering: {n_trainings} trainings {verb} with an adjusted Rand index of {agreed:.2f} (1: the same)"
    cure = "; n_init=3 trains more of them and keeps the most consistent" if name == "doubtful" and alone else ""
    return {"chosen": name, "evidence": {"agreement": agreed}, "why": why + cure}
