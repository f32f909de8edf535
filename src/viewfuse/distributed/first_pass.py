"""The first pass over all shards: bounds of the columns, the bank, and the rows in an order that no shard tells.

Rows lie in buckets by the hash of their ids. Hashes look random, so their order depends on no file name, shard or
process. Every process writes the rows of its own shards, as they come; a reader of a bucket puts all parts together and
in the order of the hashes. Shards are known again by checksums of their values, never by sizes and times alone.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from itertools import chain, compress
from operator import add, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.precision import SAMPLED, lossy_columns, lost_in_words
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Layout, Rows, Shards, mixed
from viewfuse.errors import CannotWrite, CheckpointDiffers, DataError
from viewfuse.io.formulas import as_csv
from viewfuse.utils.atomic import sealed, unsealed, write_file

_ROWS_PER_BUCKET = 131_072
_MOST_BUCKETS = 256
"""Two files of each are open at a time, and systems often allow no more than 1024."""
_KEYS_PER_PART = 2**20
_MOST_PARTS = 128
_LARGEST = 2**64 - 1
_MOST_TWICE = 1_000
Contents = Mapping[str, Sequence[Any]]
"""Of shards, by what they are called: digest of the rows, and when the file was last written to, in nanoseconds."""


class Buckets(NamedTuple):
    """How rows are divided: into so many buckets of rows that are trained on, up to the hash of the last one.

    Then come `parts` buckets of the other rows, which are only looked through for ids that appear twice.
    """

    number: int
    last_trained: int
    last_in_bank: int
    parts: int = 1

    @classmethod
    def of(cls, n_rows: int, trained: int, bank: int) -> Buckets:
        """For so many rows, of which about so many are trained on and kept in the bank."""
        count = min(_MOST_BUCKETS, -(-min(trained, n_rows) // _ROWS_PER_BUCKET))
        parts = min(_MOST_PARTS, -(-n_rows // _KEYS_PER_PART))
        return cls(count, lowest(trained / n_rows), lowest(bank / n_rows), parts)

    def of_rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The bucket of each row."""
        others = self.number + parts_of(keys, lowest(1.0), self.parts)
        is_trained = keys <= np.uint64(self.last_trained)
        return np.where(is_trained, parts_of(keys, self.last_trained, self.number), others)


def lowest(share: float) -> int:
    """The largest hash of that share of all rows which has the lowest ones."""
    return min(_LARGEST, int(share * 2.0**64))


def parts_of(keys: NDArray[np.uint64], most: int, count: int) -> NDArray[np.int64]:
    """In which of `count` equal parts of the numbers up to `most` each key lies, of shape (keys,)."""
    width = min(_LARGEST, most // count + 1)
    return np.minimum(keys // np.uint64(width), np.uint64(count - 1)).astype(np.int64)


class BucketWriter(ExitStack):
    """Appends rows to the buckets of one process, until it is left; several threads may share it."""

    def __init__(self, folder: Path, buckets: Buckets, rank: int) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._buckets, self._rank, self._lock = folder, buckets, rank, threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        self._checksums: dict[str, int] = {}
        self._ids: list[tuple[int, Any]] = []

    def add(self, ids: Any, keys: NDArray[np.uint64], values: NDArray[np.float32]) -> None:
        """Keep rows, as `Shards.read` gives them; of those in the bank the ids, of others only hashes."""
        known = np.flatnonzero(keys <= np.uint64(self._buckets.last_in_bank))
        try:
            with self._lock:  # hashes and values of a bucket stand in the same order
                if len(known):
                    self._ids += zip(keys[known].tolist(), ids.take(known).to_pylist(), strict=True)
                places = self._buckets.of_rows(keys)
                for bucket in np.unique(places).tolist():
                    rows = np.flatnonzero(places == bucket)
                    self._append(f"{bucket:04d}-{self._rank}.keys", keys[rows])
                    if bucket < self._buckets.number:
                        self._append(f"{bucket:04d}-{self._rank}.rows", values[rows])
        except OSError as error:
            raise CannotWrite(
                f"{self._folder} cannot be written: {error.strerror}; free some space, or choose another --out"
            ) from error

    def _append(self, name: str, numbers: NDArray[Any]) -> None:
        if name not in self._files:
            self._files[name] = self.enter_context((self._folder / name).open("wb", buffering=0))
        content = np.ascontiguousarray(numbers).data.cast("B")
        self._checksums[name] = zlib.crc32(content, self._checksums.get(name, 0))
        while content:  # an unbuffered file may take a part only
            content = content[self._files[name].write(content) :]

    def finish(self) -> None:
        """Write the ids of the rows that are in the bank, and the checksums of all files."""
        write_file(self._folder / f"ids-{self._rank}.json", sealed({"ids": self._ids, "checksums": self._checksums}))


class BucketReader:
    """Reads what all processes wrote: rows of so many columns."""

    def __init__(self, folder: Path, buckets: Buckets, width: int) -> None:
        self._folder, self.buckets, self._width = folder, buckets, width

    def keys(self, bucket: int) -> NDArray[np.uint64]:
        """Hashes of the rows of a bucket, in order."""
        return np.sort(self._read(bucket, "keys", np.uint64))

    def rows(self, bucket: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """Hashes and values, of shape (rows, columns), of the rows of a bucket, in the order of the hashes."""
        keys = self._read(bucket, "keys", np.uint64)
        values = self._read(bucket, "rows", np.float32).reshape(-1, self._width)
        order = np.argsort(keys, kind="stable")
        return keys[order], values[order]

    def bank(self) -> tuple[list[Any], NDArray[np.float32]]:
        """Ids and values of the rows that are in the bank, in the order of the hashes."""
        ids = dict(pair for own in self._records for pair in own["ids"])
        last = np.array([self.buckets.last_in_bank], np.uint64)
        chosen, found = [], []
        for bucket in range(int(self.buckets.of_rows(last)[0]) + 1):
            keys, values = self.rows(bucket)
            count = int(np.searchsorted(keys, last, side="right")[0])
            chosen += keys[:count].tolist()
            found.append(values[:count])
        return [ids[key] for key in chosen], np.concatenate(found)

    def forget(self, bucket: int) -> None:
        """Remove the files of a bucket that is no longer needed."""
        for path in self._folder.glob(f"{bucket:04d}-*"):
            path.unlink()

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        """What the processes wrote of their rows."""
        try:
            return [unsealed(path.read_bytes()) for path in self._folder.glob("ids-*.json")]
        except (OSError, ValueError) as error:
            raise CheckpointDiffers(
                f"{self._folder} is damaged ({error}); delete {self._folder.parent} to begin anew"
            ) from None

    def _read(self, bucket: int, kind: str, dtype: Any) -> NDArray[Any]:
        """All parts of a bucket, one after another; refused where bits have changed, or where one is not there."""
        known = {name: crc for own in self._records for name, crc in own["checksums"].items()}
        parts = [np.zeros(0, dtype)]
        for path in sorted(self._folder / name for name in known if fnmatchcase(name, f"{bucket:04d}-*.{kind}")):
            parts.append(np.fromfile(path, dtype) if path.exists() else parts[0])
            if zlib.crc32(parts[-1].data) != known[path.name]:
                raise CheckpointDiffers(f"{path} is damaged; delete {self._folder.parent} to begin anew")
        return np.concatenate(parts)


@dataclass
class ColumnFacts:
    """What all rows with a view say about the columns of all views, whatever their order.

    Of each column how many cells are not empty, and their bounds, measured from `offset`; NaN where there are none.
    """

    n_rows: int
    counts: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    contents: Contents = field(default_factory=dict)
    offset: list[float] | None = None

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> ColumnFacts:
        """Of rows of shape (rows, columns of all views)."""
        rows = values if len(values) else np.full((1, values.shape[1]), np.nan, np.float32)
        empty = np.isnan(values).sum(axis=0, dtype=np.int32)  # in 64 bits it takes twice as long
        counts = (len(values) - empty).astype(np.int64)
        return cls(len(values), counts, np.fmin.reduce(rows), np.fmax.reduce(rows))

    def __add__(self, other: ColumnFacts) -> ColumnFacts:
        """Of other rows as well."""
        low, high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        contents = {**self.contents, **other.contents}
        return ColumnFacts(self.n_rows + other.n_rows, self.counts + other.counts, low, high, contents)

    def as_csv(self, layout: Layout) -> str:
        """A line per column."""
        names = [(view, c) for view, own in zip(layout.names, layout.columns, strict=True) for c in own]
        low, high = (end if self.offset is None else end + np.array(self.offset) for end in (self.low, self.high))
        facts = zip(names, self.counts.tolist(), low, high, strict=True)
        return as_csv([("view", "column", "count", "lowest", "highest"), *((*name, *own) for name, *own in facts)])

    def saved(self) -> dict[str, Any]:
        """In a form that JSON can hold."""
        return {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in vars(self).items()}

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> ColumnFacts:
        """What `saved` gave."""
        kinds = {"counts": np.int64, "low": np.float32, "high": np.float32}
        return cls(**{**saved, **{name: np.array(saved[name], kind) for name, kind in kinds.items()}})


def run_first_pass(
    shards: Shards, folder: Path, buckets: Buckets, processes: Processes, *, trust: bool = False
) -> ColumnFacts:
    """Read all shards once, each process its own, and write the rows that are trained on to `folder`.

    What an earlier pass finished is not done again; what it left unfinished is. Shards that changed since are refused:
    `trust` is that of `changed_shard`.
    """
    done = folder / "done.json"
    try:
        known = ColumnFacts.from_saved(unsealed(done.read_bytes()))
    except (OSError, ValueError):  # there was none, or its file is damaged
        known = None
    known = processes.from_first(known)
    if known is not None:
        changed = changed_shard(shards, known.offset, known.contents, processes, trust)
        if changed:
            raise CheckpointDiffers(f"{folder.parent} keeps a fit of other rows: {changed}")
        return known
    found, sample = _read(shards, folder, buckets, processes)
    offset = _offset(shards, sample)
    if offset is not None:  # few data sets have such columns, so it is not asked before all rows are read
        shards.measure_from(offset)
        found = replace(_read(shards, folder, buckets, processes)[0], offset=offset)
    _check_twice(shards, BucketReader(folder, buckets, len(found.counts)), processes)
    if not found.n_rows:
        raise DataError(f"{shards.paths[0]}: no row of the data set has a view; look at the columns")
    processes.first(lambda: write_file(done, sealed(found.saved())))
    return found


def _read(shards: Shards, folder: Path, buckets: Buckets, processes: Processes) -> tuple[ColumnFacts, list[Any]]:
    """Facts of all rows, which are in `folder` afterwards, and a few rows as they are in the files."""
    if processes.first(folder.exists):
        processes.first(lambda: shutil.rmtree(folder))
    sample: list[Any] = []
    nothing = ColumnFacts.of(np.zeros((0, shards.layout.width), np.float32))
    last = np.uint64(lowest(SAMPLED / len(shards)))
    with BucketWriter(folder, buckets, processes.rank) as writer:

        def look(shard: tuple[Path, str]) -> ColumnFacts:
            path, name = shard
            found, checksum = nothing, Checksum(path)
            for rows in shards.read(path):
                facts = ColumnFacts.of(rows.values)
                wrong = np.flatnonzero(np.isinf(facts.low) | np.isinf(facts.high))
                if len(wrong):
                    row = int(np.isinf(rows.values[:, wrong[0]]).argmax())
                    place = f"{shards.where(path, int(wrong[0]))}, id {rows.ids[row].as_py()!r}"
                    fault = "the value is infinite, or too large for 32-bit floats"
                    raise DataError(f"{place}: {fault}; replace it by a finite number, or rescale the column")
                writer.add(rows.ids, rows.keys, rows.values)
                checksum.add(rows)
                chosen = np.flatnonzero(rows.keys <= last)
                if len(chosen):
                    sample.append(rows.batch.take(chosen))
                found = found + facts
            return replace(found, contents={name: [checksum.digest, checksum.changed]})

        facts = processes.map(look, shards.named)
        processes.together(writer.finish)
    return reduce(add, facts), [batch for part in processes.gather(sample) for batch in part]


def _offset(shards: Shards, sample: Sequence[Any]) -> list[float] | None:
    """What columns are measured from that would lose digits which tell rows apart as float32.

    A few rows are looked at. Columns that lose them in any way are refused.
    """
    offset = [0.0] * shards.layout.width
    for first, cells in shards.exact(sample) if sample else ():
        lossy = lossy_columns(cells, np.ones(len(cells), dtype=bool))
        for column, near, kept in zip(lossy.columns.tolist(), lossy.near.tolist(), lossy.kept.tolist(), strict=True):
            if not kept:
                raise DataError(f"{shards.where(shards.paths[0], first + column)}: {lost_in_words(near)}")
            offset[first + column] = near
    return offset if any(offset) else None


def _check_twice(shards: Shards, reader: BucketReader, processes: Processes) -> None:
    """Refuse an id that two rows have, whether they are trained on or not.

    The ids of hashes that are there twice are looked up: two of 10^9 may have the same one by chance.
    """

    def twice(bucket: int) -> list[int]:
        keys = reader.keys(bucket)
        if bucket >= buckets.number:
            reader.forget(bucket)
        return keys[1:][keys[1:] == keys[:-1]].tolist()[:_MOST_TWICE]

    buckets = reader.buckets
    found = processes.map(twice, range(buckets.number + buckets.parts))
    suspects = np.array(sorted(chain.from_iterable(found))[:_MOST_TWICE], np.uint64)
    places: dict[tuple[int, Any], list[str]] = {}
    for path in shards.paths if len(suspects) else ():
        for rows in shards.read(path):
            for row in np.flatnonzero(np.isin(rows.keys, suspects)).tolist():
                places.setdefault((int(rows.keys[row]), rows.ids[row].as_py()), []).append(path.name)
    twofold = [(key, name, files) for (key, name), files in places.items() if len(files) > 1]
    if twofold:
        _, name, files = min(twofold, key=itemgetter(0))
        where = " and ".join(dict.fromkeys(files))
        raise DataError(f"id {name!r} appears {len(files)} times, in {where}; keep one row per sample")


class Checksum:
    """Adds up the rows of one shard while they are read; one is made before the first is."""

    def __init__(self, path: Path) -> None:
        self.changed = path.stat().st_mtime_ns  # if the file changes from now on, that is later
        self._keys, self._rows = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    @classmethod
    def of(cls, shards: Shards, path: Path) -> Checksum:
        """Of a shard that is read for nothing else."""
        found = cls(path)
        for rows in shards.read(path):
            found.add(rows)
        return found

    def add(self, rows: Rows) -> None:
        """The next rows: their hashes, and a sum per row of the bits of its values with random weights.

        Only 1 change in 2^33 leaves such a sum; a hash of all bytes would take five times as long.
        """
        self._keys.update(np.ascontiguousarray(rows.keys).data)
        bits = np.ascontiguousarray(rows.values).view(np.uint32)
        weights = mixed(np.arange(1, bits.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)  # odd: one change is seen
        self._rows.update(np.einsum("ij,j->i", bits, weights).data)

    @property
    def digest(self) -> str:
        """Of ids and values so far, in their order."""
        return self._keys.hexdigest() + self._rows.hexdigest()


def changed_shard(
    shards: Shards, offset: Sequence[float] | None, known: Contents, processes: Processes, trust: bool
) -> str | None:
    """In words, a shard whose rows, measured from an offset from now on, are not the known ones; None where all are.

    With `trust` a file of the same size, footer and time counts as the same, without a look at its rows.
    """
    shards.measure_from(offset)

    def differs(shard: tuple[Path, str]) -> bool:
        path, name = shard
        if name not in known:
            return True
        digest, changed = known[name]
        return not (trust and path.stat().st_mtime_ns == changed) and Checksum.of(shards, path).digest != digest

    changed = list(compress(shards.paths, processes.map(differs, shards.named)))
    cure = "bring the old file back, give another --out, or --force to begin anew"
    return f"{changed[0]} has changed since; {cure}" if changed else None
