"""Functions for test_jobs.py, in a module of their own: workers import it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from viewfuse.utils.jobs import run_jobs


def late_power(base: int, exponent: int, folder: Path | None = None) -> int:
    """A power; with a folder the first job ends once the caller, who has the second result, writes a file there."""
    waits_until = time.monotonic() + 20.0
    while folder is not None and exponent == 0 and not (folder / "done").exists() and time.monotonic() < waits_until:
        time.sleep(0.01)
    return base**exponent


def root(number: float) -> float:
    """The first of two that fail fails last."""
    if number == -1:
        time.sleep(0.15)
    if number < 0:
        raise ZeroDivisionError(f"no root of {number}")
    return number**0.5


def warned_twice(text: str) -> str:
    for _ in range(2):
        warnings.warn(text, RuntimeWarning, stacklevel=1)
    return text


def scaled(array: np.ndarray, tensor: torch.Tensor, factor: float) -> tuple[float, float]:
    """Writes to what it was given, which no other job may notice."""
    array *= factor
    tensor.mul_(factor)
    return float(array.sum()), float(tensor.sum())


def process(*_) -> int:
    return os.getpid()


def place(*_) -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def places_of_inner_jobs(*_) -> list[tuple[int, int]]:
    return [place(), *run_jobs(place, [(1,), (2,)], n_jobs=2)]


def threads(*_) -> int:
    return torch.get_num_threads()


def dies(marks: Path, times: int, result: int) -> int:
    """Its process is killed the first `times` times."""
    if len(list(marks.iterdir())) < times:
        (marks / f"{time.monotonic_ns()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def interrupted(marks: Path, place: int) -> int:
    """The first job is interrupted, the others end as they do."""
    if place == 0:
        raise KeyboardInterrupt
    time.sleep(0.15)
    (marks / str(place)).touch()
    return place


def ended(code: int) -> None:
    sys.exit(code)


def generator(*_) -> object:
    return (number for number in range(3))


class Unreadable(Exception):
    """Can be pickled, but not be read again: its argument is not what it was made of."""

    def __init__(self, one, other):
        super().__init__(one)


def raises_unreadable(*_) -> None:
    raise Unreadable(1, 2)


def forever(mark: Path) -> None:
    (mark / str(os.getpid())).touch()
    time.sleep(600)
