"""How much memory is left, asked before much of it is taken; and how much this process has, and has had at most."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from viewfuse.errors import CannotWrite, NotEnoughMemory, ViewfuseError
from viewfuse.utils.settings import Advice, Setting

if TYPE_CHECKING:  # the command line says what it can do before NumPy is imported
    import numpy as np
    from numpy.typing import NDArray

_NO_LIMIT = 2**62
_SHARE = 4
"""What takes more than one part in so many of the free memory is kept on disk."""
_LITTLE = 2**20
"""Bytes that are taken without asking: for one row the question would take longer than all the rest."""
_ROWS_AT_A_TIME = 65_536
_RESERVE, _LONGEST_REASON = 8 * 2**20, 160
_WORDS = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "failed to map segment",
    "cannot allocate",
)
"""What libraries say when there is no memory left, each in its own way."""
_LEAST_SPACE = 10**9
"""Torch, NumPy and SciPy take most of it when they are loaded."""
_MEGABYTE = 1e6


def room(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Zeros of that shape: in memory, or in a temporary file that the system reads as it is needed."""
    import numpy as np

    n_bytes = 4 * shape[0] * shape[1]
    if n_bytes <= _LITTLE or n_bytes * _SHARE <= available():
        return np.zeros(shape, dtype=np.float32)
    try:
        with tempfile.TemporaryFile() as file:  # it has no name, so it is gone when it is no longer mapped
            if hasattr(os, "posix_fallocate"):  # a map of blocks that are not there kills the process on a full disk
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                os.truncate(file.fileno(), n_bytes)
            return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
    except OSError as error:
        if error.errno == errno.ENOMEM:  # the map, not the file, does not fit
            raise
        raise no_room(n_bytes, error) from error


def no_room(n_bytes: int, error: OSError) -> CannotWrite:
    """The error of a temporary file that the disk does not hold."""
    return CannotWrite(
        f"a temporary file of {n_bytes:,} bytes cannot be written to {tempfile.gettempdir()} ({error.strerror}); "
        "free some space there, or set TMPDIR to a folder that has more"
    )


def parts(n_rows: int) -> Iterator[slice]:
    """Rows in parts, so that what is computed of a large table takes little memory."""
    for start in range(0, n_rows, _ROWS_AT_A_TIME):
        yield slice(start, start + _ROWS_AT_A_TIME)


def require(n_bytes: int, what: str, *cure: object) -> None:
    """Refuse `what`, which needs `n_bytes`, if they are not free; `cure` is the rest of the message."""
    free = available()
    if n_bytes > free:
        raise NotEnoughMemory(f"{what} needs {n_bytes:,} bytes, but only {free:,} are free; ", *cure)


def check_address_space() -> None:
    """Refuse a limit of the process (`ulimit -v`) under which libraries end it themselves, as OpenBLAS does."""
    free = _left_to_process()
    if free < _LEAST_SPACE:
        need = f"viewfuse needs {_LEAST_SPACE:,} bytes of address space, but only {free:,} are free"
        raise NotEnoughMemory(f"{need}; raise the limit of the process (ulimit -v)")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn every error of a library that ran out of memory into `NotEnoughMemory`, which says what to do."""
    with ExitStack() as stack:
        try:
            stack.enter_context(mmap.mmap(-1, _RESERVE))  # to say it, even if nothing else is left
            yield
        except Exception as error:
            stack.close()
            if isinstance(error, ViewfuseError) or not _is_full(error):
                raise
            reason = (str(error).strip().splitlines() or [""])[0][:_LONGEST_REASON] or type(error).__name__
            raise NotEnoughMemory(
                f"there is not enough memory, {available():,} bytes are free ({reason}); use a machine with more, "
                "fewer samples at a time, or fewer columns",
                Advice((" (", Setting("reduction", "auto"), ")")),
            ) from None


with_memory_errors = memory_errors()
"""The decorator of a function that is called inside `memory_errors`."""


def _is_full(error: Exception) -> bool:
    """Whether an error is about memory; torch raises a RuntimeError, and libraries that cannot be loaded another."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if not isinstance(error, (RuntimeError, ImportError, OSError, SystemError)):
        return False
    return any(words in str(error).lower() for words in _WORDS) or available() < _LITTLE


def available() -> int:
    """Bytes that this process may still take: the least of what machine, containers and process limit leave."""
    return max(0, min(_left_on_machine(), _left_to_process(), *_left_in_groups()))


def _left_on_machine() -> int:
    found = _said("/proc/meminfo", "MemAvailable")
    if found is not None:
        return found
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # nothing says how much of it is free
    except (AttributeError, ValueError, OSError):
        return _NO_LIMIT


def _left_in_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What each control group around this process leaves, of either version, from its own up to the root."""
    yield _NO_LIMIT
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, kinds, inside in lines:
        top, limit, taken, cached = root, "memory.max", "memory.current", "inactive_file"
        if "memory" in kinds.split(","):
            top, limit, taken = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        elif kinds:
            continue
        group = top / inside.lstrip("/")
        for here in [one for one in (group, *group.parents) if one.is_relative_to(top)]:
            with suppress(OSError, ValueError):  # no such file here, or no limit but the word "max"
                facts = dict(line.split() for line in (here / "memory.stat").read_text().splitlines())
                most, used = (int((here / name).read_text()) for name in (limit, taken))
                left = most - used + int(facts.get(cached, 0))  # files that the kernel only caches are not taken
                yield left


def _left_to_process() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return _NO_LIMIT if limit == resource.RLIM_INFINITY else limit - pages * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return _NO_LIMIT


def memory_now() -> float:
    """Memory of this process, in megabytes; where the system does not say, the most it has had."""
    own = _said("/proc/self/status", "VmRSS")
    return own / _MEGABYTE if own else memory_peak()


def memory_peak() -> float:
    """The most memory that this process has had, in megabytes."""
    own = _said("/proc/self/status", "VmHWM")
    if own is not None:
        return own / _MEGABYTE
    import resource  # whose figure includes what the parent had before the program was started

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGABYTE


def forget_peak() -> bool:
    """Let the peak be what there is now; whether the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")  # the peak, and nothing else; see proc(5)
    except OSError:
        return False
    return True


def _said(path: str, name: str) -> int | None:
    """The bytes that the kernel says under a name; None where it does not."""
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None
