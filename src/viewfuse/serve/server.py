"""Listening, stopping without losing an answer, and a log that does not repeat itself."""

from __future__ import annotations

import gc
import logging
import signal
import socket
from collections.abc import Callable
from time import monotonic

import uvicorn
from fastapi import FastAPI

from viewfuse.errors import SettingError
from viewfuse.serve.connection import connections
from viewfuse.serve.limits import Limits

_SECONDS_TO_FINISH = 30
_WAITING_TO_CONNECT = 2048
_OWN_FILES = 64
"""File handles that the service itself needs, about."""
_LOGGERS = ("asyncio", "uvicorn.error", "viewfuse.serve.process", "viewfuse.serve.replies")
_QUIET = 60.0
"""Seconds in which a line of the log is not repeated."""


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
    _count_repetitions()
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


def _count_repetitions() -> None:
    """From now on repetitions are counted."""
    counted = Counted()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(counted)
