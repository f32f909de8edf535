"""Work on several items at a time, in threads: most of it is done by libraries that let other threads run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, TypeVar

import torch

from viewfuse.parallel.cores import usable_cores
from viewfuse.parallel.jobs import limited

A = TypeVar("A")
B = TypeVar("B")
_this_thread = threading.local()


def side_by_side(work: Callable[[A], B], items: Iterable[A], *, share: int = 1) -> Iterator[B]:
    """The results of `work` in the order of the items, in as many threads as torch may use, which then has one in each.

    Inside of `work` itself, the items are worked on in turn: all threads are taken.

    Parameters
    ----------
    share : how many of those threads one item counts for; where one takes much memory, fewer run at a time
    """
    if getattr(_this_thread, "is_taken", False):
        yield from map(work, items)
        return
    threads = usable_cores()
    count = max(1, threads // share)
    source = iter(items)
    with limited(threads // count), ThreadPoolExecutor(count, initializer=_take_thread) as pool:
        waiting: list[Future[B]] = [pool.submit(work, item) for item in islice(source, count)]
        while waiting:
            try:
                yield waiting.pop(0).result()
            except BaseException:
                pool.shutdown(cancel_futures=True)  # nobody waits for the others where one failed
                raise
            waiting += [pool.submit(work, item) for item in islice(source, 1)]


def _take_thread() -> None:
    _this_thread.is_taken = True


def turns(device: torch.device) -> AbstractContextManager[Any]:
    """What a thread holds while it computes: threads share a GPU, and on a CPU each has its own cores."""
    return nullcontext() if device.type == "cpu" else threading.Lock()


def ahead(items: Iterable[A]) -> Iterator[A]:
    """The items, each made in another thread while the one before is used."""
    source = iter(items)

    def some() -> list[A]:
        return list(islice(source, 1))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some)
        while item := waiting.result():
            waiting = pool.submit(some)
            yield item[0]
