"""How many clusters? One rule, with an answer for data that have none.

The score of k is what the measures (`viewfuse.selection.cluster_evidence`) say of the data less what they say of a
Gaussian of the same covariance with the same views missing, in a weighted sum (`WEIGHTS`). The sum stays level beyond
the true number, so peaks that are nearly as high as the highest hold, too; the smallest k of these is chosen, and the
others are listed. Clusters found with views hidden are listed and have no vote: they differ more from one draw to the
next than from one number to the next.

There is **one cluster** where the clusters of no k agree with the neighbours in all views much better than those of the
Gaussian do (`STRUCTURE`), nor does the neighbour graph fall into parts (`GAP`).

results/clusters/README.md says how bounds and weights were found, and what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from viewfuse.errors import SettingError
from viewfuse.selection.cluster_evidence import MEASURES
from viewfuse.selection.decisions import ClusterNumber
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
