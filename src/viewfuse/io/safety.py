"""What a file may claim, decided before its data are read; what goes wrong in libraries that read it is one line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from viewfuse.errors import DataError, NotEnoughMemory, SuspiciousDataWarning, ViewfuseError

_MOST_BYTES_PER_BYTE = 100
_SMALL = 16_000_000
"""So many bytes may be compressed as well as they like; more of them are taken for a bomb beyond the ratio."""
_LONGEST_REASON = 200


def most_bytes(size: int) -> int:
    """Bytes that a file of `size` bytes may become in memory."""
    return max(_SMALL, _MOST_BYTES_PER_BYTE * size)


class Allowance:
    """The bytes that a file may become in memory: not far more than compression of real data explains.

    Parameters
    ----------
    cure : what to do about data that really are so regular
    """

    def __init__(self, path: Path, cure: str) -> None:
        self.path, self._cure = path, cure
        self._size = path.stat().st_size
        self.most = most_bytes(self._size)
        self.taken = 0

    def take(self, n_bytes: int) -> None:
        """Count `n_bytes` that are about to be read."""
        self.taken += n_bytes
        if self.taken > self.most:
            raise DataError(
                f"{self.path} would grow from {self._size:,} to {self.taken:,} bytes or more; "
                f"if that is right, {self._cure}"
            )


def bytes_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes of an array, exactly, however large."""
    return math.prod(int(length) for length in shape) * dtype.itemsize


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
    except OSError as error:
        if error.filename is not None:
            raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
        raise _unreadable(path, error) from None
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_REASON]
    return DataError(f"{path} is no readable {path.suffix} file ({reason}); write it again")
