"""viewfuse explain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viewfuse.cli import options
from viewfuse.io.writers import as_json as json_text
from viewfuse.io.writers import write_sheets

if TYPE_CHECKING:
    from viewfuse.fitted.explanation import Explanation


@click.command()
@options.model
@options.inputs
@options.out("Folder for the tables.")
@click.option(
    "--top",
    type=click.IntRange(1),
    metavar="N",
    help="Show N features per cluster, and write N per cluster and view to features.csv; by default 1 and 5. "
    "effects.csv has all of them.",
)
@options.device
@options.force
@options.as_json
def command(
    model: Path, inputs: options.Inputs, out: Path, top: int | None, device: str, force: bool, as_json: bool
) -> None:
    """Filled in by the group."""
    with options.new_folder(out, force, inputs) as folder:
        from viewfuse import load
        from viewfuse.fitted.explanation import TOP, sheets

        fitted = load(model, device=device)
        explanation = fitted.explain(inputs.open().read())
        write_sheets(folder, sheets(explanation, top or TOP))
    clusters = describe(explanation, top or 1)
    if as_json:
        click.echo(json_text({"samples": len(explanation.ids), "clusters": clusters, "written to": str(out)}))
        return
    rows = [row for cluster in clusters for row in _rows(cluster)]
    title = "most distinguishing feature" + ("s" if (top or 1) > 1 else "")
    click.echo(options.table(("label", "size", "typical samples", title), rows, text=(0, 2, 3)))
    click.echo(f"\nwritten to {out}")


def describe(explanation: Explanation, top: int) -> list[dict[str, Any]]:
    """Per cluster its size, its typical samples and its most distinguishing features, over all views."""
    return [
        {"label": c, "size": size, "typical": list(typical), "features": _best(explanation, c, top)}
        for c, (size, typical) in enumerate(zip(explanation.sizes.tolist(), explanation.typical, strict=True))
    ]


def _best(explanation: Explanation, label: int, top: int) -> list[dict[str, Any]]:
    found = [row for view in explanation.effects for row in view.of_cluster(label, top)]
    return [row._asdict() for row in sorted(found, key=lambda row: -abs(row.difference))[:top]]


def _rows(cluster: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Lines of the table: one per feature, and the facts of the cluster on the first."""
    words = [_in_words(feature) for feature in cluster["features"]] or ["-"]
    facts = (cluster["label"], cluster["size"], " ".join(map(str, cluster["typical"])))
    return [(*facts, words[0]), *(("", "", "", line) for line in words[1:])]


def _in_words(feature: dict[str, Any]) -> str:
    return (
        f"{feature['view']} {feature['feature']}: {feature['mean']:.4g}, others {feature['mean_of_others']:.4g} "
        f"({feature['difference']:+.1f} deviations)"
    )
