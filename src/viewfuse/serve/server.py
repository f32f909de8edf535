"""Listening, stopping without losing an answer, connections with time limits, and a log that does not repeat itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from viewfuse.errors import SettingError
from viewfuse.serve.limits import Limits

_SECONDS_TO_FINISH = 30
_WAITING_TO_CONNECT = 2048
_OWN_FILES = 64
"""File handles that the service itself needs, about."""
_LOGGERS = ("asyncio", "uvicorn.error", "viewfuse.serve.worker", "viewfuse.serve.replies")
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
        raise SettingError(
            f"nothing can listen at {host}, port {port} ({error.strerror}); give another --port or --host"
        ) from None
    return sock


def run(app: FastAPI, sock: socket.socket, limits: Limits, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered first, for at most half a minute."""
    files = _room()
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


def _room() -> int:
    """Connections that there are file handles for: half of them, as as many may come at the same moment."""
    import resource  # where there are no forks, there are no limits either

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _WAITING_TO_CONNECT if soft == resource.RLIM_INFINITY else max(8, (soft - _OWN_FILES) // 2)


class Counted(logging.Filter):
    """Lets a line pass once a minute; the next one that passes says how many were like it."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], float] = {}
        self._kept: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        kind, now = (record.name, _kind(record)), monotonic()
        if now - self._passed.get(kind, -_QUIET) < _QUIET:
            self._kept[kind] = self._kept.get(kind, 0) + 1
            return False
        self._passed[kind] = now
        kept = self._kept.pop(kind, 0)
        if kept:
            record.msg, record.args = f"{record.getMessage()} (and {kept:,} more like it)", ()
        return True


def _kind(record: logging.LogRecord) -> str:
    """What a line is about: the place in the code that wrote it, as messages may hold what callers sent."""
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return f"{record.pathname}:{record.lineno}:{error}"


class Waiting:
    """Connections that wait for their callers, the one that has waited longest first."""

    def __init__(self, limits: Limits, connections: int) -> None:
        self.limits, self._most, self._most_bytes = limits, connections, _BODIES * limits.bytes
        self._received: dict[Connection, int] = {}
        self._unread: dict[Connection, None] = {}
        self._n_bytes = 0

    def add(self, connection: Connection) -> None:
        """Wait for a caller; if too many are waited for, the first one is let go."""
        self.remove(connection)
        self._received[connection] = 0
        if len(self._received) > self._most:
            self._first().transport.abort()

    def remove(self, connection: Connection) -> None:
        """Wait no longer: the request is there, or the caller has gone."""
        self._n_bytes -= self._received.pop(connection, 0)

    def count(self, connection: Connection, n: int) -> None:
        """Note bytes that have come; if too many wait for their rest, the first one is let go."""
        if connection in self._received:
            self._received[connection] += n
            self._n_bytes += n
            if self._n_bytes > self._most_bytes:
                self._first().transport.abort()

    def is_unread(self, connection: Connection) -> None:
        """Note an answer that is not taken; if too much waits to be taken, the first one is let go."""
        self._unread[connection] = None
        if sum(one.transport.get_write_buffer_size() for one in self._unread) > self._most_bytes:
            next(iter(self._unread)).transport.abort()

    def is_read(self, connection: Connection) -> None:
        """The answer was taken, or the caller has gone."""
        self._unread.pop(connection, None)

    def _first(self) -> Connection:
        found = next(iter(self._received))
        self.remove(found)
        return found


class Connection(H11Protocol):
    """A connection whose caller has limited time to send a header, and to take an answer.

    For bodies the application has a limit of its own, as it can say so. `waiting` is set by `connections`.
    """

    waiting: Waiting
    _alarm: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self.cycle is None or not self.cycle.response_complete:  # else nothing keeps it
            self.waiting.count(self, len(data))
        if not self.transport.is_closing():
            super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request; for no longer than that if the last one keeps coming, byte by byte."""
        self._wait()
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The caller takes its answer more slowly than it comes."""
        super().pause_writing()
        self._taking = self.loop.call_later(self.waiting.limits.answer_seconds, self.transport.abort)
        self.waiting.is_unread(self)

    def resume_writing(self) -> None:
        """The answer was taken, nearly."""
        super().resume_writing()
        self._taking = _stopped(self._taking)
        self.waiting.is_read(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the caller."""
        self._alarm, self._taking = _stopped(self._alarm), _stopped(self._taking)
        self.waiting.remove(self)
        self.waiting.is_read(self)
        super().connection_lost(exc)

    def _wait(self) -> None:
        _stopped(self._alarm)
        self._alarm = self.loop.call_later(self.waiting.limits.header_seconds, self._give_up)
        self.waiting.add(self)

    def _give_up(self) -> None:
        if self._taking is None:  # else that has a time of its own
            self.transport.abort()

    def _look(self) -> None:
        """See whether a header, or even a whole request, has come."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._alarm = _stopped(self._alarm)
            if not self.cycle.more_body:
                self.waiting.remove(self)


def connections(limits: Limits, most: int) -> type[Connection]:
    """The connections of one service; they know of each other."""
    return type("Connection", (Connection,), {"waiting": Waiting(limits, most)})


def _stopped(timer: asyncio.TimerHandle | None) -> Any:
    if timer is not None:
        timer.cancel()
