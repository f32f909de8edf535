"""Who runs jobs: this process, workers of this machine, or Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from viewfuse.errors import SettingError
from viewfuse.parallel.jobs import Job, Listener, perform
from viewfuse.utils.settings import Setting, wrong

ENGINES = ("local", "ray")


class Engine(Protocol):
    """Runs jobs, until it is closed."""

    def as_done(
        self, jobs: Sequence[Job], listener: Listener | None, stopping: Callable[[], bool] | None
    ) -> Iterator[tuple[int, Any]]:
        """Place and result of each job, as they get done; see `as_done`."""

    def close(self) -> None:
        """End all that it started."""


class InTurn:
    """One job after another, in this process."""

    def as_done(
        self, jobs: Sequence[Job], listener: Listener | None, stopping: Callable[[], bool] | None
    ) -> Iterator[tuple[int, Any]]:
        """Place and result of each job."""
        for place, job in enumerate(jobs):
            yield place, perform(job, listener)

    def close(self) -> None:
        """There is nothing to end."""


_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)


def work_in_turn() -> None:
    """From now on jobs of this process, which is a worker itself, run in turn."""
    _engine.set(InTurn())


@contextmanager
def use(engine: str = "local", *, jobs: int | None = None, address: str | None = None) -> Iterator[None]:
    """Inside, trainings and runs are done as it is said here; the results are the same.

    Parameters
    ----------
    engine : "local", worker processes of this machine; "ray", a cluster, or a Ray that is started here
    jobs : local workers; 1 runs everything in turn, None decides by cores, memory and the time that jobs will take
    address : of a Ray cluster, such as "auto" or "ray://head:10001"; where "auto" or None finds none, one is started

    Examples
    --------
    >>> from viewfuse import parallel
    >>> with parallel.use("local", jobs=1):
    ...     parallel.run([parallel.Job(pow, (2, k)) for k in range(4)])
    [1, 2, 4, 8]
    """
    own = _made(engine, jobs, address)
    token = _engine.set(own)
    try:
        yield
    finally:
        try:
            own.close()
        finally:
            _engine.reset(token)


def _made(engine: str, jobs: int | None, address: str | None) -> Engine:
    if engine not in ENGINES:
        raise wrong("engine", f"one of {', '.join(ENGINES)}", engine)
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise wrong("jobs", "an integer of at least 1, or None", jobs)
    if engine == "ray":
        from viewfuse.parallel.on_ray import OnRay

        if jobs is not None:
            raise SettingError(Setting("jobs"), " counts local workers; Ray knows how many it has, so leave it out")
        return OnRay(address)
    if address is not None:
        cluster, engine_of = Setting("address"), Setting("engine", "ray")
        raise SettingError(cluster, " names a Ray cluster; add ", engine_of, ", or leave it out")
    from viewfuse.parallel.workers import Workers

    return InTurn() if jobs == 1 else Workers(jobs)


@contextmanager
def opened() -> Iterator[None]:
    """Inside, workers that were started for some jobs stay for the next ones."""
    if _engine.get() is not None:
        yield
        return
    with use():
        yield


def as_done(
    jobs: Sequence[Job], *, listener: Listener | None = None, stopping: Callable[[], bool] | None = None
) -> Iterator[tuple[int, Any]]:
    """Place and result of each job, as they get done; what a job raises is raised.

    Parameters
    ----------
    listener : is given what jobs `report`
    stopping : whether somebody asked to stop, so that the jobs which run shall come to a good end
    """
    with opened():
        engine = _engine.get()
        assert engine is not None
        yield from engine.as_done(jobs, listener, stopping)


def run(
    jobs: Sequence[Job], *, listener: Listener | None = None, stopping: Callable[[], bool] | None = None
) -> list[Any]:
    """What the jobs return, in their order; the error of the first one that fails is raised."""
    found = dict(as_done(jobs, listener=listener, stopping=stopping))
    return [found[place] for place in range(len(jobs))]
