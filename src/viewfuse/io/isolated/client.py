"""Ask another process to read a file, and say in one line what became of it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import viewfuse.errors
from viewfuse.errors import DataError
from viewfuse.io.isolated import process
from viewfuse.io.isolated.jobs import ENDED, START, ReadJob, limits_of, unpack
from viewfuse.io.safety import guarded
from viewfuse.io.source import Contents, FileView
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Advice, Setting

_PATIENCE = 30.0
"""Seconds after the end of a reader's time in which the server should have reported it."""
_LENGTH = START.size + ENDED.size
"""Bytes of an answer; a reader that crashed leaves the first part out."""
_TIME = (signal.SIGXCPU, signal.SIGALRM) if process.POSSIBLE else ()


def read_isolated(job: ReadJob) -> Contents:
    """The views of a file, read by another process; what goes wrong there is an error that names the file."""
    with ExitStack() as handles:
        answer, files = _ask(job, handles) or _ask(job, handles) or (b"", [])  # an idle server ends by itself
        return _understood(job, answer, files)


def _ask(job: ReadJob, handles: ExitStack) -> tuple[bytes, list[int]] | None:
    """All that comes back about a job, and files with it, which `handles` closes; None where the server is gone."""
    answer, files = b"", list[int]()
    try:
        limits = limits_of(job.path)
        with process.send(job.ending) as channel:
            channel.settimeout(limits.wall + _PATIENCE)  # the kernel has ended the reader long before
            channel.sendall(job.as_json(limits))
            channel.shutdown(socket.SHUT_WR)
            while len(answer) <= _LENGTH and (part := socket.recv_fds(channel, _LENGTH, 253))[0]:
                answer, files = answer + part[0], files + part[1]
                for file in part[1]:
                    handles.callback(os.close, file)
        if answer:
            return answer, files
    except OSError:  # the next server may be able to
        pass
    except BaseException:  # the caller stopped waiting, so the reader stops as well
        process.stop()
        raise
    process.stop()
    return None


def _understood(job: ReadJob, answer: bytes, handles: list[int]) -> Contents:
    """What was read; or an error, where the other process found one, or met its end."""
    path, ending = job.path, job.ending
    if not answer:
        fault = f"{path} cannot be read, since the process that reads files does not start"
        raise DataError(fault, Advice(("; ", Setting("trusted", True), " reads it in this process")))
    status = ENDED.unpack(answer[-ENDED.size :])[0] if len(answer) >= ENDED.size else -1
    if status or len(answer) != _LENGTH or not handles:
        number = os.WTERMSIG(status) if status > 0 and os.WIFSIGNALED(status) else 0
        if number in _TIME:
            raise DataError(
                f"{path} was not read in {limits_of(path).cpu} s of computing, so it seems to be a damaged {ending} "
                "file; write it again",
                Advice((", or if it is in order, ", Setting("trusted", True), " reads it without limits")),
            )
        how = signal.Signals(number).name if number else "without a signal"
        fault = f"{path} is no readable {ending} file (it made the library that reads such files crash, {how})"
        raise DataError(f"{fault}; write it again")
    with guarded(path):  # a reader that a damaged file has misled may hand back what does not fit together
        facts = unpack(handles, *START.unpack(answer[: START.size]))
        if "contents" in facts:
            rest = facts["contents"]
            views = [FileView(**view | {"path": path}) for view in rest.pop("views")]
            contents = Contents(views, **rest)
    for name, parts in facts.get("warnings", ()):
        warn(_message(name, parts))
    if "error" in facts:
        raise _message(*facts["error"])
    return contents


def _message(name: str, parts: Sequence[Any]) -> Any:
    """An error or a warning of ours; a list within its parts was advice."""
    return getattr(viewfuse.errors, name)(*(Advice(part) if isinstance(part, list) else part for part in parts))
