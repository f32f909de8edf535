"""What each kind of evidence is worth: the rule of 2026-11-15, whole and in parts, on the runs of scalings.csv.

    python -m benchmarks.studies.decisions.ablation

Labels were used to score the runs; the rule sees consistencies only. Prints a Markdown table.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks import RESULTS

SCALINGS = ("mixed", "standard", "minmax")
HANDICAPS = (0.01, 0.05)
"""Of standard and of min-max scaling."""
FALL, MERGED, LAST = 0.05, 0.01, 4
NEVER = 9.0
GRID = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
BOUNDS = (0.0, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, NEVER)


class Look(NamedTuple):
    """One look at a training."""

    accuracy: float
    own: float
    all: float
    size_entropy: float


Looks = dict[tuple[str, str, str, int], Look]
Rule = Callable[[str, str], float]
"""Accuracy by data set and seed."""


def read(path: Path) -> Looks:
    """Looks by data set, scaling, seed and quarters of the joint stage that are over."""
    with path.open(newline="") as file:
        return {
            (row["dataset"], row["scaling"], row["seed"], int(row["quarters_of_joint_stage"])): Look(
                float(row["accuracy"]),
                float(row["consistency_own_neighbors"]),
                float(row["consistency_all_neighbors"]),
                float(row["evenness"]),
            )
            for row in csv.DictReader(file)
        }


def watched(looks: Looks, dataset: str, scaling: str, seed: str, merged: float) -> float:
    """Accuracy of the most consistent clusters that a joint stage had before it was ended, none of them merged."""
    best = start = looks[dataset, scaling, seed, 0]
    for quarter in range(1, LAST + 1):
        look = looks[dataset, scaling, seed, quarter]
        if look.own < best.own - FALL:
            break
        if look.own >= best.own and look.size_entropy >= start.size_entropy - merged:
            best = look
    return best.accuracy


def rule(
    looks: Looks,
    scalings: Sequence[str] = SCALINGS,
    handicaps: tuple[float, float] = HANDICAPS,
    merged: float = MERGED,
    joint: str = "watched",
) -> Rule:
    """The rule with some scalings, other handicaps, bound on evenness, or joint stage ("whole", "none")."""

    def accuracy(dataset: str, seed: str) -> float:
        less = dict(zip(("standard", "minmax"), handicaps, strict=True))
        scores = {s: looks[dataset, s, seed, 0].all - less.get(s, 0.0) for s in scalings}
        chosen = max(scores, key=lambda scaling: scores[scaling])
        if joint == "watched":
            return watched(looks, dataset, chosen, seed, merged)
        return looks[dataset, chosen, seed, LAST if joint == "whole" else 0].accuracy

    return accuracy


def fixed(looks: Looks, scaling: str, quarter: int) -> Rule:
    """One scaling for all, with the whole joint stage or without any."""
    return lambda dataset, seed: looks[dataset, scaling, seed, quarter].accuracy


def main() -> None:
    """Print the table."""
    looks = read(RESULTS / "decisions" / "scalings.csv")
    datasets, seeds = (list(dict.fromkeys(key[i] for key in looks)) for i in (0, 2))

    def means(one: Rule) -> list[float]:
        return [mean(one(dataset, seed) for seed in seeds) for dataset in datasets]

    names = {0: "no joint stage", LAST: "joint stage"}
    choices = {f"{s}, {names[q]}": means(fixed(looks, s, q)) for s, q in product(SCALINGS, names)}
    best = [max(column) for column in zip(*choices.values(), strict=True)]
    behind = {
        (pair, bound): [a - b for a, b in zip(means(rule(looks, handicaps=pair, merged=bound)), best, strict=True)]
        for pair, bound in product(product(GRID, GRID), BOUNDS)
    }
    elsewhere = []
    for i in range(len(datasets)):
        left = {numbers: round(sum(found) - found[i], 9) for numbers, found in behind.items()}
        elsewhere.append(best[i] + behind[max(left, key=lambda numbers: left[numbers])][i])
    lines = {
        "**the rule**": means(rule(looks)),
        "handicaps and bound chosen on the other six sets": elsewhere,
        "without mixed scaling": means(rule(looks, ("standard", "minmax"))),
        "without standard scaling": means(rule(looks, ("mixed", "minmax"))),
        "without min-max scaling": means(rule(looks, ("mixed", "standard"))),
        "without handicaps": means(rule(looks, handicaps=(0.0, 0.0))),
        "without evenness": means(rule(looks, merged=NEVER)),
        "without consistency in the joint stage (whole)": means(rule(looks, joint="whole")),
        "no joint stage": means(rule(looks, joint="none")),
        **{f"fixed: {name}": found for name, found in choices.items()},
        "best fixed choice, by labels": best,
    }
    print("| | " + " | ".join([*datasets, "mean behind the best", "worst"]) + " |")
    print("|---" * (len(datasets) + 3) + "|")
    for name, found in lines.items():
        short = [a - b for a, b in zip(found, best, strict=True)]
        print(f"| {name} | " + " | ".join(f"{a:.1f}" for a in found) + f" | {mean(short):+.2f} | {min(short):+.1f} |")


if __name__ == "__main__":
    main()
