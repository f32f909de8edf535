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
@options.device
@options.force
@options.as_json
def command(model: Path, inputs: options.Inputs, out: Path, device: str, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    options.check_new_folder(out, force, inputs)
    from viewfuse import load
    from viewfuse.fitted.explanation import sheets

    fitted = load(model, device=device)
    explanation = fitted.explain(inputs.open().read())
    write_sheets(out, sheets(explanation))
    clusters = describe(explanation)
    if as_json:
        click.echo(json_text({"samples": len(explanation.ids), "clusters": clusters, "written to": str(out)}))
        return
    rows = [(c["label"], c["size"], " ".join(map(str, c["typical"])), _in_words(c["feature"])) for c in clusters]
    click.echo(options.table(("label", "size", "typical samples", "most distinguishing feature"), rows, text=(0, 2, 3)))
    click.echo(f"\nwritten to {out}")


def describe(explanation: Explanation) -> list[dict[str, Any]]:
    """Per cluster its size, its typical samples and the most distinguishing feature, over all views."""
    best: dict[int, dict[str, Any]] = {}
    for row in sorted(explanation.differences, key=lambda row: -abs(row.difference)):
        best.setdefault(row.label, row._asdict())
    pairs = zip(explanation.sizes.tolist(), explanation.typical, strict=True)
    return [
        {"label": c, "size": size, "typical": list(typical), "feature": best.get(c)}
        for c, (size, typical) in enumerate(pairs)
    ]


def _in_words(feature: dict[str, Any] | None) -> str:
    if feature is None:
        return "-"
    return (
        f"{feature['view']} {feature['feature']}: {feature['mean']:.4g}, others {feature['mean_of_others']:.4g} "
        f"({feature['difference']:+.1f} deviations)"
    )
