"""CUDA graphs: a step is recorded once and replayed, and what is done for each view runs side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Lanes:
    """The streams that a step is recorded on, besides the main one."""

    def __init__(self, n_views: int, device: torch.device) -> None:
        self._device = device
        self.views = [self._stream() for _ in range(n_views)]
        self._aside: dict[tuple[str, int], torch.cuda.Stream] = {}
        self._kept: list[object] = []
        self.in_turn = False

    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def aside(self, name: str, reads: tuple[Tensor, ...]) -> Iterator[None]:
        main = torch.cuda.current_stream()
        stream = self._aside.setdefault((name, main.cuda_stream), self._stream())
        stream.wait_stream(main)
        self._kept += reads  # else the main stream could write over them
        self.in_turn = True
        with torch.cuda.stream(stream):
            yield
        self.in_turn = False

    def catch_up(self, names: tuple[str, ...]) -> None:
        for (name, _), stream in self._aside.items():
            if name in names or not names:
                torch.cuda.current_stream().wait_stream(stream)


_lanes: _Lanes | None = None
"""There while a step is recorded."""


def per_view(work: Callable[[int], T], n_views: int) -> list[T]:
    """The result of `work` for every view number, in order; side by side while a graph is recorded, but not `aside`.

    What goes into `work` has to live on until this returns, and what comes out may be used at once.
    """
    if _lanes is None or _lanes.in_turn:
        return [work(v) for v in range(n_views)]
    main, results = torch.cuda.current_stream(), []
    for v, stream in enumerate(_lanes.views[:n_views]):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(work(v))
    for stream in _lanes.views[:n_views]:
        main.wait_stream(stream)
    return results


def aside(name: str, *reads: Tensor) -> AbstractContextManager[None]:
    """Inside, work whose results nobody needs before `catch_up`; beside all else while a graph is recorded.

    Parameters
    ----------
    name : work of one name, put aside from one place, is done in turn
    reads : what it reads of that would not live on until then
    """
    return nullcontext() if _lanes is None else _lanes.aside(name, reads)


def catch_up(*names: str) -> None:
    """Wait for what was put aside under these names; without any, for all of it."""
    if _lanes is not None:
        _lanes.catch_up(names)


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


class Replayed:
    """A step that takes and returns nothing, and reads and writes memory that stays where it is.

    On a GPU its first calls run as they are; then it is recorded, and replayed from there on: one launch instead of
    hundreds. Elsewhere, and where recording fails, every call runs as it is.

    Parameters
    ----------
    n_views : that `per_view` will be called with inside of the step
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
            with torch.cuda.device(self._device), _side_by_side(self._n_views, self._device), torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:
            logging.getLogger(__name__).info("the step runs without a CUDA graph: %s", error)
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
