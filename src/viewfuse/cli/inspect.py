"""viewfuse inspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from viewfuse.cli import options
from viewfuse.readers import read_views
from viewfuse.views import Views


@click.command()
@options.files
@options.id_column
@options.as_json
def command(files: tuple[Path, ...], id_column: str | None, as_json: bool) -> None:
    """Filled in by the group."""
    views = read_views(list(files), id_column=id_column)
    facts = describe(views)
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{len(views)} samples, {len(views.names)} views\n")
    rows = [
        (v["name"], v["columns"], v["present"], v["missing"], f"{v['low']:g}", f"{v['high']:g}") for v in facts["views"]
    ]
    click.echo(options.table(("view", "columns", "present", "missing", "lowest", "highest"), rows))
    click.echo(
        "\n"
        + options.table(("views that are there", "samples"), [(p["views"], p["samples"]) for p in facts["patterns"]])
    )
    for view in facts["views"]:
        if view["constant"]:
            click.echo(f"\n{view['name']}: {len(view['constant'])} constant columns, such as {view['constant'][0]!r}")


def describe(views: Views) -> dict[str, Any]:
    """What is there and what is missing."""
    patterns, counts = np.unique(views.mask, axis=0, return_counts=True)
    names = np.array(views.names)
    order = np.argsort(-counts, kind="stable")
    return {
        "samples": len(views),
        "views": [_describe_view(views, v) for v in range(len(views.names))],
        "patterns": [{"views": " + ".join(names[patterns[p]]), "samples": int(counts[p])} for p in order],
    }


def _describe_view(views: Views, v: int) -> dict[str, Any]:
    rows = views.arrays[v][views.mask[:, v]]
    constant = np.flatnonzero(rows.min(axis=0) == rows.max(axis=0)).tolist()
    return {
        "name": views.names[v],
        "columns": views.widths[v],
        "present": len(rows),
        "missing": len(views) - len(rows),
        "low": float(rows.min()),
        "high": float(rows.max()),
        "constant": [str(views.columns[v][c]) for c in constant],
    }
