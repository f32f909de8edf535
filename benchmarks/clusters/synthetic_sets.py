"""Synthetic sets with a known number of clusters, equal and unequal, and sets without any."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KS = (2, 3, 5, 8, 12, 20)
WITHOUT = ("gauss", "factors", "uniform", "t", "bent", "skewed")
"""Kinds of sets without clusters: Gaussian, factors that all views share, and four that are no Gaussian at all."""
_WIDTHS = (10, 20, 15)
_SAMPLES = 800
Array = NDArray[np.float64]


class Synthetic(NamedTuple):
    """What a synthetic set is made from.

    Attributes
    ----------
    kind : "blobs", or one of `WITHOUT`
    unequal : whether the largest cluster is 20 times as large as the smallest (8 times from 12 clusters on)
    noise : whether there is a view that tells nothing
    """

    kind: str
    k: int
    unequal: bool
    noise: bool

    @property
    def name(self) -> str:
        """Such as blobs-8-unequal-noise."""
        return "-".join([self.kind, str(self.k), *["unequal"] * self.unequal, *["noise"] * self.noise])

    def make(self, rate: float, seed: int) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
        """Views and labels; another set for every rate and seed."""
        rng = np.random.default_rng([seed, self.k, self.unequal, self.noise, int(100 * rate), 1])
        if self.kind == "blobs":
            views, labels = _blobs(self.k, self.unequal, rng)
        else:
            table, labels = _without(self.kind, rng), np.zeros(_SAMPLES, dtype=np.int64)
            views = list(np.split(table, np.cumsum(_WIDTHS)[:-1], axis=1))
        if self.noise:
            views.append(rng.normal(size=(_SAMPLES, 15)))
        return [view.astype(np.float32) for view in views], labels


def all_sets() -> list[Synthetic]:
    """Every kind, with and without a view of noise."""
    blobs = [Synthetic("blobs", k, unequal, noise) for noise in (False, True) for k in KS for unequal in (False, True)]
    return blobs + [Synthetic(kind, 1, False, noise) for noise in (False, True) for kind in WITHOUT]


def _blobs(k: int, unequal: bool, rng: np.random.Generator) -> tuple[list[Array], NDArray[np.int64]]:
    shares = np.geomspace(1, 1 / (8 if k > 8 else 20), k) if unequal else np.ones(k)
    sizes = np.maximum(np.round(_SAMPLES * shares / shares.sum()).astype(int), 10)
    sizes[0] += _SAMPLES - sizes.sum()
    labels = rng.permutation(np.repeat(np.arange(k), sizes))
    apart, views = rng.uniform(0.5, 0.95), []
    for width in _WIDTHS:
        centers = rng.normal(scale=apart, size=(k, width))
        units = 10.0 ** rng.uniform(-1, 2, size=width)
        views.append(units * (centers[labels] + rng.normal(size=(_SAMPLES, width))))
    return views, labels


def _without(kind: str, rng: np.random.Generator) -> Array:
    """A table of all views without clusters."""
    total, n = sum(_WIDTHS), _SAMPLES
    if kind == "gauss":
        return rng.normal(size=(n, total)) * 10.0 ** rng.uniform(-1, 2, size=total)
    if kind == "factors":
        q = int(rng.integers(2, 8))
        factors = rng.normal(size=(n, q)) * np.geomspace(1, 0.3, q)
        return factors @ rng.normal(size=(q, total)) + 0.6 * rng.normal(size=(n, total))
    if kind == "uniform":
        q = int(rng.integers(2, 6))
        return rng.uniform(-1, 1, size=(n, q)) @ rng.normal(size=(q, total)) + 0.2 * rng.normal(size=(n, total))
    if kind == "t":
        return rng.standard_t(4, size=(n, 5)) @ rng.normal(size=(5, total)) + rng.standard_t(4, size=(n, total))
    if kind == "bent":
        bent = rng.normal(size=(n, 2)) @ rng.normal(scale=0.7, size=(2, total)) + rng.normal(scale=0.5, size=total)
        return np.tanh(bent) + 0.3 * rng.normal(size=(n, total))
    return np.exp(0.5 * rng.normal(size=(n, 4))) @ rng.normal(size=(4, total)) + 0.6 * rng.normal(size=(n, total))
