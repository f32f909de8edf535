"""Which clusters join first when there are to be fewer of them: Ward's tree of the clusters."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Merge(NamedTuple):
    """Two groups of clusters that join.

    Attributes
    ----------
    first, second : the labels in each group
    distance : by how much joining them raises the sum of squares, as scipy's Ward linkage tells it
    left : how many groups there are then
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    distance: float
    left: int


class _Group(NamedTuple):
    labels: tuple[int, ...]
    center: NDArray[np.float64]
    size: float


def merge_tree(centers: NDArray[Any], sizes: NDArray[Any]) -> tuple[Merge, ...]:
    """The merges in their order, down to one group.

    Parameters
    ----------
    centers : array of shape (clusters, embedding)
    sizes : of shape (clusters,): samples in each; an empty cluster counts as one sample
    """
    counts = np.maximum(sizes, 1).astype(float)
    groups = [_Group((c,), center.astype(np.float64), counts[c]) for c, center in enumerate(centers)]
    merges: list[Merge] = []
    while len(groups) > 1:
        pair = min(combinations(groups, 2), key=lambda two: _distance(*two))
        groups = [*_without(groups, pair), _joined(*pair)]
        merges.append(Merge(pair[0].labels, pair[1].labels, _distance(*pair), len(groups)))
    return tuple(merges)


def _without(groups: list[_Group], pair: tuple[_Group, _Group]) -> list[_Group]:
    return [one for one in groups if one is not pair[0] and one is not pair[1]]


def _distance(first: _Group, second: _Group) -> float:
    weight = 2 * first.size * second.size / (first.size + second.size)
    return float(np.sqrt(weight * np.square(first.center - second.center).sum()))


def _joined(first: _Group, second: _Group) -> _Group:
    size = first.size + second.size
    center = (first.size * first.center + second.size * second.center) / size
    return _Group(tuple(sorted(first.labels + second.labels)), center, size)
