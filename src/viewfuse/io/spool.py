"""Tables that come block by block."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import CannotWrite

_IN_MEMORY = 256_000_000
"""Larger tables are kept in a temporary file."""


class OnDisk(np.memmap[Any, np.dtype[np.float64]]):
    """A table in a temporary file; `handle` is that file, open as long as the table is there."""

    handle: int

    @classmethod
    def of(cls, handle: int, shape: tuple[int, ...]) -> OnDisk:
        """The numbers in an open file, as a table of that shape; the file may be closed afterwards."""
        own = os.dup(handle)
        with os.fdopen(own, "rb", closefd=False) as file:
            table = cls(file, dtype=np.float64, mode="r", shape=shape)
        table.handle = own
        weakref.finalize(table, os.close, own)
        return table


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
        if self._file is not None or 8 * self._n * self.width > _IN_MEMORY:
            self._to_file()

    def _to_file(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed when the spool is gone
                weakref.finalize(self, self._file.close)
            for waiting in self._blocks:
                self._file.write(waiting.data)
            self._file.flush()
        except OSError as error:
            size, folder = 8 * self._n * self.width, tempfile.gettempdir()
            raise CannotWrite(
                f"a temporary file of {size:,} bytes cannot be written to {folder} ({error.strerror}); free some space "
                "there, or set TMPDIR to a folder that has more"
            ) from error
        self._blocks.clear()

    def table(self) -> NDArray[np.float64]:
        """All rows, of shape (rows, width); a memory map where they are many."""
        if self._file is None:
            return np.concatenate(self._blocks) if self._blocks else np.zeros((0, self.width))
        return OnDisk.of(self._file.fileno(), (self._n, self.width))
