"""Which front end suits wide tables of 0 and 1: python -m benchmarks.studies.reduction.binary.

Made-up mutations: three kinds of samples, in each of which a seventh of the columns has more ones. Samples have as many
ones as each other, or not (burden: the deviation of the logarithm). k-means on what a front end gives, mean adjusted
Rand index, as CSV.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from viewfuse.reduction.reduce import fit_front_end

FRONT_ENDS = ("pca", "words", "links")
SAMPLES, KINDS, DRAWS = 300, 3, 10


def drawn(columns: int, ones: float, burden: float, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A table with this share of ones, about, and the kinds of its samples."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, KINDS, SAMPLES)
    usual = rng.beta(1, 5, columns)
    rates = -np.log1p(-np.clip(usual * ones / usual.mean(), 0, 0.95))
    lift = np.where(rng.random((KINDS, columns)) < 0.15, 2.5, 1.0)
    rates = rates * lift[kinds] * np.exp(rng.normal(0, burden, SAMPLES))[:, None]
    return (rng.random(rates.shape) < 1 - np.exp(-rates)).astype(np.float32), kinds


def scores(columns: int, ones: float, burden: float) -> NDArray[np.float64]:
    """The mean adjusted Rand index by front end, and the share of ones at the end."""
    found = []
    for seed in range(DRAWS):
        table, kinds = drawn(columns, ones, burden, seed)
        present, own = np.ones(len(table), bool), []
        for how in FRONT_ENDS:
            points = fit_front_end(table, present, how).apply(table)
            labels = KMeans(KINDS, n_init=5, random_state=0).fit_predict(points)
            own.append(adjusted_rand_score(kinds, labels))
        found.append([*own, table.mean()])
    return np.mean(found, axis=0)


def main() -> None:
    """Print a line per case."""
    print("columns,burden,ones,pca,words,links")
    for columns in (150, 500):
        for burden in (0.0, 0.5, 1.0):
            for ones in (0.13, 0.2, 0.3, 0.5, 0.7):
                *own, share = scores(columns, ones, burden)
                print(f"{columns},{burden},{share:.2f},{','.join(f'{one:.2f}' for one in own)}", flush=True)


if __name__ == "__main__":
    main()
