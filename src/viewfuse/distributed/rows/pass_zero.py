"""The first pass over all shards: bounds of the columns, the bank, and the rows in an order that no shard tells."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.distributed.processes import Processes
from viewfuse.distributed.rows.row_buckets import BucketReader, Buckets, BucketWriter
from viewfuse.distributed.rows.shards import Layout, Rows, Shards
from viewfuse.errors import DataError
from viewfuse.io.escaping import as_csv
from viewfuse.parallel.threads import side_by_side
from viewfuse.utils.atomic import write_file
from viewfuse.utils.sealed import sealed, unsealed

_DONE = "done.json"


@dataclass
class ColumnFacts:
    """What all rows say about the columns, whatever their order.

    Attributes
    ----------
    n_rows : rows that have a view
    counts : int64 array of shape (columns of all views,): cells that are not empty
    low, high : float32 arrays of that shape; NaN where all cells are empty
    """

    n_rows: int
    counts: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> ColumnFacts:
        """Of rows of shape (rows, columns of all views)."""
        none = np.full((1, values.shape[1]), np.nan, np.float32)
        rows = values if len(values) else none
        counts = len(values) - np.isnan(values).sum(axis=0)
        return cls(len(values), counts, np.fmin.reduce(rows), np.fmax.reduce(rows))

    def __add__(self, other: ColumnFacts) -> ColumnFacts:
        """Of other rows as well."""
        low, high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        return ColumnFacts(self.n_rows + other.n_rows, self.counts + other.counts, low, high)

    def as_csv(self, layout: Layout) -> str:
        """A line per column."""
        names = [(view, c) for view, own in zip(layout.names, layout.columns, strict=True) for c in own]
        facts = zip(names, self.counts.tolist(), self.low, self.high, strict=True)
        return as_csv([("view", "column", "count", "lowest", "highest"), *((*name, *own) for name, *own in facts)])

    def saved(self) -> dict[str, Any]:
        """In a form that JSON can hold."""
        bounds = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {"n_rows": self.n_rows, "counts": self.counts.tolist(), **bounds}

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> ColumnFacts:
        """What `saved` gave."""
        low, high = (np.array(saved[name], np.float32) for name in ("low", "high"))
        return cls(saved["n_rows"], np.array(saved["counts"], np.int64), low, high)


def run_pass_zero(shards: Shards, folder: Path, buckets: Buckets, processes: Processes) -> ColumnFacts:
    """Read all shards once, each process its own, and write the rows that are trained on to `folder`.

    What an earlier pass finished is not done again; what it left unfinished is.
    """
    done = folder / _DONE
    known = processes.from_first(_known(done))
    if known is not None:
        return known
    if processes.is_first and folder.exists():
        shutil.rmtree(folder)
    processes.wait()
    with BucketWriter(folder, buckets, processes.rank) as writer:
        facts = processes.together(lambda: _own_rows(shards, writer, processes))
        writer.finish()
    found = _together(processes.gather(facts))
    _check_twice(shards, BucketReader(folder, buckets, len(found.counts)), processes)
    if not found.n_rows:
        raise DataError(f"{shards.paths[0]}: no row of the data set has a view; look at the columns")
    if processes.is_first:
        write_file(done, sealed(found.saved()))
    processes.wait()
    return found


def _known(done: Path) -> ColumnFacts | None:
    """What an earlier pass found; None where there was none, or its file is damaged."""
    try:
        return ColumnFacts.from_saved(unsealed(done.read_bytes()))
    except (OSError, ValueError):
        return None


def _own_rows(shards: Shards, writer: BucketWriter, processes: Processes) -> ColumnFacts:
    nothing = ColumnFacts.of(np.zeros((0, sum(shards.layout.widths)), np.float32))

    def look(path: Path) -> ColumnFacts:
        found = nothing
        for rows in shards.read(path):
            facts = ColumnFacts.of(rows.values)
            _check_finite(shards, path, rows, facts)
            writer.add(*rows)
            found = found + facts
        return found

    return _together([nothing, *side_by_side(look, processes.own(shards.paths))])


def _together(parts: Sequence[ColumnFacts]) -> ColumnFacts:
    return reduce(add, parts)


def _check_finite(shards: Shards, path: Path, rows: Rows, facts: ColumnFacts) -> None:
    wrong = np.flatnonzero(np.isinf(facts.low) | np.isinf(facts.high))
    if len(wrong):
        column = int(wrong[0])
        row = int(np.flatnonzero(np.isinf(rows.values[:, column]))[0])
        raise DataError(
            f"{shards.where(path, column)}, id {rows.ids[row].as_py()!r}: the value is infinite, or too large for "
            "32-bit floats; replace it by a finite number, or rescale the column"
        )


def _check_twice(shards: Shards, reader: BucketReader, processes: Processes) -> None:
    """Refuse an id that two rows have."""
    twice = []
    for bucket in processes.own(range(reader.buckets.number)):
        keys = reader.keys(bucket)
        twice += keys[1:][keys[1:] == keys[:-1]].tolist()[:1]
    found = sorted(key for own in processes.gather(twice) for key in own)
    if found:
        raise DataError(_told_twice(shards, found[0]))


def _told_twice(shards: Shards, key: int) -> str:
    places = []
    for path in shards.paths:
        for ids, keys in shards.read_ids(path):
            places += [(path.name, ids[int(row)].as_py()) for row in np.flatnonzero(keys == np.uint64(key))]
    files = " and ".join(dict.fromkeys(name for name, _ in places))
    return f"id {places[0][1]!r} appears {len(places)} times, in {files}; keep one row per sample"
