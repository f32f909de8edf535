"""Options that say how many runs go side by side, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from viewfuse.cli.options.numbers import Whole
from viewfuse.errors import SettingError
from viewfuse.utils.console import needed

_RETRIES = 2
"""How often Ray begins a job again whose worker was lost."""

jobs = click.option(
    "--jobs",
    "n_jobs",
    type=Whole(),
    metavar="N",
    default=None,
    help="Processes that work side by side on a CPU; -1 is one per core. By default one thing is done after the other.",
)
_ENGINE = (
    jobs,
    click.option("--engine", type=click.Choice(("local", "ray")), default="local", show_default=True,
                 help="Where the jobs run: on this machine, or on a Ray cluster."),
    click.option("--address", metavar="HOST:PORT",
                 help="Of the Ray cluster; auto finds one, or starts Ray here."),
)  # fmt: skip


def engine(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `on_engine` takes, and --jobs."""
    for option in reversed(_ENGINE):
        function = option(function)
    return function


@contextmanager
def on_engine(engine: str, address: str | None, device: str) -> Iterator[None]:
    """Run the jobs inside on this machine, or on a Ray cluster as a back end of joblib.

    Parameters
    ----------
    device : jobs on a GPU get one each
    """
    if engine == "local":
        if address is not None:
            raise SettingError("--address names a Ray cluster; add --engine ray, or leave it out")
        yield
        return
    ray = needed("ray", "ray", "--engine ray")
    is_own = not ray.is_initialized()
    if is_own:
        _connect(ray, None if address == "auto" else address)
    try:
        with _ray_config(ray, device):
            yield
    finally:
        if is_own:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster; without an address to that of RAY_ADDRESS or of this machine, or start one here."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(f"Ray at {address!r} does not answer ({reason}); see `ray status` there") from error


def _ray_config(ray: Any, device: str) -> Any:
    import joblib
    from ray.util.joblib import register_ray

    from viewfuse.utils.jobs import chosen_device

    register_ray()
    asked: dict[str, Any] = {"max_restarts": _RETRIES, "max_task_retries": _RETRIES}
    if chosen_device(device).type == "cpu":
        return joblib.parallel_config("ray", n_jobs=-1, ray_remote_args=asked)
    n_gpus = int(ray.cluster_resources().get("GPU", 0))
    if not n_gpus:
        raise SettingError("no machine of the Ray cluster has a GPU; use --device cpu")
    return joblib.parallel_config("ray", n_jobs=n_gpus, ray_remote_args={**asked, "num_gpus": 1})
