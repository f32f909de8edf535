"""How many clusters? One rule, with an answer for data that have none.

The score of k is what four measures say of the data less what they say of a Gaussian of the same covariance with the
same views missing, in a weighted sum (`WEIGHTS`). Clusters are found twice in any data, most of all few of them; what
is found again more often than in the Gaussian is there. Each measure is a number per k that is 1 at most:

- **hidden views**: the adjusted Rand index of the clusters and those that are found with half of the views hidden;
- **resampling**: that of clusters found in different four fifths of the samples, on average over the embedding and the
  filled views;
- **neighbours**: the neighbour agreement of the clusters in all views (`viewfuse.selection.scores`);
- **gap**: how far the k-th eigenvalue of the neighbour graph is above the next.

The sum stays level beyond the true number, so peaks that are nearly as high as the highest hold, too; the smallest k of
these is chosen, and the others are listed. Clusters found with views hidden are listed and have no vote: they differ
more from one draw to the next than from one number to the next.

There is **one cluster** where the clusters of no k agree with the neighbours in all views much better than those of the
Gaussian do (`STRUCTURE`), nor does the neighbour graph fall into parts (`GAP`).

results/clusters/README.md says how bounds and weights were found, and what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn import functional

from viewfuse.errors import SettingError
from viewfuse.neighbors.samples import Samples, index_training_set
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.decisions import ClusterNumber
from viewfuse.selection.kmeans import filled_table, partitions
from viewfuse.selection.scores import AGREEMENT_DEPTH, partition_agreements
from viewfuse.utils.settings import Setting, wrong

WEIGHTS = {"hidden_views": 0.0, "resampling": 1.0, "neighbors": 3.0, "gap": 2.0}
STRUCTURE, GAP = 0.12, 0.07
"""By how much `neighbors` or `gap` exceed their null where there are clusters; of 108 sets without 106 had less."""
_CLOSE = 0.2
"""A peak that is lower by less holds, too."""
_PER_CLUSTER = 5
"""Samples that a cluster has at least, on average."""
_SHOWN = 3
Curve = list[dict[str, Any]]
MEASURES = ("hidden_views", "resampling", "neighbors", "gap")
_DRAWS = 4
_SHARE = 0.8
_DIMENSIONS = 24
"""Principal components that are clustered; partitions of up to thirty clusters need no more."""


def candidate_numbers(within: Any, n_samples: int) -> list[int]:
    """The numbers of clusters that are looked at, in rising order; none where there are too few samples.

    Parameters
    ----------
    within : the least and the largest; 1 is looked at in any case that includes 2
    """
    least, most = checked_range(within)
    if least > max(n_samples, 1):
        fault = f" begins at {least}, above the number of samples, {n_samples}; begin it lower"
        raise SettingError(Setting("cluster_range"), fault)
    if least <= 2 and n_samples < 2 * _PER_CLUSTER:
        return []
    return list(range(max(least, 2), min(most, max(n_samples // _PER_CLUSTER, least)) + 1))


def checked_range(within: Any) -> tuple[int, int]:
    """Two whole numbers, the first at least 1 and not above the second."""
    is_pair = isinstance(within, Sequence) and not isinstance(within, str) and len(within) == 2
    if not is_pair or any(isinstance(one, bool) or not hasattr(one, "__index__") for one in within):
        raise wrong("cluster_range", "two whole numbers, such as (2, 30)", within)
    least, most = int(within[0]), int(within[1])
    if not 1 <= least <= most or most < 2:
        raise SettingError(Setting("cluster_range"), f" must rise from 1 or more to 2 or more; got {within!r}")
    return least, most


def curve_of(ks: Sequence[int], found: Mapping[str, Sequence[float]], null: Mapping[str, Sequence[float]]) -> Curve:
    """Per k its score, what it is made of, and what each measure says of the data and of the null."""
    return [_point(k, *({name: float(said[name][i]) for name in MEASURES} for said in (found, null)))
            for i, k in enumerate(ks)]  # fmt: skip


def _point(k: int, found: Mapping[str, float], null: Mapping[str, float]) -> dict[str, Any]:
    sums = {
        name: sum(WEIGHTS[one] * said[one] for one in MEASURES) for name, said in (("found", found), ("null", null))
    }
    score = sums["found"] - sums["null"]
    return {"k": k, "score": score, **sums, **found, **{f"{name}_null": value for name, value in null.items()}}


def number_decision(curve: Curve, *, alone: bool) -> ClusterNumber:
    """How many clusters there are, which numbers hold too, and the whole curve.

    Parameters
    ----------
    alone : whether one cluster is among the possible answers
    """
    peaks = _peaks(curve)
    structured = any(_exceeds(one, "neighbors", STRUCTURE) or _exceeds(one, "gap", GAP) for one in curve)
    holding = sorted(one["k"] for one in peaks if one["score"] >= peaks[0]["score"] - _CLOSE)
    if not curve or (alone and not structured):
        holding = [1]
    others = [one["k"] for one in peaks if one["k"] != holding[0]]
    evidence = {str(one["k"]): one["score"] for one in peaks[:_SHOWN]}
    return ClusterNumber(holding[0], evidence, holding, others[0] if others else None, structured, curve)


def _exceeds(point: Mapping[str, Any], name: str, bound: float) -> bool:
    return bool(point[name] - point[f"{name}_null"] >= bound)


def _peaks(curve: Curve) -> Curve:
    """The points that no neighbour is above, the highest first."""
    scores = [-inf, *(one["score"] for one in curve), -inf]
    rises = [second > first for first, second in pairwise(scores)]
    tops = [
        one for one, rises_to, rises_from in zip(curve, rises, rises[1:], strict=False) if rises_to and not rises_from
    ]
    return sorted(tops, key=lambda one: -one["score"])


class Look(NamedTuple):
    """Samples as a network sees them.

    Attributes
    ----------
    embedding : tensor of shape (samples, embedding)
    hidden : the same with half of the views hidden
    """

    samples: Samples
    embedding: Tensor
    hidden: Tensor


def measured(look: Look, ks: Sequence[int], generator: torch.Generator) -> dict[str, list[float]]:
    """What each of `MEASURES` says of each number of clusters."""
    embedding, rows = principal(look.embedding), torch.arange(len(look.samples), device=look.embedding.device)
    table = principal(filled_table(look.samples, rows))
    found, hidden = (partitions(points, ks, generator) for points in (embedding, principal(look.hidden)))
    resampled = [_resampled(points, ks, generator) for points in (embedding, table)]
    said = {
        "hidden_views": rand_index(contingency(found, hidden, max(ks))),
        "resampling": torch.stack(resampled).mean(dim=0),
        "neighbors": torch.tensor(partition_agreements(list(found), look.samples.neighbor_ids)),
        "gap": _gaps(spectrum(look.samples, AGREEMENT_DEPTH, max(ks) + 1), ks),
    }
    return {name: values.double().tolist() for name, values in said.items()}


def _resampled(points: Tensor, ks: Sequence[int], generator: torch.Generator) -> Tensor:
    """The mean index of pairs of partitions that were found in parts of the points and extended to all."""
    parts = [(torch.rand(len(points), generator=generator) < _SHARE).to(points) for _ in range(_DRAWS)]
    found = [partitions(points, ks, generator, part) for part in parts]
    return torch.stack([rand_index(contingency(*pair, max(ks))) for pair in combinations(found, 2)]).mean(dim=0)


def _gaps(values: Tensor, ks: Sequence[int]) -> Tensor:
    places = torch.tensor(ks, device=values.device)
    return values[places - 1] - values[places]


def gaussian_like(table: Tensor, generator: torch.Generator) -> Tensor:
    """A Gaussian of the mean and covariance of a table, of the same shape."""
    rows = table.double()
    middle = rows.mean(dim=0)
    rows, (n, width) = rows - middle, table.shape
    drawn = torch.randn(n, min(n, width), generator=generator, dtype=torch.float64).to(rows)
    if n <= width:  # random sums of the rows have their covariance
        return (drawn @ rows / n**0.5 + middle).to(table)
    values, vectors = torch.linalg.eigh(rows.T @ rows / n)
    return (drawn * values.clamp(min=0).sqrt() @ vectors.T + middle).to(table)


def structureless(samples: Samples, generator: torch.Generator) -> Samples:
    """Training samples without clusters: a Gaussian of all views together, of which the same are missing."""
    table = filled_table(samples, torch.arange(len(samples), device=samples.present.device))
    parts = torch.split(gaussian_like(table, generator), [view.shape[1] for view in samples.values], dim=1)
    values = [torch.where(samples.present[:, v, None], part, 0.0).contiguous() for v, part in enumerate(parts)]
    return index_training_set(values, samples.present, samples.neighbor_ids.shape[2])


def with_half_the_views(samples: Samples, generator: torch.Generator) -> Samples:
    """Samples of which every other view, drawn anew for each, is hidden; one at least stays."""
    present = samples.present
    draws = torch.rand(present.shape, generator=generator).to(present.device)
    places = torch.where(present, draws, 2.0).argsort(dim=1).argsort(dim=1)
    kept = present & (places < (present.sum(dim=1, keepdim=True) + 1) // 2)
    values = [torch.where(kept[:, v, None], view, 0.0) for v, view in enumerate(samples.values)]
    return Samples(values, kept, torch.where(kept[:, :, None], samples.neighbor_ids, NO_NEIGHBOR))


def spectrum(samples: Samples, depth: int, count: int) -> Tensor:
    """The largest eigenvalues of the graph that joins neighbours in any view, the largest first, of shape (count,).

    An edge weighs the share of the views, among those that both samples have, in which one is a neighbour of the
    other. As many eigenvalues are near 1 as there are groups that are hardly connected.
    """
    n, present = len(samples), samples.present.float()
    joined = torch.zeros(n, n, device=present.device)
    for v in range(present.shape[1]):
        ids = samples.neighbor_ids[:, v, :depth]
        edges = torch.zeros(n, n + 1, device=present.device)
        edges.scatter_(1, torch.where(ids == NO_NEIGHBOR, n, ids), 1.0 / depth)
        joined += (edges[:, :n] + edges[:, :n].T) / 2
    joined = (joined / (present @ present.T).clamp(min=1)).fill_diagonal_(0.0)
    scale = joined.sum(dim=1).clamp(min=1e-9).rsqrt()
    values = torch.linalg.eigvalsh(scale[:, None] * joined * scale).flip(0)
    return _padded(values, count)


def _padded(values: Tensor, count: int) -> Tensor:
    """The first values, with zeros where there are fewer."""
    return torch.cat([values, values.new_zeros(count)])[:count]


def principal(table: Tensor) -> Tensor:
    """The first principal components of a table, of shape (rows, components), with a mean square length of 1."""
    rows = table.double().cpu().numpy()
    if len(rows) < 2:  # a single row lies at its own mean
        return table.new_zeros(len(rows), 1, dtype=torch.float32)
    solver = "covariance_eigh" if rows.shape[0] >= rows.shape[1] else "full"
    found = PCA(min(_DIMENSIONS, *rows.shape), svd_solver=solver).fit_transform(rows)
    return table.new_tensor(found / max(np.sqrt(np.square(found).sum(axis=1).mean()), 1e-12), dtype=torch.float32)


def contingency(first: Tensor, second: Tensor, n_clusters: int) -> Tensor:
    """How many points each pair of clusters shares, of shape (..., clusters, clusters), in float64."""
    left, right = (functional.one_hot(one, n_clusters).float() for one in (first, second))
    return (left.transpose(-1, -2) @ right).double()


def rand_index(shared: Tensor) -> Tensor:
    """The adjusted Rand index of each table of `contingency`, of shape (...)."""

    def pairs(counts: Tensor) -> Tensor:
        return counts * (counts - 1) / 2

    both, total = pairs(shared).sum(dim=(-1, -2)), pairs(shared.sum(dim=(-1, -2)))
    left, right = pairs(shared.sum(dim=-1)).sum(dim=-1), pairs(shared.sum(dim=-2)).sum(dim=-1)
    chance, most = left * right / total, (left + right) / 2
    return torch.where(most - chance < 1e-9, 1.0, (both - chance) / (most - chance).clamp(min=1e-9))
