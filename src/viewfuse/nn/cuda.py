"""What makes a step fast on a GPU: it is recorded once as a CUDA graph, with parallel streams, and then replayed.

Views run in parallel, and gradients of weights beside all else. On the H200 ten networks of the paper's schedule take
34 s on one stream, 18 s on these (results/speed). Elsewhere, and while nothing is recorded, everything runs in turn.

Backward runs in another thread, so what is known of a recording belongs to the module. One recording is made at a
time, and only work that is being recorded is put on its streams: other threads may train meanwhile.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_recording = threading.RLock()
"""Held while a step is recorded; guards all that follows."""
_made: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Made once, as libraries keep memory for every stream that they have seen."""


class _Streams:
    """The streams that a step is recorded on, besides the main one."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._taken = device, 0
        self._numbered: list[torch.cuda.Stream] = []
        self._aside: dict[int, torch.cuda.Stream] = {}
        self._kept: list[object] = []
        self.in_turn = False

    def _stream(self) -> torch.cuda.Stream:
        made = _made.setdefault(self._device, [])
        if self._taken == len(made):
            made.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        self._taken += 1
        return made[self._taken - 1]

    def first(self, count: int) -> list[torch.cuda.Stream]:
        """The first so many streams for parallel work."""
        self._numbered += [self._stream() for _ in range(count - len(self._numbered))]
        return self._numbered[:count]

    @contextmanager
    def aside(self, reads: tuple[Tensor, ...]) -> Iterator[None]:
        main = torch.cuda.current_stream()
        if main.cuda_stream not in self._aside:
            self._aside[main.cuda_stream] = self._stream()
        own = self._aside[main.cuda_stream]
        own.wait_stream(main)
        self._kept += reads  # else the main stream could write over them
        before, self.in_turn = self.in_turn, True
        try:
            with torch.cuda.stream(own):
                yield
        finally:
            self.in_turn = before

    def join(self) -> None:
        for stream in self._aside.values():
            torch.cuda.current_stream().wait_stream(stream)


_streams: _Streams | None = None
"""There while a step is recorded."""


def _current() -> _Streams | None:
    """The streams of the recording that the current stream is part of."""
    return _streams if _streams is not None and torch.cuda.is_current_stream_capturing() else None


def map_views(work: Callable[[int], T], n_views: int) -> list[T]:
    """The result of `work` for every view number, in order; in parallel while a graph is recorded.

    What goes into `work` has to live on until this returns, and what comes out may be used at once.
    """
    return in_parallel([partial(work, v) for v in range(n_views)])


def in_parallel(works: Sequence[Callable[[], T]]) -> list[T]:
    """The result of each, in order; in parallel while a graph is recorded."""
    streams = _current()
    if streams is None or streams.in_turn:
        return [work() for work in works]
    main, own, results = torch.cuda.current_stream(), streams.first(len(works)), []
    for work, stream in zip(works, own, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(work())
    for stream in own:
        main.wait_stream(stream)
    return results


def side_stream(*reads: Tensor) -> AbstractContextManager[None]:
    """Inside, work whose results are needed after `join_streams` only; in parallel while a graph is recorded.

    Parameters
    ----------
    reads : tensors that it reads, and that might be freed before `join_streams`; kept until the recording ends
    """
    streams = _current()
    return nullcontext() if streams is None else streams.aside(reads)


def join_streams() -> None:
    """Wait for all work in side streams."""
    streams = _current()
    if streams is not None:
        streams.join()


@contextmanager
def recording_on(device: torch.device) -> Iterator[None]:
    """Inside, a step is recorded on the streams of a device."""
    global _streams
    with _recording:
        _streams = _Streams(device)
        try:
            yield
        finally:
            _streams = None


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
