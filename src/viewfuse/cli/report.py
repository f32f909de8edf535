"""viewfuse report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from viewfuse.cli import kinds, options
from viewfuse.errors import CannotWrite
from viewfuse.report.page import tables_beside, write_report


@click.command()
@click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN [RUN]")
@options.out("The page (.html); its tables go into a folder beside it.")
@click.option(
    "--known",
    type=options.PATH,
    metavar="FILE",
    help="CSV file with ids and what else is known of the samples, such as classes: compared with the clusters.",
)
@click.option(
    "--batch",
    metavar="COLUMN",
    help="The column of --known that clusters should not follow, such as a plate.",
)
@click.option(
    "--survival",
    type=(str, str),
    metavar="TIME EVENT",
    help="Columns of --known: times, and 1 where the event was seen then, else 0. Gives a log-rank test and curves.",
)
@options.force
@options.as_json
def command(
    runs: tuple[Path, ...],
    out: Path,
    known: Path | None,
    batch: str | None,
    survival: tuple[str, str] | None,
    force: bool,
    as_json: bool,
) -> None:
    """Filled in by the group."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise CannotWrite(f"{out}: the report is a page; give the ending .html")
    _check_places(out, [*runs, *([known] if known else [])], force)
    from viewfuse.cli.fit import command as fit

    tables = write_report(runs, out, known, spell=kinds.spelling(fit), batch=batch or "", survival=survival or ())
    options.show({"written to": str(out), "tables": str(tables), "bytes": out.stat().st_size}, as_json)


def _check_places(out: Path, read: Sequence[Path], force: bool) -> None:
    """Refuse to overwrite a page or its tables without --force, and never overwrite what is read."""
    inputs, tables = options.Inputs(tuple(read)), tables_beside(out)
    options.check_new_path(out, force, inputs)
    if not force and tables.is_dir() and any(tables.iterdir()):
        raise CannotWrite(
            f"{tables} exists already, and the tables of the page go there; "
            "give another --out, or --force to overwrite them"
        )
    options.check_new_folder(tables, True, inputs)
