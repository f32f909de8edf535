"""Two threads for one step on a CPU: its independent parts run side by side, forward and backward.

A step has hundreds of small operations. Two threads of torch share each of them and wait for each other after each;
two threads with parts of their own wait a few times. Every operation then has half of torch's threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from viewfuse.nn.backward import backward

T = TypeVar("T")

_this_thread = threading.local()
"""Knows the lanes of the thread that opened them; what runs in a lane does all in turn."""


class Lanes:
    """Those of one thread: itself and a helper."""

    def __init__(self, helper: ThreadPoolExecutor) -> None:
        self._helper = helper
        self._aside: list[Future[Any]] = []

    def put_aside(self, work: Callable[[], T]) -> Callable[[], T]:
        """Let the helper do it; returns what waits for the result."""
        self._aside.append(self._helper.submit(work))
        return self._aside[-1].result

    def join(self) -> None:
        """Wait for all that was put aside."""
        waiting, self._aside = self._aside, []
        for one in waiting:
            one.result()

    def map(self, work: Callable[[int], T], n: int) -> list[T]:
        """The result of `work` for every number, in order; whoever is free takes the next one."""
        left, found = deque(range(n)), dict[int, T]()

        def drain() -> None:
            while left:
                try:
                    i = left.popleft()
                except IndexError:  # the other one was faster
                    return
                found[i] = work(i)

        helping = self._helper.submit(drain)
        try:
            with _closed():
                drain()
        finally:
            left.clear()
            if not helping.cancel():  # it may be busy with what was put aside
                helping.result()
        return [found[i] for i in range(n)]


@contextmanager
def two_lanes() -> Iterator[None]:
    """Inside, `current_lanes` has two threads, each with half of torch's; nothing changes where there is one only."""
    before = torch.get_num_threads()
    # The helper would not know of another precision.
    if before < 2 or current_lanes() is not None or torch.is_autocast_enabled("cpu"):
        yield
        return
    torch.set_num_threads(before // 2)
    try:
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(before // 2,)) as helper:
            _this_thread.lanes = Lanes(helper)
            yield
    finally:
        _this_thread.lanes = None
        torch.set_num_threads(before)


def current_lanes() -> Lanes | None:
    """The lanes of this thread."""
    found: Lanes | None = getattr(_this_thread, "lanes", None)
    return found


@contextmanager
def _closed() -> Iterator[None]:
    """Inside, this thread does all in turn."""
    own, _this_thread.lanes = current_lanes(), None
    try:
        yield
    finally:
        _this_thread.lanes = own


def map_and_back(lanes: Lanes, work: Callable[..., Tensor], inputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """`work(i, *inputs[i])` for every i; the backward pass of each runs in a lane as well.

    Weights get their gradients in that pass. Where two parts share a weight, these are added up in any order, which is
    the same for two numbers; so no more than two may.
    """
    flat = [one for own in inputs for one in own]
    found = _InLanes.apply(lanes, work, [len(own) for own in inputs], _anything(), *flat)  # type: ignore[no-untyped-call]
    return list(found)


def _anything() -> Tensor:
    """Needs a gradient, so that there is a backward pass where only weights do."""
    return torch.empty(0, requires_grad=True)


class _InLanes(Function):
    """Each part has a graph of its own, from copies of its inputs on."""

    @staticmethod
    def forward(
        ctx: Any, lanes: Lanes, work: Callable[..., Tensor], counts: Sequence[int], _: Tensor, *flat: Tensor
    ) -> tuple[Tensor, ...]:
        leaves = [one.detach().requires_grad_(one.requires_grad) for one in flat]
        left = iter(leaves)
        inputs = [[next(left) for _ in range(count)] for count in counts]

        with_graph = torch.enable_grad()(lambda i: work(i, *inputs[i]))
        ctx.lanes, ctx.leaves, ctx.outputs = lanes, leaves, lanes.map(with_graph, len(counts))
        return tuple(one.detach() for one in ctx.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with_graph = torch.enable_grad()(lambda i: backward(ctx.outputs[i], gradients[i]))
        ctx.lanes.map(with_graph, len(gradients))
        return None, None, None, None, *(leaf.grad for leaf in ctx.leaves)
