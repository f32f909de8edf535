"""Unequal, elongated and far-off groups, and real sets: accuracy of default fits, one line of CSV each.

python -m benchmarks.studies.sizes.study DATA SET [SET ...] [--rate 0.5] [--seeds 5 6 7 8 9] [--effort auto]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL, metrics
from viewfuse.missing import apply_mask, paper_mask

_MOST = 2_500
"""Larger sets are thinned to 2,000 samples."""


def blobs(sizes, seed, apart, widths=(10, 12)):
    """Gaussian groups whose centres lie at one distance from the middle, in directions drawn anew in every view."""
    rng = np.random.default_rng([seed, 77])
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng.shuffle(labels)
    views = []
    for width in widths:
        centers = rng.normal(size=(len(sizes), width))
        centers *= apart / np.linalg.norm(centers, axis=1, keepdims=True)
        if len(sizes) == 2:  # two groups lie opposite of each other, so that they are as far apart
            centers = np.stack([centers[0], -centers[0]]) / 2
        views.append((rng.normal(size=(len(labels), width)) + centers[labels]).astype(np.float32))
    return views, labels


def cigars(seed, n=300, aspect=20.0):
    """Three parallel groups twenty times as long as wide; where a sample lies along them differs between the views."""
    rng = np.random.default_rng([seed, 78])
    labels = np.repeat(np.arange(3), n // 3)
    rng.shuffle(labels)
    rng.normal(size=n)
    views = []
    for width in (4, 5):
        along = rng.normal(size=width)
        along /= np.linalg.norm(along)
        across = rng.normal(size=width)
        across -= across @ along * along
        across /= np.linalg.norm(across)
        place = rng.normal(size=n) * aspect
        points = rng.normal(size=(n, width)) + np.outer(place, along) + np.outer(6.0 * (labels - 1), across)
        views.append(points.astype(np.float32))
    return views, labels


def outliers(seed):
    """Three groups, and six samples at sixty deviations, which have no label (-1)."""
    views, labels = blobs((100, 100, 94), seed, 6.0)
    rng = np.random.default_rng([seed, 79])
    far = [(rng.normal(size=(6, one.shape[1])) * 60 / np.sqrt(one.shape[1])).astype(np.float32) for one in views]
    return [np.concatenate(pair) for pair in zip(views, far, strict=True)], np.append(labels, np.full(6, -1))


MADE = {
    "950_50": lambda seed: blobs((950, 50), seed, 8.0),
    "270_24_6": lambda seed: blobs((270, 24, 6), seed, 7.0),
    "400_12": lambda seed: blobs((400, 200, 100, 50, 25, 12), seed, 7.0, (10, 12, 9)),
    "90_8_2": lambda seed: blobs((450, 40, 10), seed, 7.0),
    "geometric": lambda seed: blobs(np.maximum(8, 400 * 0.65 ** np.arange(10)).astype(int), seed, 7.0, (15, 12, 10)),
    "cigars": cigars,
    "outliers": outliers,
}


def views_of(folder, name, seed, rate):
    """Views with gaps by the paper's protocol, and labels."""
    if name in MADE:
        (views, labels), lacking = MADE[name](seed), 1
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
            found, true = model.labels_[known], labels[known]
            recalls = [_recall(true, found, own) for own in np.unique(true)]
            scored = metrics.clustering_accuracy(true, found), np.mean(recalls), metrics.ari(true, found)
            numbers = ",".join(f"{one:.5f}" for one in scored)
            sys.stdout.write(f"{name},{asked.rate},{seed},{asked.effort},{numbers},{int(model.outliers_.sum())}\n")


def _recall(true, found, own):
    """The share of a class in the cluster that one-to-one matching gives it."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((max(true.max(), found.max()) + 1,) * 2)
    np.add.at(table, (found, true), 1)
    rows, columns = linear_sum_assignment(-table)
    return table[rows[columns == own][0], own] / (true == own).sum()


if __name__ == "__main__":
    main()
