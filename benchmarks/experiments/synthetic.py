"""Data sets that are made, not measured: each is hard in one way, and none was used to choose defaults.

How far Gaussian clusters stand apart was set so that k-means with all views there is right about most samples, not all.
Seeds never change, and values are rounded, so that a set is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.unequal import DRAWN, Made
from viewfuse.datasets import load_handwritten

WIDTHS = (10, 20, 15)
NOISE_WIDTH = 15
EQUAL = (160, 160, 160, 160, 160)
UNEQUAL = (400, 190, 90, 42, 20)
"""The largest cluster has twenty times the samples of the smallest."""
RINGS = (240, 240, 240)
_APART = 0.45
"""Standard deviation of the centres of clusters in a column, beside 1 within a cluster."""
_DECIMALS = 4
"""Processors differ in the last bits of a sum, not here."""


def balanced() -> Made:
    """Five Gaussian clusters of equal size, their centres drawn anew in every view, columns in units of their own."""
    return _gaussian(EQUAL, np.random.default_rng(1))


def imbalanced() -> Made:
    """As `balanced`, but the sizes of the clusters fall from 400 to 20 samples."""
    return _gaussian(UNEQUAL, np.random.default_rng(2))


def noise_view() -> Made:
    """As `balanced`, with a fourth view that knows nothing of the clusters."""
    rng = np.random.default_rng(3)
    views, labels = _gaussian(EQUAL, rng)
    return [*views, _noise(len(labels), rng)], labels


def duplicated_view() -> Made:
    """As `balanced`, with a fourth view that repeats the first."""
    views, labels = _gaussian(EQUAL, np.random.default_rng(4))
    return [*views, views[0].copy()], labels


def rings() -> Made:
    """Three rings around one centre in a plane, which every view shows through a smooth random map of its own."""
    rng = np.random.default_rng(5)
    labels = _labels(RINGS, rng)
    radius = 1.0 + labels + rng.normal(scale=0.12, size=len(labels))
    angle = rng.uniform(0.0, 2 * np.pi, size=len(labels))
    plane = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return [_rounded(_bent(plane, width, rng)) for width in WIDTHS], labels


def many_missing() -> Made:
    """The very same as `balanced`; the catalogue has it that an incomplete sample keeps one view only."""
    return balanced()


def handwritten_noise_view() -> Made:
    """Handwritten, as it comes with the package, with a seventh view that knows nothing of the digits."""
    views, labels = load_handwritten()
    return [*views, _noise(len(labels), np.random.default_rng(6))], labels


def _labels(sizes: Sequence[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """So many samples of each cluster, in random order."""
    return rng.permutation(np.repeat(np.arange(len(sizes)), sizes))


def _gaussian(sizes: Sequence[int], rng: np.random.Generator) -> Made:
    labels = _labels(sizes, rng)
    views = []
    for width in WIDTHS:
        centres = rng.normal(scale=_APART, size=(len(sizes), width))
        units = 10.0 ** rng.uniform(-1.0, 2.0, size=width)
        views.append(_rounded(units * (centres[labels] + rng.normal(size=(len(labels), width)))))
    return views, labels


def _bent(plane: NDArray[np.float64], width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Points of a plane, of shape (samples, 2), as `width` columns that bend, with a little noise."""
    slopes, shifts = rng.normal(scale=0.7, size=(2, width)), rng.normal(scale=0.5, size=width)
    return np.tanh(plane @ slopes + shifts) + rng.normal(scale=0.05, size=(len(plane), width))


def _noise(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return _rounded(rng.normal(size=(n, NOISE_WIDTH)))


def _drawn(draw: Callable[[int], Made]) -> Made:
    views, labels = draw(0)
    return [_rounded(view) for view in views], labels


def _rounded(view: NDArray[np.floating]) -> NDArray[np.float32]:
    return view.round(_DECIMALS).astype(np.float32)


MAKERS: dict[str, Callable[[], Made]] = {
    "synthetic_balanced": balanced,
    "synthetic_imbalanced": imbalanced,
    "synthetic_noise_view": noise_view,
    "synthetic_duplicated_view": duplicated_view,
    "synthetic_rings": rings,
    "synthetic_many_missing": many_missing,
    "handwritten_noise_view": handwritten_noise_view,
    **{key: partial(_drawn, draw) for key, draw in DRAWN.items()},
}
"""By their keys in the catalogue."""
