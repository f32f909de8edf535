"""How much memory is left, asked before much of it is taken."""

from __future__ import annotations

import os
from pathlib import Path

from viewfuse.errors import NotEnoughMemory

_GROUP = Path("/sys/fs/cgroup")


def require(n_bytes: int, what: str, cure: str) -> None:
    """Refuse `what`, which needs `n_bytes`, where they are not there."""
    free = available()
    if n_bytes > free:
        raise NotEnoughMemory(f"{what} needs {n_bytes:,} bytes, but only {free:,} are free; {cure}")


def available() -> int:
    """Bytes that this process may still take: the least of what machine, container and process limit leave."""
    return max(0, min(_left_on_machine(), _left_in_group(), _left_to_process()))


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
        return 2**62


def _left_in_group() -> int:
    """What a container leaves; files that the kernel only caches do not count as taken."""
    try:
        limit, taken = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = (_GROUP / "memory.stat").read_text().split("\ninactive_file ")[1].split()[0]
        return int(limit) - int(taken) + int(cached)
    except (OSError, ValueError, IndexError):
        return 2**62


def _left_to_process() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return 2**62 if limit == resource.RLIM_INFINITY else limit - pages * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return 2**62
