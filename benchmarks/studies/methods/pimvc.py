"""Why our PIMVC and that of imml 0.6.0 (not a dependency of this project) differ on BDGP.

    python -m benchmarks.studies.methods.pimvc DATA_DIR OUT.csv

Both get the same masked, reduced and scaled views. imml ends its rounds where the loss changes by less than 1e-5, ours
where it changes by less than that share of itself. A line per mask, accuracies in percent: of imml; of imml's
representation with our k-means of twenty starts; of our rounds that begin at imml's representation; of ours; of ours
after four rounds; of ours from a random start; of our representation with one start of k-means (mean of ten). Then
rounds of imml and ours, and how much of our objective imml's representation lacks.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from imml.cluster import PIMVC as IMML
from sklearn.cluster import KMeans

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import Views, metrics
from viewfuse.data.scaling import fit_scaler
from viewfuse.methods import PIMVC
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.reduction.reduce import fit_reduction
from viewfuse.selection.kmeans import kmeans_centers

ENTRY, RATE, SEEDS = CATALOGUE["bdgp"], 0.5, range(10)
COLUMNS = ("seed", "imml", "imml_kmeans20", "ours_from_imml", "ours", "ours_4_rounds", "ours_random_start",
           "ours_kmeans1", "imml_rounds", "our_rounds", "imml_lacks")  # fmt: skip


class Begun(PIMVC):
    """PIMVC that begins at a given representation of shape (samples, clusters)."""

    begin: np.ndarray

    def _start(self, arrays, mask, roots):
        return self.begin


def fitted(views: Views, seed: int, begin: np.ndarray | None = None, **params: int) -> PIMVC:
    """Our method, which may begin elsewhere."""
    model = (PIMVC if begin is None else Begun)(ENTRY.classes, random_state=seed, device="cpu", **params)
    if begin is not None:
        model.begin = begin
    return model.fit(views)


def best_of_twenty(points: np.ndarray, seed: int) -> np.ndarray:
    """Labels by our k-means."""
    own = torch.from_numpy(points.astype(np.float32))
    return torch.cdist(own, kmeans_centers(own, ENTRY.classes, seed)).argmin(dim=1).numpy()


def row(views: Views, labels: np.ndarray, seed: int) -> list[float]:
    """A line of the table."""
    reduction = fit_reduction(views)
    reduced = reduction.apply(views)
    scaled = fit_scaler(reduced, "minmax", reduction.units).apply(reduced)
    pairs = enumerate(scaled.arrays)
    tables = [np.where(scaled.mask[:, [v]], view, np.nan).astype(np.float64) for v, view in pairs]
    other = IMML(n_clusters=ENTRY.classes, random_state=seed).fit(tables)
    begin, drawn = other.embedding_, np.random.default_rng(seed).normal(size=other.embedding_.shape)
    ours, on, few, once = (fitted(views, seed), fitted(views, seed, begin), fitted(views, seed, rounds=4),
                           fitted(views, seed, begin, rounds=1))  # fmt: skip
    single = [KMeans(ENTRY.classes, n_init=1, random_state=i).fit_predict(ours.embedding_) for i in range(10)]
    found = [other.labels_, best_of_twenty(begin, seed), on.labels_, ours.labels_, few.labels_,
             fitted(views, seed, drawn).labels_]  # fmt: skip
    scores = [100 * metrics.clustering_accuracy(labels, own) for own in found]
    scores.append(float(np.mean([100 * metrics.clustering_accuracy(labels, own) for own in single])))
    lacks = 1 - once.history_["total"][-1] / ours.history_["total"][-1]
    return [*(round(one, 2) for one in scores), other.n_iter_, len(ours.history_["total"]), round(lacks, 6)]


def main(data_dir: Path, out: Path) -> None:
    """Write the table."""
    data = load(data_dir, ENTRY)
    with out.open("w") as file:
        print(*COLUMNS, sep=",", file=file)
        for seed in SEEDS:
            mask = paper_mask(ENTRY.n, len(data.views), RATE, ENTRY.missing_number, random_state=seed)
            views = Views(apply_mask(list(data.views), mask))
            print(seed, *row(views, data.labels, seed), sep=",", file=file, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
