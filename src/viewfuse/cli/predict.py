"""viewfuse predict."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.atomic import write_file
from viewfuse.cli import options
from viewfuse.readers import read_views
from viewfuse.results import labels_csv


@click.command()
@click.argument("model", type=options.PATH)
@options.files
@click.option("--out", type=options.PATH, required=True, metavar="FILE", help="File for the labels (.csv).")
@options.id_column
@options.force
@options.as_json
def command(model: Path, files: tuple[Path, ...], out: Path, id_column: str | None, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    options.refuse_existing(out, force)
    from viewfuse import URRL

    fitted = URRL.load(model)
    views = read_views(list(files), id_column=id_column)
    write_file(out, labels_csv(views, fitted.predict_proba(views)))
    options.show({"samples": len(views), "written to": str(out)}, as_json)
