"""NEMO and PIMVC of imml 0.6.0 (not a dependency of this project) with the masks of `python -m benchmarks decisions`.

    python -m benchmarks.studies.decisions.peers DATA_DIR OUT.csv NAME ...

Wide and sparse views are reduced as for our own method, columns are scaled to 0..1 on observed rows (components as a
whole), and the methods have their defaults. Appends a line per run.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from imml.cluster import NEMO, PIMVC

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import Views, metrics
from viewfuse.data.scaling import fit_scaler
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.reduction.reduce import fit_reduction

METHODS = {"NEMO": NEMO, "PIMVC": PIMVC}
RATES, SEEDS = (0.25, 0.5, 0.75), range(10)


def main(data_dir: Path, out: Path, names: list[str]) -> None:
    """Run both methods on the data sets."""
    for name in names:
        data, entry = load(data_dir, CATALOGUE[name]), CATALOGUE[name]
        for rate in RATES:
            for seed in SEEDS:
                mask = paper_mask(len(data.labels), len(data.views), rate, entry.missing_number, random_state=seed)
                views = Views(apply_mask(list(data.views), mask))
                reduction = fit_reduction(views)
                reduced = reduction.apply(views)
                scaled = fit_scaler(reduced, "minmax", reduction.units).apply(reduced).arrays
                tables = [np.where(mask[:, [v]], view, np.nan).astype(np.float64) for v, view in enumerate(scaled)]
                for method, make in METHODS.items():
                    began = time.perf_counter()
                    try:
                        found = make(n_clusters=entry.classes, random_state=seed).fit_predict(tables)
                    except Exception as error:  # a peer that cannot do a set is left out of it
                        print(name, rate, seed, method, repr(error)[:200], flush=True)
                        continue
                    scores = [100 * score(data.labels, found) for score in SCORES]
                    line = [name, rate, seed, method, *(f"{one:.2f}" for one in scores)]
                    with out.open("a") as file:
                        print(*line, f"{time.perf_counter() - began:.1f}", sep=",", file=file)


SCORES = (metrics.clustering_accuracy, metrics.nmi, metrics.ari)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
