"""Options that several verbs share, what becomes of what a verb finds, and where it may write."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from viewfuse.cli.kinds import NumberRange, Whole, as_one, together
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, DataError, SettingError
from viewfuse.io import writers as results
from viewfuse.io.labels import read_labels
from viewfuse.io.readers import AS_USUAL, Reading, open_source
from viewfuse.io.source import ROWS_AT_A_TIME, FileSource, split_by_prefix, view_of
from viewfuse.utils.atomic import replacing
from viewfuse.utils.console import plain
from viewfuse.utils.settings import named_values

PATH = click.Path(path_type=Path)
Facts = dict[str, Any]

model = click.argument("model", type=PATH)
run = click.argument("run", type=PATH, metavar="RUN")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
device = click.option("--device", default="auto", help="cpu, cuda, ...; auto takes a GPU if there is one.")
alpha = click.option(
    "--alpha", type=NumberRange(0, 1, min_open=True, max_open=True), default=0.1,
    help="Uncertain are samples whose cluster only several together hold with a chance of 1 - alpha.",
)  # fmt: skip
random_state = click.option("--random-state", type=Whole(), default=0, help="Seed.")
cluster_range = click.option(
    "--cluster-range", type=(Whole(), Whole()), metavar="LEAST MOST", default=(1, 200),
    help="The least and the largest number of clusters that auto may choose; at most one per eight samples.",
)  # fmt: skip
force = click.option("--force", is_flag=True, help="Overwrite what is there.")
trust_unchanged = click.option(
    "--trust-unchanged", is_flag=True,
    help="Take files whose sizes and times are those of an earlier run for the same, without reading them again.",
)  # fmt: skip


def out(what: str, *, required: bool = True) -> Callable[[Any], Any]:
    """The option --out for `what`."""
    return click.option("--out", type=PATH, required=required, metavar="PATH", help=what)


def verb(*given: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that takes these options, and show the facts that it returns, also as JSON.

    Where people are shown something else, the function returns both: facts for --json, and facts or a text for people.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def shown(as_json: bool, **values: Any) -> None:
            found = function(**values)
            facts, for_people = found if isinstance(found, tuple) else (found, found)
            if as_json or not isinstance(for_people, str):
                show(facts if as_json else for_people, as_json)
            else:
                click.echo(for_people)

        return click.command()(together(*given, as_json)(shown))

    return made


def model_in(run: Path) -> Path:
    """The model of a run; a model is itself."""
    return run / "model" if (run / "model").is_dir() else run


_OF_FILES = (".csv", ".tsv", ".txt", ".json", ".npy", ".npz", ".parquet", ".h5mu", ".h5ad", ".png")


@dataclass(frozen=True)
class Inputs:
    """The files of a command, and how to read them.

    Attributes
    ----------
    names : per file the name that the command line gives its view; None where it gives none
    batch : a file, or the name of a column
    """

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
            source.batch = read_labels(Path(self.batch), "batch")
        return source

    def open_for(self, fitted: Any) -> FileSource:
        """Open them for a fitted model, whose views a wide table may name in its columns."""
        if self.batch is not None:
            from viewfuse.fitted.batches import check_takes_batch

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
    click.option("--id-column", metavar="NAME", help="Column of ids in tables; the first one by default."),
    click.option("--block", multiple=True, metavar="VIEW=PATTERN",
                 help="For one wide table: the columns of a view, such as rna=rna_*. Once per view."),
    click.option("--use", multiple=True, metavar="VIEW=PLACE",
                 help="For .h5mu and .h5ad: X (default), layers/NAME or obsm/NAME. Once per view."),
    click.option("--header/--no-header", default=None,
                 help="Whether the first line of tables holds names of columns; by default it is guessed."),
    click.option("--transpose", multiple=True, metavar="VIEW", help="This table has samples in columns. Repeatable."),
    click.option("--only", multiple=True, metavar="COLUMN",
                 help="Read no other column of a table that has it; a name or a pattern such as q*. Repeatable."),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Leave this column of tables out. Repeatable."),
    click.option("--batch", metavar="FILE|COLUMN",
                 help="What must not decide: a CSV with the columns id and batch, or a column of a table."),
    click.option("--id-pattern", metavar="REGEX", help="Ids are what it matches, such as [ACGT]+ of AAACGT-1."),
    click.option("--allow-disjoint", is_flag=True, help="Tables may share no or hardly any ids."),
    click.option("--trusted", is_flag=True, help="Read files in this process, without limits on time and memory."),
)  # fmt: skip


class PerView(click.Option):
    """A repeatable option, VALUE for all views or VIEW=VALUE for each; it becomes a str or a dict."""

    def __init__(self, *names: Any, default: str, **rest: Any) -> None:
        super().__init__(*names, default=[default], **rest)  # versions before 8.3 refuse a default that is no list
        self.default = default

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """What was given, all of it together; a default stays as it is."""
        if value is None or isinstance(value, str):
            return value
        only_one = len(value) == 1 and "=" not in value[0]
        return value[0] if only_one else named_values(self.opts[0], value)


scaling = click.option(
    "--scaling", default="auto", help="auto (tries mixed, standard and minmax), or one of these, view, none."
)
fill = click.option(
    "--fill", default="neighbors",
    help="Empty cells of rows that have others: neighbors (the nearest rows of the view), median or error.",
)  # fmt: skip
reduction = click.option(
    "--reduction", cls=PerView, multiple=True, metavar="[VIEW=]HOW", default="auto",
    help="How a wide or sparse view becomes narrow: auto (by its kind), none, pca, standard (columns of other units), "
    "log1p, counts (equal row sums first) or words. HOW for all views, or VIEW=HOW once per view.",
)  # fmt: skip
preparation = together(scaling, fill, reduction)
log1p = click.option("--log1p", multiple=True, metavar="VIEW", help="Short for --reduction VIEW=log1p. Once per view.")


def with_log1p(reduction: str | dict[str, str], views: Sequence[str]) -> str | dict[str, str]:
    """What --reduction asked for, with the views that --log1p names."""
    if not views:
        return reduction
    named = {} if reduction == "auto" else reduction
    if isinstance(named, str) or any(view in named for view in views):
        raise SettingError("--log1p and --reduction speak of the same views; name each once, with VIEW=HOW")
    return named | dict.fromkeys(views, "log1p")


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


def show(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts as JSON or as lines."""
    if as_json:
        click.echo(results.as_json(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {plain(_in_words(value))}")


def _in_words(value: Any) -> Any:
    """A list or a dict as people write them."""
    if isinstance(value, Mapping):
        value = [f"{name} {_in_words(one)}" for name, one in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], text: Container[int] = (0,)) -> str:
    """A plain text table; the columns in `text` are text, the others are numbers."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    aligned = [
        [cell.ljust(w) if c in text else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in cells
    ]
    return "\n".join("  ".join(row).rstrip() for row in aligned)
