"""Independent jobs, in turn or side by side through joblib: results, errors and warnings are the same."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import islice
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

import joblib
from joblib.parallel import get_active_backend

from viewfuse.errors import WorkerLost
from viewfuse.utils.settings import wrong
from viewfuse.utils.threads import limited

_TRIES_ALONE = 2
"""How often a job is tried again whose worker ended: with no other job beside it, which may have taken the memory."""


def run_jobs(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    n_jobs: int | None = None,
    *,
    threads: int | None = 1,
    begun: Callable[[int], None] = lambda place: None,
    done: Callable[[int, Any], None] = lambda place, result: None,
) -> list[Any]:
    """Call a function with each tuple of arguments; return the results in the same order.

    The error of the first job that fails is raised, also where a later one failed sooner.

    Parameters
    ----------
    n_jobs : worker processes; -1 is one per core, 1 a plain loop in this process. None is a plain loop, too, unless a
        ``joblib.parallel_config`` is active, which may bring jobs to Ray or Dask. Jobs of a job run in a plain loop.
    threads : CPU threads of each job wherever it runs, as sums round differently with another number; None leaves all
    begun : called in this process with the place of each job when it is handed out
    done : called in this process with the place and the result of each job as soon as it is done
    """
    results: dict[int, Any] = {}
    failed: dict[float, BaseException] = {}

    def keep(place: int, result: Any) -> None:
        results[place] = result
        done(place, result)

    def handed_out() -> Iterator[tuple[int, tuple[Any, ...]]]:
        for place, args in enumerate(arguments):
            if not failed:
                begun(place)
                yield place, args

    call, count = _Call(function, threads), worker_count(n_jobs)
    if count == 1 or len(arguments) < 2:
        for place, args in handed_out():
            keep(place, call(*args))
        return [results[place] for place in range(len(arguments))]
    outcomes = _outcomes(call, handed_out(), n_jobs, count)
    try:
        for place, outcome in outcomes:
            for notice in outcome.notices:
                warnings.warn_explicit(*notice)
            if outcome.error is None:
                keep(place, outcome.result)
            else:  # after an interruption the jobs beside it come to their own end
                failed[inf if isinstance(outcome.error, KeyboardInterrupt) else place] = outcome.error
            if failed and sum(place < min(failed) for place in results) == min(failed):
                break
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib says that it ends jobs which are not needed
            outcomes.close()
    if failed:
        raise failed[min(failed)]
    return [results[place] for place in range(len(arguments))]


def worker_count(n_jobs: int | None) -> int:
    """Return how many workers joblib would use; 1 is a plain loop in this process."""
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise wrong("n_jobs", "None or an integer other than 0, -1 for one per core", n_jobs)
    return 1 if get_active_backend()[0].nesting_level else joblib.effective_n_jobs(n_jobs)


class _Outcome(NamedTuple):
    """What a job gave: a result or an error, and warnings as `warnings.warn_explicit` takes them."""

    result: Any = None
    error: BaseException | None = None
    notices: tuple[tuple[Any, ...], ...] = ()


class _Call:
    """A function that is called with a number of threads, in this process or in another one."""

    def __init__(self, function: Callable[..., Any], threads: int | None) -> None:
        self._function, self._threads, self._owner = function, threads, os.getpid()

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        try:
            with limited(self._threads):
                return self._function(*args)
        except SystemExit as ended:
            raise WorkerLost(f"a job called sys.exit({ended.code!r}) before it was done") from ended

    def apart(self, place: int, args: tuple[Any, ...]) -> tuple[int, _Outcome]:
        """Call the function for another process; errors and warnings travel there with the result."""
        if os.getpid() == self._owner:  # in a thread of that process, which gets warnings by itself
            return place, self._outcome(args)
        _belong_to(self._owner)
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            outcome = self._outcome(args)
        notices = tuple((one.message, one.category, one.filename, one.lineno) for one in noticed)
        return place, outcome._replace(notices=notices)

    def _outcome(self, args: tuple[Any, ...]) -> _Outcome:
        try:
            return _Outcome(self(*args))
        except KeyboardInterrupt:
            return _Outcome(error=KeyboardInterrupt())
        except Exception as raised:
            raised.add_note("in a worker:\n" + traceback.format_exc())
            error = raised.with_traceback(None)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception as reason:  # some can be written and not be read
            error = RuntimeError(f"a worker cannot hand back {error!r} ({reason})")
        return _Outcome(error=error)


def _outcomes(
    call: _Call, jobs: Iterator[tuple[int, tuple[Any, ...]]], n_jobs: int | None, count: int
) -> Generator[tuple[int, _Outcome], None, None]:
    """Yield place and outcome of each job as it gets done; those that ran when a worker ended are tried again alone."""
    running: dict[int, tuple[Any, ...]] = {}

    def begun() -> Iterator[tuple[int, tuple[Any, ...]]]:
        for place, args in jobs:
            running[place] = args
            yield place, args

    left = begun()
    while True:
        try:
            for place, outcome in _streamed(call, left, n_jobs, count):
                del running[place]
                yield place, outcome
            return
        except BrokenProcessPool:
            for place in sorted(running):
                yield place, _alone(call, place, running.pop(place), n_jobs)


def _streamed(
    call: _Call, jobs: Iterator[tuple[int, tuple[Any, ...]]], n_jobs: int | None, count: int
) -> Iterator[tuple[int, _Outcome]]:
    """Yield place and outcome of each job as it gets done."""
    how: dict[str, Any] = {"n_jobs": n_jobs, "batch_size": 1, "pre_dispatch": "n_jobs", "mmap_mode": "c"}
    if get_active_backend()[0].supports_return_generator:
        calls = (joblib.delayed(call.apart)(place, args) for place, args in jobs)
        yield from joblib.Parallel(return_as="generator_unordered", **how)(calls)
        return
    with joblib.Parallel(**how) as parallel:  # Ray: results come by portions, and arrays that are not wrapped read-only
        while portion := list(islice(jobs, count)):
            wrapped = ((place, joblib.wrap_non_picklable_objects(args, keep_wrapper=False)) for place, args in portion)
            yield from parallel(joblib.delayed(call.apart)(place, args) for place, args in wrapped)


def _alone(call: _Call, place: int, args: tuple[Any, ...], n_jobs: int | None) -> _Outcome:
    """Try a job again whose worker ended, in a worker beside which no other one works."""
    for _ in range(_TRIES_ALONE):
        try:
            ((_, outcome),) = _streamed(call, iter([(place, args)]), n_jobs, 1)
            return outcome
        except BrokenProcessPool:
            continue
    lost = f"a worker process was lost {_TRIES_ALONE + 1} times, perhaps for want of memory"
    return _Outcome(error=WorkerLost(f"{lost}; use fewer jobs, such as n_jobs=1 or --jobs 1"))


@cache
def _belong_to(owner: int) -> None:
    """Let this worker end with the process that started it, and leave Ctrl-C to that one."""
    if os.getppid() != owner:  # a worker of Ray or Dask
        return

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
