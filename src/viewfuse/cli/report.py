"""viewfuse report."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.cli import kinds, options
from viewfuse.errors import CannotWrite
from viewfuse.report.page import tables_beside, write_report


@options.verb(
    click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN [RUN]"),
    options.out("The page (.html); its tables go into a folder beside it."),
    click.option("--known", type=options.PATH, metavar="FILE",
                 help="CSV file with ids and what else is known of the samples, such as classes: compared with the "
                 "clusters."),
    click.option("--batch", metavar="COLUMN",
                 help="The column of --known that clusters should not follow, such as a plate."),
    click.option("--survival", type=(str, str), metavar="TIME EVENT",
                 help="Columns of --known: times, and 1 where the event was seen then, else 0. Gives a log-rank test "
                 "and curves."),
    options.force,
)  # fmt: skip
def command(
    runs: tuple[Path, ...],
    out: Path,
    known: Path | None,
    batch: str | None,
    survival: tuple[str, str] | None,
    force: bool,
) -> options.Facts:
    """Filled in by the group."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise CannotWrite(f"{out}: the report is a page; give the ending .html")
    inputs, tables = options.Inputs((*runs, *([known] if known else []))), tables_beside(out)
    options.check_new_path(out, force, inputs)
    if not force and tables.is_dir() and any(tables.iterdir()):
        why = f"{tables} exists already, and the tables of the page go there"
        raise CannotWrite(f"{why}; give another --out, or --force to overwrite them")
    options.check_new_folder(tables, True, inputs)
    from viewfuse.cli.fit import command as fit

    tables = write_report(runs, out, known, spell=kinds.spelling(fit), batch=batch or "", survival=survival or ())
    return {"written to": str(out), "tables": str(tables), "bytes": out.stat().st_size}
