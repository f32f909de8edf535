"""What share of the time the checks of the data and of the files take.

    python -m benchmarks.studies.checks.share [--repeats 5] [--rows 100000]

Every check is timed where it is called, in the same process and run as what it is a part of: seconds of computing, so
that other programs on the machine matter little. One of them inside another counts once. Prints a line per operation:
its seconds, and the share of each check, the median of the repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import sparse

from viewfuse import URRL, Config, Views, read_views
from viewfuse.data import alignment, sparse_tables, tables
from viewfuse.distributed import first_pass
from viewfuse.distributed.first_pass import Buckets
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Shards
from viewfuse.engine import training
from viewfuse.fitted import drift
from viewfuse.fitted import model as fitted
from viewfuse.fitted.model import Model
from viewfuse.utils import memory

CHECKS: dict[str, list[tuple[Any, str]]] = {
    "digits beside offsets": [(tables, "_offset"), (first_pass, "_offset")],
    "finite": [
        (training.Training, "record"), (fitted, "_check_finite"),
    ],
    "out of range": [(Model, "is_far"), (fitted, "warn_of_far"), (drift, "warn_of_shifted")],
    "sparse indices": [(sparse_tables, "check_sparse")],
    "ids": [(alignment, "checked_ids"), (alignment, "check_written"), (first_pass, "_check_twice")],
    "memory": [(memory, "require"), (memory, "available"), (memory.mmap, "mmap")],
    "digest": [(first_pass.Checksum, "add")],
}  # fmt: skip


class Clock:
    """Adds up the seconds of checks, by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside = local()

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time counts."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "is_timed", False):
                return work(*args, **kwargs)
            self._inside.is_timed, began = True, time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - began
                self._inside.is_timed = False

        return call


@contextmanager
def timed_checks() -> Iterator[Clock]:
    """Time all checks, wherever modules have them by name."""
    clock, changed = Clock(), []
    modules = [module for name, module in sys.modules.items() if name.startswith("viewfuse")]
    for name, places in CHECKS.items():
        for owner, attribute in places:
            work = getattr(owner, attribute)
            new = clock.timed(name, work)
            for where in {id(one): one for one in (owner, *modules)}.values():
                if getattr(where, attribute, None) is work:
                    setattr(where, attribute, new)
                    changed.append((where, attribute, work))
    try:
        yield clock
    finally:
        for where, attribute, work in changed:
            setattr(where, attribute, work)


def shares(name: str, work: Callable[[], Any], repeats: int, times: int = 1) -> None:
    """Print the share of each check of some work."""
    work()
    totals, parts = [], defaultdict(list)
    for _ in range(repeats):
        with timed_checks() as clock:
            began = time.process_time()
            for _ in range(times):
                work()
            total = time.process_time() - began
        totals.append(total / times)
        for check in CHECKS:
            parts[check].append(clock.seconds[check] / total)
    every = [sum(own) for own in zip(*parts.values(), strict=True)]
    found = {check: float(np.median(own)) for check, own in parts.items() if max(own) >= 0.0005}
    listed = ", ".join(f"{check} {share:.1%}" for check, share in found.items())
    low, high = min(every), max(every)
    print(
        f"{name}: {np.median(totals):.4f} s; all {np.median(every):.1%} ({low:.1%} to {high:.1%}): {listed}", flush=True
    )


def samples(n: int, widths: tuple[int, ...] = (40, 20), seed: int = 0) -> list[Any]:
    """Five clusters; a quarter of the rows of each view missing, every sample with one view at least."""
    rng = np.random.default_rng(seed)
    labels, has = rng.integers(0, 5, n), rng.random((n, len(widths))) < 0.75
    has[~has.any(axis=1), 0] = True
    views = [4 * rng.normal(size=(5, width))[labels] + rng.normal(size=(n, width)) for width in widths]
    return [np.where(has[:, [v]], view, np.nan) for v, view in enumerate(views)]


def of_models(repeats: int) -> None:
    """Fits and predictions."""
    views = samples(2_000)
    short = Config(pretrain_epochs=2, joint_epochs=1)
    shares("fit of 2,000 samples, 3 epochs instead of 30", lambda: URRL(
        5, config=short, scaling="standard", random_state=0, device="cpu").fit(views), min(3, repeats))  # fmt: skip
    model = URRL(5, config=short, scaling="standard", random_state=0, device="cpu").fit(views)
    new = [view[:2_000] for view in samples(2_000, seed=1)]
    shares("predict of 2,000 rows", lambda: model.predict(new), repeats, 5)
    one = [view[:1] for view in samples(2_000, seed=2)]
    one = [np.nan_to_num(view, nan=0.5) for view in one]
    shares("predict of one row", lambda: model.predict(one), repeats, 50)
    matrix = sparse.random(2_000, 5_000, 0.02, format="csr", random_state=0)
    shares("Views of a sparse matrix, 2,000 x 5,000", lambda: Views([matrix]), repeats, 5)


def of_shards(repeats: int, n_rows: int) -> None:
    """The first pass over shards, and knowing them again."""
    first, second = samples(n_rows, (64, 32))
    lists = [[None if np.isnan(row[0]) else row for row in view.astype(np.float32)] for view in (first, second)]
    table = pa.table({"id": np.arange(n_rows), "a": pa.array(lists[0]), "b": pa.array(lists[1])})
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rows").mkdir()
        for part in range(4):
            own = table.slice(part * n_rows // 4, n_rows // 4)
            pq.write_table(own, folder / "rows" / f"{part}.parquet")
        turn, alone = count(), Processes(0, 1, torch.device("cpu"))

        def read() -> Any:
            shards = Shards(folder / "rows")
            return first_pass.run_first_pass(
                shards, folder / f"out{next(turn)}", Buckets.of(n_rows, n_rows, 1_000), alone
            )

        shares(f"fit-large, reading {n_rows:,} rows of 96 columns", read, repeats)
        shards = Shards(folder / "rows")
        known = read().contents
        for trust in (False, True):
            words = "with" if trust else "without"
            again = partial(first_pass.changed_shard, shards, None, known, alone, trust)
            shares(f"fit-large, knowing them again {words} --trust-unchanged", again, repeats)


def of_files(repeats: int, n_rows: int) -> None:
    """Reading in a process of its own, and in this one; seconds of the clock, as another process works."""
    values = samples(n_rows, (96,))[0]
    with TemporaryDirectory() as place:
        for n in (100, n_rows):
            path = Path(place, f"{n}.npz")
            np.savez(path, a=np.nan_to_num(values[:n]))
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(repeats):
                for trusted, own in found.items():
                    began = time.perf_counter()
                    read_views(path, trusted=trusted)
                    own.append(time.perf_counter() - began)
            ours, theirs = (float(np.median(found[trusted])) for trusted in (True, False))
            print(f"reading {n:,} x 96 of .npz: {ours:.3f} s here, {theirs:.3f} s in a process of its own", flush=True)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    of_models(asked.repeats)
    of_shards(asked.repeats, asked.rows)
    of_files(asked.repeats, asked.rows)


if __name__ == "__main__":
    main()
