"""The process that reads files for another one: it imports what a format needs once, and forks for every file.

Each file has a socket of its own. The forked process reads the job from it, sends what it found and ends; then the
server sends how it ended. So a damaged file that crashes a library only crashes the forked process.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import warnings
from contextlib import suppress
from typing import Any

from viewfuse.errors import NotEnoughMemory, ViewfuseError
from viewfuse.io.isolated.jobs import ENDED, LENGTH, RESULT, Packed, ReadingLimits, ReadJob, impose
from viewfuse.io.isolated.process import ENDINGS
from viewfuse.io.readers import parse
from viewfuse.utils.settings import Advice, Setting, as_plain

_IDLE = 60.0
"""Seconds without a job after which the server goes."""
_IMPORTS = {
    ".npz": (),
    ".mat": ("viewfuse.io.readers.mat", "h5py"),
    ".parquet": ("pyarrow.parquet", "pyarrow.compute"),
    ".h5ad": ("anndata.io", "h5py"),
    ".h5mu": ("anndata.io", "h5py"),
}


def main(control: int, *soon: str) -> None:
    """Serve until the other end of the socket `control` is closed; formats in `soon` are needed soon."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client is interrupted, and closes its end
    _prepare(*soon)
    _Server(socket.socket(fileno=control)).run()
    os._exit(0)  # tidying up after large packages takes a while, for nothing


def _prepare(*endings: str) -> None:
    """Import what formats need; the reader reports a package that is missing."""
    for name in (name for ending in endings for name in _IMPORTS[ending]):
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, socket.socket] = {}
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)

    def run(self) -> None:
        """Serve."""
        while True:
            waiting: list[Any] = [self._control, self._woken]
            ready = select.select(waiting, [], [], None if self._workers else _IDLE)[0]
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()
            is_asked = self._control in ready
            if (is_asked and not self._accept()) or not (ready or self._workers):
                break
        for worker in self._workers:
            os.kill(worker, signal.SIGKILL)

    def _accept(self) -> bool:
        """Start a job; False if the client is gone."""
        kind, handles, _, _ = socket.recv_fds(self._control, 1, 1)
        if not kind or not handles:
            return False
        _prepare(ENDINGS[kind[0]])
        channel = socket.socket(fileno=handles[0])
        worker = os.fork()
        if not worker:
            self._control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(channel)
        self._workers[worker] = channel
        return True

    def _reap(self) -> None:
        """Tell how jobs have ended."""
        while self._workers:
            worker, status = os.waitpid(-1, os.WNOHANG)
            if not worker:
                return
            with self._workers.pop(worker) as channel, suppress(OSError):
                channel.sendall(ENDED.pack(b"E", status))


def _work(channel: socket.socket) -> None:
    """Read one file and end this process."""
    code = 1
    try:
        job, limits = ReadJob.from_json(_receive(channel))
        impose(ReadingLimits(*limits))
        packed = Packed()
        start, length = packed.close_with(_outcome(job, packed))
        socket.send_fds(channel, [RESULT.pack(b"R", start, length)], packed.files)
        code = 0
    finally:
        os._exit(code)


def _receive(channel: socket.socket) -> bytes:
    """A text with its length before it."""
    with channel.makefile("rb") as file:
        return file.read(*LENGTH.unpack(file.read(LENGTH.size)))


def _outcome(job: ReadJob, packed: Packed) -> dict[str, Any]:
    """What was read, and warned of; or what is wrong."""
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            facts = packed.contents(parse(job))
    except NotEnoughMemory as error:
        advice = Advice(("; ", Setting("trusted", True), " reads it without limits"))
        return {"error": ["NotEnoughMemory", as_plain((*error.parts, advice))]}
    except MemoryError:
        return {"error": ["NotEnoughMemory", [f"{job.path} does not fit into memory; choose fewer columns"]]}
    except ViewfuseError as error:
        return {"error": [type(error).__name__, as_plain(error.parts)]}
    ours = [(one.category.__name__, getattr(one.message, "parts", None)) for one in noticed]
    return {"contents": facts, "warnings": [[name, as_plain(parts)] for name, parts in ours if parts]}
