"""What a few labels are worth, right and partly wrong, beside a classifier that trains itself on filled views.

python -m benchmarks.studies.hints.study DATA NAME [NAME ...] [--missing 0.5] [--masks 10] [--effort auto]

prints a line of CSV per set, mask and way: the accuracy on samples whose label is not given, which are the same for
all ways with the same share of labels.
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

COLUMNS = ("set", "missing", "mask", "share", "wrong", "labels", "without", "urrl", "self_training")
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
        taught = URRL(k, random_state=seed, effort=effort).fit(views, given).labels_
        found = plain, taught, self_trained(views, given)
        scores = (f"{100 * clustering_accuracy(classes[others], one[others]):.2f}" for one in found)
        yield name, missing, seed, share, wrong, (~others).sum(), *scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--missing", type=float, default=0.5)
    parser.add_argument("--masks", type=int, default=10)
    parser.add_argument("--effort", default="auto")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(",".join(COLUMNS))
    for own in asked.names:
        for draw in range(asked.masks):
            for line in measure(asked.data, own, asked.missing, draw, asked.effort):
                print(*line, sep=",", flush=True)
