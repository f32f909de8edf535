"""Options of the verbs: what they take, how messages spell them, where jobs run, and where a verb may write."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from viewfuse.data.precision import is_number
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, DataError, SettingError
from viewfuse.io.labels import read_labels
from viewfuse.io.readers import AS_USUAL, Reading, open_source
from viewfuse.io.source import ROWS_AT_A_TIME, FileSource, split_by_prefix, view_of
from viewfuse.io.writers import as_json as json_text
from viewfuse.plots.style import COLUMN_WIDTHS, FORMATS, PictureStyle
from viewfuse.utils.atomic import replacing
from viewfuse.utils.console import needed, plain
from viewfuse.utils.settings import Setting, Spell, named_values

Facts = dict[str, Any]
Decorator = Callable[..., Any]
PATH = click.Path(path_type=Path)


class _InPlainDigits(click.ParamType):  # type: ignore[type-arg]
    """A number; Python itself also takes 1_0 for ten, digits of other scripts, and NaN, which is within no bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with suppress(ValueError):
            if (number := float_or_text(value)) == number:
                return super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number in plain digits", param, ctx)


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


_KINDS = {"FILE": PATH, "DIR": PATH, "RUN": PATH, "PATH": PATH, "INTEGER": Whole(), "FLOAT": Number(), "N": Whole(),
          "INTEGER|auto": int_or_text, "FLOAT|auto": float_or_text}  # fmt: skip


def option(spelt: str, help: str, **more: Any) -> Decorator:
    """An option by its spelling: "--like RUN", "--force" for a flag, "--only COLUMN ..." where it can be repeated."""
    flags, _, value = spelt.partition(" ")
    metavar = value.removesuffix(" ...")
    if not value and not more:
        more["is_flag"] = True
    if metavar in _KINDS:
        more.setdefault("type", _KINDS[metavar])
    if metavar == "INTEGER|auto":
        more.setdefault("default", "auto")
    if value != metavar:
        more["multiple"] = True
    return click.option(*flags.split(","), *more.pop("names", ()), metavar=metavar or None, help=help, **more)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator."""
    return lambda function: functools.reduce(lambda whole, option: option(whole), reversed(options), function)


def as_one(name: str, collect: Callable[..., Any], *options: Decorator) -> Decorator:
    """Give a command several options as one argument `name`, which `collect` makes of their values."""

    def with_one(function: Decorator) -> Decorator:
        @functools.wraps(function)
        def collected(**given: Any) -> Any:
            others = {one: value for one, value in given.items() if one not in own or one == name}
            return function(**others | {name: collect(**{one: given[one] for one in own})})

        whole = together(*options)(collected)
        own = [str(one.name) for one in whole.__click_params__[-len(options) :]]
        return whole

    return with_one


def verb(*given: Decorator) -> Callable[[Decorator], click.Command]:
    """Make a command of a function that takes these options, and show the facts that it returns, also as JSON.

    Where people are shown something else, the function returns both: facts for --json, and facts or a text for people.
    """

    def made(function: Decorator) -> click.Command:
        @functools.wraps(function)
        def shown(as_json: bool, **values: Any) -> None:
            found = function(**values)
            facts, for_people = found if isinstance(found, tuple) else (found, found)
            if as_json:
                click.echo(json_text(facts))
            else:
                click.echo(for_people if isinstance(for_people, str) else _in_lines(for_people))

        return click.command()(together(*given, as_json)(shown))

    return made


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


model = click.argument("model", type=PATH, callback=lambda context, parameter, path: model_in(path))
run = click.argument("run", type=PATH, metavar="RUN")
as_json = option("--json", "Print JSON for machines.", is_flag=True, names=["as_json"])
device = option("--device", "cpu, cuda, ...; auto takes a GPU if there is one.", default="auto")
alpha = option("--alpha", "Uncertain are samples whose cluster only several together hold with a chance of 1 - alpha.",
               type=NumberRange(0, 1, min_open=True, max_open=True), default=0.1)  # fmt: skip
random_state = option("--random-state INTEGER", "Seed.", default=0)
cluster_range = option(
    "--cluster-range LEAST MOST", "The least and the largest number of clusters that auto may choose; at most one per "
    "eight samples.", type=(Whole(), Whole()), default=(1, 200),
)  # fmt: skip
force = option("--force", "Overwrite what is there.")
trust_unchanged = option("--trust-unchanged", "Take files whose sizes and times are those of an earlier run for the "
                         "same, without reading them again.")  # fmt: skip


def out(what: str, *, required: bool = True) -> Decorator:
    """The option --out for `what`."""
    return option("--out PATH", what, required=required)


jobs = option("--jobs N", "Processes that work side by side on a CPU; -1 is one per core. By default one thing is done "
              "after the other.", names=["n_jobs"], default=None)  # fmt: skip
engine = together(
    jobs,
    option("--engine", "Where the jobs run: on this machine, or on a Ray cluster.",
           type=click.Choice(("local", "ray")), default="local"),
    option("--address HOST:PORT", "Of the Ray cluster; auto finds one, or starts Ray here."),
)  # fmt: skip
"""--jobs, and the options that `on_engine` takes."""
_RETRIES = 2
"""How often Ray begins a job again whose worker was lost."""


@contextmanager
def on_engine(engine: str, address: str | None, device: str) -> Iterator[None]:
    """Run the jobs inside on this machine, or on a Ray cluster as a back end of joblib, on a GPU with one for each."""
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
        if is_own:  # without an address a cluster of RAY_ADDRESS or of this machine, or one that is started here
            ray.init(address=None if address == "auto" else address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(f"Ray at {address!r} does not answer ({reason}); see `ray status` there") from error
    try:
        register_ray()
        n_jobs, asked = -1, {"max_restarts": _RETRIES, "max_task_retries": _RETRIES}
        if chosen_device(device).type != "cpu":
            n_jobs, asked["num_gpus"] = int(ray.cluster_resources().get("GPU", 0)), 1
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
    option("--format NAME,...", f"Formats of pictures: some of {', '.join(FORMATS)}.", default="png",
           names=["formats"]),
    option("--columns", "Pictures for one or two columns of a journal, "
           f"{' or '.join(f'{width:g}' for width in COLUMN_WIDTHS.values())} inches wide; else for screens.",
           type=click.Choice([str(count) for count in COLUMN_WIDTHS])),
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """The files of a command with the names of their views, None where it gives none, and how to read them."""

    files: tuple[Path, ...]
    reading: Reading = AS_USUAL
    names: tuple[str | None, ...] = ()
    batch: str | None = None

    def open(self, *, new_samples: bool = False) -> FileSource:
        """Open them, without reading all; views that the command line does not name are called like their files."""
        paths: tuple[Path, ...] | dict[str, Path] = self.files
        if any(self.names):
            names = [name or view_of(file) for name, file in zip(self.names, self.files, strict=True)]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise DataError(f"two files are called {twice[0]!r}; give each view a name of its own: VIEW=FILE")
            paths = dict(zip(names, self.files, strict=True))
        source = open_source(paths, replace(self.reading, new_samples=new_samples))
        source.batch = self.batch
        if self.batch is not None and Path(self.batch).is_file():
            source.batch = read_labels(Path(self.batch), "batch", self.reading.id_column)
        return source

    def open_for(self, fitted: Any) -> FileSource:
        """Open them for a fitted model, whose views a wide table may name in its columns."""
        if self.batch is not None:
            from viewfuse.fitted.batch_effects import check_takes_batch

            check_takes_batch(fitted._model.batches)
        source, known = split_by_prefix(self.open(new_samples=True), fitted.view_names_), fitted.view_names_
        unknown = [name for name in source.names if name not in known]
        if unknown:
            cure = "name the view of each file, VIEW=FILE, or leave it out"
            raise DataError(f"views {unknown} are unknown; the model was fitted on {known}; {cure}")
        return source


def _inputs(files: Sequence[Path], batch: str | None, block: Sequence[str], use: Sequence[str], **how: Any) -> Inputs:
    names: list[str | None] = []
    paths: list[Path] = []
    for file in files:  # one that is really called VIEW=FILE has no other name
        name, _, path = str(file).partition("=")
        is_named = bool(name and path) and "/" not in name and not file.exists()
        names.append(name if is_named else None)
        paths.append(Path(path) if is_named else file)
    reading = Reading(blocks=named_values("--block", block), use=named_values("--use", use), **how)
    return Inputs(tuple(paths), reading, tuple(names), batch)


inputs = as_one(
    "inputs",
    _inputs,
    click.argument("files", nargs=-1, required=True, type=PATH, metavar="[VIEW=]FILE..."),
    option("--id-column NAME", "Column of ids in tables; the first one by default."),
    option("--block VIEW=PATTERN ...", "For one wide table: the columns of a view, such as rna=rna_*. Once per view."),
    option("--use VIEW=PLACE ...", "For .h5mu and .h5ad: X (default), layers/NAME or obsm/NAME. Once per view."),
    option("--header/--no-header", "Whether the first line of tables holds names of columns; by default it is guessed.",
           default=None),
    option("--transpose VIEW ...", "This table has samples in columns. Repeatable."),
    option("--only COLUMN ...",
           "Read no other column of a table that has it; a name or a pattern such as q*. Repeatable."),
    option("--drop COLUMN ...", "Leave this column of tables out. Repeatable."),
    option("--batch FILE|COLUMN", "What must not decide: a CSV with ids and a column batch, or a column of a table."),
    option("--id-pattern REGEX", "Ids are what it matches, such as [ACGT]+ of AAACGT-1."),
    option("--allow-disjoint", "Tables may share no or hardly any ids."),
    option("--trusted", "Read files in this process, without limits on time and memory."),
)  # fmt: skip


def _by_view(reduction: Sequence[str], log1p: Sequence[str] = ()) -> Any:
    """How all views are reduced, or a dict of how each is, also of those that --log1p names."""
    is_for_all = len(reduction) == 1 and "=" not in reduction[0]
    how: Any = reduction[0] if is_for_all else named_values("--reduction", reduction)
    if not log1p:
        return how
    named = {} if how == "auto" else how
    if isinstance(named, str) or any(view in named for view in log1p):
        raise SettingError("--log1p and --reduction speak of the same views; name each once, with VIEW=HOW")
    return named | dict.fromkeys(log1p, "log1p")


_scaling_and_fill = together(
    option("--scaling", "auto (tries mixed, standard and minmax), or one of these, view, none.", default="auto"),
    option("--fill", "Empty cells of rows that have others: neighbors (the nearest rows of the view), median or error.",
           default="neighbors"),
)  # fmt: skip
_reduction = option(
    "--reduction [VIEW=]HOW ...",
    "How a wide or sparse view becomes narrow: auto (by its kind), none, pca, standard (columns of other "
    "units), log1p, counts (equal row sums first) or words. HOW for all views, or VIEW=HOW once per view.",
    default=["auto"],  # versions of click before 8.3 refuse a default that is no list
)
_log1p = option("--log1p VIEW ...", "Short for --reduction VIEW=log1p. Once per view.")
preparation = together(_scaling_and_fill, as_one("reduction", _by_view, _reduction))
preparation_or_log1p = together(_scaling_and_fill, as_one("reduction", _by_view, _reduction, _log1p))


def model_in(run: Path) -> Path:
    """The model of a run; a model is itself."""
    return run / "model" if (run / "model").is_dir() else run


def opened(run: Path, inputs: Inputs, device: str) -> tuple[Any, FileSource]:
    """The model of a run, or a model, and the files of samples that it is asked about."""
    from viewfuse import load

    fitted = load(model_in(run), device=device)
    return fitted, inputs.open_for(fitted)


def chunks(source: FileSource, what: str) -> Iterator[Views]:
    """The samples a few at a time, with a progress bar where there are many."""
    from tqdm.auto import tqdm

    quiet = len(source) <= ROWS_AT_A_TIME
    with tqdm(total=len(source), disable=quiet, unit="row", desc=what) as bar:
        for views in source.chunks(ROWS_AT_A_TIME):
            yield views
            bar.update(len(views))


def typed() -> str:
    """The command as it was typed, to be run again."""
    return shlex.join(("viewfuse", *(click.get_current_context().obj or ())))


def check_not_read(path: Path, inputs: Inputs) -> None:
    """Refuse to write what is read or the folder that holds it, or over a link that leads nowhere."""
    broken = next((place for place in (path, *path.parents) if place.is_symlink() and not place.exists()), None)
    if broken is not None:
        what = f"{broken} is a link that leads to {os.readlink(broken)}, which is not there"
        raise CannotWrite(f"{what}; remove the link, or give another --out")
    place = os.path.realpath(path)
    for file in inputs.files:
        there = os.path.realpath(file)  # unlike Path.resolve it does not mind links that lead in a circle
        if place in (there, os.path.dirname(there)):
            raise CannotWrite(f"{path} is or holds {file}, which is read; give another --out")


def check_new_path(path: Path, force: bool, inputs: Inputs) -> None:
    """Refuse to overwrite without --force, and never overwrite what is read."""
    check_not_read(path, inputs)
    if os.path.lexists(path) and not force and not (path.is_dir() and not any(path.iterdir())):
        raise CannotWrite(f"{path} exists already; give another --out, or --force to overwrite it")


_OF_FILES = (".csv", ".tsv", ".txt", ".json", ".npy", ".npz", ".parquet", ".h5mu", ".h5ad", ".png")


def check_new_folder(folder: Path, force: bool, inputs: Inputs) -> None:
    """As `check_new_path` for a folder, which must not be called like a file either."""
    if folder.suffix.lower() in _OF_FILES and not folder.is_dir():
        raise CannotWrite(f"{folder}: --out is a folder here, for several files; leave off {folder.suffix}")
    check_new_path(folder, force, inputs)
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file, and a folder is to be written there; move it, or give another --out")
    check_writable(folder)


def check_writable(path: Path) -> None:
    """Refuse a place where nothing can be written, before hours of training."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with TemporaryFile(dir=there if there.is_dir() else there.parent):
            pass
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written ({error.strerror}); choose another place for --out") from None


@contextmanager
def new_folder(
    folder: Path, force: bool, inputs: Inputs, is_stale: Callable[[str], bool] = lambda name: False
) -> Iterator[Path]:
    """A folder to write results to, which becomes `folder` when all of them are there."""
    check_new_folder(folder, force, inputs)
    with replacing(folder, is_stale) as new:
        yield new


def _in_lines(facts: Mapping[str, Any]) -> str:
    """A line per fact, in which lists and dicts stand as people write them."""

    def in_words(value: Any) -> Any:
        if isinstance(value, Mapping):
            value = [f"{name} {in_words(one)}" for name, one in value.items()]
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {plain(in_words(value))}" for name, value in facts.items())


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], text: Container[int] = (0,)) -> str:
    """A plain text table; the columns in `text` are text, the others are numbers."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    for c, column in enumerate(zip(*cells, strict=True)):
        width = max(map(len, column))
        for row in cells:
            row[c] = row[c].ljust(width) if c in text else row[c].rjust(width)
    return "\n".join("  ".join(row).rstrip() for row in cells)
