"""A queue of requests, with a forked process that asks the model; a request that finds no place is refused.

Small requests that wait are asked together, as the model needs little more time for many samples than for one. A
process is forked from the service, which holds the model and never uses it: starting one takes milliseconds and no
second copy of the model. What is asked and answered travels through a pair of sockets: JSON and bytes, not pickled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import stat
import struct
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from viewfuse.errors import ViewfuseError
from viewfuse.serve.limits import Busy, TooLong

_SMALL, _TOGETHER = 16_000, 32
"""Bytes of a body, about that of a few rows, up to which requests are asked together, and how many."""
Facts = dict[str, Any]
Message = tuple[Facts, bytes | bytearray]
"""A request or an answer: facts that JSON can hold, and its body."""
Work = Callable[[Sequence[Message]], Sequence[Message]]
_LENGTH = struct.Struct("<Q")
_SENT_AT_ONCE = 100_000
_PATIENCE = 10.0
"""Seconds for all but the work: a process that was forked beside threads may wait for their locks before it works."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pending:
    """A request that waits, and its answer, or why there is none."""

    facts: Facts
    body: bytearray
    found: Message | Exception | None = None


class Queue:
    """A process that answers one request at a time, and the places of requests that wait for it or run.

    `start` starts the process, again whenever it has ended; `at_once` requests may have their bodies read. All happens
    in the thread of the event loop, so nothing here needs a lock of threads.
    """

    def __init__(self, start: Callable[[], Process], places: int, at_once: int) -> None:
        self.places, self.taken = places, 0
        self._start, self._is_left = start, False
        self._bodies, self._turn = asyncio.Semaphore(at_once), asyncio.Lock()
        self._process: Process | None = None
        self._waiting: dict[_Pending, None] = {}

    @property
    def has_place(self) -> bool:
        """Whether the next request would find a place."""
        return self.taken < self.places

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one request, until it is answered."""
        if not self.has_place:
            raise Busy(f"all {self.places} places are taken; try again in a moment")
        self.taken += 1
        try:
            async with self._bodies:
                yield
        finally:
            self.taken -= 1
            if self._is_left and not self.taken:
                self.stop()

    async def ask(self, facts: Facts, body: bytearray) -> Message:
        """Wait for a turn, and ask the process, for other small requests that wait, too."""
        own = _Pending(facts, body)
        self._waiting[own] = None
        try:
            async with self._turn:
                if own.found is None:
                    small = [one for one in self._waiting if len(one.body) <= _SMALL]
                    chosen = small[:_TOGETHER] if own in small else [own]
                    for one in chosen:
                        del self._waiting[one]
                    try:
                        await self._answer(chosen)
                    finally:  # also where the caller whose turn it is stops waiting
                        for one in chosen:
                            one.found = one.found or Busy("the process has ended; try again in a moment")
        finally:
            self._waiting.pop(own, None)
        assert own.found is not None
        if isinstance(own.found, Exception):
            raise own.found
        return own.found

    async def _answer(self, chosen: Sequence[_Pending]) -> None:
        """Ask the process at once; one by one where it ended over them, as only one of them may be at fault."""
        try:
            found = await self.process().ask([(one.facts, one.body) for one in chosen])
        except ViewfuseError as error:
            if len(chosen) == 1:
                chosen[0].found = error
                return
            for one in chosen:
                await self._answer([one])
            return
        for one, answer in zip(chosen, found, strict=True):
            one.found = answer

    def process(self) -> Process:
        """The process, or a new one where the last one has ended."""
        if self._process is None or not self._process.is_alive:
            if not self.places:
                raise Busy("the service stops; ask another one")
            self._process = self._start()
        return self._process

    def leave(self) -> None:
        """Stop as soon as all are answered that have a place."""
        self._is_left = True
        if not self.taken:
            self.stop()

    def stop(self) -> None:
        """End the process, whatever it does, and refuse further requests."""
        self.places = 0
        if self._process is not None:
            self._process.end()


class Process:
    """A forked process, which ends when this object does, and by the kernel where a piece of work takes too long."""

    def __init__(self, prepare: Callable[[], None], work: Work, seconds: float) -> None:
        self._channel, theirs = socket.socketpair()
        self._seconds = seconds
        with theirs, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads of BLAS, which knows about forks
            pid = os.fork()
            if not pid:
                _live(theirs, prepare, work, seconds)
        self._channel.setblocking(False)
        self.end = weakref.finalize(self, _end, pid, os.getpid())
        weakref.finalize(self, self._channel.close)  # and not before: a caller that waits must notice the end

    @property
    def is_alive(self) -> bool:
        """Whether the process is there: an idle one says nothing, and its end closes the socket."""
        try:
            return self.end.alive and bool(self._channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def ask(self, several: Sequence[tuple[Facts, bytearray]]) -> list[Message]:
        """Ask the process, and end it if the caller stops waiting. Large bodies are emptied."""
        try:
            async with asyncio.timeout(self._seconds + _PATIENCE):
                for part in _parts(several):
                    await asyncio.get_running_loop().sock_sendall(self._channel, part)
                for _, body in several:
                    if len(body) > _SMALL:  # the next one, which arrives meanwhile, may be as large
                        body.clear()
                (length,) = _LENGTH.unpack(await self._receive(_LENGTH.size))
                return [(facts, await self._receive(n)) for facts, n in json.loads(await self._receive(length))]
        except (EOFError, OSError):  # and TimeoutError, which is one of these
            status = self.end()
        except BaseException:
            self.end()
            raise
        if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            raise TooLong(f"the request took more than {self._seconds:g} s of computing; send fewer samples")
        raise Busy("the process that worked on this request has ended, and another one is there; try again")

    async def _receive(self, n: int) -> bytearray:
        loop, found = asyncio.get_running_loop(), bytearray(n)
        left = memoryview(found)
        while left:
            got = await loop.sock_recv_into(self._channel, left)
            if not got:
                raise EOFError
            left = left[got:]
        return found


def _end(pid: int, owner: int) -> int | None:
    """End a process; how it ended. In another forked process nothing is to be done."""
    with suppress(ProcessLookupError, ChildProcessError):
        if os.getpid() == owner:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
    return None


def _live(channel: socket.socket, prepare: Callable[[], None], work: Work, seconds: float) -> NoReturn:
    """The life of the process: until the service closes its end of the channel, or time is over.

    Signals and callers are left to the service: what it closes must be closed, and only it decides when to end.
    """
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # Other sockets become /dev/null and are not closed, so that no later file gets a number that others close.
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):  # the listing had a handle of its own
                if handle != channel.fileno() and handle > 2 and stat.S_ISSOCK(os.fstat(handle).st_mode):
                    os.dup2(nothing, handle)
        prepare()
        asked = channel.makefile("rb")
        while len(length := asked.read(_LENGTH.size)) == _LENGTH.size:
            listed = json.loads(asked.read(*_LENGTH.unpack(length)))
            several = [(facts, asked.read(n)) for facts, n in listed]
            signal.setitimer(signal.ITIMER_REAL, seconds)
            answers = work(several)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for part in _parts(answers):
                channel.sendall(part)
            del several, answers, part  # before the next request is waited for
    except BaseException:
        _log.exception("a process of the service ends")
    finally:
        os._exit(0)


def _parts(several: Sequence[Message]) -> list[bytes | bytearray]:
    """What is sent: at once where it is short, as the other side wakes up each time."""
    text = json.dumps([(facts, len(content)) for facts, content in several]).encode()
    parts = [_LENGTH.pack(len(text)) + text, *(content for _, content in several)]
    return [b"".join(parts)] if sum(map(len, parts)) <= _SENT_AT_ONCE else parts
