"""What a file may claim: rules that are decided before its data are read."""

from __future__ import annotations

import importlib
import math
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError, MissingPackage

_MOST_BYTES_PER_BYTE = 100
_SMALL = 16_000_000
"""So many bytes may be compressed as well as they like; more of them are taken for a bomb beyond the ratio."""
_IN_MEMORY = 256_000_000
"""Tables larger than this are kept in a temporary file while they are read."""


def refuse_growth(path: Path, claimed: int, cure: str) -> None:
    """Refuse a file that would become far larger in memory than compression of real data explains."""
    size = path.stat().st_size
    if claimed > max(_SMALL, _MOST_BYTES_PER_BYTE * size):
        raise DataError(f"{path} would grow from {size:,} to {claimed:,} bytes; if that is right, {cure}")


def bytes_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes of an array, exactly, however large."""
    return math.prod(int(length) for length in shape) * dtype.itemsize


def needed(package: str, extra: str, path: Path) -> Any:
    """A package that only some formats need."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingPackage(
            f"{path} cannot be read without {package.split('.')[0]}; pip install 'viewfuse[{extra}]'"
        ) from None


class Spool:
    """Rows of numbers that come block by block, in memory while they are few, else in a temporary file."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._n = 0
        self._blocks: list[NDArray[np.float64]] = []
        self._file: IO[bytes] | None = None

    def add(self, block: NDArray[Any]) -> None:
        """Append rows, of shape (rows, width)."""
        self._n += len(block)
        self._blocks.append(np.ascontiguousarray(block, dtype=np.float64))
        if self._file is None and 8 * self._n * self.width > _IN_MEMORY:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed when the spool is gone
            weakref.finalize(self, self._file.close)
        if self._file is not None:
            for waiting in self._blocks:
                self._file.write(waiting.data)
            self._blocks.clear()

    def table(self) -> NDArray[np.float64]:
        """All rows, of shape (rows, width); a memory map where they are many."""
        if self._file is None:
            return np.concatenate(self._blocks) if self._blocks else np.zeros((0, self.width))
        self._file.flush()
        return np.memmap(self._file, dtype=np.float64, mode="r", shape=(self._n, self.width))
