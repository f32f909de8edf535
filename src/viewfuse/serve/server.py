"""Listening, and stopping without losing an answer."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from viewfuse.errors import SettingError

_SECONDS_TO_FINISH = 30
_WAITING_TO_CONNECT = 2048


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


def run(app: FastAPI, sock: socket.socket, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered first, for at most half a minute."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_SECONDS_TO_FINISH
    )
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
