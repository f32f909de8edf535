"""Jobs in worker processes of this machine.

Workers are programs of their own, not forks: torch has threads, which do not survive a fork. They do not import the
user's script either, so that a script needs no `if __name__ == "__main__"`; a job that only the script knows is done in
this process.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from viewfuse.errors import WorkerLost
from viewfuse.parallel.cores import usable_cores
from viewfuse.parallel.engines import InTurn
from viewfuse.parallel.jobs import Job, Listener, Outcome, module_path, perform
from viewfuse.parallel.parcels import Parcel
from viewfuse.parallel.worker import DONE, REFUSED, REPORT
from viewfuse.utils import memory

POSSIBLE = hasattr(socket, "send_fds") and hasattr(os, "fork") and not getattr(sys, "frozen", False)
"""Whether this system can; elsewhere, and in programs that were frozen with their Python, jobs run in turn."""
RETRIES = 2
"""How often a job is begun again whose worker was lost."""
_WORTH = 10.0
"""Seconds that workers must save at least, as they take some to start."""
_WORKER_BYTES = 400 * 2**20
"""What a worker takes before its first job: Python, torch and the rest."""
_PROGRAM = "__import__('viewfuse.parallel.worker', fromlist=['main']).main(*map(int, __import__('sys').argv[1:]))"
"""It leaves no names in `__main__`, which a function of the user's script could be taken for."""
_OFTEN = 0.2
"""Seconds after which it is looked again whether somebody wants to stop."""


class Workers:
    """As many workers as pay, or as are asked for; they stay until it is closed."""

    def __init__(self, asked: int | None = None) -> None:
        self._asked, self._idle = asked, list[_Worker]()

    def as_done(
        self, jobs: Sequence[Job], listener: Listener | None, stopping: Callable[[], bool] | None
    ) -> Iterator[tuple[int, Any]]:
        """Place and result of each job, as they get done."""
        count = self.count(jobs)
        if count < 2:
            yield from InTurn().as_done(jobs, listener, stopping)
            return
        spread = _Spread(jobs, listener, stopping, self._idle, count)
        try:
            yield from spread.results()
        finally:
            spread.close()

    def count(self, jobs: Sequence[Job]) -> int:
        """How many workers these jobs get; fewer than two: none, and the jobs run in turn."""
        if not POSSIBLE or len(jobs) < 2 or any(job.gpus or job.threads is None for job in jobs):
            return 1
        most = self._asked or usable_cores() // max(job.threads or 1 for job in jobs)
        each = _WORKER_BYTES + max(job.n_bytes for job in jobs)
        count = max(1, min(most, len(jobs), memory.available() // each + len(self._idle)))
        saved = sum(job.seconds for job in jobs) * (1 - 1 / count)
        return count if self._asked or saved >= _WORTH else 1

    def close(self) -> None:
        """End the workers."""
        while self._idle:
            self._idle.pop().end()


class _Spread:
    """One list of jobs on its way through the workers."""

    def __init__(
        self,
        jobs: Sequence[Job],
        listener: Listener | None,
        stopping: Callable[[], bool] | None,
        idle: list[_Worker],
        count: int,
    ) -> None:
        self._jobs, self._listener, self._stopping = jobs, listener, stopping
        self._idle, self._count, self._parcel = idle, count, Parcel()
        self._waiting, self._busy = deque(range(len(jobs))), dict[_Worker, int]()
        self._lost, self._begun = [0] * len(jobs), set[int]()
        self._error: tuple[int, BaseException] | None = None
        self._stopped = False

    def results(self) -> Iterator[tuple[int, Any]]:
        """Place and result of each job; raises the error of the first job that failed, when those before are done."""
        while self._waiting or self._busy:
            while self._waiting and len(self._busy) < self._count and not self._stopped:
                yield from self._begin(self._waiting.popleft())
            if not self._busy:
                continue
            for worker in _ready(self._busy):
                if worker in self._busy:  # an error of a job before may have ended it just now
                    yield from self._heard(worker)
            self._look_whether_to_stop()
        if self._error is not None:
            raise self._error[1]

    def _begin(self, place: int) -> Iterator[tuple[int, Any]]:
        try:
            packed = self._parcel.packed(self._jobs[place])
            worker = self._idle.pop() if self._idle else _Worker()
        except Exception:  # it cannot travel, or nobody can be started
            yield from self._done_here(place)
            return
        self._busy[worker] = place
        with suppress(OSError):  # it is gone, which is found out when nothing comes back
            worker.send(packed, self._parcel.handle)

    def _heard(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        """Whatever a worker has to say."""
        try:
            kind, what = worker.receive()
        except (EOFError, OSError):
            yield from self._lose(worker)
            return
        if kind == REPORT:
            self._begun.add(self._busy[worker])
            if self._listener is not None:
                self._listener(what)
            return
        place = self._busy.pop(worker)
        self._idle.append(worker)
        if kind == REFUSED:
            yield from self._done_here(place)
        elif kind == DONE:
            yield from self._settled(place, pickle.loads(what))

    def _done_here(self, place: int) -> Iterator[tuple[int, Any]]:
        try:
            found = Outcome(perform(self._jobs[place], self._listener))
        except Exception as error:
            found = Outcome(error=error)
        yield from self._settled(place, found)

    def _settled(self, place: int, outcome: Outcome) -> Iterator[tuple[int, Any]]:
        if isinstance(outcome.error, KeyboardInterrupt):
            self._stopped = True
            self._fail(-1, outcome.error)
            return
        try:
            result = outcome.unwrapped()
        except Exception as error:
            self._fail(place, error)
            return
        yield place, result

    def _fail(self, place: int, error: BaseException) -> None:
        """Only the jobs before it are still of interest: one of them may fail as well, and then comes first."""
        if self._error is None or place < self._error[0]:
            self._error = (place, error)
        self._waiting = deque(one for one in self._waiting if one < place)
        for worker in [worker for worker, busy_with in self._busy.items() if busy_with > place >= 0]:
            del self._busy[worker]
            worker.kill()

    def _lose(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        """A worker ended that nobody asked to: its job is begun again, a few times."""
        place = self._busy.pop(worker)
        code = worker.kill()
        self._lost[place] += 1
        if self._stopped:
            return
        if self._lost[place] <= RETRIES:
            self._waiting.appendleft(place)
        elif code > 0 and place not in self._begun:  # nobody killed them: workers do not start here
            yield from self._done_here(place)
        else:
            self._fail(place, _lost_for_good(code))

    def _look_whether_to_stop(self) -> None:
        if self._stopping is not None and self._stopping() and not self._stopped:
            self._stopped = True
            self._fail(-1, KeyboardInterrupt())
            for worker in self._busy:
                worker.interrupt()

    def close(self) -> None:
        """End what still runs."""
        for worker in self._busy:
            worker.kill()
        self._parcel.close()


class _Worker:
    """A worker process, and the way to talk to it."""

    def __init__(self) -> None:
        (ours, theirs), (lifeline, self._lifeline) = socket.socketpair(), os.pipe()
        command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(lifeline)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), lifeline],
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the process that the user sees
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection: Connection[Any, Any] = Connection(ours.detach())

    def send(self, packed: tuple[Any, ...], file: int) -> None:
        """Begin a job."""
        self.connection.send(packed)
        send_handle(self.connection, file, self._process.pid)

    def receive(self) -> tuple[str, Any]:
        """The next thing that it says."""
        found: tuple[str, Any] = self.connection.recv()
        return found

    def interrupt(self) -> None:
        """Let it end its job as after Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Let it end, as it has nothing to do."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self.kill()

    def kill(self) -> int:
        """End it at once, if it has not ended yet; its exit code, negative where a signal ended it."""
        self._process.kill()
        code = self._process.wait()
        if not self.connection.closed:
            self.connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = -1
        return code


def _ready(busy: dict[_Worker, int]) -> list[_Worker]:
    """The workers that have something to say, after a moment at the latest."""
    by_connection = {worker.connection: worker for worker in busy}
    return [by_connection[one] for one in wait(list(by_connection), _OFTEN)]  # type: ignore[index]


def _lost_for_good(code: int) -> WorkerLost:
    how = signal.Signals(-code).name if code < 0 else "it ended by itself"
    return WorkerLost(
        f"a worker process was lost {RETRIES + 1} times ({how}), perhaps for want of memory; "
        "use fewer jobs, such as --jobs 1, or parallel.use('local', jobs=1) in Python"
    )


def _environment() -> dict[str, str]:
    """Threads that wait do not spin for long."""
    return {"GOMP_SPINCOUNT": "2000", **os.environ, "PYTHONPATH": module_path()}
