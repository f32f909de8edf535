"""CPU threads: how many there are, how many a training gets, and work on several items at a time; and the device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import joblib
import torch
from threadpoolctl import ThreadpoolController

from viewfuse.errors import SettingError
from viewfuse.utils.settings import Setting

A = TypeVar("A")
B = TypeVar("B")
_MOST_THREADS = 2
"""Of one training: its products are small, and two threads take 1.7 times the computing of one for the same step."""
_this_thread = threading.local()
_limiting = threading.RLock()
"""Libraries have one number of threads for the whole process: threads of Python that set it take turns."""


def usable_cores() -> int:
    """Count the cores for this process: torch's threads (OMP_NUM_THREADS), or fewer in a container or under taskset."""
    return max(1, min(torch.get_num_threads(), joblib.cpu_count()))


def threads_for(n_starts: int) -> int:
    """Return the threads of each training of a fit with so many starts; the same for every `n_jobs`."""
    return max(1, min(_MOST_THREADS, usable_cores() // n_starts))


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit torch and the libraries of numpy and scikit-learn to so many threads; None changes nothing."""
    if threads is None:
        yield
        return
    with _limiting:
        before = _threads_of_a_new_thread()
        torch.set_num_threads(threads)
        try:
            with _libraries(len(sys.modules)).limit(limits=threads):
                yield
        finally:
            torch.set_num_threads(before)


def _threads_of_a_new_thread() -> int:
    """Return torch's threads in this process; a thread that first used torch under another's limit knows fewer."""
    found: list[int] = []
    asked = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    asked.start()
    asked.join()
    return found[0]


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded libraries that have threads, again after imports: a search takes as long as a small step."""
    return ThreadpoolController()


def side_by_side(work: Callable[[A], B], items: Iterable[A], *, share: int = 1) -> Iterator[B]:
    """Yield `work(item)` in the order of the items; as many threads work as torch has, with one thread of torch each.

    Inside of `work` itself the items are worked on in turn, since all threads are taken.

    Parameters
    ----------
    share : threads that one item counts for; where items take much memory, fewer are worked on at a time
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
                pool.shutdown(cancel_futures=True)  # the others are not needed where one failed
                raise
            waiting += [pool.submit(work, item) for item in islice(source, 1)]


def _take_thread() -> None:
    _this_thread.is_taken = True


def turns(device: torch.device) -> AbstractContextManager[Any]:
    """Return what a thread holds while it computes: a lock for a GPU, which threads share; nothing on a CPU."""
    return nullcontext() if device.type == "cpu" else threading.Lock()


def ahead(items: Iterable[A]) -> Iterator[A]:
    """Yield the items; another thread makes the next one while the last one is used."""
    source = iter(items)

    def some() -> list[A]:
        return list(islice(source, 1))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some)
        while item := waiting.result():
            waiting = pool.submit(some)
            yield item[0]


def chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"device {name!r} cannot be used here ({reason}); try ", Setting("device", "auto")) from None
    return torch.device(device.type, device.index or 0) if device.type == "cuda" else device
