"""Options that several verbs share."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from viewfuse.errors import CannotWrite

PATH = click.Path(path_type=Path)
files = click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
id_column = click.option("--id-column", metavar="NAME", help="Column of ids in text files; the first one by default.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
force = click.option("--force", is_flag=True, help="Overwrite what is there.")


def refuse_existing(path: Path, force: bool) -> None:
    """Refuse to overwrite without being told to."""
    if path.exists() and not force:
        raise CannotWrite(f"{path} exists already; give another --out, or --force to overwrite it")


def show(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts as JSON or as lines."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], text: Container[int] = (0,)) -> str:
    """A plain text table; the columns in `text` are text, the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if c in text else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
