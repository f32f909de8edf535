"""Jobs on a Ray cluster: one task each, begun again where a worker is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from viewfuse.errors import SettingError, WorkerLost
from viewfuse.parallel.engines import work_in_turn
from viewfuse.parallel.jobs import Job, Listener, Outcome, module_path, perform_apart
from viewfuse.utils.optional import needed
from viewfuse.utils.settings import Setting

RETRIES = 2
"""How often a task is begun again whose worker was lost."""
_OFTEN = 0.2


class OnRay:
    """A connection to a cluster, or a Ray that was started for this process."""

    def __init__(self, address: str | None = None) -> None:
        self._ray = needed("ray", "ray", Setting("engine", "ray"))
        self._own = not self._ray.is_initialized()
        if self._own:
            self._connect(address)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cpus, self._gpus = (max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU"))

    def _connect(self, address: str | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": "error"}
        try:
            if address not in (None, "auto"):
                self._ray.init(address=address, **quiet)
                return
            try:
                self._ray.init(address="auto", **quiet)
            except ConnectionError:
                here = {"env_vars": {"PYTHONPATH": module_path()}}
                self._ray.init(address="local", include_dashboard=False, runtime_env=here, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SettingError(f"Ray at {address!r} does not answer ({reason}); see `ray status` there") from error

    def as_done(
        self, jobs: Sequence[Job], listener: Listener | None, stopping: Callable[[], bool] | None
    ) -> Iterator[tuple[int, Any]]:
        """Place and result of each job, as they get done; raises the error of the first that failed."""
        shared: dict[int, Any] = {}
        places = {self._begin(job, shared): place for place, job in enumerate(jobs)}
        failed: dict[int, BaseException] = {}
        try:
            while places:
                done, _ = self._ray.wait(list(places), num_returns=1, timeout=_OFTEN)
                if stopping is not None and stopping():
                    self._let_end(places)
                    raise KeyboardInterrupt
                for place, outcome in [(places.pop(one), self._outcome(one)) for one in done]:
                    if listener is not None:
                        for news in outcome.news:
                            listener(news)
                    try:
                        result = outcome.unwrapped()
                    except Exception as error:
                        failed[place] = error
                        self._cancel([one for one, other in places.items() if other > place])
                        places = {one: other for one, other in places.items() if other < place}
                        continue
                    yield place, result
            if failed:
                raise failed[min(failed)]
        finally:
            self._cancel(list(places))

    def _begin(self, job: Job, shared: dict[int, Any]) -> Any:
        """A task for a job; what several jobs have among their arguments travels once."""
        if job.gpus > self._gpus:
            raise SettingError("no machine of the Ray cluster has a GPU; use ", Setting("device", "cpu"))
        for arg in job.args:
            if id(arg) not in shared:
                shared[id(arg)] = self._ray.put(self._ray.cloudpickle.dumps(arg))
        rest = self._ray.cloudpickle.dumps(job.function)
        facts = (job.threads, job.gpus)
        asked = {"num_cpus": min(job.threads or 1, self._cpus), "num_gpus": job.gpus, "max_retries": RETRIES}
        task = self._ray.remote(_task).options(**asked)
        return task.remote(facts, rest, *(shared[id(arg)] for arg in job.args))

    def _outcome(self, task: Any) -> Outcome:
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.cloudpickle.loads(self._ray.get(task))
        except RayTaskError as error:  # before the job began, such as for want of a package there
            return Outcome(error=error.cause)
        except RayError as error:
            reason = (str(error).splitlines() or [""])[0]
            return Outcome(error=WorkerLost(f"a worker of Ray was lost {RETRIES + 1} times: {reason}"))

    def _let_end(self, tasks: dict[Any, int]) -> None:
        """Interrupt the tasks, and wait until all have ended."""
        for task in tasks:
            self._ray.cancel(task, force=False)
        self._ray.wait(list(tasks), num_returns=len(tasks))
        tasks.clear()

    def _cancel(self, tasks: Sequence[Any]) -> None:
        for task in tasks:
            self._ray.cancel(task, force=True)

    def close(self) -> None:
        """Leave the cluster; a Ray that was started for this process ends."""
        if self._own:
            self._ray.shutdown()


def _task(facts: tuple[int | None, int], function: bytes, *args: bytes) -> bytes:
    """Runs in a worker of Ray; arrays come out of a pickle of their own, so that they can be written to."""
    from ray import cloudpickle

    work_in_turn()
    job = Job(cloudpickle.loads(function), tuple(cloudpickle.loads(arg) for arg in args), *facts)
    news: list[Any] = []
    outcome = perform_apart(job, news.append)
    text: bytes = cloudpickle.dumps(replace(outcome, news=tuple(news)))
    return text
