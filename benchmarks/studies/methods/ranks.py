"""Mean ranks by accuracy over the real sets: python -m benchmarks.studies.methods.ranks.

Two pictures: URRL and the simple methods at three missing rates (`../decisions/decisions.csv`), and all methods where
half of the samples are incomplete (that table, `gpu.csv` and `table2_cpu.csv`).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks import RESULTS
from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.experiments.records import read_records
from viewfuse.comparison.ranks import draw_critical_difference, ranks_of

HERE = RESULTS / "methods"
RATES = (0.25, 0.5, 0.75)
_MASKS = 10
SIMPLE = {"urrl": "URRL", "nemo": "NEMO", "pimvc": "PIMVC", "kmeans-knn": "k-means, KNN filled"}
NETWORKS = {
    "completer": "COMPLETER", "cpspan": "CPSPAN", "dcp": "DCP", "dsimvc": "DSIMVC", "recformer": "RecFormer",
    "sure": "SURE",
}  # fmt: skip
Accuracies = dict[tuple[str, str], list[float]]


def main() -> None:
    """Rank the methods set by set, print and draw the mean ranks."""
    all_names = {**SIMPLE, **NETWORKS}
    rank(simple(RATES), SIMPLE, "critical-difference.png", "mean of three missing rates and ten masks")
    half = (0.5,)
    rank({**simple(half), **networks(half)}, all_names, "critical-difference-networks.png",
         "missing rate .5, mean of ten masks")  # fmt: skip


def simple(rates: Sequence[float]) -> Accuracies:
    """URRL and the simple methods."""
    found = defaultdict(list)
    for one in read_records(RESULTS / "decisions" / "decisions.csv"):
        if not CATALOGUE[one.dataset].is_measured or one.missing_rate not in rates:
            continue
        if one.method in SIMPLE and (one.method != "urrl" or one.condition == "auto"):
            found[one.dataset, one.method].append(one.acc)
    return found


def networks(rates: Sequence[float]) -> Accuracies:
    """The published networks, on the sets that have all of these rates."""
    found = defaultdict(list)
    for name in ("gpu.csv", "table2_cpu.csv"):
        with (HERE / name).open(newline="") as file:
            for row in csv.DictReader(file):
                if row["method"] in NETWORKS and float(row["missing_rate"]) in rates:
                    found[row["dataset"], row["method"]].append(float(row["acc"]))
    return {key: own for key, own in found.items() if len(own) == _MASKS * len(rates)}


def rank(found: Accuracies, names: dict[str, str], picture: str, what: str) -> None:
    """Rank the methods on the sets that all of them were run on."""
    sets = [one for one in sorted({dataset for dataset, _ in found}) if all((one, name) in found for name in names)]
    scores = np.array([[np.mean(found[dataset, method]) for method in names] for dataset in sets])
    ranks = ranks_of(list(names.values()), scores)
    draw_critical_difference(HERE / picture, ranks, title=f"Accuracy on {len(sets)} real sets, {what}")
    print(f"{len(sets)} sets, {what}")
    for name, own in sorted(zip(ranks.names, ranks.mean_ranks, strict=True), key=lambda pair: pair[1]):
        print(f"  {name}: {own:.2f}")
    print(f"  critical difference {ranks.critical_difference:.2f}, Friedman p = {ranks.p_value:.1e}")
    for dataset, row in zip(sets, scores, strict=True):
        best = int(row.argmax())
        if best:
            print(f"  {dataset}: {list(names.values())[best]} {row[best]:.1f}, URRL {row[0]:.1f}")


if __name__ == "__main__":
    main()
