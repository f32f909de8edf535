"""Few dimensions: data without clusters, and groups that a plain k-means finds, in fits that choose the number.

python -m benchmarks.studies.clusters.plain OUT.csv [--seeds 10 11] [--processes 2]

writes a line per set. Every set has a seed of its own; none, a third or half of its samples lack all views but one.
"""

from __future__ import annotations

import argparse
import csv
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from viewfuse import URRL
from viewfuse.data.views import Views
from viewfuse.missing import paper_mask

COLUMNS = ("what", "samples", "seed", "missing_rate", "true_k", "chosen", "answer", "ari", "ari_of_kmeans")
Rng = np.random.Generator
Table = NDArray[np.float64]


def seen(factors: Table, width: int, noise: float, rng: Rng) -> Table:
    """A view of factors, of shape (samples, width)."""
    return factors @ rng.normal(size=(factors.shape[1], width)) + noise * rng.normal(size=(len(factors), width))


def _curve(n: int, rng: Rng) -> list[Table]:
    t = rng.random(n)
    return [seen(np.stack([t, t**2, np.sin(5 * t)], axis=1), 6, 0.05, rng) for _ in range(2)]


def _gradient(n: int, rng: Rng) -> list[Table]:
    t = rng.random((n, 1))
    return [seen(t, width, 0.5, rng) for width in (30, 10)]


def _several(factors: Table, width: int, noise: float, rng: Rng, count: int = 2) -> list[Table]:
    return [seen(factors, width, noise, rng) for _ in range(count)]


WITHOUT: dict[str, Callable[[int, Rng], list[Table]]] = {
    "square": lambda n, rng: [rng.random((n, 2))],
    "square in two views": lambda n, rng: _several(rng.random((n, 2)), 3, 0.05, rng),
    "cube": lambda n, rng: _several(rng.random((n, 3)), 5, 0.05, rng),
    "four-dimensional cube in three views": lambda n, rng: _several(rng.random((n, 4)), 6, 0.1, rng, 3),
    "Gaussian": lambda n, rng: [rng.normal(size=(n, 2))],
    "Gaussian of two factors": lambda n, rng: _several(rng.normal(size=(n, 2)), 5, 0.3, rng),
    "Gaussian of four factors": lambda n, rng: _several(rng.normal(size=(n, 4)), 8, 0.5, rng),
    "log-normal": lambda n, rng: [np.exp(view / 2) for view in _several(rng.normal(size=(n, 5)), 12, 0.6, rng)],
    "heavy tails": lambda n, rng: _several(rng.standard_t(3, size=(n, 3)), 10, 1.0, rng),
    "exponential": lambda n, rng: _several(rng.exponential(size=(n, 2)), 6, 0.2, rng),
    "curve": _curve,
    "noise": lambda n, rng: [rng.normal(size=(n, 20)), rng.normal(size=(n, 10))],
    "gradient": _gradient,
}


def groups(k: int, dims: int, views: int, apart: int, n: int, rng: Rng) -> tuple[list[Table], NDArray[np.int64]]:
    """Gaussians of deviation 1, each about `apart` from the nearest other, of one size or up to 3 to 1."""
    shares = 3.0 ** -np.linspace(0, rng.integers(2), k)
    labels = rng.choice(k, n, p=shares / shares.sum())
    while True:
        centres = rng.normal(size=(k, dims))
        far = np.linalg.norm(centres[:, None] - centres, axis=2) + 1e9 * np.eye(k)
        nearest = far.min(axis=1)
        if nearest.max() < 1.6 * nearest.min():
            break
    places = (centres * apart / nearest.mean())[labels]
    turned = [
        places,
        *(places @ np.linalg.qr(rng.normal(size=(dims + 1, dims + 1)))[0][:dims] for _ in range(views - 1)),
    ]
    return [view + rng.normal(size=view.shape) for view in turned], labels


def one(what: str, facts: tuple[int, ...], n: int, seed: int) -> tuple[object, ...]:
    """A line of the table."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng([seed, n, zlib.crc32(what.encode())])
    views, labels = groups(*facts, n, rng) if facts else (WITHOUT[what](n, rng), np.zeros(n, dtype=np.int64))
    rate = (0.0, 0.3, 0.5)[seed % 3] if len(views) > 1 else 0.0
    mask = paper_mask(n, len(views), rate, len(views) - 1, seed)
    fit = URRL(random_state=seed).fit(Views({f"v{v}": view for v, view in enumerate(views)}, mask=mask))
    table = np.hstack([(view - view.mean(axis=0)) * mask[:, [v]] for v, view in enumerate(views)])
    k = len(np.unique(labels))
    simple = KMeans(k, n_init=10, random_state=0).fit_predict(table)
    rand = [f"{adjusted_rand_score(labels, own):.3f}" if k > 1 else "" for own in (fit.labels_, simple)]
    return what, n, seed, rate, k, fit.n_clusters_, fit.decisions_["n_clusters"]["kind"], *rand


def main() -> None:
    """All sets of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    jobs: list[tuple[str, tuple[int, ...], int, int]] = [
        (what, (), n, seed) for seed in given.seeds for n in (120, 300, 800) for what in WITHOUT
    ]
    for number, (dims, views) in enumerate(((2, 1), (2, 2), (3, 1), (4, 2), (8, 2))):
        for k in (2, 3, 5):
            for apart in (3, 4, 5):
                what, n = f"{k} in {dims} dimensions, {views} views, {apart} deviations apart", (150, 400)[number % 2]
                jobs += [(what, (k, dims, views, apart), n, seed) for seed in given.seeds]
    with given.out.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
            for found in as_completed([pool.submit(one, *job) for job in jobs]):
                lines.writerow(found.result())
                file.flush()


if __name__ == "__main__":
    main()
