"""What average linkage of the embedding is worth where sizes are unequal: default fits with it, and without it.

python -m benchmarks.studies.sizes.linkage DATA OUT.csv handwritten_unequal ngs~8 "RNA and protein" --seeds 5 6 7 8 9

`ngs~8` is a part of a set whose classes, in random order, have sizes of 1 to 1/8, each the same part of the one before.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.scoring import scored
from benchmarks.studies.decisions.last_choice import sample
from viewfuse import URRL, Views
from viewfuse.engine.replicates import clusters
from viewfuse.methods.urrl import scaling_search
from viewfuse.methods.urrl.scaling_search import Trial
from viewfuse.utils.jobs import limited

COLUMNS = ("dataset", "rate", "seed", "way", "chosen", "acc", "macro", "ari")


def fitted(views: Views, n_clusters: int, seed: int) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """By way who found the clusters of a default fit, and which: before its end, without linkage, and with it."""
    ways, conclude = dict[str, tuple[str, NDArray[np.int64]]](), Trial.conclude

    def watched(self: Trial, labels: Any, embedding: Any, *rest: Any) -> Any:
        run = self.run
        before = run.network.centers.detach().clone()
        for way in ("without", "with"):
            run.network.centers.data.copy_(before)
            none = patch.object(scaling_search, "unequal_clusters", lambda *_: None)
            with none if way == "without" else warnings.catch_warnings():
                source = conclude(self, labels, embedding, *rest)
            ways[way] = source.chosen, clusters(run.method, run.network, embedding).cpu().numpy()
        ways["network"] = "network", labels
        return source

    with limited(1), patch.object(Trial, "conclude", watched):
        URRL(n_clusters, random_state=seed).fit(views)
    return ways


def main() -> None:
    """Write a line for each fit and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with asked.out.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for seed in asked.seeds:
            for name in asked.sets:
                views, labels = sample(asked.data, name, asked.rate, seed)
                for way, (chosen, found) in fitted(views, len(np.unique(labels)), seed).items():
                    scores = scored(labels, found)
                    numbers = [f"{scores[one]:.2f}" for one in ("acc", "macro", "ari")]
                    out.writerow([name, asked.rate, seed, way, chosen, *numbers])
                file.flush()


if __name__ == "__main__":
    main()
