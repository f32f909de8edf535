"""Which clusters would be found again, in a word, and which join first when there are to be fewer: by Ward's tree."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

FOUND_AGAIN, PARTLY = 0.75, 0.5
"""Hennig's bounds."""


def in_a_word(again: float) -> str:
    """What the chance that a cluster's samples are found there again means."""
    if np.isnan(again):
        return "unknown"
    return "found again" if again >= FOUND_AGAIN else "partly" if again >= PARTLY else "dissolves"


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


def merge_tree(centers: NDArray[Any], sizes: NDArray[Any]) -> tuple[Merge, ...]:
    """The merges in their order, down to one group.

    scipy's linkage begins with single points, and clusters have sizes; so Ward's update of the distances stands here.

    Parameters
    ----------
    centers : array of shape (clusters, embedding)
    sizes : of shape (clusters,): samples in each; an empty cluster counts as one sample
    """
    weights, squares = np.maximum(sizes, 1).astype(float), squareform(pdist(centers.astype(np.float64), "sqeuclidean"))
    squares *= 2 * weights * weights[:, None] / (weights + weights[:, None])
    np.fill_diagonal(squares, np.inf)
    labels: list[tuple[int, ...]] = [(c,) for c in range(len(centers))]
    merges = []
    for left in range(len(centers) - 1, 0, -1):
        first, second = sorted(divmod(int(squares.argmin()), len(squares)))
        distance = float(np.sqrt(squares[first, second]))
        merges.append(Merge(labels[first], labels[second], distance, left))
        labels[first] = tuple(sorted(labels[first] + labels[second]))
        _join(squares, weights, first, second)
    return tuple(merges)


def _join(squares: NDArray[np.float64], weights: NDArray[np.float64], first: int, second: int) -> None:
    """Let `first` be the two groups together, and `second` be gone: the update of Lance and Williams for Ward."""
    here, there, others = weights[first], weights[second], weights
    between = squares[first, second]
    found = (here + others) * squares[first] + (there + others) * squares[second] - others * between
    found /= here + there + others
    weights[first] += there
    squares[first], squares[:, first] = found, found
    squares[second], squares[:, second] = np.inf, np.inf
    squares[first, first] = np.inf
