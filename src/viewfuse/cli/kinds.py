"""Kinds of options: numbers in plain digits, pictures, what is known of samples, and how many runs go side by side.

Python itself also takes 1_0 for ten, and digits of other scripts. Parameters that messages name are spelled as options.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from viewfuse.data.digits import is_number
from viewfuse.errors import SettingError
from viewfuse.io.labels import read_labels, read_pairs
from viewfuse.plots.style import COLUMN_WIDTHS, FORMATS, PictureStyle
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Setting, Spell, named_values


class _InPlainDigits(click.ParamType):  # type: ignore[type-arg]
    """What the kinds of numbers below have in common."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that text says."""
        try:
            _number_or_text(float, value)
        except ValueError:
            self.fail(f"{value!r} is not in plain digits", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_InPlainDigits, click.types.IntParamType):
    """A whole number."""


class WholeRange(_InPlainDigits, click.IntRange):
    """A whole number within bounds."""


class Number(_InPlainDigits, click.types.FloatParamType):
    """A number."""


class NumberRange(_InPlainDigits, click.FloatRange):
    """A number within bounds, of which NaN is beyond none; it must not cost a training before it is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that text says."""
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number", param, ctx) if found != found else found


def int_or_text(value: str) -> int | str:
    """Text as a whole number where it is one; the estimator says what else is wrong."""
    return _number_or_text(int, value)


def float_or_text(value: str) -> float | str:
    """Text as a number where it is one; the estimator says what else is wrong."""
    return _number_or_text(float, value)


def _number_or_text(kind: type[Any], value: Any) -> Any:
    try:
        number = kind(value)
    except ValueError:
        return value
    if not is_number(value):
        raise ValueError  # click says whose it was
    return number


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
    click.option("--engine", type=click.Choice(("local", "ray")), default="local",
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


Command = Callable[..., None]


def as_one(name: str, collect: Callable[..., Any], *options: Callable[[Command], Command]) -> Callable[..., Command]:
    """Give a command several options as one argument `name`, which `collect` makes of their values."""

    def with_one(function: Command) -> Command:
        @functools.wraps(function)
        def collected(**given: Any) -> None:
            function(**{name: collect(**{one: given.pop(one) for one in own})}, **given)

        whole: Command = collected
        for option in reversed(options):
            whole = option(whole)
        own = [str(one.name) for one in whole.__click_params__[-len(options) :]]  # type: ignore[attr-defined]
        return whole

    return with_one


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


_FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class KnownFiles:
    """The files in which something is known of samples, None where there is none, and weights of views, VIEW=NUMBER."""

    hints: Path | None
    must_link: Path | None
    cannot_link: Path | None
    sample_weight: Path | None
    view_weights: tuple[str, ...]

    def read(self) -> dict[str, Any]:
        """By name what `fit` is given."""
        weights = None if self.sample_weight is None else read_labels(self.sample_weight, "weight")
        return {
            "y": None if self.hints is None else read_labels(self.hints),
            "must_link": None if self.must_link is None else read_pairs(self.must_link),
            "cannot_link": None if self.cannot_link is None else read_pairs(self.cannot_link),
            "sample_weight": weights,
            "view_weights": named_values("--view-weights", self.view_weights),
        }


known_files = as_one(
    "known",
    KnownFiles,
    click.option("--hints", type=_FILE, metavar="FILE",
                 help="CSV with the columns id and label: classes of some samples, which their clusters follow. "
                 "Empty: not known."),
    click.option("--must-link", type=_FILE, metavar="FILE", help="CSV of two columns: ids that belong together."),
    click.option("--cannot-link", type=_FILE, metavar="FILE", help="CSV of two columns: ids that do not."),
    click.option("--sample-weight", type=_FILE, metavar="FILE",
                 help="CSV with the columns id and weight: 2 counts like two samples, 0 is not learned from."),
    click.option("--view-weights", multiple=True, metavar="VIEW=NUMBER",
                 help="How much a view counts; 1 by default. Once per view."),
)  # fmt: skip
