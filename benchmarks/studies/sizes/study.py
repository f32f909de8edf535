"""Unequal, elongated and far-off groups, and real sets: accuracy of default fits, one line of CSV each.

python -m benchmarks.studies.sizes.study DATA SET [SET ...] [--rate 0.5] [--seeds 5 6 7 8 9] [--effort auto]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.experiments.catalogue import CATALOGUE, load
from benchmarks.experiments.scoring import scored
from benchmarks.experiments.unequal import DRAWN
from viewfuse import URRL
from viewfuse.missing import apply_mask, paper_mask

_MOST = 2_500
"""Larger sets are thinned to 2,000 samples."""


def views_of(folder, name, seed, rate):
    """Views with gaps by the paper's protocol, and labels."""
    if name in DRAWN:
        (views, labels), lacking = DRAWN[name](seed), 1
    else:
        data = load(folder, CATALOGUE[name])
        views, labels, lacking = data.views, np.unique(data.labels, return_inverse=True)[1], data.entry.missing_number
        if len(labels) > _MOST:
            rows = np.sort(np.random.default_rng(0).choice(len(labels), 2_000, replace=False))
            views, labels = [view[rows] for view in views], labels[rows]
    return apply_mask(views, paper_mask(len(labels), len(views), rate, lacking, seed)), labels


def main():
    """Fit every set with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    parser.add_argument("--effort", default="auto")
    asked = parser.parse_args()
    sys.stdout.write("set,rate,seed,effort,accuracy,macro_accuracy,ari,outliers\n")
    for name in asked.sets:
        for seed in asked.seeds:
            views, labels = views_of(asked.data, name, seed, asked.rate)
            known = labels >= 0
            model = URRL(len(set(labels[known])), effort=asked.effort, random_state=seed).fit(views)
            found = scored(labels, model.labels_)
            numbers = ",".join(f"{found[name] / 100:.5f}" for name in ("acc", "macro", "ari"))
            sys.stdout.write(f"{name},{asked.rate},{seed},{asked.effort},{numbers},{int(model.outliers_.sum())}\n")


if __name__ == "__main__":
    main()
