"""viewfuse report."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from viewfuse.cli import options
from viewfuse.errors import CannotWrite
from viewfuse.report.page import write_report
from viewfuse.utils.wording import in_options


@click.command()
@click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN [RUN]")
@options.out("The page (.html); its tables go into a folder beside it.")
@click.option(
    "--known",
    type=options.PATH,
    metavar="FILE",
    help="CSV file with ids and what else is known of the samples, such as classes: compared with the clusters.",
)
@options.force
@options.as_json
def command(runs: tuple[Path, ...], out: Path, known: Path | None, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise CannotWrite(f"{out}: the report is a page; give the ending .html")
    if os.path.lexists(out) and not force:
        raise CannotWrite(f"{out} exists already; give another --out, or --force to overwrite it")
    options.check_writable(out)
    from viewfuse.cli.fit import command as fit

    tables = write_report(runs, out, known, say=partial(in_options, command=fit))
    options.show({"written to": str(out), "tables": str(tables), "bytes": out.stat().st_size}, as_json)
