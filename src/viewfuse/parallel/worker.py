"""A worker process: does one job after another for the process that started it, and ends with that one."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from viewfuse.parallel.engines import work_in_turn
from viewfuse.parallel.jobs import Job, Outcome, perform_apart
from viewfuse.parallel.parcels import unpacked

REPORT, DONE, REFUSED = "report", "done", "refused"


def main(channel: int, lifeline: int) -> None:
    """Serve until the other end of `channel` is closed, or until an interruption while there is nothing to do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background may have begun without
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    work_in_turn()
    connection = Connection(channel)
    try:
        while True:
            _serve(connection, *connection.recv())
    except (EOFError, OSError, KeyboardInterrupt):
        os._exit(0)


def _end_with(lifeline: int) -> None:
    """Wait until the other process is gone, also if it was killed; then nobody waits for this one's work."""
    os.read(lifeline, 1)
    os._exit(1)


def _serve(connection: Connection[Any, Any], text: bytes, places: list[tuple[int, int]]) -> None:
    try:
        job = _unpacked(text, places, recv_handle(connection))
        outcome = perform_apart(job, lambda news: connection.send((REPORT, news)))
    except KeyboardInterrupt as before_it_began:
        outcome = Outcome(error=before_it_began)
    except _Unknown as error:
        connection.send((REFUSED, repr(error)))
        return
    connection.send((DONE, _pickled(outcome)))


class _Unknown(Exception):
    """The function of a job, or a class of its arguments, is not to be found here."""


def _unpacked(text: bytes, places: list[tuple[int, int]], handle: int) -> Job:
    try:
        job: Job = unpacked(text, places, handle)
    except Exception as error:
        raise _Unknown from error
    finally:
        os.close(handle)
    return job


def _pickled(outcome: Outcome) -> bytes:
    """The outcome, or that it cannot travel."""
    try:
        text = pickle.dumps(outcome, 5)
        if outcome.error is not None or outcome.notices:
            pickle.loads(text)  # errors may be pickled, and yet not be read again
    except Exception as error:
        what = repr(outcome.error) if outcome.error is not None else f"a {type(outcome.result).__name__}"
        return pickle.dumps(Outcome(error=RuntimeError(f"a worker cannot hand back {what} ({error})")))
    return text
