"""What a job is, and how one is done: with its own number of threads, whoever does it.

Sums are rounded in another way with another number of threads. So a job has a number of threads that does not depend
on who runs it, and its result does not depend on that either.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

import viewfuse.errors

Listener = Callable[[Any], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_in_worker = False
_limiting = threading.RLock()
"""Libraries have one number of threads for the whole process: jobs of several threads that set it run in turn."""


@dataclass(frozen=True)
class Job:
    """A function with its arguments; it depends on nothing else, and can travel to another process.

    Attributes
    ----------
    function : of a module, or a method of an object that can be pickled
    threads : CPU threads that it has; None leaves as many as there are
    gpus : how many it needs; jobs with one run in this process or on Ray
    seconds : about how long it takes; workers are not started for short ones
    n_bytes : memory that it takes
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    threads: int | None = 1
    gpus: int = 0
    seconds: float = inf
    n_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a job, wherever it ran.

    Attributes
    ----------
    error : what it raised; None where it returned
    notices : its warnings, as `warnings.warn_explicit` takes them
    news : what it reported, where nobody listened
    """

    result: Any = None
    error: BaseException | None = None
    notices: tuple[tuple[Any, ...], ...] = ()
    news: tuple[Any, ...] = ()

    def unwrapped(self) -> Any:
        """The result; warns and raises here as the job did there."""
        for message, category, file, line in self.notices:
            warnings.warn_explicit(message, category, file, line)
        if self.error is not None:
            raise self.error
        return self.result


def perform(job: Job, listener: Listener | None = None) -> Any:
    """Do a job in this process; what it reports goes to the listener."""
    token = _listener.set(listener)
    try:
        with limited(job.threads):
            return job.function(*job.args)
    except SystemExit as ended:
        raise viewfuse.errors.WorkerLost(f"a job called sys.exit({ended.code!r}) before it was done") from ended
    finally:
        _listener.reset(token)


def perform_apart(job: Job, listener: Listener | None = None) -> Outcome:
    """Do a job in a process that is not the user's: errors and warnings are kept for that one."""
    global _in_worker
    _in_worker = True
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        try:
            result, error = perform(job, listener), None
        except (Exception, KeyboardInterrupt) as raised:
            raised.add_note("in a worker:\n" + traceback.format_exc())
            result, error = None, raised.with_traceback(None)
    notices = tuple((one.message, one.category, one.filename, one.lineno) for one in noticed)
    return Outcome(result, error, notices)


def in_worker() -> bool:
    """Whether this process does jobs for another one."""
    return _in_worker


def module_path() -> str:
    """Where this process looks for modules, so that another one can look there."""
    own = str(Path(viewfuse.errors.__file__).parents[1])
    return os.pathsep.join([own, *(place or str(Path.cwd()) for place in sys.path if isinstance(place, str))])


def report(news: Any) -> None:
    """Tell whoever waits for the job how far it is; small things only. On Ray that is told when the job is done."""
    listener = _listener.get()
    if listener is not None:
        listener(news)


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Inside, torch and the libraries of numpy and scikit-learn have so many threads; None leaves all as it is."""
    if threads is None:
        yield
        return
    with _limiting:
        before = _threads_of_a_new_thread()
        torch.set_num_threads(threads)
        try:
            with _libraries(len(sys.modules)).limit(limits=threads):
                yield
        finally:
            torch.set_num_threads(before)


def _threads_of_a_new_thread() -> int:
    """Threads that torch has in this process; a thread that first met torch while another limited it knows less."""
    found: list[int] = []
    asked = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    asked.start()
    asked.join()
    return found[0]


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Those with threads that were loaded with so many modules: to look for them takes as long as a small step."""
    return ThreadpoolController()
