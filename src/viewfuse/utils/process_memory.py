"""How much memory this process has, and has had at most."""

from __future__ import annotations

import sys
from pathlib import Path

_MEGABYTE = 1e6
_PEAK_ONLY = b"5"
"""What makes Linux forget the peak, and nothing else; see proc(5)."""


def memory_now() -> float:
    """Memory of this process, in megabytes; where the system does not say, the most it has had."""
    return _from_status("VmRSS") or memory_peak()


def memory_peak() -> float:
    """The most memory that this process has had, in megabytes.

    The kernel's figure for the process comes first: getrusage counts from before the program was started, and so
    includes what the parent had.
    """
    own = _from_status("VmHWM")
    if own is not None:
        return own
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGABYTE


def forget_peak() -> bool:
    """Let the peak be what there is now; whether the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_bytes(_PEAK_ONLY)
    except OSError:
        return False
    return True


def _from_status(name: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / _MEGABYTE for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None
