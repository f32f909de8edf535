"""A training step as a CUDA graph: recorded once and replayed."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from viewfuse.nn.streams import recording_on


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Inside, a GPU multiplies float32 matrices with 10 bits of each factor (TF32); afterwards as before."""
    if device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Inside, Python's collector rests: another graph that it clears away would spoil the recording of this one."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class GraphedStep:
    """A step that takes and returns nothing, and reads and writes memory that stays where it is.

    On a GPU its first calls run as they are; then it is recorded, and replayed from there on: one launch instead of
    hundreds. Elsewhere, and where recording fails, every call runs as it is.
    """

    _CALLS_BEFORE_RECORDING = 3
    """Libraries set themselves up, and the optimiser its state, in calls that cannot be recorded."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step = step
        self._device = device
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the step."""
        self._calls += 1
        if self._device.type == "cuda" and self._calls == self._CALLS_BEFORE_RECORDING + 1:
            self._graph = self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; recording does not run it."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Where a recording cannot be ended, torch would go on with the stream that it was recorded on.
            with (
                _garbage_kept(),
                torch.cuda.device(self._device),
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                recording_on(self._device),
                torch.cuda.graph(graph),
            ):
                self._step()
        except RuntimeError as error:
            logging.getLogger(__name__).warning("the step runs without a CUDA graph: %s", error)
            return None
        return graph
