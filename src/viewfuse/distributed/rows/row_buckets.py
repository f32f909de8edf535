"""Rows of all shards on disk, in buckets by the hash of their ids: what shards they came from can no longer be told.

Every process writes the rows of its own shards, as they come. Whoever reads a bucket puts all parts together and in the
order of the hashes, so the rows of a bucket and their order are the same for any shards and any number of processes.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from viewfuse.distributed.rows.id_hash import lowest, parts_of
from viewfuse.errors import CannotWrite

_ROWS_PER_BUCKET = 131_072
_MOST_BUCKETS = 256
"""Two files of each are open at a time, and systems often allow no more than 1024."""
_KEYS_PER_PART = 2**20
_MOST_PARTS = 128


class Buckets(NamedTuple):
    """How rows are divided.

    Attributes
    ----------
    number : how many buckets there are
    last_trained, last_in_bank : the largest hash of a row that is trained on, and of one that is in the bank
    parts : of the hashes of other rows, which are only looked through for ids that appear twice
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
        """The bucket of each row that is trained on."""
        return parts_of(keys, self.last_trained, self.number)


class BucketWriter:
    """Appends rows to the buckets of one process; several threads may share it."""

    def __init__(self, folder: Path, buckets: Buckets, rank: int) -> None:
        self._folder, self._buckets, self._rank = folder, buckets, rank
        self._lock, self._stack = threading.Lock(), ExitStack()
        self._files: dict[tuple[int, str], BinaryIO] = {}
        self._ids: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, ids: Any, keys: NDArray[np.uint64], values: NDArray[np.float32]) -> None:
        """Keep rows, as `Shards.read` gives them, that are to be trained on; of those in the bank also the ids."""
        known = np.flatnonzero(keys <= np.uint64(self._buckets.last_in_bank))
        if len(known):
            self._ids += zip(keys[known].tolist(), ids.take(known).to_pylist(), strict=True)
        is_trained = keys <= np.uint64(self._buckets.last_trained)
        chosen, others = np.flatnonzero(is_trained), keys[~is_trained]
        try:
            for bucket, rows in _divided(self._buckets.of_rows(keys[chosen])):
                self._append(bucket, keys=keys[chosen[rows]], rows=values[chosen[rows]])
            for part, rows in _divided(parts_of(others, lowest(1.0), self._buckets.parts)):
                self._append(part, others=others[rows])
        except OSError as error:
            raise CannotWrite(
                f"{self._folder} cannot be written: {error.strerror}; free some space, or choose another --out"
            ) from error

    def _append(self, bucket: int, **parts: NDArray[Any]) -> None:
        with self._lock:
            for kind, numbers in parts.items():
                if (bucket, kind) not in self._files:
                    file = (self._folder / f"{bucket:04d}-{self._rank}.{kind}").open("wb", buffering=0)
                    self._files[bucket, kind] = self._stack.enter_context(file)
                content = np.ascontiguousarray(numbers).data.cast("B")
                while content:  # an unbuffered file may take a part only
                    content = content[self._files[bucket, kind].write(content) :]

    def finish(self) -> None:
        """Write the ids of the rows that are in the bank."""
        (self._folder / f"ids-{self._rank}.json").write_text(json.dumps(self._ids))


def _divided(places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The places that somebody has, and who has each."""
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places)
    for place, rows in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        if len(rows):
            yield place, rows


class BucketReader:
    """Reads what all processes wrote.

    Parameters
    ----------
    width : columns of a row
    """

    def __init__(self, folder: Path, buckets: Buckets, width: int) -> None:
        self._folder, self.buckets, self._width = folder, buckets, width

    def keys(self, bucket: int) -> NDArray[np.uint64]:
        """Hashes of the rows of a bucket, in order."""
        return np.sort(self._read(bucket, "keys", np.uint64))

    def other_keys(self, bucket: int) -> NDArray[np.uint64]:
        """A part of the hashes of rows that are not trained on, in order; their files are gone afterwards."""
        found = np.sort(self._read(bucket, "others", np.uint64))
        for path in self._paths(bucket, "others"):
            path.unlink()
        return found

    def rows(self, bucket: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """Hashes and values, of shape (rows, columns), of the rows of a bucket, in the order of the hashes."""
        keys = self._read(bucket, "keys", np.uint64)
        values = self._read(bucket, "rows", np.float32).reshape(-1, self._width)
        order = np.argsort(keys, kind="stable")
        return keys[order], values[order]

    def bank(self) -> tuple[list[Any], NDArray[np.float32]]:
        """Ids and values of the rows that are in the bank, in the order of the hashes."""
        parts, last = [], np.uint64(self.buckets.last_in_bank)
        for bucket in range(int(self.buckets.of_rows(np.array([last]))[0]) + 1):
            keys, values = self.rows(bucket)
            parts.append((keys[keys <= last], values[keys <= last]))
        found = dict(pair for path in self._folder.glob("ids-*.json") for pair in json.loads(path.read_text()))
        keys, values = (np.concatenate(own) for own in zip(*parts, strict=True))
        return [found[key] for key in keys.tolist()], values

    def forget(self, bucket: int) -> None:
        """Remove the files of a bucket, which is no longer needed."""
        for kind in ("keys", "rows"):
            for path in self._paths(bucket, kind):
                path.unlink()

    def _paths(self, bucket: int, kind: str) -> list[Path]:
        return sorted(self._folder.glob(f"{bucket:04d}-*.{kind}"))

    def _read(self, bucket: int, kind: str, dtype: Any) -> NDArray[Any]:
        """All parts of a bucket, one after another, in memory of exactly that size."""
        paths = self._paths(bucket, kind)
        sizes = [os.path.getsize(path) // np.dtype(dtype).itemsize for path in paths]
        found = np.empty(sum(sizes), dtype)
        for path, end, size in zip(paths, np.cumsum(sizes).tolist(), sizes, strict=True):
            found[end - size : end] = np.fromfile(path, dtype)
        return found
