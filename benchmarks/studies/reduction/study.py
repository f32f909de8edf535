"""What the front end is worth: k-means after donors, with and without it, on sets whose labels only score.

    python -m benchmarks.studies.reduction.study accuracy --data-dir FOLDER [names of sets]
    python -m benchmarks.studies.reduction.study narrow --data-dir FOLDER --out narrow.csv [names of sets]
    python -m benchmarks.studies.reduction.study speed

`narrow` makes whole fits of small sets, with views of up to 256 columns as they are, and with the default.
FOLDER holds NAME.npz files with view_0, view_1, ... and labels.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import resource
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.metrics.pairwise import euclidean_distances

from viewfuse import URRL
from viewfuse.baselines import kmeans_labels
from viewfuse.data.views import Views
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import paper_mask
from viewfuse.reduction import reduce
from viewfuse.reduction.reduce import fit_front_end

SETS = (
    "3sources", "bbcsport", "ngs", "reuters1200", "movies", "prokaryotic", "bdgp", "citeseq_inhouse1182",
    "caltech7x200_reextracted",
)  # fmt: skip
MISSING = {2: 1, 3: 2, 5: 3, 6: 4, 12: 8}
DONORS = 10


def load(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Views of shape (samples, columns), and labels of shape (samples,)."""
    with np.load(path) as file:
        names = sorted((name for name in file if name.startswith("view_")), key=lambda name: int(name[5:]))
        return [file[name].astype(np.float32) for name in names], file["labels"]


def reduced(views: list[np.ndarray], mask: np.ndarray, how: str) -> list[np.ndarray]:
    """Views after the front end."""
    ends = [fit_front_end(view, mask[:, v], how) for v, view in enumerate(views)]
    return [end.apply(view, mask[:, v]) for v, (end, view) in enumerate(zip(ends, views, strict=True))]


def scaled(view: np.ndarray, present: np.ndarray, scaling: str) -> np.ndarray:
    """Columns of mean 0, either each of one deviation ("standard") or all divided by one number ("view").

    Either way the variances of a view add up to 1, so that every view has the same say.
    """
    rows = view[present].astype(np.float64)
    deviations = rows.std(axis=0)
    total = np.sqrt(np.square(deviations).sum())
    each = np.where(deviations > 0, deviations, 1) * np.sqrt(view.shape[1])
    return np.where(present[:, None], (view - rows.mean(axis=0)) / (each if scaling == "standard" else total), 0)


def filled(views: list[np.ndarray], mask: np.ndarray) -> np.ndarray:
    """All views as one table, gaps filled with the mean of the ten nearest samples that have the view."""
    far, common = np.zeros((2, len(mask), len(mask)))
    for v, view in enumerate(views):
        here = np.flatnonzero(mask[:, v])
        far[np.ix_(here, here)] += euclidean_distances(view[here], squared=True)
        common[np.ix_(here, here)] += 1
    far = np.where(common > 0, far / np.maximum(common, 1), np.inf)
    return np.concatenate([donated(view, mask[:, v], far) for v, view in enumerate(views)], axis=1)


def donated(view: np.ndarray, present: np.ndarray, far: np.ndarray) -> np.ndarray:
    """One view, its gaps filled; samples that share no view with any donor keep zeros, the mean."""
    here, gone = np.flatnonzero(present), np.flatnonzero(~present)
    apart = far[np.ix_(gone, here)]
    nearest = apart.argsort(axis=1, kind="stable")[:, :DONORS]
    usable = np.isfinite(np.take_along_axis(apart, nearest, axis=1)).astype(float)
    view = view.copy()
    view[gone] = np.einsum("gd,gdc->gc", usable, view[here[nearest]]) / np.maximum(usable.sum(axis=1), 1)[:, None]
    return view


def score(views: list[np.ndarray], labels: np.ndarray, mask: np.ndarray, how: str, scaling: str) -> float:
    """Accuracy in per cent, mean of two starts of k-means."""
    ready = [scaled(view, mask[:, v], scaling) for v, view in enumerate(reduced(views, mask, how))]
    table, clusters = filled(ready, mask), len(np.unique(labels))
    return 100 * float(np.mean([clustering_accuracy(labels, kmeans_labels(table, clusters, seed)) for seed in (0, 1)]))


def accuracy(folder: Path, names: list[str], rank: int | None, n_masks: int) -> None:
    """One line of the table per set."""
    if rank:
        reduce._FEWEST = reduce._MOST = rank
    conditions = [("none", "standard"), ("none", "view"), ("auto", "standard"), ("auto", "view")]
    for name in names:
        views, labels = load(folder / f"{name}.npz")
        masks = [paper_mask(len(labels), len(views), 0.5, MISSING[len(views)], seed) for seed in range(n_masks)]
        cells = []
        for how, scaling in conditions[-1:] if rank else conditions:
            scores = [score(views, labels, mask, how, scaling) for mask in masks]
            cells.append(f"{np.mean(scores):.1f} ± {np.std(scores):.1f}")
        ends = [fit_front_end(view, masks[0][:, v]) for v, view in enumerate(views)]
        found = ", ".join(f"{end.kind.name}: {end.how} {end.columns}" for end in ends)
        print(f"| {name} | {found} | {' | '.join(cells)} |", flush=True)


def narrow(folder: Path, names: list[str], masks: list[int], out: Path) -> None:
    """One line per set, rate, mask and rule: the accuracy of a whole fit, and its seconds on one thread."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["dataset", "missing_rate", "mask", "narrow", "accuracy", "cpu_seconds"])
        for name in names:
            views, labels = load(folder / f"{name}.npz")
            data = {f"v{v}": view for v, view in enumerate(views)}
            before = {key: "none" for key, view in data.items() if view.shape[1] <= 256}
            for seed, rate in itertools.product(masks, (0.25, 0.5, 0.75)):
                mask = paper_mask(len(labels), len(views), rate, MISSING[len(views)], seed)
                for rule, reduction in (("256", before), ("default", "auto")):
                    begin = time.process_time()
                    fit = URRL(len(np.unique(labels)), reduction=reduction, random_state=seed).fit(
                        Views(data, mask=mask)
                    )
                    found = 100 * clustering_accuracy(labels, fit.labels_)
                    writer.writerow([name, rate, seed, rule, f"{found:.2f}", f"{time.process_time() - begin:.1f}"])
                    file.flush()


def speed(share: float) -> None:
    """Seconds and peak memory of fit and apply on made tables."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((1_000, 20_000), dtype=np.float32)
    timed("1,000 x 20,000 dense", dense)
    del dense
    n, filled_cells = int(100_000 * share), 900
    rows = [rng.integers(0, 30_000, filled_cells, dtype=np.int32) for _ in range(n)]
    counts = rng.geometric(0.3, n * filled_cells).astype(np.float32)
    start = np.arange(n + 1, dtype=np.int64) * filled_cells
    sparse = sp.csr_matrix((counts, np.concatenate(rows), start), shape=(n, 30_000))
    del rows
    sparse.sum_duplicates()
    for how in ("counts", "words"):
        timed(f"{n:,} x 30,000 sparse, {sparse.nnz:,} values, {how}", sparse, how)


def timed(what: str, values: np.ndarray | sp.csr_matrix, how: str = "auto") -> None:
    """Print how long it takes; the peak is that of the process so far, data included."""
    begin = time.perf_counter()
    end = fit_front_end(values, np.ones(values.shape[0], dtype=bool), how)
    fitted = time.perf_counter()
    end.apply(values)
    done, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {what} | {fitted - begin:.1f} s | {done - fitted:.1f} s | {peak:.1f} GiB |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("accuracy", "narrow", "speed"))
    parser.add_argument("names", nargs="*", default=SETS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rank", type=int, help="so many components whatever the number of samples")
    parser.add_argument("--masks", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the large sparse table of `speed`")
    parser.add_argument("--out", type=Path, default=Path("narrow.csv"))
    given = parser.parse_args()
    if given.what == "accuracy":
        accuracy(given.data_dir, list(given.names), given.rank, given.masks)
    elif given.what == "narrow":
        narrow(given.data_dir, list(given.names), list(range(5, 5 + given.masks)), given.out)
    else:
        speed(given.share)
