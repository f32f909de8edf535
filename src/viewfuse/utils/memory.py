"""How much memory is left, asked before much of it is taken."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import CannotWrite, NotEnoughMemory

_NO_LIMIT = 2**62
_SHARE = 4
"""What takes more than one part in so many of the free memory is kept on disk."""
_LITTLE = 2**20
"""Bytes that are taken without asking: for one row the question would take longer than all the rest."""
_ROWS_AT_A_TIME = 65_536


def room(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Zeros of that shape: in memory, or in a temporary file that the system reads as it is needed."""
    n_bytes = 4 * shape[0] * shape[1]
    if n_bytes <= _LITTLE or n_bytes * _SHARE <= available():
        return np.zeros(shape, dtype=np.float32)
    try:
        with tempfile.TemporaryFile() as file:  # it has no name, so it is gone when nobody maps it any more
            _take_space(file.fileno(), n_bytes)
            return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
    except OSError as error:
        raise CannotWrite(
            f"a temporary file of {n_bytes:,} bytes cannot be written to {tempfile.gettempdir()} ({error.strerror}); "
            "free some space there, or set TMPDIR to a folder that has more"
        ) from error


def _take_space(file: int, n_bytes: int) -> None:
    """Make a file that long, of blocks that are there: writing to a map of others kills the process on a full disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
    else:
        os.truncate(file, n_bytes)


def parts(n_rows: int) -> Iterator[slice]:
    """Rows in parts, so that what is computed of a large table takes little memory."""
    for start in range(0, n_rows, _ROWS_AT_A_TIME):
        yield slice(start, start + _ROWS_AT_A_TIME)


def require(n_bytes: int, what: str, cure: str) -> None:
    """Refuse `what`, which needs `n_bytes`, where they are not there."""
    free = available()
    if n_bytes > free:
        raise NotEnoughMemory(f"{what} needs {n_bytes:,} bytes, but only {free:,} are free; {cure}")


def available() -> int:
    """Bytes that this process may still take: the least of what machine, containers and process limit leave."""
    return max(0, min(_left_on_machine(), _left_to_process(), *_left_in_groups()))


def _left_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return _physical()


def _physical() -> int:
    """All of the machine's memory, where nothing says how much of it is free."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _NO_LIMIT


def _left_in_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What each control group around this process leaves, of either version."""
    yield _NO_LIMIT
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, kinds, inside in lines:
        if kinds == "":
            yield from _left_upwards(root, inside, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_upwards(root / "memory", inside, *files)


def _left_upwards(root: Path, inside: str, limit: str, taken: str, cached: str) -> Iterator[int]:
    """From a group up to the root; files that the kernel only caches do not count as taken."""
    group = root / inside.lstrip("/")
    for here in (group, *group.parents):
        try:
            facts = dict(line.split() for line in (here / "memory.stat").read_text().splitlines())
            most, used = (int((here / name).read_text()) for name in (limit, taken))
            yield most - used + int(facts.get(cached, 0))
        except (OSError, ValueError):  # no such file here, or no limit but the word "max"
            pass
        if here == root:
            return


def _left_to_process() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return _NO_LIMIT if limit == resource.RLIM_INFINITY else limit - pages * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return _NO_LIMIT
