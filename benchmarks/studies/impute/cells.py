"""How far filled cells are from the truth: python -m benchmarks.studies.impute.cells writes cells.csv.

5 % of the cells of Handwritten are emptied, in three draws, and filled in both ways. The error is the root mean square
over the emptied cells, in deviations of their columns.
"""

from __future__ import annotations

import csv

import numpy as np

from benchmarks import RESULTS
from viewfuse import Views
from viewfuse.data.filling import fit_filler
from viewfuse.datasets import load_handwritten

_SHARE, _DRAWS = 0.05, 3


def main() -> None:
    """Empty, fill, compare."""
    with (RESULTS / "impute" / "cells.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["view", "draw", "fill", "error"])
        for draw in range(_DRAWS):
            writer.writerows(errors(draw))


def errors(draw: int) -> list[tuple[int, int, str, str]]:
    """Of each view and way to fill."""
    views, _ = load_handwritten()
    rng = np.random.default_rng(draw)
    empty = [rng.random(view.shape) < _SHARE for view in views]
    holed = Views([np.where(gone, np.nan, view) for gone, view in zip(empty, views, strict=True)])
    found = []
    for how in ("median", "neighbors"):
        filled, _ = fit_filler(holed, how).apply(holed)
        for v, (gone, view) in enumerate(zip(empty, views, strict=True)):
            off = (filled.arrays[v] - view) / view.std(axis=0)
            found.append((v, draw, how, f"{np.sqrt(np.square(off[gone]).mean()):.4f}"))
    return found


if __name__ == "__main__":
    main()
