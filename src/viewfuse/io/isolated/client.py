"""Ask another process to read a file, and say in one line what became of it."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import viewfuse.errors
from viewfuse.errors import DataError
from viewfuse.io.isolated.jobs import ENDED, ENDINGS, LENGTH, RESULT, ReadJob, Unpacked, limits_of
from viewfuse.io.safety import guarded
from viewfuse.io.source import Contents
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Advice, Setting, from_plain

POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds")
"""Whether this system can; elsewhere files are read in place."""
_PROGRAM = "import sys; from viewfuse.io.isolated.server import main; main(int(sys.argv[1]), *sys.argv[2:])"
_SETTINGS = {
    "OMP_NUM_THREADS": "1",  # a process that forks must have no threads
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve more than the limit on memory
}
_PATIENCE = 30.0
"""Seconds after the end of a reader's time in which the server should have reported it."""
_TIME = (signal.SIGXCPU, signal.SIGALRM) if POSSIBLE else ()


class _ReaderProcess:
    """The other process; it ends when this object or this process does."""

    def __init__(self, soon: Collection[str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *soon]
            nothing: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            self._process = subprocess.Popen(
                command, **nothing, pass_fds=[theirs.fileno()], env=_environment(), start_new_session=True
            )

    def send(self, job: ReadJob) -> socket.socket:
        """Begin a job; what comes of it comes from the socket."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [bytes([ENDINGS.index(job.ending)])], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def close(self) -> None:
        """Let the process end, whatever it does."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def forget(self) -> None:
        """Let it end without waiting, or leave it to the process that this one was forked from."""
        self._control.close()
        self._process.returncode = 0


def _environment() -> dict[str, str]:
    """Modules are looked for where this process looks for them."""
    own = str(Path(viewfuse.errors.__file__).parents[1])
    path = os.pathsep.join([own, *(place for place in sys.path if place)])
    return {**os.environ, **_SETTINGS, "PYTHONPATH": path}


_server: _ReaderProcess | None = None
_lock = threading.Lock()


def start(endings: Collection[str] = ()) -> None:
    """Start the other process before it is needed, so that both import at the same time."""
    global _server
    if not POSSIBLE:
        return
    with _lock:
        if _server is None:
            _server = _ReaderProcess(endings)


def stop() -> None:
    """End the other process; the next file starts another one."""
    global _server
    with _lock:
        found, _server = _server, None
    if found is not None:
        found.close()


def _forget() -> None:
    """Leave the server to the parent in a forked process; at exit do not wait for it."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.forget()
    _server = None


atexit.register(_forget)
if POSSIBLE:
    os.register_at_fork(after_in_child=_forget)


def read_isolated(job: ReadJob) -> Contents:
    """The views of a file, read by another process; what goes wrong there is an error that names the file."""
    answer, handles = _ask(job) or _ask(job) or (b"", [])  # an idle server ends by itself
    try:
        return _understood(job, answer, handles)
    finally:
        for handle in handles:
            os.close(handle)


def _ask(job: ReadJob) -> tuple[bytes, list[int]] | None:
    """All that comes back about a job, and files with it; None where the server is gone."""
    try:
        start([job.ending])
        with _lock:
            if _server is None:
                return None
            channel = _server.send(job)
        with channel:
            found = _listen(channel, job)
    except OSError:
        found = None
    except BaseException:  # the caller stopped waiting, so the reader stops as well
        stop()
        raise
    if found is None:
        stop()
    return found


def _listen(channel: socket.socket, job: ReadJob) -> tuple[bytes, list[int]] | None:
    limits = limits_of(job.path)
    channel.settimeout(limits.wall + _PATIENCE)  # the kernel has ended the reader long before
    text = job.as_json(limits)
    channel.sendall(LENGTH.pack(len(text)) + text)
    answer, handles = b"", []
    while part := socket.recv_fds(channel, RESULT.size + ENDED.size, 253):
        handles += part[1]
        answer += part[0]
        if not part[0] or len(answer) > RESULT.size + ENDED.size:
            break
    return (answer, handles) if answer else None


def _understood(job: ReadJob, answer: bytes, handles: list[int]) -> Contents:
    """What was read; or an error, where the other process found one, or met its end."""
    if not answer:
        raise DataError(
            f"{job.path} cannot be read, since the process that reads files does not start",
            Advice(("; ", Setting("trusted", True), " reads it in this process")),
        )
    status = ENDED.unpack(answer[-ENDED.size :])[1] if len(answer) >= ENDED.size else -1
    if status or len(answer) != RESULT.size + ENDED.size or not handles:
        raise _ended(job, status)
    found = Unpacked(handles, *RESULT.unpack(answer[: RESULT.size])[1:])
    if "error" in found.facts:
        name, parts = found.facts["error"]
        raise getattr(viewfuse.errors, name)(*from_plain(parts))
    for name, parts in found.facts["warnings"]:
        warn(getattr(viewfuse.errors, name)(*from_plain(parts)))
    with guarded(job.path):  # a reader that a damaged file has misled may hand back what does not fit together
        return found.contents(job.path)


def _ended(job: ReadJob, status: int) -> DataError:
    """The error of a process that ended before it had read its file."""
    number = os.WTERMSIG(status) if status > 0 and os.WIFSIGNALED(status) else 0
    if number in _TIME:
        return DataError(
            f"{job.path} was not read in {limits_of(job.path).cpu} s of computing, so it seems to be a damaged "
            f"{job.ending} file; write it again",
            Advice((", or if it is in order, ", Setting("trusted", True), " reads it without limits")),
        )
    how = signal.Signals(number).name if number else "without a signal"
    return DataError(
        f"{job.path} is no readable {job.ending} file (it made the library that reads such files crash, {how}); "
        "write it again"
    )
