"""Two queues of requests, each with a process that asks the model; a request that finds no place is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from viewfuse.serve.limits import Busy, Limits
from viewfuse.serve.process import Facts, Process, Work

SHORT = 256_000
"""Bytes of a body of requests for the quick queue."""
_FEW = {b"[": 300, b",": 30_000}
"""Lists in a body, about one per row and view, and values of requests for the quick queue."""
_AT_ONCE = 2
"""Long bodies that are there at the same time: one is worked on while the next one arrives."""
_NICE = 10


class Queue:
    """A process that answers one request at a time, and the places of requests that wait for it.

    All happens in the thread of the event loop, so nothing here needs a lock of threads.

    Parameters
    ----------
    start : starts the process; called again whenever it has ended
    places : requests that may wait or run
    at_once : how many of these may have their bodies read; the others wait for that
    """

    def __init__(self, start: Callable[[], Process], places: int, at_once: int) -> None:
        self.places, self.taken = places, 0
        self._start = start
        self._bodies, self._turn = asyncio.Semaphore(at_once), asyncio.Lock()
        self._process: Process | None = None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one request, until it is answered."""
        if self.taken >= self.places:
            raise Busy(f"all {self.places} places are taken; try again in a moment")
        self.taken += 1
        try:
            async with self._bodies:
                yield
        finally:
            self.taken -= 1

    async def ask(self, facts: Facts, body: bytearray) -> tuple[Facts, bytearray]:
        """Wait for a turn, and ask the process."""
        async with self._turn:
            return await self.process().ask(facts, body)

    def process(self) -> Process:
        """The process, or a new one where the last one has ended."""
        if self._process is None or not self._process.is_alive:
            if not self.places:
                raise Busy("the service stops; ask another one")
            self.end()
            self._process = self._start()
        return self._process

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.end()


class Worker:
    """Two queues: one for short requests, which so never wait for long ones, and one for the others.

    More processes would not be faster, as the model uses all cores by itself.
    """

    def __init__(self, limits: Limits, prepare: Callable[[], None], work: Work) -> None:
        start = partial(Process, work=work, seconds=limits.seconds)
        self._quick = Queue(partial(start, prepare), limits.places, limits.places)
        self._long = Queue(partial(start, partial(_behind, prepare)), limits.places, _AT_ONCE)
        self.places = limits.places

    @property
    def is_ready(self) -> bool:
        """Whether the next short request would find a place."""
        return self._quick.taken < self._quick.places

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return self._quick.taken + self._long.taken

    def queue(self, beginning: bytearray, is_whole: bool) -> Queue:
        """The queue for a body that begins so; only a whole body can be short."""
        is_short = is_whole and all(beginning.count(sign) <= n for sign, n in _FEW.items())
        return self._quick if is_short else self._long

    def start(self) -> None:
        """Start both processes now, so that the first requests need not wait."""
        self._quick.process()
        self._long.process()

    def stop(self) -> None:
        """End both processes, whatever they do, and refuse further requests."""
        for queue in (self._quick, self._long):
            queue.places = 0
            queue.end()


def _behind(prepare: Callable[[], None]) -> None:
    """Let the process of short requests go first, where there are more processes than cores."""
    os.nice(_NICE)
    prepare()
