"""One verdict on the clusters: whether they would be found again, and what else to know of them.

**The rule.** The mean chance that a sample is in its cluster again, corrected for chance: from 0.8 on trust is "high",
below 0.5 it is "none", between them "some". Where a cluster dissolves, or the data hold together no better than a
Gaussian, it is never "high". All else are reasons: each names one thing and what to do about it, and none changes the
level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from viewfuse.selection.confidence import logistic, logit
from viewfuse.selection.decisions import ClusterNumber, Trust
from viewfuse.selection.scores import neighbor_agreement

HIGH, NONE = 0.8, 0.5
"""Bounds of the mean chance, corrected for chance (results/trust tells what repeated fits gave above and below)."""
DISSOLVES = 0.5
"""A cluster of which less than half is expected again dissolves (Hennig's bound)."""
GRAVITY = ("batch", "continuum", "dissolves", "range_end", "outliers", "one_view", "unequal", "k-means")
"""The names of the reasons, the gravest first."""
_WHOLE_ERROR, _CLUSTER_ERROR = 1.2, 1.4
"""Of estimated logits: nine in ten sets lay within 1.1 of what repeated fits gave, clusters within 1.3
(results/trust); a little more, as other sets differ."""
_Z = 1.645
"""Of the normal distribution: 90 % lie within."""
_EDGE = 1e-3
_UNEQUAL = 10
"""Times as large as the smallest is the largest cluster."""
_SAME_AS_KMEANS = 0.8
_ONE_VIEW, _OTHER_VIEWS = 0.4, 0.1
"""Neighbour agreement in the view that decides, and at most in any other."""
_BATCH, _DRAWS = 0.05, 199
"""Mutual information that is worth a word, and permutations: the least p is .005."""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 90 % interval of a share that was seen in `n` trials."""
    square = _Z**2 / n
    middle, half = share + square / 2, _Z * sqrt(share * (1 - share) / n + square / (4 * n))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def estimated(chances: NDArray[Any], labels: NDArray[np.int64], n_clusters: int) -> Trust:
    """From the chances of the samples, of shape (samples,), that they are in their clusters again."""
    means = [float(chances[labels == c].mean()) if (labels == c).any() else 0.0 for c in range(n_clusters)]
    whole = float(chances.mean())
    evidence = _interval(whole, *_around(whole, _WHOLE_ERROR))
    clusters = [_interval(mean, *_around(mean, _CLUSTER_ERROR)) for mean in means]
    return _trust(evidence, clusters, labels, 0)


def measured(hits: NDArray[np.bool_], labels: NDArray[np.int64], n_clusters: int) -> Trust:
    """From repeated fits: `hits`, of shape (refits, samples), tells who was in the same cluster."""
    refits, whole = len(hits), float(hits.mean())
    means = [float(hits[:, labels == c].mean()) if (labels == c).any() else 0.0 for c in range(n_clusters)]
    clusters = [_interval(mean, *wilson(mean, refits)) for mean in means]
    return _trust(_interval(whole, *wilson(whole, refits)), clusters, labels, refits)


def _around(share: float, error: float) -> tuple[float, float]:
    """An interval of a share, symmetric in its logit."""
    middle = logit(min(max(share, _EDGE), 1 - _EDGE))
    low, high = logistic(np.array([middle - error, middle + error])).tolist()
    return min(low, share), max(high, share)


def _interval(share: float, low: float, high: float) -> dict[str, float]:
    return {"again": share, "low": low, "high": high}


def _trust(
    evidence: dict[str, float], clusters: Sequence[dict[str, float]], labels: NDArray[np.int64], refits: int
) -> Trust:
    n_clusters, sizes = len(clusters), np.bincount(labels, minlength=len(clusters)) / len(labels)
    chance = float(sizes @ sizes)  # two samples drawn at random share a cluster
    evidence = {**evidence, "chance": chance}
    above = 1.0 if chance == 1.0 else (evidence["again"] - chance) / (1.0 - chance)
    word = "high" if above >= HIGH else "none" if above < NONE else "some"
    lost = [c for c, own in enumerate(clusters) if own["again"] < DISSOLVES]
    # Where nothing holds, no cluster is to be looked at first.
    reasons = [{"name": "dissolves", "clusters": lost}] if 2 * len(lost) < n_clusters or word != "none" else []
    return with_reasons(Trust(word, evidence, n_clusters, refits, clusters), *(reasons if lost else []))


def with_reasons(trust: Trust, *found: Mapping[str, Any] | None) -> Trust:
    """Trust with more reasons, those that are None left out; one that has the name of another replaces it."""
    own = {one["name"]: one for one in (*trust.reasons, *(one for one in found if one is not None))}
    word = "some" if {"continuum", "dissolves"} & own.keys() and trust.chosen == "high" else trust.chosen
    return replace(trust, chosen=word, reasons=[own[name] for name in GRAVITY if name in own])


def on_kmeans(shared: float, network: float, kmeans: float) -> dict[str, Any]:
    """Whether k-means on the filled views finds the same; for information.

    Parameters
    ----------
    shared : share of the samples that both put into the same cluster
    network, kmeans : neighbour agreement of both
    """
    facts = {"same": shared >= _SAME_AS_KMEANS, "shared": shared, "ours": network, "theirs": kmeans}
    return {"name": "k-means", **facts}


def on_sizes(labels: NDArray[np.int64], n_clusters: int) -> dict[str, Any] | None:
    """Whether clusters are very unequal."""
    sizes = np.bincount(labels, minlength=n_clusters)
    sizes = sizes[sizes > 0]
    least, most = int(sizes.min()), int(sizes.max())
    return {"name": "unequal", "least": least, "most": most} if most >= _UNEQUAL * least else None


def on_views(labels: Tensor, neighbor_ids: Tensor, names: Sequence[str]) -> dict[str, Any] | None:
    """Whether neighbours in one view only are in the same clusters; arguments as for `neighbor_agreement`."""
    own = [neighbor_agreement(labels, neighbor_ids[:, v : v + 1]) for v in range(len(names))]
    if len(own) < 2:
        return None
    *_, other, best = sorted(range(len(own)), key=lambda v: own[v])
    if own[best] < _ONE_VIEW or own[other] > _OTHER_VIEWS:
        return None
    return {"name": "one_view", "view": names[best], "agreement": own[best], "others": own[other]}


def on_outliers(count: int, n_samples: int) -> dict[str, Any] | None:
    """That there are samples that belong nowhere."""
    return {"name": "outliers", "count": count, "samples": n_samples} if count else None


def on_number(decision: ClusterNumber) -> list[dict[str, Any]]:
    """What the choice of the number of clusters tells: a continuum, or the end of the range."""
    found: list[dict[str, Any]] = []
    if decision.kind == "continuum":
        found.append({"name": "continuum"})
    if decision.end == "largest":
        found.append({"name": "range_end", "number": decision.chosen})
    return found


def on_batch(labels: NDArray[np.int64], known: NDArray[Any], column: str) -> dict[str, Any] | None:
    """Whether clusters follow a known column: adjusted mutual information, with a permutation test.

    Parameters
    ----------
    known : of shape (samples,): the batch of each sample
    """
    codes = np.unique(known, return_inverse=True)[1]
    found = float(adjusted_mutual_info_score(codes, labels))
    if found < _BATCH:
        return None
    draws = np.random.default_rng(0)
    drawn = [adjusted_mutual_info_score(draws.permutation(codes), labels) for _ in range(_DRAWS)]
    p = (1 + sum(one >= found for one in drawn)) / (1 + _DRAWS)
    return {"name": "batch", "column": column, "information": found, "p": p} if p <= _BATCH else None
