"""Listening, stopping without losing an answer, connections with time limits, and a log that does not repeat itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from time import monotonic

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from viewfuse.errors import SettingError
from viewfuse.serve.limits import Limits

_SECONDS_TO_FINISH = 30
_WAITING_TO_CONNECT = 2048
_OWN_FILES = 64
"""File handles that the service itself needs, about."""
_LOGGERS = ("asyncio", "uvicorn.error", "viewfuse.serve.worker", "viewfuse.serve.inference")
_QUIET = 60.0
"""Seconds in which a line of the log is not repeated."""
_BODIES = 3
"""So many longest bodies may be on their way, or stay unread as answers, before the oldest is let go."""


def listen(host: str, port: int) -> socket.socket:
    """A socket at this place; port 0 takes any that is free."""
    # Unless the protocol is named, asyncio leaves Nagle's algorithm on, and short answers come 40 ms late.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_WAITING_TO_CONNECT)
    except OSError as error:
        sock.close()
        why = f"nothing can listen at {host}, port {port} ({error.strerror}); give another --port or --host"
        raise SettingError(why) from None
    return sock


def run(app: FastAPI, sock: socket.socket, limits: Limits, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered first, for at most half a minute."""
    import resource  # where there are no forks, there are no limits either

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Connections that there are file handles for: half of them, as as many may come at the same moment.
    files = _WAITING_TO_CONNECT if soft == resource.RLIM_INFINITY else max(8, (soft - _OWN_FILES) // 2)
    config = uvicorn.Config(
        app,
        http=connections(limits, min(limits.connections + limits.places, files)),
        backlog=min(_WAITING_TO_CONNECT, files),  # also how many are accepted before one of them is looked at
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )
    counted = Counted()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(counted)
    gc.collect()
    gc.freeze()  # else looking for garbage would write to all that forked processes share
    # uvicorn passes the signal on when all is done; for a service either is the usual end.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    host, port = sock.getsockname()[:2]
    say(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    try:
        uvicorn.Server(config).run(sockets=[sock])
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


class Counted(logging.Filter):
    """Lets a line pass once a minute; the next one that passes says how many were like it.

    Lines are alike that the same place in the code wrote, as messages may hold what callers sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        kind = record.name, record.pathname, record.lineno, record.exc_info and record.exc_info[0]
        now, (passed, kept) = monotonic(), self._seen.get(kind, (-_QUIET, 0))
        if now - passed < _QUIET:
            self._seen[kind] = passed, kept + 1
            return False
        self._seen[kind] = now, 0
        if kept:
            record.msg, record.args = f"{record.getMessage()} (and {kept:,} more like it)", ()
        return True


class Waiting:
    """Connections that have not sent their requests, with the bytes that came, and those that do not take answers."""

    def __init__(self, limits: Limits, connections: int) -> None:
        self.limits, self._most, self.most_bytes = limits, connections, _BODIES * limits.bytes
        self.received: dict[Connection, int] = {}
        self.unread: dict[Connection, None] = {}

    def check(self) -> None:
        """Let the connections go that have been waited for longest, where they are too many or hold too much."""
        while len(self.received) > self._most or sum(self.received.values()) > self.most_bytes:
            first = next(iter(self.received))
            del self.received[first]
            first.transport.abort()


class Connection(H11Protocol):
    """A connection whose caller has limited time to send a header, and to take an answer.

    For bodies the application has a limit of its own, as it can say so. `waiting` is set by `connections`.
    """

    waiting: Waiting
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self in self.waiting.received and (self.cycle is None or not self.cycle.response_complete):  # else not kept
            self.waiting.received[self] += len(data)
            self.waiting.check()
        if not self.transport.is_closing():
            super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request; for no longer than that if the last one keeps coming, byte by byte."""
        self._wait()
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The caller takes its answer more slowly than it comes; if too much is not taken, the first one is let go."""
        super().pause_writing()
        unread = self.waiting.unread
        unread[self] = None
        self._limit(self.waiting.limits.answer_seconds)
        if sum(one.transport.get_write_buffer_size() for one in unread) > self.waiting.most_bytes:
            next(iter(unread)).transport.abort()

    def resume_writing(self) -> None:
        """The answer was taken, nearly."""
        super().resume_writing()
        self.waiting.unread.pop(self, None)
        self._limit(self.waiting.limits.header_seconds if self in self.waiting.received else None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the caller."""
        self._limit(None)
        self.waiting.received.pop(self, None)
        self.waiting.unread.pop(self, None)
        super().connection_lost(exc)

    def _limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _wait(self) -> None:
        """Wait for a header, as the last of those that are waited for."""
        if self not in self.waiting.unread:  # else the answer before has a time of its own
            self._limit(self.waiting.limits.header_seconds)
        self.waiting.received.pop(self, None)
        self.waiting.received[self] = 0
        self.waiting.check()

    def _look(self) -> None:
        """See whether a header, or even a whole request, has come."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self not in self.waiting.unread:
                self._limit(None)
            if not self.cycle.more_body:
                self.waiting.received.pop(self, None)


def connections(limits: Limits, most: int) -> type[Connection]:
    """The connections of one service; they know of each other."""
    return type("Connection", (Connection,), {"waiting": Waiting(limits, most)})
