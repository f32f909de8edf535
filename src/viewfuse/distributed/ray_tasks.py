"""Independent pieces of work as tasks of Ray, which starts, places and repeats them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from viewfuse.utils.optional import needed

_RETRIES = 3
"""How often a task is begun again whose worker or machine was lost."""
Work = TypeVar("Work")
Found = TypeVar("Found")


def ray_outcomes(
    function: Callable[[Work], Found], works: Sequence[Work], *, num_gpus: float = 0
) -> Iterator[tuple[Work, Found]]:
    """What `function` gives for every piece of work, in the order in which it is done.

    A Ray that runs already, or that the variable RAY_ADDRESS names, is used; else one is started on this machine, and
    ended afterwards.

    Parameters
    ----------
    num_gpus : what every task asks for, where the cluster has any
    """
    with _cluster() as ray:
        gpus = num_gpus if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_RETRIES)(function)
        waiting = {task.remote(work): work for work in works}
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(ready), ray.get(ready)
        finally:
            for handle in waiting:  # somebody stopped early
                ray.cancel(handle)


@contextmanager
def _cluster() -> Iterator[Any]:
    ray = needed("ray", "ray", "engine='ray'")
    if ray.is_initialized():
        yield ray
        return
    ray.init(log_to_driver=False, configure_logging=False)
    try:
        yield ray
    finally:
        ray.shutdown()
