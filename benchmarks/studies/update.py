"""Whether an update is as good as a fit of everything, finds new classes, and keeps numbers.

    python -m benchmarks.studies.update DATA OUT.json [--sets handwritten ...] [--seeds 3] [--processes 1]

Of each set and seed, with 30 % of the samples incomplete:

- half: a fit of half of the samples, five updates with the rest; beside it one fit of all, and its time;
- class: the same without one class in the first half (by the seed); this class comes with the updates;
- time: a fit of 2,000 samples, or of four fifths where there are fewer, and one update with 500, or the rest.

The JSON file has a record per set, seed and kind: accuracies, the share of old samples that kept their number, what
became of the class that was left out, seconds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL, Views
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import apply_mask, paper_mask

SETS = ("handwritten", "citeseq_inhouse1182", "bbcsport", "reuters1200")
KINDS = ("half", "class", "time")
PORTIONS, MISSING = 5, 0.3


class Task:
    """A set with some views missing, and its classes."""

    def __init__(self, folder: Path, name: str, seed: int, thin: int) -> None:
        data, rng = load(folder, CATALOGUE[name]), np.random.default_rng(seed)
        rows = rng.permutation(len(data.labels))[: len(data.labels) // thin]
        self.labels = np.unique(data.labels[rows], return_inverse=True)[1]
        arrays = [np.asarray(view, np.float32)[rows] for view in data.views]
        several = max(1, round(0.6 * len(arrays)))
        self.views = apply_mask(arrays, paper_mask(len(rows), len(arrays), MISSING, several, seed))

    def take(self, rows: NDArray[np.int64]) -> Views:
        """Some of the samples, under ids of their own."""
        return Views([view[rows] for view in self.views], ids=[f"s{row}" for row in rows.tolist()])


def measured(folder: Path, name: str, seed: int, kind: str, effort: str, thin: int) -> dict[str, Any]:
    """One record."""
    warnings.simplefilter("ignore")
    task = Task(folder, name, seed, thin)
    n, k = len(task.labels), int(task.labels.max()) + 1
    fresh: dict[str, Any] = {"random_state": seed, "effort": effort}
    facts = {"set": name, "seed": seed, "kind": kind, "samples": n}
    if kind == "time":
        first, last = np.split(np.arange(n), [min(2_000, 4 * n // 5)])
        model, seconds = timed(lambda: URRL(k, **fresh).fit(task.take(first)))
        _, added = timed(lambda: model.update(task.take(last[:500])))
        return {**facts, "old": len(first), "new": len(last[:500]), "fit": seconds, "update": added}
    first, rest = np.split(np.arange(n), [n // 2])
    left = seed % k if kind == "class" else -1
    rest = np.random.default_rng(seed).permutation(np.concatenate([rest, first[task.labels[first] == left]]))
    first = first[task.labels[first] != left]
    model, seconds = timed(lambda: URRL(k - (left >= 0), **fresh).fit(task.take(first)))
    before, order = model.labels_.copy(), np.concatenate([first, rest])
    facts |= {"fit": seconds, "fitted": clustering_accuracy(task.labels[first], before), "updates": []}
    for part in np.array_split(rest, PORTIONS):
        made, added = timed(lambda part=part: model.update(task.take(part)))
        facts["updates"].append({"seconds": added, "moved": len(made.moved), "founded": list(made.founded)})
    facts["stayed"] = float((model.labels_[: len(first)] == before).mean())
    facts["accuracy"] = clustering_accuracy(task.labels[order], model.labels_)
    if left >= 0:
        return facts | new_class(model.labels_, task.labels[order] == left, k - 1)
    whole, seconds = timed(lambda: URRL(k, **fresh).fit(task.take(order)))
    return facts | {"whole": clustering_accuracy(task.labels[order], whole.labels_), "fit of all": seconds}


def new_class(labels: NDArray[np.int64], is_new: NDArray[np.bool_], n_before: int) -> dict[str, float]:
    """What became of the class that was left out: of the new cluster that has most of it, the share and the purity."""
    later = labels[is_new & (labels >= n_before)]
    if not len(later):
        return {"share": 0.0, "purity": 0.0}
    best = np.bincount(later).argmax()
    return {"share": float((labels[is_new] == best).mean()), "purity": float(is_new[labels == best].mean())}


def timed(work: Any) -> tuple[Any, float]:
    """What work gives, and the seconds that it takes."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def main() -> None:
    """Run all, and print a line per record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--effort", default="auto")
    parser.add_argument("--thin", type=int, default=1, help="Take one sample in so many.")
    asked = parser.parse_args()
    jobs = list(product(asked.sets, range(asked.seeds), asked.kinds))
    found = []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        ways = asked.effort, asked.thin
        waiting = [pool.submit(measured, asked.data, *job, *ways) for job in jobs]
        for one in waiting:
            found.append(one.result())
            asked.out.write_text(json.dumps(found, indent=1))
            shown = {name: value for name, value in found[-1].items() if name != "updates"}
            print(
                *(f"{name} {value:.3f}" if isinstance(value, float) else value for name, value in shown.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
