"""How long, in how much memory and how well `fit-large` clusters a data set that is made for it.

    python -m benchmarks.studies.scale.measure make clusters rows/ --rows 10000000  # 30 % missing
    python -m benchmarks.studies.scale.measure make tiled rows/ --rows 1000000 --npz handwritten.npz
    python -m benchmarks.studies.scale.measure run rows/ run/ --clusters 10 [--device cuda] [--steps N] [--bank N]
    python -m benchmarks.studies.scale.measure memory rows/ --count 20000  # an ordinary fit of the first rows

`run` prints the summary of the run, with the time of all and the accuracy. Rows are made shard by shard, so making them
takes little memory, too.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTHS, MISSING, SHARD = (64, 128, 32), 0.3, 156_250
"""10^7 rows are 64 shards."""
SPREAD = 0.3
"""Deviation of the centres over that of the noise, per column: rows with the narrowest view alone are ambiguous."""


def clusters(n, seed, n_clusters=10):
    """Random clusters of three views: labels and values of `n` rows."""
    centres = [np.random.default_rng(v).normal(scale=SPREAD, size=(n_clusters, w)) for v, w in enumerate(WIDTHS)]
    rng = np.random.default_rng([1, seed])
    labels = rng.integers(n_clusters, size=n)
    views = [c[labels].astype(np.float32) + rng.standard_normal((n, c.shape[1]), dtype=np.float32) for c in centres]
    return labels, dict(zip(("a", "b", "c"), views, strict=True))


def tiled(n, seed, npz, noise=0.3):
    """Rows of a known data set, drawn with replacement, with noise of a share of each column's deviation."""
    names = sorted(name for name in npz if name.startswith("view"))
    rng = np.random.default_rng([2, seed])
    rows = rng.integers(len(npz["labels"]), size=n)
    spread = {name: noise * npz[name].std(axis=0) for name in names}
    views = {name: npz[name][rows] + spread[name] * rng.standard_normal((n, len(spread[name]))) for name in names}
    return npz["labels"][rows], {name: view.astype(np.float32) for name, view in views.items()}


def table(first, labels, views, seed):
    """As Parquet: ids, known labels (one column, no view), and a column of lists per view, without lists at random."""
    n, rng = len(labels), np.random.default_rng([3, seed])
    there = rng.random((n, len(views))) >= MISSING
    there[np.arange(n), rng.integers(len(views), size=n)] = True
    columns = {"id": pa.array(np.char.add("row", np.arange(first, first + n).astype(str)))}
    for (name, view), own in zip(views.items(), there.T, strict=True):
        offsets = np.concatenate([[0], np.cumsum(own) * view.shape[1]]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(view[own].reshape(-1)), mask=pa.array(~own))
        columns[name] = lists
    return pa.table({**columns, "known": labels.astype(np.int32)})


def make(kind, folder, n_rows, npz):
    """Write all shards."""
    folder.mkdir(parents=True)
    known = dict(np.load(npz)) if npz else {}

    def shard(number):
        first = number * SHARD
        n = min(SHARD, n_rows - first)
        labels, views = tiled(n, number, known) if kind == "tiled" else clusters(n, number)
        pq.write_table(table(first, labels, views, number), folder / f"{number:05d}.parquet", compression="NONE",
                       use_dictionary=False, row_group_size=32_768)  # fmt: skip

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shard, range(-(-n_rows // SHARD))))


def accuracy(rows, labels):
    """Of the label files against the known labels."""
    from viewfuse.metrics import clustering_accuracy

    pairs = []
    for path in sorted(rows.glob("*.parquet")):
        known, found = (
            pq.read_table(path, columns=["id", "known"]),
            pq.read_table(labels / path.name, columns=["id", "label"]),
        )
        assert known.column("id").equals(found.column("id")), path
        pairs.append((known, found))
    known = np.concatenate([np.asarray(one.column("known")) for one, _ in pairs])
    return float(clustering_accuracy(known, np.concatenate([np.asarray(one.column("label")) for _, one in pairs])))


def run(args):
    """Time `fit_large`."""
    from viewfuse.distributed.fit_large import fit_large

    began = time.perf_counter()
    options = {name: getattr(args, name) for name in ("bank", "steps", "batch_size") if getattr(args, name) is not None}
    summary = fit_large(args.rows, args.out, args.clusters, device=args.device, random_state=args.seed, force=True,
                        verbose=True, **options)  # fmt: skip
    summary["seconds of all"] = round(time.perf_counter() - began, 1)
    summary["accuracy"] = round(100 * accuracy(args.rows, args.out / "labels"), 2)
    print(json.dumps({name: value for name, value in summary.items() if name != "decisions"}))


def in_memory(args):
    """The ordinary fit, of the first rows of a data set."""
    from viewfuse import URRL
    from viewfuse.distributed.shards import Shards
    from viewfuse.metrics import clustering_accuracy

    shards, values, known = Shards(args.rows), [], []
    for path in shards.paths:
        values += [rows.values for rows in shards.read(path)]
        known.append(np.asarray(pq.read_table(path, columns=["known"]).column("known")))
    rows, labels = np.concatenate(values)[: args.count], np.concatenate(known)[: args.count]
    began = time.perf_counter()
    model = URRL(args.clusters, device=args.device, random_state=args.seed).fit(shards.layout.views(rows))
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"rows": len(rows), "accuracy": round(100 * clustering_accuracy(labels, model.labels_), 2),
                      "seconds": seconds}))  # fmt: skip


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("make")
    made.add_argument("kind", choices=("clusters", "tiled"))
    made.add_argument("rows", type=Path)
    made.add_argument("--rows", dest="count", type=int, required=True)
    made.add_argument("--npz", type=Path)
    ran, held = verbs.add_parser("run"), verbs.add_parser("memory")
    for one in (ran, held):
        one.add_argument("rows", type=Path)
    ran.add_argument("out", type=Path)
    held.add_argument("--count", type=int, default=20_000)
    for one in (ran, held):
        one.add_argument("--clusters", type=int, default=10)
        one.add_argument("--device", default="auto")
        one.add_argument("--seed", type=int, default=0)
    for name in ("bank", "steps", "batch-size"):
        ran.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    if args.verb == "make":
        make(args.kind, args.rows, args.count, args.npz)
    else:
        (run if args.verb == "run" else in_memory)(args)


if __name__ == "__main__":
    main()
