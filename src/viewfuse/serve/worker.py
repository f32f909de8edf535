"""One thread asks the model, one request at a time; who finds no place is sent away."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from viewfuse import errors
from viewfuse.serve.limits import Busy

T = TypeVar("T")
U = TypeVar("U")
_log = logging.getLogger(__name__)


class Worker:
    """A thread that owns the model, and the places of those who wait for it.

    More threads would not be faster, as the model uses all cores by itself, and would mix up their warnings. All but
    the work itself happens in the thread of the event loop, so nothing here needs a lock.
    """

    def __init__(self, places: int) -> None:
        self.places, self.taken, self._stopped = places, 0, False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="viewfuse-model")

    @property
    def is_ready(self) -> bool:
        """Whether the next request would find a place."""
        return not self._stopped and self.taken < self.places

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request, from its first byte to its answer."""
        if not self.is_ready:
            raise Busy(f"all {self.places} places are taken; try again in a moment")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[[], T], tell: Callable[[T, list[str]], U]) -> U:
        """What `tell` makes of the result of `work`, and of what the package warned of meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: tell(*_recorded(work)))

    def stop(self) -> None:
        """Finish what runs; nobody is let in any more."""
        self._stopped = True
        self._thread.shutdown(wait=True, cancel_futures=True)


def _recorded(work: Callable[[], T]) -> tuple[T, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    ours = [one for one in caught if one.category.__module__ == errors.__name__]
    for other in caught:
        if other not in ours:
            _log.warning("%s: %s", other.category.__name__, other.message)
    return result, list(dict.fromkeys(str(one.message) for one in ours))
