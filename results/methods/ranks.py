"""Mean ranks of URRL and of the methods of `bench decisions` over the real sets: python results/methods/ranks.py."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from viewfuse.bench.experiments.records import read_records
from viewfuse.bench.experiments.synthetic import MAKERS
from viewfuse.comparison.ranks import ranks_of
from viewfuse.plots.critical_difference import draw_critical_difference

RESULTS = Path(__file__).parents[1]
NAMES = {"urrl": "URRL", "nemo": "NEMO", "pimvc": "PIMVC", "kmeans-knn": "k-means, KNN filled"}


def main() -> None:
    """Rank the methods by their mean accuracy over three missing rates and ten masks, set by set."""
    found = defaultdict(list)
    for one in read_records(RESULTS / "decisions" / "decisions.csv"):
        if one.dataset not in MAKERS and one.method in NAMES and (one.method != "urrl" or one.condition == "auto"):
            found[one.dataset, one.method].append(one.acc)
    sets = sorted({dataset for dataset, _ in found})
    scores = np.array([[np.mean(found[dataset, method]) for method in NAMES] for dataset in sets])
    ranks = ranks_of(list(NAMES.values()), scores)
    title = f"Accuracy on {len(sets)} real sets, mean of three missing rates and ten masks"
    draw_critical_difference(RESULTS / "methods" / "critical-difference.png", ranks, title=title)
    for name, rank in zip(ranks.names, ranks.mean_ranks, strict=True):
        print(f"{name}: {rank:.2f}")
    print(f"critical difference {ranks.critical_difference:.2f}, Friedman p = {ranks.p_value:.1e}")


if __name__ == "__main__":
    main()
