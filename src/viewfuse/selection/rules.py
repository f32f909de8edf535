"""What the paper decided by hand, with labels in view, decided from scores alone; and one verdict on the clusters.

Which scaling is chosen, which clusters the joint stage begins with, and which training is kept depends on the score of
the clusters (`viewfuse.selection.scores`). Rules return data, which `viewfuse.selection.decision_texts` puts in words.

**Whether the clusters would be found again.** The mean chance that a sample is in its cluster again, corrected for
chance: from 0.8 on trust is "high", below 0.5 it is "none", between them "some"; of one cluster, which
is not judged, it is "none". Where a cluster dissolves, more than half of the samples could be in another one, the data
hold together no better than a Gaussian, or samples are too few to look for clusters, it is never "high". All else are
reasons: each names one thing and what to do about it, and none changes the level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isnan, log, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from viewfuse.neighbors.index import NO_NEIGHBOR, Samples, index_training_set
from viewfuse.selection.confidence import ALPHA, bounds, label_sets, logistic
from viewfuse.selection.decisions import ClusterNumber, Outliers, Trust
from viewfuse.selection.kmeans import filled_table, gaussian_like, partition
from viewfuse.selection.linkage import principal
from viewfuse.selection.scores import (
    AGREEMENT_DEPTH,
    QUARTER_FEWER,
    Candidate,
    Merit,
    fewer_leave,
    macro_agreement,
    neighbor_agreement,
)

SCALINGS = ("mixed", "standard", "minmax")
"""Those that are tried, in this order: the one that looks at other views, too, comes first, and the one that depends on
the two outermost values of a column comes last."""
_SCALING_MARGIN = 0.04
_SHARE = 0.7
_USUAL_WEIGHT = 0.1
STABLE = 0.8
"""Agreement of trainings from which on they found the same."""
CLEAR = 0.85
"""Cohen's kappa with k-means on the filled views from which on clusters are clear. On 19 real and synthetic sets
nothing was lost where from 0.7 on no other scaling was tried."""
_SEVENTH, _TENTH, _TWELFTH, _FOURTEENTH, _TWENTIETH = 0.15, 0.1, 0.08, 0.07, 0.05
"""Logarithms of the ratios in `clearly_better`, as `QUARTER_FEWER` is. Chosen on 15 real and 6 synthetic sets at three
missing rates (masks 0 to 2), where k-means in the network's place gains 0.4 points of accuracy on real and 5.6 on
synthetic sets. With 0.02 or 0.03 for a twentieth real sets gain 0.2 to 0.4. Those of average linkage: results/sizes."""
_ALIKE = 0.7
"""Cohen's kappa of a partition that corrects another one. In 35 fits in which average linkage would be taken it gained
7.5 points from there on; below, it lost 8.7 on Reuters and gained 27 on two other sets, where clusters, too,
lose fewer neighbours. A vote lost 4.7 below and gained 1.1 from there on (results/decisions)."""


def clustering_weight(reconstruction: float | None) -> float:
    """lambda_2 from the mean reconstruction loss of the last pre-training epoch; the paper's where there was none.

    These losses differ by a factor of a hundred: a fixed weight is idle on some data and tears others' clusters apart.
    """
    return _USUAL_WEIGHT if reconstruction is None else _SHARE * reconstruction


def best_of_each(candidates: Sequence[Candidate], scores: Sequence[float]) -> dict[str, int]:
    """Per scaling which training is kept: that with the highest score."""
    best: dict[str, int] = {}
    # A stage that was taken back may have ended with a loss of NaN, which has no place in an order.
    losses = [inf if isnan(one.objective) else one.objective for one in candidates]
    for i in sorted(range(len(scores)), key=lambda i: (-round(scores[i], 9), losses[i])):
        best.setdefault(candidates[i].scaling, i)
    return best


def best_scaling(scores: Mapping[str, float]) -> str:
    """The first one, unless one that comes later is clearly better."""
    best, *others = scores
    for scaling in others:
        if scores[scaling] > scores[best] + _SCALING_MARGIN:
            best = scaling
    return best


def are_clear(kappa: float, n_samples: int, n_clusters: int) -> bool:
    """Whether clusters are clear, given Cohen's kappa with those of k-means on the filled views.

    With fewer than five samples in a cluster, on average, nothing is: with as many clusters as samples all agree.
    """
    return n_samples >= 5 * n_clusters and kappa >= CLEAR


def clearly_better(other: Merit, own: Merit, found_in: str = "k-means", kappa: float = 1.0) -> bool:
    """Whether another partition is so much better than one's own that it takes its place.

    That is where a quarter fewer neighbours leave their cluster, on average over clusters, which finds small groups; or
    a tenth fewer on average over samples, while the clusters tell as much of each other (few pure clusters beside one
    that holds all the rest lose no neighbours, and tell little). That of k-means may also tell clearly more while no
    more neighbours leave: so it is where clusters overlap so far that every partition loses most of them. Even halves
    of a large group tell more, too, but are left by more.

    What is found in the neighbour graph was found by looking at these neighbours: it must lose a quarter fewer, and
    tell more. The tree looks at the embedding as well: it must be better in all three, by 0.04 (results/decisions).

    Two correct one's own clusters: their `kappa` with these must be 0.7. A consensus, in which the network has a vote,
    must score a little higher. Average linkage finds unequal clusters, which have less to tell: a fourteenth fewer
    neighbours leave on average over samples, and clusters tell at most a twelfth less. It may be another partition
    where a seventh fewer leave on average over clusters, too.
    """
    by_cluster, by_sample = fewer_leave(other.score, own.score), fewer_leave(other.agreement, own.agreement)
    more = log(max(other.information, 1e-9) / max(own.information, 1e-9))
    if found_in == "consensus":
        return kappa >= _ALIKE and other.score > own.score + 0.003
    if found_in == "tree":
        return min(by_cluster, by_sample, more) > 0.04
    if found_in == "linkage":
        return by_sample > _FOURTEENTH and more > -_TWELFTH and (kappa >= _ALIKE or by_cluster > _SEVENTH)
    if found_in == "graph":
        return by_cluster > QUARTER_FEWER and more > _TENTH
    tells_more = found_in == "k-means" and more > _TWENTIETH and min(by_cluster, by_sample) >= 0.0
    return by_cluster > QUARTER_FEWER or tells_more or (by_sample > _TENTH and more > -_TWENTIETH)


HIGH, NONE = 0.8, 0.5
"""Bounds of the mean chance, corrected for chance (results/trust tells what repeated fits gave above and below)."""
GRAVITY = (
    "batch", "continuum", "structureless", "dissolves", "uncertain", "untested", "range_end", "outliers", "one_view",
    "unequal", "k-means",
)  # fmt: skip
"""The names of the reasons, the gravest first."""
_WHOLE_ERROR, _CLUSTER_ERROR = 1.2, 1.7
"""Of estimated logits: nine in ten sets lay within 1.0 of what repeated fits gave, clusters within 1.6
(results/trust); a little more, as other sets differ."""
_ROWS, _GAUSSIANS = 400, 2
"""Samples that are looked at, and Gaussians that are drawn: scores of these differ by a tenth."""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 90 % interval of a share that was seen in `n` trials."""
    z = 1.645
    square = z**2 / n
    middle, half = share + square / 2, z * sqrt(share * (1 - share) / n + square / (4 * n))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def found_again(found: NDArray[Any], labels: NDArray[np.int64], n_clusters: int, refits: int = 0) -> Trust:
    """From the chances of the samples, of shape (samples,), or, of repeated fits, who was there, (refits, samples)."""

    def interval(own: NDArray[Any], error: float) -> dict[str, float]:
        share = float(own.mean()) if own.size else 0.0
        if refits:
            low, high = wilson(share, refits)
        else:  # symmetric in the logit
            inside = min(max(share, 1e-3), 1 - 1e-3)
            middle = float(np.log(inside / (1 - inside)))
            low, high = logistic(np.array([middle - error, middle + error])).tolist()
            low, high = min(low, share), max(high, share)
        return {"again": share, "low": low, "high": high}

    whole = interval(found, _WHOLE_ERROR)
    clusters = [interval(found[..., labels == c], _CLUSTER_ERROR) for c in range(n_clusters)]
    sizes = np.bincount(labels, minlength=n_clusters) / len(labels)
    chance = float(sizes @ sizes)  # two samples drawn at random share a cluster
    above = 1.0 if chance == 1.0 else (whole["again"] - chance) / (1.0 - chance)
    word = "high" if above >= HIGH else "none" if above < NONE else "some"
    if n_clusters == 1:  # there is nothing to be found again
        word = "none"
    # A cluster of which less than half is expected again dissolves (Hennig's bound). Where nothing holds, none is to be
    # looked at first.
    lost = [c for c, own in enumerate(clusters) if own["again"] < 0.5]
    named = lost and (2 * len(lost) < n_clusters or word != "none")
    reasons = [{"name": "dissolves", "clusters": lost}] if named else []
    return with_reasons(Trust(word, {**whole, "chance": chance}, n_clusters, refits, clusters), *reasons)


def with_reasons(trust: Trust, *found: Mapping[str, Any] | None) -> Trust:
    """Trust with more reasons, those that are None left out; one that has the name of another replaces it."""
    own = {one["name"]: one for one in (*trust.reasons, *found) if one is not None}
    doubted = {"continuum", "dissolves", "uncertain", "untested"} & own.keys() and trust.chosen == "high"
    word = "some" if doubted else trust.chosen
    if "structureless" in own:
        word = "none"
        if "continuum" in own:  # says the same
            del own["structureless"]
    return replace(trust, chosen=word, reasons=[own[name] for name in GRAVITY if name in own])


def on_kmeans(shared: float, network: float, kmeans: float) -> dict[str, Any]:
    """Whether k-means on the filled views finds the same: the shared samples, and the scores of both."""
    return {"name": "k-means", "same": shared >= 0.8, "shared": shared, "ours": network, "theirs": kmeans}


def on_sizes(labels: NDArray[np.int64], n_clusters: int) -> dict[str, Any] | None:
    """Whether clusters are very unequal: the largest is ten times as large as the smallest."""
    sizes = np.bincount(labels, minlength=n_clusters)
    least, most = int(sizes[sizes > 0].min()), int(sizes.max())
    return {"name": "unequal", "least": least, "most": most} if most >= 10 * least else None


def on_views(labels: Tensor, neighbor_ids: Tensor, names: Sequence[str]) -> dict[str, Any] | None:
    """Whether neighbours in one view only are in the same clusters; arguments as for `neighbor_agreement`."""
    own = [neighbor_agreement(labels, neighbor_ids[:, v : v + 1]) for v in range(len(names))]
    if len(own) < 2:
        return None
    *_, other, best = sorted(range(len(own)), key=lambda v: own[v])
    if own[best] < 0.4 or own[other] > 0.1:
        return None
    return {"name": "one_view", "view": names[best], "agreement": own[best], "others": own[other]}


def on_uncertain(soft: NDArray[np.float32], n_present: NDArray[np.int64]) -> dict[str, Any] | None:
    """Whether more than half of the training samples could be in more than one cluster, as `uncertain` tells."""
    count = int((label_sets(soft, n_present, bounds(soft, n_present, ALPHA)).sum(axis=1) > 1).sum())
    return {"name": "uncertain", "count": count, "samples": len(soft)} if 2 * count > len(soft) else None


def on_outliers(count: int, n_samples: int) -> dict[str, Any] | None:
    """That there are samples that belong nowhere."""
    return {"name": "outliers", "count": count, "samples": n_samples} if count else None


def on_number(decision: ClusterNumber) -> list[dict[str, Any]]:
    """What the choice of the number of clusters tells: a continuum, too few samples, or the end of the range."""
    found: list[dict[str, Any]] = []
    if decision.kind in ("continuum", "few"):
        found.append({"name": "continuum" if decision.kind == "continuum" else "untested"})
    if decision.end == "largest":
        found.append({"name": "range_end", "number": decision.chosen})
    return found


def on_structure(samples: Samples, labels: NDArray[np.int64], n_clusters: int) -> dict[str, Any] | None:
    """The reason that clusters of a Gaussian would be as clear; None where these are clearer.

    Whatever data are cut in the same place again and again can be trusted to be cut there, also noise of a few columns.
    Data without clusters are drawn as a Gaussian with the covariance of the filled views, and with the same views
    missing; k-means finds clusters in them. Clearer is a score, or a share of neighbours that stay, 1.2 times as good:
    14 of 15 fits of noise had less, 18 of 19 real and synthetic sets more, all but Scene15 (results/trust).
    """
    rows = np.sort(np.random.default_rng(0).permutation(len(samples))[:_ROWS])
    if len(rows) <= n_clusters:
        return None
    some = samples.take(torch.from_numpy(rows).to(samples.present.device))
    part = index_training_set([view.cpu() for view in some.values], some.present.cpu(), AGREEMENT_DEPTH)
    every = torch.arange(len(part))
    ours = macro_agreement(torch.from_numpy(labels[rows]), part.neighbor_ids, n_clusters)
    table, generator, scores = filled_table(part, every), torch.Generator().manual_seed(0), []
    for _ in range(_GAUSSIANS):
        views = torch.split(gaussian_like(table, generator), [view.shape[1] for view in part.values], dim=1)
        shown = [view * own[:, None] for view, own in zip(views, part.present.mT, strict=True)]
        drawn = index_training_set(shown, part.present, AGREEMENT_DEPTH)
        points = principal(filled_table(drawn, every))
        scores.append(macro_agreement(partition(points, n_clusters), drawn.neighbor_ids, n_clusters))
    null = float(np.mean(scores))
    if ours >= 1.2 * null or 1.2 * (1.0 - ours) <= 1.0 - null:
        return None
    return {"name": "structureless", "ours": ours, "null": null}


def on_batch(labels: NDArray[np.int64], known: NDArray[Any], column: str) -> dict[str, Any] | None:
    """Whether clusters follow a known column, the batch of each sample: a permutation test of mutual information."""
    codes = np.unique(known, return_inverse=True)[1]
    found = float(adjusted_mutual_info_score(codes, labels))
    if found < 0.05:
        return None
    draws, count = np.random.default_rng(0), 199  # the least p is .005
    drawn = [adjusted_mutual_info_score(draws.permutation(codes), labels) for _ in range(count)]
    p = (1 + sum(one >= found for one in drawn)) / (1 + count)
    return {"name": "batch", "column": column, "information": found, "p": p} if p <= 0.05 else None


AMONG = 5


class Fences:
    """What sets outliers apart: view by view, how far the fifth neighbour among the training samples is.

    A sample is an outlier where the logarithm of the distance exceeds the upper quartile plus four times the range of
    the quartiles (Tukey's fence), and the distance five times the median; nowhere where half of the distances are 0.
    Training samples that lie far from most others, but in a group of six, are a cluster. On 15 real sets and four made
    ones without outliers 7 of 19,757 samples are marked.
    """

    def __init__(self, stored: Samples) -> None:
        usual, beyond = list[float](), list[float]()
        for own in neighbor_distances(stored, stored, AMONG).T:
            far = own[~np.isnan(own)]
            usual.append(float(np.median(far)) if len(far) else 0.0)
            beyond.append(np.inf)
            if usual[-1] > 0:
                low, high = np.percentile(np.log(np.maximum(far / usual[-1], 1e-3)), [25, 75])
                beyond[-1] = usual[-1] * max(5.0, float(np.exp(high + 4.0 * (high - low))))
        self._stored, self._usual, self._beyond = stored, np.array(usual), np.array(beyond)

    def outlying(self, samples: Samples) -> NDArray[np.float64]:
        """How many times as far as usual the fifth neighbour of each is, (samples, views); 0 of those within."""
        far = neighbor_distances(samples, self._stored, AMONG)
        with np.errstate(invalid="ignore"):
            return np.where(far > self._beyond, far / np.where(self._usual > 0, self._usual, 1.0), 0.0)


def outliers(stored: Samples, names: Sequence[str], ids: NDArray[Any]) -> Outliers:
    """Which training samples lie far from all others in a view that they have, and how far."""
    times = Fences(stored).outlying(stored)
    columns = zip(names, times.T, strict=True)
    by_view = {name: {str(ids[i]): float(own[i]) for i in np.flatnonzero(own)} for name, own in columns}
    return Outliers(int(times.any(axis=1).sum()), {name: far for name, far in by_view.items() if far}, len(times))


def neighbor_distances(samples: Samples, stored: Samples, place: int = 1) -> NDArray[np.float64]:
    """Per view the distance to a neighbour, the first, second, ...; to the last one where there are fewer.

    Of shape (samples, views); NaN where a view is missing, or has no neighbours.
    """
    found = torch.empty(len(samples), len(stored.values), dtype=torch.float64)
    for rows in torch.split(torch.arange(len(samples), device=samples.present.device), 400):
        for v, values in enumerate(stored.values):
            ids = samples.neighbor_ids[rows, v, :place]
            last = ids.gather(1, ((ids != NO_NEIGHBOR).sum(dim=1).clamp(min=1) - 1)[:, None])[:, 0]
            apart = samples.values[v][rows].double() - values[last.clamp(min=0)]
            far = apart.square().sum(dim=1).sqrt()
            found[rows.cpu(), v] = torch.where(last == NO_NEIGHBOR, torch.nan, far).cpu()
    return found.numpy()
