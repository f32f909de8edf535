"""Measure the default settings on Handwritten, half of the samples without four of their six views.

    python -m benchmarks.studies.handwritten fit 0 1 2 3 4 >> results/handwritten/fit.csv
    python -m benchmarks.studies.handwritten new 0 1 2 3 4 >> results/handwritten/new.csv
    python -m benchmarks.studies.handwritten keep 0 1 2 3 4 >> results/handwritten/keep.csv

`fit` clusters all samples; a line is: device, seed, accuracy, NMI, ARI, seconds. `new` fits 80 % of the samples and
places the others; a line is: device, seed, accuracy of the fitted, accuracy of the new, then of the new with 1, 2, ...
6 views at random. `keep` does the same with models that keep all, 800, 400, 200, 100 and 50 of the 1600 fitted
samples; a line is: device, seed, accuracy of the fitted, then of the new for each. The seed is that of the mask, the
split and the training. Accuracies are in percent; clusters of the new samples have the digits that the fitted samples
give them.
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from viewfuse import URRL, metrics
from viewfuse.datasets import load_handwritten
from viewfuse.missing import apply_mask, paper_mask


def fit_all(views, digits, mask, seed) -> list[float]:
    """Accuracy, NMI, ARI and seconds."""
    began = time.perf_counter()
    labels = URRL(10, random_state=seed).fit_predict(apply_mask(views, mask))
    scores = [100 * score(digits, labels) for score in (metrics.clustering_accuracy, metrics.nmi, metrics.ari)]
    return [*scores, time.perf_counter() - began]


def split(views, digits, mask, rng, seed):
    """A model of 1600 samples, their accuracy, the other samples, and the accuracy of labels of these."""
    order = rng.permutation(len(digits))
    old, new = order[:1600], order[1600:]
    shown = apply_mask(views, mask)
    model = URRL(10, random_state=seed).fit([view[old] for view in shown])
    counts = np.zeros((10, 10))
    np.add.at(counts, (model.labels_, digits[old]), 1)
    name = linear_sum_assignment(counts, maximize=True)[1]

    def accuracy(labels) -> float:
        return 100 * float((name[labels] == digits[new]).mean())

    fitted = 100 * float((name[model.labels_] == digits[old]).mean())
    return model, fitted, new, [view[new] for view in shown], accuracy


def place_new(views, digits, mask, seed) -> list[float]:
    """Accuracy of fitted samples, of new ones, and of new ones by number of views."""
    rng = np.random.default_rng(seed)
    model, fitted, new, shown, accuracy = split(views, digits, mask, rng, seed)
    found = [fitted, accuracy(model.predict(shown))]
    for number in range(5, -1, -1):
        subset = apply_mask([v[new] for v in views], paper_mask(len(new), 6, 1.0, number, random_state=rng))
        found.append(accuracy(model.predict(subset)))
    return found


def keep_some(views, digits, mask, seed) -> list[float]:
    """Accuracy of fitted samples, then of new ones for models that keep fewer and fewer samples."""
    model, fitted, _, shown, accuracy = split(views, digits, mask, np.random.default_rng(seed), seed)
    found = [fitted]
    for keep in (None, 800, 400, 200, 100, 50):
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder, keep=keep)
            found.append(accuracy(URRL.load(folder).predict(shown)))
    return found


if __name__ == "__main__":
    import torch

    measure = {"fit": fit_all, "new": place_new, "keep": keep_some}[sys.argv[1]]
    views, digits = load_handwritten()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for seed in map(int, sys.argv[2:]):
        mask = paper_mask(len(digits), 6, missing_rate=0.5, missing_number=4, random_state=seed)
        row = measure(views, digits, mask, seed)
        print(device, seed, *(f"{x:.2f}" for x in row), sep=",", flush=True)
