"""What a measurement was made on, and what that machine can do at best."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch

from viewfuse import __version__

_SIDE = {"cpu": 2048, "cuda": 8192}
_COPIED_FLOATS = {"cpu": 2**26, "cuda": 2**28}
_TRIES = 7


def facts(device: torch.device, command: str) -> dict[str, Any]:
    """Processor, cores, GPU, versions, date and load; neither names nor paths of the machine."""
    on_gpu = device.type == "cuda"
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "device": device.type,
        "load_before": load(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
            "viewfuse": __version__,
        },
        "system": platform.system(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command,
    }


def load() -> float | None:
    """How many processes wanted a core in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peaks(device: torch.device, side: int | None = None, floats: int | None = None) -> dict[str, float]:
    """The best of several large float32 matrix products and copies: GFLOPS and GB per second."""
    side, floats = side or _SIDE[device.type], floats or _COPIED_FLOATS[device.type]
    square, product = torch.rand(side, side, device=device), torch.empty(side, side, device=device)
    source, target = torch.rand(floats, device=device), torch.empty(floats, device=device)
    multiply = _best(lambda: torch.mm(square, square, out=product), device)
    copy = _best(lambda: target.copy_(source), device)
    return {"gflops": 2 * side**3 / multiply / 1e9, "copy_gb_per_second": 2 * 4 * floats / copy / 1e9}


def _best(work: Callable[[], object], device: torch.device) -> float:
    return min(seconds(work, device) for _ in range(_TRIES))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes, until the device is done with it."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
