"""Are batch effects taken out, and clusters left in? Two batches differ by three deviations in every column.

python -m benchmarks.studies.batches.study kmeans|urrl DATA NAME [NAME ...] [--masks 5] [--most 1000]

prints a line of CSV per set, shares of the classes in the batches, and mask; at the end means that begin with #.
Half of the samples are incomplete. The accuracies in % are those of k-means of the views filled from nearest samples,
or of URRL with effort "quick": without batches, with them and `batch` given, and with the shifts that least squares
find beside the true classes. Of each set `--most` samples are drawn. With "unequal" shares the first class has a fifth
of its samples in the second batch, the last one four fifths.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL, Views
from viewfuse.baselines import kmeans_after_knn
from viewfuse.data.side_information.batch_labels import with_batch
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import apply_mask, paper_mask


def drawn(data, most, shares, seed):
    """Views, classes, the batch of each sample (0 or 1), which views it has, and the shift of each view."""
    rng = np.random.default_rng([seed, 44])
    rows = np.sort(rng.permutation(len(data.labels))[:most])
    classes = np.unique(np.asarray(data.labels)[rows], return_inverse=True)[1]
    k = classes.max() + 1
    in_second = np.full(k, 0.5) if shares == "equal" else np.linspace(0.2, 0.8, k)
    codes = (rng.random(len(rows)) < in_second[classes]).astype(np.int64)
    views = [np.asarray(view)[rows].astype(np.float64) for view in data.views]
    views = [view[:, view.std(axis=0) > 0] for view in views]
    mask = paper_mask(len(rows), len(views), 0.5, max(1, round(0.6 * len(views))), seed)
    return views, classes, codes, mask, [3 * view.std(axis=0) * rng.choice([-1, 1], view.shape[1]) for view in views]


def beside_classes(view, classes, codes):
    """The view without the shift of the second batch, given the classes."""
    there = ~np.isnan(view).all(axis=1)
    design = np.concatenate([np.eye(classes.max() + 1)[classes], codes[:, None]], axis=1)
    shift = np.linalg.lstsq(design[there], view[there], rcond=None)[0][-1]
    return view - codes[:, None] * shift


def accuracies(kind, views, classes, codes, mask, shifts, seed):
    """Accuracy in % without batches, with them, and where they are taken out beside the true classes.

    Without batches all samples are shifted alike: counts would be reduced as counts, which those of a batch are not.
    """
    k, pairs = int(classes.max()) + 1, list(zip(views, shifts, strict=True))
    plain = apply_mask([view + own for view, own in pairs], mask)
    moved = apply_mask([view + codes[:, None] * own for view, own in pairs], mask)
    known = [beside_classes(view, classes, codes) for view in moved]
    given = Views(plain), with_batch(Views(moved), codes.astype(str)), Views(known)
    if kind == "kmeans":
        found = [kmeans_after_knn(one, k, seed) for one in given]
    else:
        found = [URRL(k, effort="quick", random_state=seed).fit(one).labels_ for one in given]
    return [round(100 * clustering_accuracy(classes, labels), 1) for labels in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("kmeans", "urrl"))
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--masks", type=int, default=5)
    parser.add_argument("--most", type=int, default=1000)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("set,shares,mask,without_batches,batch_given,classes_known")
    for name in asked.names:
        for shares in ("unequal", "equal"):
            every = []
            for seed in range(asked.masks):
                made = drawn(load(asked.data, CATALOGUE[name]), asked.most, shares, seed)
                every.append(accuracies(asked.kind, *made, seed))
                print(name, shares, seed, *every[-1], sep=",", flush=True)
            print(f"# {name},{shares},mean", *np.mean(every, axis=0).round(1), sep=",", flush=True)
