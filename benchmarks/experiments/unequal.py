"""Data sets whose clusters are far from equal in size, far from round, or have outliers beside them.

Synthetic ones are drawn anew for every seed; the catalogue has those of seed 0. Real ones keep a part of their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Made = tuple[list[NDArray[np.float32]], NDArray[np.int64]]
"""Views of shape (samples, columns), and labels of shape (samples,); outliers have the label -1."""

GEOMETRIC = (400, 260, 169, 109, 71, 46, 30, 19, 12, 8)
"""Each cluster has 0.65 times the samples of the one before it."""
_OUTLIERS, _FAR = 6, 60.0
"""How many there are, and at how many standard deviations of a cluster."""
_ASPECT, _BETWEEN = 20.0, 6.0
"""Standard deviation along a cigar, and the distance between cigars; across one it is 1."""
_KEPT_SEED = (0, 80)


def blobs(sizes: Sequence[int], seed: int, apart: float, widths: Sequence[int] = (10, 12)) -> Made:
    """Gaussian clusters whose centres lie at one distance from the middle, in directions drawn anew in every view.

    Parameters
    ----------
    apart : that distance in standard deviations of a cluster; two clusters lie opposite of each other, `apart` apart
    """
    rng = np.random.default_rng([seed, 77])
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng.shuffle(labels)
    views = []
    for width in widths:
        centers = rng.normal(size=(len(sizes), width))
        centers *= apart / np.linalg.norm(centers, axis=1, keepdims=True)
        if len(sizes) == 2:
            centers = np.stack([centers[0], -centers[0]]) / 2
        views.append((rng.normal(size=(len(labels), width)) + centers[labels]).astype(np.float32))
    return views, labels


def cigars(seed: int) -> Made:
    """Three parallel clusters twenty times as long as wide; the place along the axis differs between the views."""
    rng = np.random.default_rng([seed, 78])
    labels = np.repeat(np.arange(3), 100)
    rng.shuffle(labels)
    n = len(labels)
    rng.normal(size=n)  # so that sets stay those of results/sizes
    views = []
    for width in (4, 5):
        along = rng.normal(size=width)
        along /= np.linalg.norm(along)
        across = rng.normal(size=width)
        across -= across @ along * along
        across /= np.linalg.norm(across)
        place = rng.normal(size=n) * _ASPECT
        points = rng.normal(size=(n, width)) + np.outer(place, along) + np.outer(_BETWEEN * (labels - 1), across)
        views.append(points.astype(np.float32))
    return views, labels


def outliers(seed: int) -> Made:
    """Three clusters, and six samples at sixty deviations in every view, which belong to none."""
    views, labels = blobs((100, 100, 94), seed, 6.0)
    rng = np.random.default_rng([seed, 79])
    shapes = [(_OUTLIERS, view.shape[1]) for view in views]
    far = [(rng.normal(size=shape) * _FAR / np.sqrt(shape[1])).astype(np.float32) for shape in shapes]
    return [np.concatenate(pair) for pair in zip(views, far, strict=True)], np.append(labels, np.full(_OUTLIERS, -1))


DRAWN: dict[str, Callable[[int], Made]] = {
    "synthetic_95_5": lambda seed: blobs((950, 50), seed, 8.0),
    "synthetic_90_8_2": lambda seed: blobs((270, 24, 6), seed, 7.0),
    "synthetic_90_8_2_of_500": lambda seed: blobs((450, 40, 10), seed, 7.0),
    "synthetic_halves": lambda seed: blobs((400, 200, 100, 50, 25, 12), seed, 7.0, (10, 12, 9)),
    "synthetic_geometric": lambda seed: blobs(GEOMETRIC, seed, 7.0, (15, 12, 10)),
    "synthetic_outliers": outliers,
    "synthetic_cigars": cigars,
}
"""By their keys in the catalogue; called with a seed."""


def kept_rows(labels: NDArray[np.generic], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Which samples a set keeps, in their order, so that its classes, sorted by label, have these sizes.

    The samples of one class after another are drawn without replacement, always with the same seed.
    """
    rng = np.random.default_rng(_KEPT_SEED)
    classes = zip(np.unique(labels), sizes, strict=True)
    return np.sort(np.concatenate([rng.choice(np.flatnonzero(labels == own), n, replace=False) for own, n in classes]))
