"""Jobs for test_parallel.py, in a module of their own: workers import it."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from viewfuse.parallel import in_worker, report


def power(base: int, exponent: int) -> int:
    report(exponent)
    return base**exponent


def late_power(base: int, exponent: int) -> int:
    """The later a job stands in its list the sooner it is done."""
    time.sleep(0.2 / (1 + exponent))
    return base**exponent


def root(number: float) -> float:
    """The first of two that fail fails last."""
    if number == -1:
        time.sleep(0.3)
    if number < 0:
        raise ZeroDivisionError(f"no root of {number}")
    return number**0.5


def warned(text: str) -> str:
    warnings.warn(text, RuntimeWarning, stacklevel=1)
    return text


def scaled(array: np.ndarray, tensor: torch.Tensor, factor: float) -> tuple[float, float, int]:
    """Writes to what it was given, which nobody else may notice."""
    array *= factor
    tensor.mul_(factor)
    return float(array.sum()), float(tensor.sum()), torch.get_num_threads()


def process() -> tuple[int, bool]:
    return os.getpid(), in_worker()


def dies(marks: Path, times: int, result: int) -> int:
    """Its process is killed the first `times` times."""
    if len(list(marks.iterdir())) < times:
        (marks / f"{time.monotonic_ns()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def unreadable() -> object:
    return sys.stdout


def forever(mark: Path) -> None:
    (mark / str(os.getpid())).touch()
    time.sleep(600)


def first(array):
    return float(array[0])
