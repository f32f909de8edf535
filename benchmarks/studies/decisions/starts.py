"""Which k-means solution the joint stage should begin with, by the rule of 2026-11-15, from starts.csv.

Rows of starts.csv: per data set, missing rate, mask and scaling the 21 k-means solutions (0 is from Ward's clusters,
the others from k-means++ starts) in the embedding after half of pre-training, where the scaling is chosen, and after
the whole. Sums of squares are over that around the mean of all samples. Sets of 150 samples have no second half.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks import RESULTS

HANDICAPS = {"mixed": 0.0, "standard": 0.01, "minmax": 0.05}
CHOSEN = 0.001, 0.03
"""Sums of squares that are closer count as equal; others need so much more consistency."""
SQUARES_ALONE, CONSISTENCY_ALONE = (0.0, inf), (inf, 0.0)
TOLERANCES, MARGINS = (0.0, 0.0005, 0.001, 0.002, 0.005), (0.01, 0.02, 0.03, 0.04, 0.05, 0.08, inf)


class Solution(NamedTuple):
    """One solution of k-means."""

    accuracy: float
    squares: float
    own: float
    all: float


Solutions = dict[str, dict[str, list[Solution]]]
"""By scaling, and by how much of pre-training is over."""
Numbers = tuple[float, float]


def read(path: Path) -> dict[tuple[str, str], dict[str, Solutions]]:
    """Solutions by data set and missing rate, and by mask."""
    found: dict[tuple[str, str], dict[str, Solutions]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = found.setdefault((row["dataset"], row["missing_rate"]), {}).setdefault(row["mask"], {})
            place.setdefault(row["scaling"], {}).setdefault(row["pretraining"], []).append(
                Solution(
                    float(row["accuracy"]),
                    float(row["sum_of_squares"]),
                    float(row["consistency_own_neighbors"]),
                    float(row["consistency_all_neighbors"]),
                )
            )
    return found


def best(solutions: Sequence[Solution], numbers: Numbers) -> Solution:
    """The one that is taken."""
    tolerance, margin = numbers
    most = min(one.squares for one in solutions) * (1 + tolerance)
    return max(solutions, key=lambda one: (one.own - (margin if one.squares > most else 0.0), -one.squares))


def accuracy(scalings: Solutions, numbers: Numbers, last: str) -> float:
    """Of the start that is taken, with the scaling that is."""
    halfway = {
        name: best(scalings[name]["half"], numbers).all - less for name, less in HANDICAPS.items() if name in scalings
    }
    return best(scalings[max(halfway, key=lambda name: halfway[name])][last], numbers).accuracy


def main() -> None:
    """Print the table."""
    found = read(RESULTS / "decisions" / "starts.csv")

    def means(numbers: Callable[[str], Numbers]) -> dict[tuple[str, str], float]:
        return {
            (name, rate): mean(
                accuracy(one, numbers(name), "half" if name == "tcga_brca150" else "whole") for one in masks.values()
            )
            for (name, rate), masks in found.items()
        }

    tried = {pair: means(lambda name, pair=pair: pair) for pair in product(TOLERANCES, MARGINS)}

    def elsewhere(name: str) -> Numbers:
        return max(tried, key=lambda pair: mean(value for (other, _), value in tried[pair].items() if other != name))

    lines = {
        "**the rule**": means(lambda name: CHOSEN),
        "its two numbers chosen on the other six sets": means(elsewhere),
        "smallest sum of squares": means(lambda name: SQUARES_ALONE),
        "highest consistency": means(lambda name: CONSISTENCY_ALONE),
    }
    print("| | " + " | ".join(f"{name} {rate}" for name, rate in found) + " | mean |")
    print("|---" * (len(found) + 2) + "|")
    for title, line in lines.items():
        print(
            f"| {title} | " + " | ".join(f"{value:.1f}" for value in line.values()) + f" | {mean(line.values()):.1f} |"
        )


if __name__ == "__main__":
    main()
