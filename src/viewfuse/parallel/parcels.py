"""Jobs on their way to workers: small things by the pipe, large arrays by one file that all of them map.

The file has no name, so it is gone with the last process that has it. Jobs and outcomes are pickles, as with
`multiprocessing`: they go through a pair of sockets without a name, between this process and workers that it started
itself, so nobody else can put one there. No pickle is read from a file or a network.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 2**16
"""Bytes from which on an array goes into the file."""
_ALIGNED = 64
Place = tuple[int, int]


class Parcel:
    """Jobs of one list; an array that several of them have is written once."""

    def __init__(self) -> None:
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115
        self._places: dict[tuple[int, int], Place] = {}
        self._kept: list[memoryview] = []  # an array that is freed would leave its address to another one
        self._end = 0

    @property
    def handle(self) -> int:
        """The file, as the system knows it."""
        return self._file.fileno()

    def packed(self, what: Any) -> tuple[bytes, list[Place]]:
        """What goes by the pipe: a pickle, and where the large arrays lie."""
        text, places = io.BytesIO(), list[Place]()

        def put(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _LARGE:
                return True
            places.append(self._place(raw))
            return False

        _Pickler(text, 5, buffer_callback=put).dump(what)
        return text.getvalue(), places

    def _place(self, raw: memoryview) -> Place:
        key = (np.frombuffer(raw, dtype=np.uint8).ctypes.data, raw.nbytes)
        if key not in self._places:
            self._places[key] = (self._append(raw), raw.nbytes)
            self._kept.append(raw)
        return self._places[key]

    def _append(self, raw: memoryview) -> int:
        start = self._end + -self._end % _ALIGNED
        self._file.seek(start)
        left = raw.cast("B")
        while left:
            left = left[self._file.write(left[: 2**30]) :]
        self._end = start + raw.nbytes
        return start

    def close(self) -> None:
        """Let go of the file and the arrays."""
        self._kept.clear()
        self._file.close()


class _Pickler(pickle.Pickler):
    """Tensors travel as arrays do."""

    def reducer_override(self, what: Any) -> Any:
        plain = type(what) is Tensor and what.device.type == "cpu" and what.layout is torch.strided
        if not plain or what.requires_grad or what.dtype is torch.bfloat16:
            return NotImplemented
        return torch.from_numpy, (what.numpy(),)


def unpacked(text: bytes, places: Sequence[Place], handle: int) -> Any:
    """What was packed; its large arrays lie in the file, and are copied where somebody writes to them."""
    whole = memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_COPY)) if places else memoryview(b"")
    return pickle.loads(text, buffers=[whole[start : start + length] for start, length in places])
