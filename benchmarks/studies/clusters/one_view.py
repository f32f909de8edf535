"""Seven types of cells, two of which differ in a few proteins only, and their number as it is chosen.

python -m benchmarks.studies.clusters.one_view OUT.csv [--seeds 0 1 2 3]

writes a line per set: counts of 1,500 genes and of 20 proteins, which a part of the cells lacks. In the control no two
types have the same RNA, and all can be found in it.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from viewfuse import URRL, Views

_SHARES = np.array([0.25, 0.2, 0.15, 0.12, 0.1, 0.1, 0.08])
_GENES, _PROTEINS, _CELLS = 1500, 20, 1200
COLUMNS = ("control", "markers", "without_protein", "seed", "splits_of_the_tree", "chosen", "in_one_view")


def cells(seed: int, markers: int, lacking: float, control: bool) -> tuple[Views, NDArray[np.int64]]:
    """Cells and their types; types 0 and 1 differ in twice as many proteins as `markers`, eightfold."""
    rng = np.random.default_rng(seed)
    types = rng.choice(len(_SHARES), size=_CELLS, p=_SHARES)
    genes = np.tile(rng.lognormal(-2.5, 1.2, size=_GENES), (len(_SHARES), 1))
    proteins = np.tile(rng.uniform(3, 20, size=_PROTEINS), (len(_SHARES), 1))
    for own in range(len(_SHARES)):
        genes[own, rng.choice(_GENES, 60, replace=False)] *= np.exp(rng.uniform(1, 3, 60))
        proteins[own, rng.choice(np.arange(4, _PROTEINS), 4, replace=False)] *= 8.0
    if not control:
        genes[1], proteins[1] = genes[0], proteins[0]
    proteins[0, :markers] *= 8.0
    proteins[1, markers : 2 * markers] *= 8.0
    counts = [
        rng.poisson(rng.gamma(shape, table[types] * rng.lognormal(0, spread, size=(_CELLS, 1)) / shape))
        for table, shape, spread in ((genes, 2.0, 0.35), (proteins, 4.0, 0.3))
    ]
    mask = np.ones((_CELLS, 2), dtype=bool)
    mask[rng.permutation(_CELLS)[: int(lacking * _CELLS)], 1] = False
    return Views({"rna": csr_array(counts[0].astype(np.float32)), "protein": counts[1]}, mask=mask), types


def main() -> None:
    """Choose the number for every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(4)))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with given.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for (markers, control), lacking, seed in product(((2, False), (1, False), (2, True)), (0.2, 0.5), given.seeds):
            views, _ = cells(seed, markers, lacking, control)
            found = URRL(random_state=seed, device="cpu").choose(views)
            splits = sum(one["stands"] for one in found["splits"])
            row = (int(control), markers, lacking, seed, splits, found["chosen"], " ".join(found["alone"]))
            table.writerow(row)
            file.flush()
            print(*row, flush=True)


if __name__ == "__main__":
    main()
