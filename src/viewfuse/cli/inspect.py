"""viewfuse inspect."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from viewfuse import results
from viewfuse.cli import options
from viewfuse.views import Views

_FAR = 10.0
"""Times the range of all other values: an end that is farther away than this looks like a fill value."""
_MARKS = (-9.0, -99.0, -999.0, -9999.0, -99999.0)
"""Below columns without other negative numbers these look like fill values, too."""
_SHOWN = 5


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
    for line in [line for view in facts["views"] for line in _warnings(view)] + options.lonely_views(views):
        click.echo(f"\n{options.plain(line)}")


def _range(view: dict[str, Any]) -> tuple[str, str]:
    return (f"{view['low']:g}", f"{view['high']:g}") if view["present"] else ("-", "-")


def _warnings(view: dict[str, Any]) -> list[str]:
    """What to look at in a view, a line per kind."""
    lines = []
    for why, columns in view["suspicious"].items():
        some = ", ".join(map(repr, columns[:_SHOWN])) + (", ..." if len(columns) > _SHOWN else "")
        lines.append(f"{view['name']}, columns that {why}: {some}")
    return lines


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
    rows = views.arrays[v][views.mask[:, v]]
    facts: dict[str, Any] = {"name": views.names[v], "columns": views.widths[v]}
    facts |= {"present": len(rows), "missing": len(views) - len(rows)}
    if not len(rows):
        return {**facts, "low": None, "high": None, "suspicious": {}}
    facts |= {"low": float(rows.min()), "high": float(rows.max())}
    found = {why: np.flatnonzero(which) for why, which in _suspicions(rows).items()}
    called = {why: [str(views.columns[v][int(c)]) for c in which] for why, which in found.items() if len(which)}
    return {**facts, "suspicious": called}


def _suspicions(rows: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
    """Per reason, which columns; `rows` of shape (samples, columns)."""
    ordered = np.sort(rows, axis=0)
    counting = (ordered[1:] - ordered[:-1] == 1).all(axis=0) & (len(rows) > 2)
    return {
        "never change": ordered[0] == ordered[-1],
        "have values so far out that they may stand for nothing, such as -999": _lone_end(ordered)
        | _lone_end(-ordered[::-1]),
        "count the rows, and may be ids": counting,
    }


def _lone_end(ordered: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Columns whose lowest value is far from all others, of which there are several; `ordered` is sorted by rows."""
    n_lowest = (ordered == ordered[0]).sum(axis=0)
    second = ordered[np.minimum(n_lowest, len(ordered) - 1), np.arange(ordered.shape[1])]
    spread = ordered[-1] - second
    is_mark = np.isin(ordered[0], _MARKS) & (second >= 0)
    return (spread > 0) & (is_mark | (second - ordered[0] > _FAR * spread))
