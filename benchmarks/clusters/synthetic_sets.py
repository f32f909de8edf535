"""Synthetic sets with a known number of clusters, equal, unequal, long or nested, and sets without any."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KS = (2, 3, 5, 8, 12, 20, 40, 100)
WITHOUT = ("gauss", "uniform", "skewed", "heavy", "curve", "sheet")
"""Kinds of sets without clusters: factors that all views share, of four distributions, and two bent ones."""
_WIDTHS = (12, 18, 15)
_SAMPLES, _PER_CLUSTER = 800, 15
_NESTED = (3, 4)
Array = NDArray[np.float64]


class Synthetic(NamedTuple):
    """What a synthetic set is made from.

    Attributes
    ----------
    kind : "blobs", "unequal" (the largest has 20 times the samples of the smallest), "long", "nested", or one of
        `WITHOUT`
    """

    kind: str
    k: int

    @property
    def name(self) -> str:
        """Such as unequal-8."""
        return f"{self.kind}-{self.k}"

    def make(self, rate: float, seed: int) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
        """Views and labels; another set for every rate and seed."""
        rng = np.random.default_rng([seed, self.k, int(100 * rate), 2])
        labels = _labels(self, rng)
        factors = _without(self.kind, rng) if self.kind in WITHOUT else None
        views = []
        for width in _WIDTHS:
            units = 10.0 ** rng.uniform(-1, 2, size=width)
            if factors is None:
                clean, noise = _places(self, labels, width, rng), 1.0
            else:
                clean, noise = factors @ rng.normal(size=(factors.shape[1], width)), 0.3
            views.append((units * (clean + noise * rng.normal(size=clean.shape))).astype(np.float32))
        return views, labels


def all_sets() -> list[Synthetic]:
    """Every kind."""
    blobs = [Synthetic("blobs", k) for k in KS] + [Synthetic("unequal", k) for k in KS[1:5]]
    return [*blobs, Synthetic("long", 3), Synthetic("nested", 12), *(Synthetic(kind, 1) for kind in WITHOUT)]


def _labels(own: Synthetic, rng: np.random.Generator) -> NDArray[np.int64]:
    shares = np.geomspace(1, 1 / 20, own.k) if own.kind == "unequal" else np.ones(own.k)
    n = max(_SAMPLES if own.k < 40 else 0, _PER_CLUSTER * own.k)
    sizes = np.maximum(np.round(n * shares / shares.sum()).astype(int), 10)
    return rng.permutation(np.repeat(np.arange(own.k), sizes))


def _places(own: Synthetic, labels: NDArray[np.int64], width: int, rng: np.random.Generator) -> Array:
    """Where the cluster of each sample is in a view; a long cluster has its samples along a line."""
    centers = rng.normal(scale=1.6, size=(own.k, width))
    if own.kind == "nested":
        centers += np.repeat(rng.normal(scale=4.0, size=(_NESTED[0], width)), _NESTED[1], axis=0)
    along = rng.normal(size=(1, width)) * rng.normal(scale=3.0, size=(len(labels), 1)) if own.kind == "long" else 0.0
    return np.asarray(centers[labels] + along)


def _without(kind: str, rng: np.random.Generator) -> Array:
    """Factors without clusters, of shape (samples, factors)."""
    n = _SAMPLES
    if kind == "curve":
        t = rng.uniform(0, 3 * np.pi, n)
        return np.stack([np.cos(t), np.sin(t), t / 3], axis=1)
    if kind == "sheet":
        t, height = rng.uniform(0, 2 * np.pi, (2, n))
        return np.stack([np.cos(t), np.sin(t), height / 2], axis=1)
    draws = {
        "gauss": rng.normal(size=(n, 5)), "uniform": rng.uniform(-1.7, 1.7, size=(n, 4)),
        "skewed": np.exp(0.7 * rng.normal(size=(n, 4))), "heavy": rng.standard_t(4, size=(n, 5)),
    }  # fmt: skip
    return draws[kind]
