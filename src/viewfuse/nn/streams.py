"""What is done for each view, and what nobody waits for, runs side by side.

On a GPU it does so on CUDA streams while a graph is recorded, on a CPU in two threads (`viewfuse.nn.lanes`).

Backward runs in another thread, so what is known of a recording belongs to the module. One recording is made at a
time, and only work that is being recorded is put on its streams: other threads may train meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from viewfuse.nn.lanes import current_lanes, map_and_back

T = TypeVar("T")

_recording = threading.RLock()
"""Held while a step is recorded; guards all that follows."""
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


def _current_lanes() -> _Lanes | None:
    """The streams of the recording that the current stream is part of."""
    return _lanes if _lanes is not None and torch.cuda.is_current_stream_capturing() else None


def map_views(work: Callable[[int], T], n_views: int) -> list[T]:
    """The result of `work` for every view number, in order; side by side while a graph is recorded.

    What goes into `work` has to live on until this returns, and what comes out may be used at once.
    """
    lanes = _current_lanes()
    if lanes is None or lanes.in_turn:
        return [work(v) for v in range(n_views)]
    main, results = torch.cuda.current_stream(), []
    for v, stream in zip(range(n_views), lanes.views, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(work(v))
    for stream in lanes.views:
        main.wait_stream(stream)
    return results


def map_parts(work: Callable[..., Tensor], inputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """`work(i, *inputs[i])` for every i: parts of a network, which learns from them; side by side like views.

    Tensors that need gradients come in as inputs; no more than two parts have a weight in common.
    """
    lanes = current_lanes()
    if lanes is None or not torch.is_grad_enabled():
        return map_views(lambda i: work(i, *inputs[i]), len(inputs))
    return map_and_back(lanes, work, inputs)


def put_aside(name: str, work: Callable[[], T]) -> Callable[[], T]:
    """Begin work that nobody needs before `join_streams`, beside all else; returns what gives its result.

    What is put aside later may ask for the result of what was put aside before under the same name.
    """
    lanes = current_lanes()
    if lanes is not None:
        return lanes.put_aside(work)
    with side_stream(name):
        found = work()
    return lambda: found


def side_stream(name: str, *reads: Tensor) -> AbstractContextManager[None]:
    """Inside, work whose results nobody needs before `join_streams`; beside all else while a graph is recorded.

    Parameters
    ----------
    name : work of one name, put aside from one stream, is done in turn
    reads : tensors that it reads, and that might be freed before `join_streams`; kept until the recording ends
    """
    lanes = _current_lanes()
    return nullcontext() if lanes is None else lanes.side_stream(name, reads)


def join_streams(*names: str) -> None:
    """Wait for what was put aside under these names; without any, for all of it."""
    lanes, threads = _current_lanes(), current_lanes()
    if lanes is not None:
        lanes.join_streams(names)
    if threads is not None and not names:
        threads.join()


@contextmanager
def parallel_views(n_views: int, device: torch.device) -> Iterator[None]:
    """Inside, a step is recorded, in which `map_views` is called with so many views."""
    global _lanes
    with _recording:
        _lanes = _Lanes(n_views, device)
        try:
            yield
        finally:
            _lanes = None
