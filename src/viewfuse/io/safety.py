"""What a file may claim, decided before its data are read; errors of libraries in one line; large tables on disk."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from viewfuse.errors import DataError, NotEnoughMemory, SuspiciousDataWarning, ViewfuseError
from viewfuse.utils.memory import no_room

_MOST_BYTES_PER_BYTE = 100
_SMALL = 16_000_000
"""So many bytes may be compressed as well as they like; more of them are taken for a bomb beyond the ratio."""
_LONGEST_REASON = 200
_IN_MEMORY = 256_000_000
"""Larger tables are kept in a temporary file."""


def most_bytes(size: int) -> int:
    """Bytes that a file of `size` bytes may become in memory."""
    return max(_SMALL, _MOST_BYTES_PER_BYTE * size)


class Allowance:
    """The bytes that a file may become in memory: not far more than compression of real data explains.

    `cure` says what to do about data that really are so regular.
    """

    def __init__(self, path: Path, cure: str) -> None:
        self.path, self._cure, self._size, self.taken = path, cure, path.stat().st_size, 0

    def take(self, n_bytes: int) -> None:
        """Count `n_bytes` that are about to be read."""
        self.taken += n_bytes
        if self.taken > most_bytes(self._size):
            raise DataError(
                f"{self.path} would grow from {self._size:,} to {self.taken:,} bytes or more; "
                f"if that is right, {self._cure}"
            )


@contextmanager
def computing_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds of computing inside; only in main threads of systems with timers."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ended(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def bytes_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes of an array, exactly, however large."""
    return math.prod(int(length) for length in shape) * dtype.itemsize


def npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of the array in a .npy file, whether columns come first, and its type; the data follow."""
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    return read(file)


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn any error from reading `path` that is not one of ours into one that names the file.

    Libraries raise whatever comes up in the middle of a damaged file, so nothing narrower than Exception would do.
    """
    try:
        yield
    except (ViewfuseError, SuspiciousDataWarning):
        raise
    except MemoryError:
        raise NotEnoughMemory(f"{path} does not fit into memory; choose fewer columns, or reduce them first") from None
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            fault = f"{path} cannot be read ({error.strerror}); check the path and its permissions"
            raise DataError(fault) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_REASON]
        raise DataError(f"{path} is no readable {path.suffix} file ({reason}); write it again") from None


class OnDisk(np.memmap[Any, np.dtype[np.float64]]):
    """A table in a temporary file; `handle` is that file, open as long as the table is there; None of a part of one."""

    handle: int | None = None

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
        self.width, self._n = width, 0
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  closed when the spool is gone
        weakref.finalize(self, self._file.close)

    def add(self, block: NDArray[Any]) -> None:
        """Append rows, of shape (rows, width)."""
        self._n += len(block)
        try:
            self._file.write(np.ascontiguousarray(block, dtype=np.float64).data)
            self._file.flush()
        except OSError as error:
            raise no_room(8 * self._n * self.width, error) from error

    def table(self) -> NDArray[np.float64]:
        """All rows, of shape (rows, width); a memory map where they are many."""
        if 8 * self._n * self.width > _IN_MEMORY:
            return OnDisk.of(self._file.fileno(), (self._n, self.width))
        table = np.empty((self._n, self.width))
        self._file.seek(0)
        self._file.readinto(table.data)
        return table
