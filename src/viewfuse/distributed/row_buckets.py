"""Rows of all shards on disk, in buckets by the hash of their ids: the shards they came from are no longer known.

Hashed ids look random, so their order depends on no file name, shard or process. Every process writes the rows of its
own shards, as they come. A reader of a bucket puts all parts together and in the order of the hashes, so the rows of a
bucket and their order are the same for any shards and any number of processes.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import CannotWrite, CheckpointDiffers, DataError
from viewfuse.utils.atomic import sealed, unsealed, write_file

_ROWS_PER_BUCKET = 131_072
_MOST_BUCKETS = 256
"""Two files of each are open at a time, and systems often allow no more than 1024."""
_KEYS_PER_PART = 2**20
_MOST_PARTS = 128
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Multipliers of SplitMix64."""
_LARGEST = 2**64 - 1


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
        self._checksums: dict[str, int] = {}
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
                name = f"{bucket:04d}-{self._rank}.{kind}"
                if (bucket, kind) not in self._files:
                    self._files[bucket, kind] = self._stack.enter_context((self._folder / name).open("wb", buffering=0))
                content = np.ascontiguousarray(numbers).data.cast("B")
                self._checksums[name] = zlib.crc32(content, self._checksums.get(name, 0))
                while content:  # an unbuffered file may take a part only
                    content = content[self._files[bucket, kind].write(content) :]

    def finish(self) -> None:
        """Write the ids of the rows that are in the bank, and the checksums of all files."""
        write_file(self._folder / f"ids-{self._rank}.json", sealed({"ids": self._ids, "checksums": self._checksums}))


def _divided(places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The places that are taken, and the row at each."""
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
        self._known: dict[str, int] | None = None

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
        found = dict(pair for own in self._records() for pair in own["ids"])
        keys, values = (np.concatenate(own) for own in zip(*parts, strict=True))
        return [found[key] for key in keys.tolist()], values

    def forget(self, bucket: int) -> None:
        """Remove the files of a bucket, which is no longer needed."""
        for kind in ("keys", "rows"):
            for path in self._paths(bucket, kind):
                path.unlink()

    def _records(self) -> list[dict[str, Any]]:
        """What the processes wrote of their rows."""
        try:
            return [unsealed(path.read_bytes()) for path in self._folder.glob("ids-*.json")]
        except (OSError, ValueError) as error:
            raise CheckpointDiffers(
                f"{self._folder} is damaged ({error}); delete {self._folder.parent} to begin anew"
            ) from None

    def _checksums(self, bucket: int, kind: str) -> dict[str, int]:
        """Of the files of a bucket, by their names."""
        if self._known is None:
            self._known = {name: crc for own in self._records() for name, crc in own["checksums"].items()}
        return {n: crc for n, crc in self._known.items() if n.startswith(f"{bucket:04d}-") and n.endswith(kind)}

    def _paths(self, bucket: int, kind: str) -> list[Path]:
        return sorted(self._folder.glob(f"{bucket:04d}-*.{kind}"))

    def _read(self, bucket: int, kind: str, dtype: Any) -> NDArray[Any]:
        """All parts of a bucket, one after another, in memory of exactly that size."""
        paths = self._paths(bucket, kind)
        sizes = [os.path.getsize(path) // np.dtype(dtype).itemsize for path in paths]
        found = np.empty(sum(sizes), dtype)
        crcs = {}
        for path, end, size in zip(paths, np.cumsum(sizes).tolist(), sizes, strict=True):
            own = np.fromfile(path, dtype)
            found[end - size : end], crcs[path.name] = own, zlib.crc32(own.data)
        self._check(crcs, self._checksums(bucket, kind))
        return found

    def _check(self, found: Mapping[str, int], known: Mapping[str, int]) -> None:
        """Refuse files whose bits have changed, or that are not all there."""
        wrong = next((name for name in {**known, **found} if found.get(name) != known.get(name)), None)
        if wrong is not None:
            raise CheckpointDiffers(f"{self._folder / wrong} is damaged; delete {self._folder.parent} to begin anew")


def hashed_ids(ids: Any, path: Path) -> NDArray[np.uint64]:
    """One number per id, of shape (rows,); text and whole numbers only, none of them missing.

    Parameters
    ----------
    ids : array of pyarrow
    path : the file, which errors speak of
    """
    if ids.null_count:
        raise DataError(f"{path}: {ids.null_count:,} rows have no id; give every row the id of its sample")
    kind = str(ids.type)
    if "dictionary" in kind:
        return hashed_ids(ids.dictionary_decode(), path)
    if kind.startswith(("int", "uint")):
        return mixed(np.asarray(ids.cast("int64", safe=False)).view(np.uint64) + np.uint64(1))
    return _hashed_text(ids.cast("large_binary"), path)


def _hashed_text(text: Any, path: Path) -> NDArray[np.uint64]:
    """Every byte is mixed with its place and added up: a collision among 10^8 ids has a chance of 1 in 4000."""
    if not len(text):
        return np.zeros(0, np.uint64)
    ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    lengths, starts = np.diff(ends), ends[:-1] - ends[0]
    if not lengths.all():
        raise DataError(f"{path}: a row has an empty id; give every row the id of its sample")
    letters = np.frombuffer(text.buffers()[2], np.uint8)[ends[0] : ends[-1]].astype(np.uint64)
    places = np.arange(len(letters), dtype=np.uint64) - np.repeat(starts.astype(np.uint64), lengths)
    sums = np.add.reduceat(mixed((places << np.uint64(8)) + letters + np.uint64(1)), starts)
    return mixed(sums + lengths.astype(np.uint64))


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's hash."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


def lowest(share: float) -> int:
    """The largest hash of that share of all rows which has the lowest ones."""
    return min(_LARGEST, int(share * 2.0**64))


def parts_of(keys: NDArray[np.uint64], most: int, count: int) -> NDArray[np.int64]:
    """In which of `count` equal parts of the numbers up to `most` each key lies, of shape (keys,)."""
    width = min(_LARGEST, most // count + 1)
    return np.minimum(keys // np.uint64(width), np.uint64(count - 1)).astype(np.int64)
