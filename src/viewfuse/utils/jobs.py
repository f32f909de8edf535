"""CPU threads and devices, and independent jobs, in turn or side by side through joblib with the same results."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache, partial
from itertools import islice
from math import inf
from numbers import Integral
from typing import Any, TypeVar

import joblib
import torch
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

from viewfuse.errors import SettingError, WorkerLost
from viewfuse.utils.settings import Setting, wrong

_TRIES_ALONE = 2
"""How often a job is tried again whose worker ended: with no other job beside it, which may have taken the memory."""
A = TypeVar("A")
B = TypeVar("B")
_FEW = 1_000
_MOST_THREADS = 2
"""Of one training: its products are small, and two threads take 1.7 times the computing of one for the same step."""
Jobs = Iterator[tuple[int, tuple[Any, ...]]]
"""Places and arguments."""
Outcome = tuple[int, Any, BaseException | None, tuple[tuple[Any, ...], ...]]
"""The place of a job, its result or its error, and warnings as `warnings.warn_explicit` takes them."""
Outcomes = Generator[Outcome, None, None]
_this_thread = threading.local()
_limiting = threading.RLock()
"""Libraries have one number of threads for the whole process: threads of Python that set it take turns."""


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

    def handed_out() -> Jobs:
        for place, args in enumerate(arguments):
            if not failed:
                begun(place)
                yield place, args

    count = worker_count(n_jobs)
    if count == 1 or len(arguments) < 2:
        for place, args in handed_out():
            keep(place, _called(function, threads, args))
        return [results[place] for place in range(len(arguments))]
    # threads of this process need no limit of their own where this one waits for them under the same limit
    beside = None if threads == getattr(_this_thread, "limit", None) else threads
    outcomes = _outcomes(partial(_apart, function, (threads, beside), os.getpid()), handed_out(), n_jobs, count)
    try:
        for place, result, error, notices in outcomes:
            for notice in notices:
                warnings.warn_explicit(*notice)
            if error is None:
                keep(place, result)
            else:  # after an interruption the jobs beside it come to their own end
                failed[inf if isinstance(error, KeyboardInterrupt) else place] = error
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


def _called(function: Callable[..., Any], threads: int | None, args: tuple[Any, ...]) -> Any:
    try:
        with limited(threads):
            return function(*args)
    except SystemExit as ended:
        raise WorkerLost(f"a job called sys.exit({ended.code!r}) before it was done") from ended


def _apart(
    function: Callable[..., Any], threads: tuple[int | None, int | None], owner: int, place: int, args: tuple[Any, ...]
) -> Outcome:
    """Call a function for another process; errors and warnings travel there with the result.

    `threads` are those of a job in a process of its own, and of one in a thread of the owner.
    """
    result: Any = None
    error: BaseException | None = None
    in_thread = os.getpid() == owner  # of that process, which gets warnings by itself
    if not in_thread:
        _belong_to(owner)
    with nullcontext() if in_thread else warnings.catch_warnings(record=True) as noticed:
        if not in_thread:
            warnings.simplefilter("always")
        try:
            result = _called(function, threads[in_thread], args)
        except KeyboardInterrupt:
            error = KeyboardInterrupt()
        except Exception as raised:
            raised.add_note("in a worker:\n" + traceback.format_exc())
            error = raised.with_traceback(None)
            try:
                pickle.loads(pickle.dumps(error))
            except Exception as reason:  # some can be written and not be read
                error = RuntimeError(f"a worker cannot hand back {error!r} ({reason})")
    notices = tuple((one.message, one.category, one.filename, one.lineno) for one in noticed or ())
    return place, result, error, notices


def _outcomes(call: Callable[..., Outcome], jobs: Jobs, n_jobs: int | None, count: int) -> Outcomes:
    """Yield the outcome of each job as it gets done; those that ran when a worker ended are tried again alone."""
    running: dict[int, tuple[Any, ...]] = {}

    def begun() -> Jobs:
        for place, args in jobs:
            running[place] = args
            yield place, args

    left = begun()
    while True:
        try:
            for outcome in _streamed(call, left, n_jobs, count):
                del running[outcome[0]]
                yield outcome
            return
        except BrokenProcessPool:
            for place in sorted(running):
                lost = f"a worker process was lost {_TRIES_ALONE + 1} times, perhaps for want of memory"
                error = WorkerLost(f"{lost}; use fewer jobs, such as ", Setting("n_jobs", 1))
                again, outcome = running.pop(place), (place, None, error, ())
                for _ in range(_TRIES_ALONE):
                    with suppress(BrokenProcessPool):
                        (outcome,) = _streamed(call, iter([(place, again)]), n_jobs, 1)
                        break
                yield outcome


def _streamed(call: Callable[..., Outcome], jobs: Jobs, n_jobs: int | None, count: int) -> Outcomes:
    """Yield the outcome of each job as it gets done."""
    how: dict[str, Any] = {"n_jobs": n_jobs, "batch_size": 1, "pre_dispatch": "n_jobs", "mmap_mode": "c"}
    if get_active_backend()[0].supports_return_generator:
        calls = (joblib.delayed(call)(place, args) for place, args in jobs)
        yield from joblib.Parallel(return_as="generator_unordered", **how)(calls)
        return
    with joblib.Parallel(**how) as parallel:  # Ray: results come by portions, and arrays that are not wrapped read-only
        while portion := list(islice(jobs, count)):
            wrapped = ((place, joblib.wrap_non_picklable_objects(args, keep_wrapper=False)) for place, args in portion)
            yield from parallel(joblib.delayed(call)(place, args) for place, args in wrapped)


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


def usable_cores() -> int:
    """Count the cores for this process: torch's threads (OMP_NUM_THREADS), or fewer in a container or under taskset."""
    return max(1, min(torch.get_num_threads(), joblib.cpu_count()))


def threads_for(n_starts: int, n_samples: int) -> int:
    """Return the threads of each training of a fit with so many starts; the same for every `n_jobs`.

    Small sets have one: two gain 10 to 15 % on quiet cores, but take up to 5 times as long beside another program.
    """
    return threads_around(n_samples) or max(1, min(_MOST_THREADS, usable_cores() // n_starts))


def threads_around(n_samples: int) -> int | None:
    """Return the threads of what a fit does beside training: one for few samples, None for all.

    The pieces are too small to share: on x86, fits of 150 to 544 samples take .91 of the time of two threads.
    """
    return 1 if n_samples < _FEW else None


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit torch and the libraries of numpy and scikit-learn to so many threads; None changes nothing."""
    if threads is None:
        yield
        return
    found: list[int] = []
    with _limiting:
        # a thread that first used torch under another's limit knows fewer threads than this process has
        asked = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        asked.start()
        asked.join()
        torch.set_num_threads(threads)
        before, _this_thread.limit = getattr(_this_thread, "limit", None), threads
        try:
            with _libraries(len(sys.modules)).limit(limits=threads):
                yield
        finally:
            torch.set_num_threads(found[0])
            _this_thread.limit = before


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded libraries that have threads, again after imports: a search takes as long as a small step."""
    return ThreadpoolController()


def side_by_side(work: Callable[[A], B], items: Iterable[A], *, share: int = 1) -> Iterator[B]:
    """Yield `work(item)` in the order of the items; as many threads work as torch has, with one thread of torch each.

    Inside of `work` itself the items are worked on in turn, since all threads are taken. `share` says how many threads
    one item counts for; where items take much memory, fewer are worked on at a time.
    """
    if getattr(_this_thread, "is_taken", False):
        yield from map(work, items)
        return
    threads = usable_cores()
    count = max(1, threads // share)
    source = iter(items)
    with limited(threads // count), ThreadPoolExecutor(count, initializer=_take_thread) as pool:
        waiting: list[Future[B]] = [pool.submit(work, item) for item in islice(source, count)]
        while waiting:
            try:
                yield waiting.pop(0).result()
            except BaseException:
                pool.shutdown(cancel_futures=True)  # the others are not needed where one failed
                raise
            waiting += [pool.submit(work, item) for item in islice(source, 1)]


def _take_thread() -> None:
    _this_thread.is_taken = True


def turns(device: torch.device) -> AbstractContextManager[Any]:
    """Return what a thread holds while it computes: a lock for a GPU, which threads share; nothing on a CPU."""
    return nullcontext() if device.type == "cpu" else threading.Lock()


def ahead(items: Iterable[A]) -> Iterator[A]:
    """Yield the items; another thread makes the next one while the last one is used."""
    source = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, islice(source, 1))
        while item := waiting.result():
            waiting = pool.submit(list, islice(source, 1))
            yield item[0]


def chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"device {name!r} cannot be used here ({reason}); try ", Setting("device", "auto")) from None
    return torch.device(device.type, device.index or 0) if device.type == "cuda" else device
