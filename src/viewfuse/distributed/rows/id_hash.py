"""Ids as numbers that look random: the order of rows that no file name, shard or process can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Multipliers of SplitMix64."""
_LARGEST = 2**64 - 1


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
