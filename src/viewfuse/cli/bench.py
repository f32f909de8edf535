"""viewfuse bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from viewfuse.atomic import write_file
from viewfuse.cli import options
from viewfuse.errors import MissingPackage
from viewfuse.results import as_json as as_json_text


@click.group()
def command() -> None:
    """Filled in by the group."""


@command.command(short_help="Time and memory, beside a plain reference.")
@options.out("Folder for speed.json and speed.png.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, ...; auto takes a GPU if there is one.")
@click.option(
    "--full", is_flag=True, help="Also up to a fixed accuracy, and up to a million samples; takes hours on a CPU."
)
@options.force
@options.as_json
def speed(out: Path, device: str, full: bool, force: bool, as_json: bool) -> None:
    """Measure time and memory beside a plain reference that does the same work in the same run."""
    options.refuse_existing(out, force, options.Inputs((), None, None, None))
    from viewfuse.bench.speed import FULL, Size, measure
    from viewfuse.devices import chosen_device

    asked = f"viewfuse bench speed --device {device}{' --full' if full else ''}"
    found = measure(chosen_device(device), FULL if full else Size(), asked, _say)
    write_file(out / "speed.json", as_json_text(found, indent=1).encode())
    _draw(out / "speed.png", found)
    click.echo(as_json_text(found) if as_json else _table(found))


def _say(what: str) -> None:
    """To those who wait, not to those who read the output."""
    if sys.stderr.isatty():
        click.echo(f"measuring: {what}", err=True)


def _draw(path: Path, found: dict[str, Any]) -> None:
    from viewfuse.bench.picture import draw_speed

    try:
        draw_speed(path, found)
    except MissingPackage as missing:
        click.echo(f"{path.name} is not there: {missing}", err=True)


def _table(found: dict[str, Any]) -> str:
    from viewfuse.bench.picture import comparisons, number

    rows = [
        (line.what, line.unit, number(line.ours), number(line.plain), f"{line.ratio:.2f}")
        for line in comparisons(found)
    ]
    for point in found["scaling"]:
        ours, plain = (point.get(who, {}).get("seconds") for who in ("ours", "plain"))
        ratio = f"{plain / ours:.2f}" if ours and plain else "-"
        what = f"fit of {point['n']:,}, {point['epochs']} epoch(s) per stage"
        rows.append((what, "s", number(ours) if ours else "-", number(plain) if plain else "-", ratio))
    bound = found["floor"]
    rows.append(("a step, beside its floor", "ms", number(bound["ours_ms"]), "-", "-"))
    rows.append(("the floor of a step", "ms", number(bound["floor_ms"]), "-", "-"))
    return options.table(("", "unit", "viewfuse", "plain", "times better"), rows, text=(0, 1))
