"""viewfuse inspect."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from viewfuse.cli import options
from viewfuse.data.checks import in_words, isolated_views, suspicious_columns, zero_samples
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views
from viewfuse.io import writers as results


@click.command()
@options.inputs
@options.as_json
def command(inputs: options.Inputs, as_json: bool) -> None:
    """Filled in by the group."""
    views = inputs.open().read()
    facts = describe(views)
    if as_json:
        click.echo(results.as_json(facts))
        return
    ids = ", ".join(map(str, facts["first_ids"]))
    click.echo(f"{len(views)} samples, {len(views.names)} views\nids: {options.plain(ids)}, ...\n")
    rows = [(v["name"], v["columns"], v["present"], v["missing"], *_range(v)) for v in facts["views"]]
    click.echo(options.table(("view", "columns", "present", "missing", "lowest", "highest"), rows))
    patterns = [(p["views"], p["samples"]) for p in facts["patterns"]]
    click.echo("\n" + options.table(("views that are there", "samples"), patterns))
    lines = [line for view in facts["views"] for line in in_words(view["name"], view["suspicious"])]
    for line in lines + zero_samples(views) + isolated_views(views):
        click.echo(f"\n{options.plain(line)}")


def _range(view: dict[str, Any]) -> tuple[str, str]:
    return (f"{view['low']:g}", f"{view['high']:g}") if view["present"] else ("-", "-")


def describe(views: Views) -> dict[str, Any]:
    """What is there and what is missing."""
    patterns, counts = np.unique(views.mask, axis=0, return_counts=True)
    names = np.array(views.names)
    order = np.argsort(-counts, kind="stable")
    return {
        "samples": len(views),
        "first_ids": views.ids[:3].tolist(),
        "views": [_describe_view(views, v) for v in range(len(views.names))],
        "patterns": [{"views": " + ".join(names[patterns[p]]), "samples": int(counts[p])} for p in order],
    }


def _describe_view(views: Views, v: int) -> dict[str, Any]:
    n = int(views.mask[:, v].sum())
    facts: dict[str, Any] = {"name": views.names[v], "columns": views.widths[v]}
    facts |= {"present": n, "missing": len(views) - n}
    if not n:
        return {**facts, "low": None, "high": None, "suspicious": {}}
    low, high = column_bounds(views.arrays[v], views.mask[:, v])
    facts |= {"low": float(low.min()), "high": float(high.max())}
    return {**facts, "suspicious": suspicious_columns(views, v)}
