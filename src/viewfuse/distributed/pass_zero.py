"""The first pass over all shards: bounds of the columns, the bank, and the rows in an order that no shard tells.

Shards are known again by checksums of their values, never by sizes and times alone.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import SAMPLED, Offset, lossy_columns, lost_in_words
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.row_buckets import BucketReader, Buckets, BucketWriter, lowest, mixed
from viewfuse.distributed.shards import Layout, Rows, Shards
from viewfuse.errors import CheckpointDiffers, DataError
from viewfuse.io.csv_text import as_csv
from viewfuse.utils.atomic import sealed, unsealed, write_file
from viewfuse.utils.jobs import side_by_side

_DONE = "done.json"
_MOST_TWICE = 1_000
_ROWS_AT_A_TIME = 2_048
"""So few that they stay in the processor's cache."""


@dataclass
class ColumnFacts:
    """What all rows say about the columns, whatever their order.

    Attributes
    ----------
    n_rows : rows that have a view
    counts : int64 array of shape (columns of all views,): cells that are not empty
    low, high : float32 arrays of that shape, measured from `offset`; NaN where all cells are empty
    contents : of the shards, by name
    offset : of the layout of the shards
    """

    n_rows: int
    counts: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    contents: Contents = field(default_factory=dict)
    offset: Offset = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> ColumnFacts:
        """Of rows of shape (rows, columns of all views)."""
        none = np.full((1, values.shape[1]), np.nan, np.float32)
        rows = values if len(values) else none
        empty = np.isnan(values).sum(axis=0, dtype=np.int32)  # in 64 bits it takes twice as long
        counts = (len(values) - empty).astype(np.int64)
        return cls(len(values), counts, np.fmin.reduce(rows), np.fmax.reduce(rows))

    def __add__(self, other: ColumnFacts) -> ColumnFacts:
        """Of other rows as well."""
        low, high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        contents = self.contents | other.contents
        return ColumnFacts(self.n_rows + other.n_rows, self.counts + other.counts, low, high, contents)

    def as_csv(self, layout: Layout) -> str:
        """A line per column."""
        names = [(view, c) for view, own in zip(layout.names, layout.columns, strict=True) for c in own]
        low, high = (end + self.offset if np.any(self.offset) else end for end in (self.low, self.high))
        facts = zip(names, self.counts.tolist(), low, high, strict=True)
        return as_csv([("view", "column", "count", "lowest", "highest"), *((*name, *own) for name, *own in facts)])

    def saved(self) -> dict[str, Any]:
        """In a form that JSON can hold."""
        offset = None if isinstance(self.offset, float) else self.offset.tolist()
        bounds = {"low": self.low.tolist(), "high": self.high.tolist(), "offset": offset}
        return {"n_rows": self.n_rows, "counts": self.counts.tolist(), **bounds, "contents": self.contents}

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> ColumnFacts:
        """What `saved` gave."""
        low, high = (np.array(saved[name], np.float32) for name in ("low", "high"))
        contents = read_contents(saved.get("contents", {}))
        offset = read_offset(saved.get("offset"))
        return cls(saved["n_rows"], np.array(saved["counts"], np.int64), low, high, contents, offset)


def read_offset(saved: list[float] | None) -> Offset:
    """From JSON; older runs had none."""
    return 0.0 if saved is None else np.array(saved, np.float64)


def run_pass_zero(
    shards: Shards, folder: Path, buckets: Buckets, processes: Processes, *, trust: bool = False
) -> ColumnFacts:
    """Read all shards once, each process its own, and write the rows that are trained on to `folder`.

    What an earlier pass finished is not done again; what it left unfinished is. Shards that changed since are refused:
    `trust` is that of `changed_shard`.
    """
    done = folder / _DONE
    known = processes.from_first(_known(done))
    if known is not None:
        shards.measure_from(known.offset)
        changed = changed_shard(shards, known.contents, processes, trust)
        if changed:
            raise CheckpointDiffers(f"{folder.parent} keeps a fit of other rows: {changed}")
        return known
    found, sample = _read(shards, folder, buckets, processes)
    offset = _offset(shards, sample)
    if np.any(offset):  # few data sets have such columns, so it is not asked before all rows are read
        shards.measure_from(offset)
        found, _ = _read(shards, folder, buckets, processes)
        found = replace(found, offset=offset)
    _check_twice(shards, BucketReader(folder, buckets, len(found.counts)), processes)
    if not found.n_rows:
        raise DataError(f"{shards.paths[0]}: no row of the data set has a view; look at the columns")
    if processes.is_first:
        write_file(done, sealed(found.saved()))
    processes.wait()
    return found


def _read(shards: Shards, folder: Path, buckets: Buckets, processes: Processes) -> tuple[ColumnFacts, list[Any]]:
    """Facts of all rows, which are in `folder` afterwards, and a few rows as they are in the files."""
    if processes.is_first and folder.exists():
        shutil.rmtree(folder)
    processes.wait()
    with BucketWriter(folder, buckets, processes.rank) as writer:
        facts, sample = processes.together(lambda: _own_rows(shards, writer, processes))
        writer.finish()
    return reduce(add, processes.gather(facts)), [batch for own in processes.gather(sample) for batch in own]


def _known(done: Path) -> ColumnFacts | None:
    """What an earlier pass found; None where there was none, or its file is damaged."""
    try:
        return ColumnFacts.from_saved(unsealed(done.read_bytes()))
    except (OSError, ValueError):
        return None


def _own_rows(shards: Shards, writer: BucketWriter, processes: Processes) -> tuple[ColumnFacts, list[Any]]:
    """Facts of the rows of a process, and a few rows as they are in the files."""
    import pyarrow

    nothing = ColumnFacts.of(np.zeros((0, sum(shards.layout.widths)), np.float32))
    last, sample = np.uint64(lowest(SAMPLED / len(shards))), []

    def look(pair: tuple[Path, str]) -> ColumnFacts:
        path, name = pair
        found, checksum = nothing, Checksum(path)
        for rows in shards.read(path):
            facts = ColumnFacts.of(rows.values)
            _check_finite(shards, path, rows, facts)
            writer.add(rows.ids, rows.keys, rows.values)
            checksum.add(rows)
            chosen = rows.places[rows.keys <= last]
            sample.extend([rows.batch.take(pyarrow.array(chosen))] if len(chosen) else [])
            found = found + facts
        return replace(found, contents={name: checksum.content()})

    pairs = list(zip(shards.paths, shards.names, strict=True))
    return reduce(add, [nothing, *side_by_side(look, processes.own(pairs))]), sample


def _check_finite(shards: Shards, path: Path, rows: Rows, facts: ColumnFacts) -> None:
    wrong = np.flatnonzero(np.isinf(facts.low) | np.isinf(facts.high))
    if len(wrong):
        column = int(wrong[0])
        row = int(np.flatnonzero(np.isinf(rows.values[:, column]))[0])
        raise DataError(
            f"{shards.where(path, column)}, id {rows.ids[row].as_py()!r}: the value is infinite, or too large for "
            "32-bit floats; replace it by a finite number, or rescale the column"
        )


def _offset(shards: Shards, sample: Sequence[Any]) -> Offset:
    """What columns are measured from that would lose digits which tell rows apart as float32.

    A few rows are looked at. Columns that lose them in any way are refused.
    """
    offset = np.zeros(sum(shards.layout.widths))
    for first, cells in shards.exact(sample) if sample else ():
        lossy = lossy_columns(cells, np.ones(len(cells), dtype=bool))
        for column, near, kept in zip(lossy.columns.tolist(), lossy.near.tolist(), lossy.kept.tolist(), strict=True):
            if not kept:
                raise DataError(f"{shards.where(shards.paths[0], first + column)}: {lost_in_words(near)}")
            offset[first + column] = near
    return offset if offset.any() else 0.0


def _check_twice(shards: Shards, reader: BucketReader, processes: Processes) -> None:
    """Refuse an id that two rows have, whether they are trained on or not."""
    twice: list[int] = []
    jobs = [(reader.keys, bucket) for bucket in range(reader.buckets.number)]
    jobs += [(reader.other_keys, part) for part in range(reader.buckets.parts)]
    for read, place in processes.own(jobs):
        keys = read(place)
        twice += keys[1:][keys[1:] == keys[:-1]].tolist()[:_MOST_TWICE]
    found = sorted(key for own in processes.gather(twice) for key in own)
    if found:
        _refuse_twice(shards, found[:_MOST_TWICE])


def _refuse_twice(shards: Shards, suspects: Sequence[int]) -> None:
    """Look up the ids of these hashes: two of 10^9 may have the same one by chance, which does no harm."""
    places: dict[tuple[int, Any], list[str]] = {}
    for path in shards.paths:
        for ids, keys in shards.read_ids(path):
            for row in np.flatnonzero(np.isin(keys, np.array(suspects, np.uint64))).tolist():
                places.setdefault((int(keys[row]), ids[row].as_py()), []).append(path.name)
    twice = [(key, name, files) for (key, name), files in places.items() if len(files) > 1]
    if twice:
        _, name, files = min(twice, key=itemgetter(0))
        where = " and ".join(dict.fromkeys(files))
        raise DataError(f"id {name!r} appears {len(files)} times, in {where}; keep one row per sample")


class Content(NamedTuple):
    """The rows of one shard.

    Attributes
    ----------
    digest : of ids and values, in their order
    changed : when the file was last written to, in nanoseconds; used only with --trust-unchanged
    """

    digest: str
    changed: int


Contents = dict[str, Content]
"""Of all shards, by what they are called."""


def read_contents(saved: Mapping[str, Sequence[Any]]) -> Contents:
    """From JSON."""
    return {name: Content(*own) for name, own in saved.items()}


class Checksum:
    """Adds up the rows of one shard while they are read; one is made before the first is."""

    def __init__(self, path: Path) -> None:
        self._changed = path.stat().st_mtime_ns  # if the file changes from now on, that is later
        self._keys, self._rows = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def add(self, rows: Rows) -> None:
        """The next rows."""
        self._keys.update(np.ascontiguousarray(rows.keys).data)
        self._rows.update(_row_sums(rows.values).data)

    def content(self) -> Content:
        """Of all rows so far."""
        return Content(self._keys.hexdigest() + self._rows.hexdigest(), self._changed)


def _row_sums(values: NDArray[np.float32]) -> NDArray[np.uint64]:
    """One number per row: a sum of the bits of its values with random weights, which only 1 change in 2^33 leaves.

    A hash of all bytes would take five times as long.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    weights = mixed(np.arange(1, bits.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)  # odd: one change is always seen
    sums = np.empty(len(bits), np.uint64)
    for first in range(0, len(bits), _ROWS_AT_A_TIME):
        part = slice(first, first + _ROWS_AT_A_TIME)
        np.einsum("ij,j->i", bits[part], weights, out=sums[part])
    return sums


def changed_shard(shards: Shards, known: Contents, processes: Processes, trust: bool) -> str | None:
    """In words, a shard whose rows are not the known ones; None where all are. Each process looks at its own.

    Parameters
    ----------
    trust : whether a file of the same size, footer and time counts as the same, without a look at its rows
    """

    def differs(pair: tuple[Path, str]) -> bool:
        path, name = pair
        before = known.get(name)
        if before is None or (trust and path.stat().st_mtime_ns == before.changed):
            return before is None
        return content_of(shards, path).digest != before.digest

    own = processes.own(list(zip(shards.paths, shards.names, strict=True)))
    found = processes.together(lambda: list(side_by_side(differs, own)))
    changed = [path for (path, _), is_other in zip(own, found, strict=True) if is_other]
    paths = [path for own_paths in processes.gather(changed) for path in own_paths]
    cure = "bring the old file back, give another --out, or --force to begin anew"
    return f"{paths[0]} has changed since; {cure}" if paths else None


def content_of(shards: Shards, path: Path) -> Content:
    """Of a shard that is read for nothing else."""
    found = Checksum(path)
    for rows in shards.read(path):
        found.add(rows)
    return found.content()
