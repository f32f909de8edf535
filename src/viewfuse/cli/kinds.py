"""Kinds of options: numbers in plain digits, several options as one argument, and where jobs run.

Python itself also takes 1_0 for ten, and digits of other scripts. Parameters that messages name are spelled as options.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from viewfuse.data.digits import is_number
from viewfuse.errors import SettingError
from viewfuse.plots.style import COLUMN_WIDTHS, FORMATS, PictureStyle
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Setting, Spell

Command = Callable[..., Any]


class _InPlainDigits(click.ParamType):  # type: ignore[type-arg]
    """What the numbers below have in common; NaN is none: it must be refused before a training."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that text says."""
        try:
            number = float_or_text(value)
        except ValueError:
            number = float("nan")
        if number != number:
            self.fail(f"{value!r} is no number in plain digits", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_InPlainDigits, click.types.IntParamType):
    """A whole number."""


class WholeRange(_InPlainDigits, click.IntRange):
    """A whole number within bounds."""


class Number(_InPlainDigits, click.types.FloatParamType):
    """A number."""


class NumberRange(_InPlainDigits, click.FloatRange):
    """A number within bounds."""


def int_or_text(value: str, kind: type[float] = int) -> float | str:
    """Text as a whole number where it is one; the estimator says what else is wrong."""
    try:
        number = kind(value)
    except ValueError:
        return value
    if not is_number(value):
        raise ValueError  # click says whose it was
    return number


def float_or_text(value: str) -> float | str:
    """The same for any number."""
    return int_or_text(value, float)


AUTO: dict[str, Any] = {"type": int_or_text, "metavar": "INTEGER|auto", "default": "auto"}
"""Of an option that takes a whole number, or auto."""


def spelling(command: click.Command) -> Spell:
    """How messages of a command spell parameters: as its options."""
    options = {str(one.name): one for one in command.params if isinstance(one, click.Option)}
    options |= {"blocks": options["block"]} if "block" in options else {}

    def spelled(setting: Setting) -> str | None:
        option = options.get(setting.name)
        if option is None:
            return None
        flag, value = option.opts[0], setting.value
        if value is None:
            return flag
        if option.is_flag:
            return flag if value else (option.secondary_opts or [f"no {flag}"])[0]
        values = [f"{name}={one}" for name, one in value.items()] if isinstance(value, Mapping) else value
        values = values if isinstance(values, list) else [values]
        return " ".join(f"{flag} {shlex.quote(str(one))}" for one in values)

    return spelled


def together(*options: Command) -> Command:
    """Several options as one decorator."""
    return lambda function: functools.reduce(lambda whole, option: option(whole), reversed(options), function)


def as_one(name: str, collect: Callable[..., Any], *options: Command) -> Command:
    """Give a command several options as one argument `name`, which `collect` makes of their values."""

    def with_one(function: Command) -> Command:
        @functools.wraps(function)
        def collected(**given: Any) -> Any:
            return function(**{name: collect(**{one: given.pop(one) for one in own})}, **given)

        whole = together(*options)(collected)
        own = [str(one.name) for one in whole.__click_params__[-len(options) :]]  # type: ignore[attr-defined]
        return whole

    return with_one


_RETRIES = 2
"""How often Ray begins a job again whose worker was lost."""
jobs = click.option(
    "--jobs", "n_jobs", type=Whole(), metavar="N", default=None,
    help="Processes that work side by side on a CPU; -1 is one per core. By default one thing is done after the other.",
)  # fmt: skip
engine = together(
    jobs,
    click.option("--engine", type=click.Choice(("local", "ray")), default="local",
                 help="Where the jobs run: on this machine, or on a Ray cluster."),
    click.option("--address", metavar="HOST:PORT",
                 help="Of the Ray cluster; auto finds one, or starts Ray here."),
)  # fmt: skip
"""--jobs, and the options that `on_engine` takes."""


@contextmanager
def on_engine(engine: str, address: str | None, device: str) -> Iterator[None]:
    """Run the jobs inside on this machine, or on a Ray cluster as a back end of joblib.

    Parameters
    ----------
    address : of the cluster; without it, that of RAY_ADDRESS or of this machine, or one that is started here
    device : jobs on a GPU get one each
    """
    if engine == "local":
        if address is not None:
            raise SettingError("--address names a Ray cluster; add --engine ray, or leave it out")
        yield
        return
    ray = needed("ray", "ray", "--engine ray")
    import joblib
    from ray.util.joblib import register_ray

    from viewfuse.utils.jobs import chosen_device

    is_own = not ray.is_initialized()
    try:
        if is_own:
            ray.init(address=None if address == "auto" else address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(f"Ray at {address!r} does not answer ({reason}); see `ray status` there") from error
    try:
        register_ray()
        asked: dict[str, Any] = {"max_restarts": _RETRIES, "max_task_retries": _RETRIES}
        n_jobs = -1
        if chosen_device(device).type != "cpu":
            n_jobs = int(ray.cluster_resources().get("GPU", 0))
            asked["num_gpus"] = 1
        if not n_jobs:
            raise SettingError("no machine of the Ray cluster has a GPU; use --device cpu")
        with joblib.parallel_config("ray", n_jobs=n_jobs, ray_remote_args=asked):
            yield
    finally:
        if is_own:
            ray.shutdown()


def _style(formats: str, columns: str | None) -> PictureStyle:
    asked = tuple(dict.fromkeys(one.strip().lower() for one in formats.split(",") if one.strip()))
    if not asked or not set(asked) <= set(FORMATS):
        raise SettingError(f"--format must be some of {', '.join(FORMATS)}, with commas between; got {formats!r}")
    return PictureStyle(asked, int(columns or 0))


pictures = as_one(
    "style",
    _style,
    click.option("--format", "formats", default="png", metavar="NAME,...",
                 help=f"Formats of pictures: some of {', '.join(FORMATS)}."),
    click.option("--columns", type=click.Choice([str(count) for count in COLUMN_WIDTHS]),
                 help="Pictures for one or two columns of a journal, "
                 f"{' or '.join(f'{width:g}' for width in COLUMN_WIDTHS.values())} inches wide; else for screens."),
)  # fmt: skip
