"""How well the estimate of trust holds: a fit of each set, then whole fits on 80 % of its samples.

python -m benchmarks.studies.trust.study DATA NAME [NAME ...] [--missing 0.5] [--refits 8]

prints a line of CSV per set: what was measured and estimated, calibration error, area under the curve, and how often
sets hold the cluster of a repeated fit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL, Views
from viewfuse.engine.training import SILENT
from viewfuse.methods.urrl.refits import repeated_labels, source_of
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.selection.scores import stability
from viewfuse.utils.jobs import chosen_device

COLUMNS = ("set", "missing", "samples", "clusters", "refits", "measured", "estimate", "ece", "auc", "coverage", "size")


def calibration_error(chances, hits, bins=10):
    """Expected calibration error against the share of the repeated fits that put a sample into its cluster."""
    place = np.minimum((chances * bins).astype(int), bins - 1)
    own = [(place == b) for b in range(bins) if (place == b).any()]
    return sum(abs(chances[one].mean() - hits[:, one].mean()) * one.mean() for one in own)


def measure(folder, name, missing, refits, effort):
    """A line of the table."""
    data = load(folder, CATALOGUE[name])
    classes = np.unique(data.labels, return_inverse=True)[1]
    k, n, several = len(np.unique(classes)), len(classes), max(1, round(0.6 * len(data.views)))
    mask = paper_mask(n, len(data.views), missing, several, 0)
    views = Views(apply_mask([view.astype(np.float32) for view in data.views], mask))
    model = URRL(k, random_state=0, effort=effort).fit(views)
    chances = model.soft_labels_.max(axis=1)
    ways = {"seed": 0, "n_init": "auto", "device": chosen_device("auto"), "progress": SILENT}
    found = repeated_labels(source_of(model._model, model.ids_), n, model._config(), "auto", refits, **ways)
    hits = np.stack([stability(model.labels_, [own]) > 0 for own in found])
    right = stability(model.labels_, [classes]) > 0
    sets = model.predict_set(views)
    held = np.mean([sets[np.arange(n), renamed(model.labels_, own)].mean() for own in found])
    auc = roc_auc_score(right, chances) if 0 < right.mean() < 1 else np.nan
    numbers = (hits.mean(), chances.mean(), calibration_error(chances, hits), auc, held, sets.sum(axis=1).mean())
    return (name, missing, n, k, refits, *(f"{one:.3f}" for one in numbers))


def renamed(labels, other):
    """Another partition with the numbers of the clusters that it shares most samples with, one to one."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((labels.max() + 1, other.max() + 1))
    np.add.at(table, (labels, other), 1)
    rows, columns = linear_sum_assignment(-table)
    names = np.zeros(other.max() + 1, dtype=int)
    names[columns] = rows
    return names[other]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--missing", type=float, default=0.5)
    parser.add_argument("--refits", type=int, default=8)
    parser.add_argument("--effort", default="auto")
    given = parser.parse_args()
    print(",".join(COLUMNS))
    for own in given.names:
        print(*measure(given.data, own, given.missing, given.refits, given.effort), sep=",", flush=True)
