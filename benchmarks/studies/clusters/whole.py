"""What a chosen number of clusters costs: whole fits with it, and with the true number, on the same masks.

python -m benchmarks.studies.clusters.whole DATA OUT.csv --data-sets NAME ... [--rates 0 0.25 0.5] [--masks 5 6]

writes a line per set, rate and mask, as each is done; without names for the synthetic sets. Labels judge only.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.clusters.experiment import masked
from benchmarks.clusters.synthetic_sets import all_sets
from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL

COLUMNS = ("dataset", "missing_rate", "mask", "true_k", "chosen", "levels", "answer", "ari", "ari_at_true_k",
           "seconds", "seconds_at_true_k")  # fmt: skip


def cell(folder, name, rate, mask):
    """A line of the table."""
    warnings.simplefilter("ignore")
    own = {one.name: one for one in all_sets()}
    if name in own:
        views, labels = own[name].make(rate, mask + 1)
        most = 1
    else:
        loaded = load(folder, CATALOGUE[name])
        views, labels, most = loaded.views, loaded.labels, CATALOGUE[name].missing_number
    data, classes = masked(views, rate, most, mask), np.unique(labels, return_inverse=True)[1]
    true_k = int(classes.max()) + 1
    free, took = fitted("auto", data, mask)
    given, usual = fitted(true_k, data, mask) if true_k > 1 else (None, 0.0)
    number = free.decisions_["n_clusters"]
    levels = " ".join(str(k) for k in number["levels"])
    rand = [adjusted_rand_score(classes, one.labels_) if one and true_k > 1 else np.nan for one in (free, given)]
    answer = number["why"].split(";")[0][:80]
    return (name, rate, mask, true_k, free.n_clusters_, levels, answer, *(f"{x:.4f}" for x in (*rand, took, usual)))


def fitted(k, data, seed):
    """A model, and its seconds."""
    begun = time.perf_counter()
    return URRL(k, random_state=seed).fit(data), time.perf_counter() - begun


def main(given):
    """Run all cells that are not in the file yet, the first mask first."""
    names = given.data_sets or [one.name for one in all_sets()]
    jobs = [(n, rate, mask) for mask in given.masks for n in names for rate in given.rates]
    begun = time.monotonic()
    with given.out.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
            for one in as_completed([pool.submit(cell, given.data, *job) for job in jobs]):
                lines.writerow(one.result())
                file.flush()
                if time.monotonic() - begun > given.limit:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    parser.add_argument("--masks", type=int, nargs="+", default=[5, 6])
    parser.add_argument("--data-sets", nargs="+", default=[])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--limit", type=float, default=3600)
    main(parser.parse_args())
