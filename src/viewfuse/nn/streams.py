"""CUDA graphs: a step is recorded once and replayed.

What is done for each view runs side by side, and what nobody waits for is put aside, on streams of their own. Backward
runs in another thread, so what is known of a recording belongs to the module: one thread at a time may train on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


_streams: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Made once, as libraries keep memory for every stream that they have seen."""


class _Lanes:
    """The streams that a step is recorded on, besides the main one."""

    def __init__(self, n_views: int, device: torch.device) -> None:
        self._device, self._taken = device, 0
        self.views = [self._stream() for _ in range(n_views)]
        self._aside: dict[tuple[str, int], torch.cuda.Stream] = {}
        self._kept: list[object] = []
        self.in_turn = False

    def _stream(self) -> torch.cuda.Stream:
        made = _streams.setdefault(self._device, [])
        if self._taken == len(made):
            made.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        self._taken += 1
        return made[self._taken - 1]

    @contextmanager
    def side_stream(self, name: str, reads: tuple[Tensor, ...]) -> Iterator[None]:
        main = torch.cuda.current_stream()
        key = name, main.cuda_stream
        if key not in self._aside:
            self._aside[key] = self._stream()
        self._aside[key].wait_stream(main)
        self._kept += reads  # else the main stream could write over them
        before, self.in_turn = self.in_turn, True
        try:
            with torch.cuda.stream(self._aside[key]):
                yield
        finally:
            self.in_turn = before

    def join_streams(self, names: tuple[str, ...]) -> None:
        for (name, _), stream in self._aside.items():
            if name in names or not names:
                torch.cuda.current_stream().wait_stream(stream)


_lanes: _Lanes | None = None
"""There while a step is recorded."""


def map_views(work: Callable[[int], T], n_views: int) -> list[T]:
    """The result of `work` for every view number, in order; side by side while a graph is recorded.

    What goes into `work` has to live on until this returns, and what comes out may be used at once.
    """
    if _lanes is None or _lanes.in_turn:
        return [work(v) for v in range(n_views)]
    main, results = torch.cuda.current_stream(), []
    for v, stream in zip(range(n_views), _lanes.views, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(work(v))
    for stream in _lanes.views:
        main.wait_stream(stream)
    return results


def side_stream(name: str, *reads: Tensor) -> AbstractContextManager[None]:
    """Inside, work whose results nobody needs before `join_streams`; beside all else while a graph is recorded.

    Parameters
    ----------
    name : work of one name, put aside from one stream, is done in turn
    reads : tensors that it reads, and that might be freed before `join_streams`; kept until the recording ends
    """
    return nullcontext() if _lanes is None else _lanes.side_stream(name, reads)


def join_streams(*names: str) -> None:
    """Wait for what was put aside under these names; without any, for all of it."""
    if _lanes is not None:
        _lanes.join_streams(names)


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


class GraphedStep:
    """A step that takes and returns nothing, and reads and writes memory that stays where it is.

    On a GPU its first calls run as they are; then it is recorded, and replayed from there on: one launch instead of
    hundreds. Elsewhere, and where recording fails, every call runs as it is.

    Parameters
    ----------
    n_views : that `map_views` will be called with inside of the step
    """

    _CALLS_BEFORE_RECORDING = 3
    """Libraries set themselves up, and the optimiser its state, in calls that cannot be recorded."""

    def __init__(self, step: Callable[[], None], device: torch.device, n_views: int) -> None:
        self._step = step
        self._device = device
        self._n_views = n_views
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
                torch.cuda.device(self._device),
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                _side_by_side(self._n_views, self._device),
                torch.cuda.graph(graph),
            ):
                self._step()
        except RuntimeError as error:
            logging.getLogger(__name__).warning("the step runs without a CUDA graph: %s", error)
            return None
        return graph


@contextmanager
def _side_by_side(n_views: int, device: torch.device) -> Iterator[None]:
    global _lanes
    _lanes = _Lanes(n_views, device)
    try:
        yield
    finally:
        _lanes = None
