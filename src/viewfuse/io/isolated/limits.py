"""What reading a file may cost: set by its size, so that real data have ample room and damaged files have little."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

from viewfuse.io.safety.limits import most_bytes
from viewfuse.utils import memory

_MEMORY = 2**30
_COPIES = 3
"""What a file becomes, in the hands of a library, in ours, and on its way."""
_SECONDS, _SECONDS_PER_MEGABYTE = 2, 2
_WAITING = 25
"""Seconds that a file may come late from a slow disk or while others compute; ten times as many for large files."""


class ReadingLimits(NamedTuple):
    """Bytes of memory and of every file that is written, seconds of computing, seconds in all."""

    n_bytes: int
    cpu: int
    wall: int


def limits_of(path: Path) -> ReadingLimits:
    """What reading `path` may cost."""
    try:
        size = path.stat().st_size
    except OSError:  # the reader will say it
        size = 0
    room = _MEMORY + _COPIES * most_bytes(size)
    more = _SECONDS_PER_MEGABYTE * size // 1_000_000
    return ReadingLimits(min(room, memory.available()), _SECONDS + more, _WAITING + 10 * more)


def impose(limits: ReadingLimits) -> None:
    """Hold this process to its limits; the kernel ends it where it goes beyond its time."""
    import resource  # there is none where nothing can be imposed

    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_proc() else 0
    _lower(resource.RLIMIT_AS, here + limits.n_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.n_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, limits.cpu)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.wall)


def _has_proc() -> bool:
    return Path("/proc/self/statm").exists()


def _lower(kind: int, most: int) -> None:
    """Set a soft limit, where it is not lower already; the hard one stays."""
    import resource

    soft, hard = resource.getrlimit(kind)
    known = [most] + [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(known), hard))
