"""The process that reads files for another one: it imports what a format needs once, and forks for every file.

Each file has a socket of its own, and two processes: one reads the job from the socket, sends what it found and ends;
its parent then sends how it ended. So a damaged file that crashes a library only crashes the process that reads it.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import warnings
from contextlib import suppress
from typing import Any

from viewfuse.errors import NotEnoughMemory, ViewfuseError
from viewfuse.io.isolated.jobs import ENDED, LENGTH, RESULT, Packed, ReadJob, impose
from viewfuse.io.isolated.process import ENDINGS
from viewfuse.io.readers import parse
from viewfuse.utils.settings import Advice, Setting

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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _prepare(*soon)
    asked = socket.socket(fileno=control)
    asked.settimeout(_IDLE)
    with suppress(TimeoutError):
        while True:
            kind, handles, _, _ = socket.recv_fds(asked, 1, 1)
            if not kind or not handles:  # the client is gone, and needs none of the files that are still being read
                os.killpg(0, signal.SIGKILL)
            _prepare(ENDINGS[kind[0]])
            if not os.fork():
                asked.close()
                _watch(socket.socket(fileno=handles[0]))
            os.close(handles[0])
    os._exit(0)  # tidying up after large packages takes a while, for nothing


def _prepare(*endings: str) -> None:
    """Import what formats need; the reader reports a package that is missing."""
    for name in (name for ending in endings for name in _IMPORTS[ending]):
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


def _watch(channel: socket.socket) -> None:
    """Let a process of its own read one file, report how that ended, and end this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reader = os.fork()
    try:
        if reader:
            channel.sendall(ENDED.pack(b"E", os.waitpid(reader, 0)[1]))
        else:
            with channel.makefile("rb") as file:
                job, limits = ReadJob.from_json(file.read(*LENGTH.unpack(file.read(LENGTH.size))))
            impose(limits)
            packed = Packed()
            try:
                where = packed.close_with(_outcome(job))
            except MemoryError:
                fault = f"{job.path} does not fit into memory; choose fewer columns"
                where = packed.close_with({"error": ["NotEnoughMemory", [fault]]})
            socket.send_fds(channel, [RESULT.pack(b"R", *where)], packed.files)
            os._exit(0)
    finally:
        os._exit(1)


def _outcome(job: ReadJob) -> dict[str, Any]:
    """What was read, and warned of; or what is wrong."""
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            contents = parse(job)
    except NotEnoughMemory as error:
        advice = Advice(("; ", Setting("trusted", True), " reads it without limits"))
        return {"error": ["NotEnoughMemory", (*error.parts, advice)]}
    except ViewfuseError as error:
        return {"error": [type(error).__name__, error.parts]}
    ours = [(one.category.__name__, getattr(one.message, "parts", None)) for one in noticed]
    return {"contents": contents, "warnings": [found for found in ours if found[1]]}
