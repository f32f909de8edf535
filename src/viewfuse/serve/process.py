"""A process that works for the service, and that can be ended at any moment: another one is there at once.

It is forked from the service, which holds the model and never uses it. So starting one takes milliseconds and no
second copy of the model. What is asked and answered travels through a pair of sockets: JSON and bytes, nothing pickled.
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
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from viewfuse.serve.limits import Busy, TooLong

Facts = dict[str, Any]
Work = Callable[[Facts, bytearray], tuple[Facts, bytes]]
_LENGTHS = struct.Struct("<QQ")
_AT_ONCE = 100_000
_PATIENCE = 10.0
"""Seconds for all but the work: a process that was forked beside threads may wait for their locks before it works."""
_log = logging.getLogger(__name__)


class Process:
    """A forked process, which ends when this object does.

    Parameters
    ----------
    prepare : what the process does first
    work : what it does with facts and bytes
    seconds : time for each piece of work; the kernel ends the process when it is over
    """

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

    async def ask(self, facts: Facts, content: bytearray) -> tuple[Facts, bytearray]:
        """Ask the process, and end it if the caller stops waiting. `content` is emptied."""
        try:
            async with asyncio.timeout(self._seconds + _PATIENCE):
                await self._send(facts, content)
                content.clear()  # it may be long, and so may be the next one, which arrives meanwhile
                n_facts, n_content = _LENGTHS.unpack(await self._receive(_LENGTHS.size))
                return json.loads(await self._receive(n_facts)), await self._receive(n_content)
        except (EOFError, OSError):  # and TimeoutError, which is one of these
            raise self._reason() from None
        except BaseException:
            self.end()
            raise

    async def _send(self, facts: Facts, content: bytearray) -> None:
        loop = asyncio.get_running_loop()
        for part in _parts(facts, content):
            await loop.sock_sendall(self._channel, part)

    async def _receive(self, n: int) -> bytearray:
        loop, found = asyncio.get_running_loop(), bytearray(n)
        left = memoryview(found)
        while left:
            got = await loop.sock_recv_into(self._channel, left)
            if not got:
                raise EOFError
            left = left[got:]
        return found

    def _reason(self) -> Exception:
        """Why the process has ended while it worked."""
        status = self.end()
        if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            return TooLong(f"the request took more than {self._seconds:g} s of computing; send fewer samples")
        return Busy("the process that worked on this request has ended, and another one is there; try again")


def _end(pid: int, owner: int) -> int | None:
    """End a process; how it ended. In another forked process nothing is to be done."""
    if os.getpid() != owner:
        return None
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    return None


def _live(channel: socket.socket, prepare: Callable[[], None], work: Work, seconds: float) -> NoReturn:
    """The life of the process: until the service closes its end of the channel, or time is over."""
    try:
        _let_go(channel)
        prepare()
        while head := _read(channel, _LENGTHS.size):
            n_facts, n_content = _LENGTHS.unpack(head)
            facts, content = json.loads(_read(channel, n_facts)), _read(channel, n_content)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            found, answer = work(facts, content)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for part in _parts(found, answer):
                channel.sendall(part)
            del content, answer, part  # before the next request is waited for
    except BaseException:
        _log.exception("a process of the service ends")
    finally:
        os._exit(0)


def _parts(facts: Facts, content: bytes | bytearray) -> list[bytes | bytearray]:
    """What is sent: at once where it is short, as the other side wakes up each time."""
    text = json.dumps(facts).encode()
    head = _LENGTHS.pack(len(text), len(content)) + text
    return [head + content] if len(content) <= _AT_ONCE else [head, content]


def _let_go(channel: socket.socket) -> None:
    """Leave signals and callers to the service: what it closes must be closed, and only it decides when to end.

    Other sockets become /dev/null instead of being closed, so that no later file gets a number that other code closes.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the listing had a handle of its own
            if handle != channel.fileno() and handle > 2 and stat.S_ISSOCK(os.fstat(handle).st_mode):
                os.dup2(nothing, handle)


def _read(channel: socket.socket, n: int) -> bytearray:
    """So many bytes; none where the other end is closed."""
    found = bytearray(n)
    left = memoryview(found)
    while left:
        got = channel.recv_into(left)
        if not got:
            return bytearray()
        left = left[got:]
    return found
