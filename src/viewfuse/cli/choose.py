"""viewfuse choose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from viewfuse.cli import options
from viewfuse.io.writers import as_json as as_json_text
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import is_live, tell

_COLUMNS = {
    "k": "k", "score": "score", "found": "found", "null": "Gaussian", "hidden_views": "views hidden",
    "resampling": "samples left out", "neighbors": "neighbours", "gap": "gap",
}  # fmt: skip


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
@options.force
@options.as_json
def command(
    inputs: options.Inputs,
    cluster_range: tuple[int, int],
    out: Path | None,
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
        _write(out, decision)
    if as_json:
        click.echo(as_json_text({**decision, **({"written to": str(out)} if out else {})}))
        return
    if decision["curve"]:
        click.echo(options.table(list(_COLUMNS.values()), [_row(one) for one in decision["curve"]], text=()) + "\n")
    click.echo(decision["why"])
    if out is not None:
        click.echo(f"\nwritten to {out}")


def _row(point: dict[str, Any]) -> list[str]:
    return [str(point["k"]), *(f"{point[name]:.2f}" for name in _COLUMNS if name != "k")]


def _write(out: Path, decision: dict[str, Any]) -> None:
    write_file(out / "choice.json", as_json_text(decision, indent=1).encode())
    from viewfuse.plots.cluster_numbers import draw_choice
    from viewfuse.plots.pictures import why_not_drawn

    why = why_not_drawn(draw_choice, out / "k.png", decision)
    if why is not None:
        tell(f"k.png is not there: {options.plain(why)}")
