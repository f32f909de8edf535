"""How many CPU cores there are for us, and how they are shared among trainings."""

from __future__ import annotations

from pathlib import Path

import torch

_MOST_THREADS = 2
"""Of one training: its products are small, and two threads take 1.7 times the computing of one for the same step."""


def usable_cores() -> int:
    """Cores that this process may use: torch's threads (OMP_NUM_THREADS, taskset), or what a container is given."""
    return max(1, min(torch.get_num_threads(), _quota()))


def threads_for(n_starts: int) -> int:
    """Threads of each training of a fit with so many starts, which may run side by side; the same whoever runs them."""
    return max(1, min(_MOST_THREADS, usable_cores() // n_starts))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole cores that the control group around this process gets, of either version; many where there is no limit."""
    for texts in ((root / "cpu.max",), (root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")):
        try:
            limit, period = (float(part) for text in texts for part in text.read_text().split())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
        if limit > 0:
            return int(limit // period)
    return 2**31
