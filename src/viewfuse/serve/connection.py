"""Connections that do not wait for ever: uvicorn's own have no time limit for headers, nor for answers to be taken."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from viewfuse.serve.limits import Limits

_BODIES = 3
"""So many longest bodies may be on their way, or stay unread as answers, before the oldest is let go."""


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
