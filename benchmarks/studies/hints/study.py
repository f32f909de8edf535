"""What a few labels are worth, right and partly wrong, beside a classifier that trains itself on filled views.

python -m benchmarks.studies.hints.study DATA NAME [NAME ...] [--missing 0.5] [--first 0] [--masks 10] [--effort auto]

prints a line of CSV per set, mask and way: the accuracy on samples whose label is not given, which are the same for
all ways with the same share of labels, and how many wrong and right labels were listed as doubtful. At the end come
lines that begin with #: per set what is judged, means over the masks. --first is the first mask, so that a long run
can be divided.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import SelfTrainingClassifier

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL, Views
from viewfuse.baselines import knn_filled
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import apply_mask, paper_mask

COLUMNS = (
    "set", "missing", "mask", "share", "wrong", "labels", "without", "urrl", "self_training", "wrong_listed",
    "right_listed",
)  # fmt: skip
WAYS = ((0.01, 0.0), (0.05, 0.0), (0.05, 0.2))
"""Share of the samples that have a label, and of these labels that are wrong."""


def drawn(classes, share, wrong, seed):
    """Labels of some samples, -1 elsewhere; wrong ones are those of another class, each as likely."""
    rng = np.random.default_rng(seed)
    given, k = np.full(len(classes), -1), classes.max() + 1
    rows = rng.choice(len(classes), max(2, round(share * len(classes))), replace=False)
    given[rows] = classes[rows]
    swapped = rows[: round(wrong * len(rows))]
    given[swapped] = (classes[swapped] + rng.integers(1, k, len(swapped))) % k
    return given


def self_trained(views, given):
    """The classes that logistic regression finds, taught by the given labels and what it is sure of itself."""
    table = knn_filled(views)
    table = (table - table.mean(axis=0)) / np.where(table.std(axis=0) > 0, table.std(axis=0), 1)
    if len(set(given[given >= 0])) < 2:
        return np.zeros(len(given), dtype=int)
    return SelfTrainingClassifier(LogisticRegression(max_iter=500)).fit(table, given).predict(table)


def measure(folder, name, missing, seed, effort):
    """The lines of one set under one mask."""
    data = load(folder, CATALOGUE[name])
    classes = np.unique(data.labels, return_inverse=True)[1]
    k, n, several = len(np.unique(classes)), len(classes), max(1, round(0.6 * len(data.views)))
    mask = paper_mask(n, len(data.views), missing, several, seed)
    views = Views(apply_mask([view.astype(np.float32) for view in data.views], mask))
    plain = URRL(k, random_state=seed, effort=effort).fit(views).labels_
    for share, wrong in WAYS:
        given = drawn(classes, share, wrong, seed)
        others = given < 0
        taught = URRL(k, random_state=seed, effort=effort).fit(views, given)
        found = plain, taught.labels_, self_trained(views, given)
        scores = (round(100 * clustering_accuracy(classes[others], one[others]), 2) for one in found)
        listed = np.isin(np.arange(n), [int(row) for row in taught.decisions_["hints"]["doubtful"]])
        counts = (int((listed & is_wrong).sum()) for is_wrong in (given != classes, given == classes))
        yield name, missing, seed, share, wrong, int((~others).sum()), *scores, *counts


def judged(lines):
    """Per set what a few labels bring, what wrong ones cost, and how far self-training is behind: means over masks."""
    for name in dict.fromkeys(line[0] for line in lines):
        own = [dict(zip(COLUMNS, line, strict=True)) for line in lines if line[0] == name]
        mean = {
            way: {
                column: np.mean([x[column] for x in own if (x["share"], x["wrong"]) == way]) for column in COLUMNS[6:]
            }
            for way in WAYS
        }
        one, five, partly = (mean[way] for way in WAYS)
        yield (
            f"# {name}, {len(own) // len(WAYS)} masks: 1 % {one['urrl'] - one['without']:+.2f}, "
            f"5 % {five['urrl'] - five['without']:+.2f}, a fifth of these wrong {partly['urrl'] - five['urrl']:+.2f} "
            f"(beside none {partly['urrl'] - partly['without']:+.2f}; listed {partly['wrong_listed']:.1f} wrong and "
            f"{partly['right_listed']:.1f} right); ahead of self-training by {one['urrl'] - one['self_training']:.2f}, "
            f"{five['urrl'] - five['self_training']:.2f} and {partly['urrl'] - partly['self_training']:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--missing", type=float, default=0.5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--masks", type=int, default=10)
    parser.add_argument("--effort", default="auto")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(",".join(COLUMNS))
    every = []
    for own in asked.names:
        for draw in range(asked.first, asked.first + asked.masks):
            for line in measure(asked.data, own, asked.missing, draw, asked.effort):
                print(*line, sep=",", flush=True)
                every.append(line)
    print(*judged(every), sep="\n")
