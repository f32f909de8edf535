"""The process that reads files for this one, how it begins and ends. What imports this module may do without NumPy."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import viewfuse.errors

ENDINGS = (".npz", ".mat", ".parquet", ".h5ad", ".h5mu")
"""Files that native libraries read. Text is read by Python itself, and folders of arrays are memory-mapped."""
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


_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
"""What jobs are sent to, and the other process; it ends when either does, this one or that socket."""
_lock = threading.Lock()


def _started(soon: Collection[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    control, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *soon]
        nothing: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        # modules are looked for where this process looks for them
        own = str(Path(viewfuse.errors.__file__).parents[1])
        path = os.pathsep.join([own, *(place for place in sys.path if place)])
        env = {**os.environ, **_SETTINGS, "PYTHONPATH": path}
        return control, subprocess.Popen(
            command, **nothing, pass_fds=[theirs.fileno()], env=env, start_new_session=True
        )


def start(endings: Collection[str] = ()) -> None:
    """Start the other process before it is needed, so that both import at the same time."""
    global _server
    with _lock:
        if POSSIBLE and _server is None:
            _server = _started(endings)


def send(ending: str) -> socket.socket:
    """Begin to read a file; what comes of it comes from the socket. An OSError where the process is gone."""
    global _server
    with _lock:
        _server = _server or _started([ending])
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(_server[0], [bytes([ENDINGS.index(ending)])], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours


def stop() -> None:
    """End the other process, whatever it does; the next file starts another one."""
    global _server
    with _lock:
        found, _server = _server, None
    if found is not None:
        found[0].close()
        with suppress(subprocess.TimeoutExpired):
            found[1].wait(5)


def _forget() -> None:
    """Leave the other process to the parent in a forked one; at exit do not wait for it."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server[0].close()
        _server[1].returncode = 0
    _server = None


atexit.register(_forget)
if POSSIBLE:
    os.register_at_fork(after_in_child=_forget)
