"""viewfuse choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from viewfuse.cli import kinds, options
from viewfuse.io.writers import as_json as as_json_text
from viewfuse.plots.pictures import why_not_drawn
from viewfuse.plots.style import PictureStyle
from viewfuse.selection.messages import p_value
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import is_live, plain, tell


@click.command()
@options.inputs
@options.cluster_range
@options.scaling
@options.fill
@options.reduction
@options.log1p
@options.device
@options.random_state
@click.option(
    "--out", type=options.PATH, metavar="PATH", help="Folder for k.png and choice.json; else none is written."
)
@kinds.pictures
@options.force
@options.as_json
def command(
    inputs: options.Inputs,
    cluster_range: tuple[int, int],
    out: Path | None,
    style: PictureStyle,
    log1p: Sequence[str],
    random_state: int,
    device: str,
    force: bool,
    as_json: bool,
    **ways: Any,
) -> None:
    """Filled in by the group."""
    ways["reduction"] = options.with_log1p(ways["reduction"], log1p)
    if out is not None:
        options.check_new_folder(out, force, inputs)
    views = inputs.open().read()
    from viewfuse import URRL

    model = URRL(cluster_range=cluster_range, **ways, random_state=random_state, device=device)
    decision = model.set_params(verbose=is_live()).choose(views)
    if out is not None:
        _write(out, decision, style)
    if as_json:
        click.echo(as_json_text({**decision, **({"written to": str(out)} if out else {})}))
        return
    if decision["splits"]:
        click.echo("\n".join(drawn_tree(decision["splits"])) + "\n")
    click.echo(decision["why"])
    if out is not None:
        click.echo(f"\nwritten to {out}")


def drawn_tree(splits: Sequence[Mapping[str, Any]]) -> list[str]:
    """A tree in lines, with the size of each part; parts that no standing split divides are the clusters."""
    lines = [f"{sum(splits[0]['sizes']):,} samples{_said(splits[0])}"]
    _draw(lines, splits, 0, "")
    return lines


def _draw(lines: list[str], splits: Sequence[Mapping[str, Any]], place: int, margin: str) -> None:
    below = {one["side"]: i for i, one in enumerate(splits) if one["parent"] == place}
    for side, size in enumerate(splits[place]["sizes"] if splits[place]["stands"] else ()):
        inner = below.get(side)
        lines.append(f"{margin}{'|-' if side == 0 else '`-'} {size:,}{'' if inner is None else _said(splits[inner])}")
        if inner is not None:
            _draw(lines, splits, inner, margin + ("|  " if side == 0 else "   "))


def _said(split: Mapping[str, Any]) -> str:
    held = [one for one in split["held_out"].values() if one is not None]
    views = f", views left out {sum(held) / len(held):.2f}" if held else ""
    views = f", in {split['alone']} alone" if split["alone"] else views
    ends = "" if split["stands"] else ", stays whole"
    return f"  (strength {split['strength']:.2f}, p {p_value(split['p_value'], '= ')}{views}{ends})"


def _write(out: Path, decision: dict[str, Any], style: PictureStyle) -> None:
    write_file(out / "choice.json", as_json_text(decision, indent=1).encode())
    from viewfuse.plots.pictures import draw_choice

    why = why_not_drawn(draw_choice, out / "k.png", decision, style)
    if why is not None:
        tell(f"k.png is not there: {plain(why)}")
