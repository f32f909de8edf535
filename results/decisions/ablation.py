"""What each kind of evidence is worth: the rule of docs/decisions.md, whole and in parts, on the runs of scalings.csv.

    python results/decisions/ablation.py

Labels were used to score the runs; the rule sees consistencies only. Prints a Markdown table.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

SCALINGS = ("mixed", "standard", "minmax")
HANDICAP, FALL, LAST = 0.05, 0.05, 4
HANDICAPS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.2)


class Look(NamedTuple):
    """One look at a training."""

    accuracy: float
    own: float
    all: float


Looks = dict[tuple[str, str, str, int], Look]
Rule = Callable[[str, str], float]
"""Accuracy by data set and seed."""


def read(path: Path) -> Looks:
    """Looks by data set, scaling, seed and quarters of the joint stage that are over."""
    with path.open(newline="") as file:
        return {
            (row["dataset"], row["scaling"], row["seed"], int(row["quarters_of_joint_stage"])): Look(
                float(row["accuracy"]), float(row["consistency_own_neighbors"]), float(row["consistency_all_neighbors"])
            )
            for row in csv.DictReader(file)
        }


def watched(looks: Looks, dataset: str, scaling: str, seed: str) -> float:
    """Accuracy of the most consistent clusters that a joint stage had before it was ended."""
    best = looks[dataset, scaling, seed, 0]
    for quarter in range(1, LAST + 1):
        look = looks[dataset, scaling, seed, quarter]
        if look.own < best.own - FALL:
            break
        best = look if look.own >= best.own else best
    return best.accuracy


def rule(looks: Looks, scalings: Sequence[str] = SCALINGS, handicap: float = HANDICAP, joint: str = "watched") -> Rule:
    """The rule with some scalings only, another handicap of min-max, or a joint stage that is "whole" or "none"."""

    def accuracy(dataset: str, seed: str) -> float:
        scores = {s: looks[dataset, s, seed, 0].all - handicap * (s == "minmax") for s in scalings}
        chosen = max(scores, key=lambda scaling: scores[scaling])
        if joint == "watched":
            return watched(looks, dataset, chosen, seed)
        return looks[dataset, chosen, seed, LAST if joint == "whole" else 0].accuracy

    return accuracy


def fixed(looks: Looks, scaling: str, quarter: int) -> Rule:
    """One scaling for all, with the whole joint stage or without any."""
    return lambda dataset, seed: looks[dataset, scaling, seed, quarter].accuracy


def main() -> None:
    """Print the table."""
    looks = read(Path(__file__).with_name("scalings.csv"))
    datasets, seeds = (list(dict.fromkeys(key[i] for key in looks)) for i in (0, 2))

    def means(one: Rule) -> list[float]:
        return [mean(one(dataset, seed) for seed in seeds) for dataset in datasets]

    names = {0: "no joint stage", LAST: "joint stage"}
    choices = {f"{s}, {names[q]}": means(fixed(looks, s, q)) for s, q in product(SCALINGS, names)}
    best = [max(column) for column in zip(*choices.values(), strict=True)]
    behind = {h: [a - b for a, b in zip(means(rule(looks, handicap=h)), best, strict=True)] for h in HANDICAPS}
    elsewhere = []
    for i in range(len(datasets)):
        left = {h: round(sum(found) - found[i], 9) for h, found in behind.items()}
        elsewhere.append(best[i] + behind[max(left, key=lambda h: left[h])][i])
    lines = {
        "**the rule**": means(rule(looks)),
        "handicap chosen on the other six sets": elsewhere,
        "without mixed scaling": means(rule(looks, ("standard", "minmax"))),
        "without standard scaling": means(rule(looks, ("mixed", "minmax"))),
        "without min-max scaling": means(rule(looks, ("mixed", "standard"))),
        "without a handicap": means(rule(looks, handicap=0.0)),
        "whole joint stage": means(rule(looks, joint="whole")),
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
