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
from viewfuse.io.isolated.jobs import ENDED, START, ReadJob, impose, new_file, pack
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
    _prepare(*soon)
    asked = socket.socket(fileno=control)
    readers: dict[int, tuple[int, socket.socket]] = {}  # by the pipe that closes when one ends
    while ready := select.select([control, *readers], [], [], None if readers else _IDLE)[0]:
        for end in readers.keys() & ready:
            reader, channel = readers.pop(end)
            os.close(end)
            with channel, suppress(OSError):
                channel.sendall(ENDED.pack(os.waitpid(reader, 0)[1]))
        if control not in ready:
            continue
        kind, handles, _, _ = socket.recv_fds(asked, 1, 1)
        if not kind or not handles:  # the client is gone, and needs none of the files that are still being read
            os.killpg(0, signal.SIGKILL)
        _prepare(ENDINGS[kind[0]])
        channel, (end, held) = socket.socket(fileno=handles[0]), os.pipe()
        reader = os.fork()
        if not reader:
            asked.close()
            _work(channel)
        os.close(held)
        readers[end] = reader, channel
    os._exit(0)  # tidying up after large packages takes a while, for nothing


def _prepare(*endings: str) -> None:
    """Import what formats need; the reader reports a package that is missing."""
    for name in (name for ending in endings for name in _IMPORTS[ending]):
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


def _work(channel: socket.socket) -> None:
    """Read one file and end this process."""
    code = 1
    try:
        with channel.makefile("rb") as file:
            job, limits = ReadJob.from_json(file.read())
        impose(limits)
        found = new_file()
        try:
            start, files = pack(found, _outcome(job))
        except MemoryError:
            fault = f"{job.path} does not fit into memory; choose fewer columns"
            start, files = pack(found, {"error": ["NotEnoughMemory", [fault]]})
        socket.send_fds(channel, [START.pack(start)], files)
        code = 0
    finally:
        os._exit(code)


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
