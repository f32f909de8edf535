"""viewfuse compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from viewfuse.cli import options
from viewfuse.cli.options import option
from viewfuse.data.precision import is_number
from viewfuse.errors import CannotWrite, DataError, SettingError, ViewfuseError
from viewfuse.io.labels import read_labels
from viewfuse.io.readers import open_source
from viewfuse.io.source import FileSource
from viewfuse.io.writers import as_json as json_text
from viewfuse.methods import ESTIMATORS, method_names
from viewfuse.plots.style import PictureStyle
from viewfuse.utils.console import plain, tell
from viewfuse.utils.settings import wrong

_WHOLE_SETS = (".npz", ".mat")


class _WithLists(click.Command):
    """Values of a list may follow their option one by one: --rates 0 .25 .5, as well as --rates 0,.25,.5."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for flag, belongs in (("--rates", is_number), ("--methods", _is_method)):
            args = joined(args, flag, belongs)
        return super().parse_args(ctx, args)


def joined(args: Sequence[str], flag: str, belongs: Callable[[str], bool]) -> list[str]:
    """The arguments, with all that belongs to `flag` in one, also where it stands several times."""
    found: list[str] = []
    every: list[str] = []
    rest = list(args)
    while rest:
        one = rest.pop(0)
        values = list(takewhile(belongs, rest)) if one == flag else []
        del rest[: len(values)]
        every += values
        found += [] if values else [one]
    return [flag, ",".join(every), *found] if every else found


def _is_method(text: str) -> bool:
    """Whether it is a method, or a word that is none yet: no option, and neither a file nor the name of one."""
    return text in method_names() or not (text.startswith("-") or set(text) & set("./\\=") or Path(text).exists())


@click.command(cls=_WithLists)
@options.together(
    options.inputs,
    option("--clusters INTEGER", "Number of clusters; of several data sets by default that of their classes.",
           names=["n_clusters"]),
    options.out("Folder for the results; a stopped comparison resumes there."),
    option("--methods NAME,...", f"all, or some of {', '.join(ESTIMATORS)}.", default="all"),
    option("--rates SHARE,...", "Shares of the samples that views are hidden from, besides those that are missing.",
           default="0"),
    option("--missing-number INTEGER", "Views that each of these loses; by default two thirds of all, rounded."),
    option("--seeds,--masks INTEGER", "Masks and trainings of each method and rate.", names=["seeds"], default=5),
    option("--labels FILE", "Table with ids and a column label, or an .npz or .mat that holds labels; used for scores "
           "only. By default those of the file of the views, if it is one and holds some."),
    option("--held-out", "Also fit without each view in turn, and measure how well the clusters fit that view: says "
           "without labels which method is better. Needs three views, and takes one more fit per view."),
    option("--own NAME", "Of several data sets: the method that others are tested against; by default the first."),
    option("--latex", "Print the table as LaTeX."),
    options.pictures, options.device, options.engine, options.as_json,
)  # fmt: skip
def compare(inputs: options.Inputs, out: Path, methods: str, rates: str, labels: Path | None, own: str | None,
            latex: bool, style: PictureStyle, as_json: bool, engine: str, address: str | None, device: str,
            **asked: Any) -> None:  # fmt: skip
    _check_folder(out, inputs)
    if not all(map(is_number, filter(None, rates.split(",")))):
        raise wrong("rates", "numbers from 0 to 1", rates)
    asked |= {"rates": [float(part) for part in rates.split(",") if part], "device": device, "out": out, "log": _tell}
    names = [name for name in methods.split(",") if name]
    # Several files that hold all views of a data set are sets of their own, unless their views are named.
    whole = all(path.suffix.lower() in _WHOLE_SETS for path in inputs.files)
    are_sets = len(inputs.files) > 1 and whole and not any(inputs.names)
    if are_sets and labels is not None:
        raise SettingError("several data sets have their labels in their files; leave out --labels")
    if are_sets and inputs.batch is not None:
        raise SettingError("--batch is for one data set; leave it out, or compare each data set alone")
    if not are_sets and own is not None:
        raise SettingError("--own is for several data sets; leave it out")
    has_both = labels is not None and labels.suffix.lower() in _WHOLE_SETS  # labels beside the views, which are no view
    if labels is not None and not has_both and any(path.exists() and path.samefile(labels) for path in inputs.files):
        raise SettingError(f"{labels} is a view and has the labels that it is judged by; leave it out of the views")
    if not are_sets and asked["n_clusters"] is None:
        raise click.UsageError("Missing option '--clusters'")
    source = None if are_sets else inputs.open()
    data: Any = _sets(inputs) if source is None else source.read()
    known = _labels_in(source) if labels is None else read_labels(labels, id_column=inputs.reading.id_column)
    from viewfuse.comparison import results, run, sets

    try:
        with options.on_engine(engine, address, device):
            found: Any = (
                sets.compare_sets(data, names, own=own, style=style, **asked)
                if are_sets
                else run.compare(data, names, labels=known, **asked)
            )
    except KeyboardInterrupt:
        why = f"interrupted; runs that were done are kept in {out}, and the same command resumes"
        raise KeyboardInterrupt(why) from None
    if are_sets:
        facts: options.Facts = {"sets": {name: one.rows() for name, one in found.sets.items()}}
        facts |= {"tests": [asdict(one) for one in found.tests]}
        tables, note = [found.cells(), found.test_cells()], found.note()
    else:
        facts, tables, note = {"runs": found.rows()}, [results.cells(found)], results.note(found)
        for line in () if as_json else results.failures(found):
            _tell(line)
    if as_json:
        click.echo(json_text({**facts, "written to": str(out)}))
    elif latex:  # in which all else is a comment
        click.echo((out / "table.tex").read_text(encoding="utf-8"), nl=False)
        _tell(f"written to {out}")
    else:
        click.echo("\n\n".join(options.table(header, lines, text=(0, 1)) for header, lines in tables))
        click.echo(f"\n{note}\n\nwritten to  {out}")
    if not are_sets and all(one.failed for one in found.runs):
        raise ViewfuseError(f"every run failed, so there is nothing to compare; {out / 'table.csv'} says why")


def _labels_in(source: FileSource | None) -> dict[Any, str | None] | None:
    """By id the classes that a file holds beside its views; None without any."""
    from viewfuse.comparison.sets import as_classes

    if source is None or source.labels is None:
        return None
    _tell(f"scores are against the labels in {source.views[0].path}, which no method sees")
    return dict(zip(source.ids.tolist(), as_classes(source.labels), strict=True))


def _sets(inputs: options.Inputs) -> dict[str, Any]:
    """Data sets by the names of their files."""
    from viewfuse.comparison.sets import LabelledSet, as_classes

    sets = {}
    for path in inputs.files:
        source = open_source(path, inputs.reading)
        if source.labels is None:
            cure = "add them as 'labels', or name its views, VIEW=FILE, to join files"
            raise DataError(f"{path} holds no labels; {cure}")
        if path.stem in sets:
            raise DataError(f"two data sets are called {path.stem!r}; give one file another name")
        sets[path.stem] = LabelledSet(source.read(), as_classes(source.labels))
    return sets


def _check_folder(out: Path, inputs: options.Inputs) -> None:
    """Accept a new folder, or that of a comparison to resume."""
    from viewfuse.comparison.arguments import holds_comparison

    options.check_not_read(out, inputs)
    resumes = holds_comparison(out)
    if not resumes and out.is_dir() and any(out.iterdir()):
        raise CannotWrite(f"{out} holds something else than a comparison; give another --out")
    options.check_new_folder(out, resumes, inputs)


def _tell(line: str) -> None:
    tell(plain(line))
