"""viewfuse explain."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viewfuse.cli import kinds, options
from viewfuse.data.categories import category_of
from viewfuse.io.writers import write_sheets
from viewfuse.report.tables import percent

if TYPE_CHECKING:
    from viewfuse.fitted.clusters import Merge
    from viewfuse.fitted.explanation import Explanation

_MERGES = 3
"""Merges that are shown; the file has all."""


@click.command()
@options.model
@options.inputs
@options.out("Folder for the tables.")
@click.option(
    "--top",
    type=kinds.WholeRange(1),
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
        explanation = fitted.explain(inputs.open_for(fitted).read())
        write_sheets(folder, sheets(explanation, top or TOP))
    clusters = describe(explanation, top or 1)
    if as_json:
        merges = [one._asdict() for one in explanation.merges]
        facts = {"samples": len(explanation.ids), "clusters": clusters, "merges": merges}
        options.show({**facts, "written to": str(out)}, as_json)
        return
    rows = [row for cluster in clusters for row in _rows(cluster)]
    title = "most distinguishing feature" + ("s" if (top or 1) > 1 else "")
    click.echo(options.table(("label", "size", "found again", "typical samples", title), rows, text=(0, 2, 3, 4)))
    if explanation.merges:
        click.echo(f"\nfor fewer clusters, join {in_order(explanation.merges)}")
    click.echo(f"\nwritten to {out}")


def describe(explanation: Explanation, top: int) -> list[dict[str, Any]]:
    """Per cluster its size, its stability, its typical samples and most distinguishing features, over all views."""
    from viewfuse.fitted.clusters import in_a_word

    facts = zip(explanation.sizes.tolist(), explanation.stability.tolist(), explanation.typical, strict=True)
    return [
        {"label": c, "size": size, "stability": steady, "again": in_a_word(steady),
         "typical": list(typical), "features": _best(explanation, c, top)}
        for c, (size, steady, typical) in enumerate(facts)
    ]  # fmt: skip


def in_order(merges: Sequence[Merge]) -> str:
    """The first merges in words."""
    shown = [f"{_label(one.first)} and {_label(one.second)}" for one in merges[:_MERGES]]
    return ", then ".join(shown) + (f" (merges.csv has all {len(merges)})" if len(merges) > _MERGES else "")


def _label(group: Sequence[int]) -> str:
    return "+".join(map(str, group))


def _best(explanation: Explanation, label: int, top: int) -> list[dict[str, Any]]:
    found = [row for view in explanation.effects for row in view.of_cluster(label, top)]
    return [row._asdict() for row in sorted(found, key=lambda row: -abs(row.difference))[:top]]


def _rows(cluster: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Lines of the table: one per feature, and the facts of the cluster on the first."""
    words = [_in_words(feature) for feature in cluster["features"]] or ["-"]
    steady = cluster["stability"]
    again = cluster["again"] if isnan(steady) else f"{cluster['again']}, {steady:.2f}"
    facts = (cluster["label"], cluster["size"], again, " ".join(map(str, cluster["typical"])))
    return [(*facts, words[0]), *(("", "", "", "", line) for line in words[1:])]


def _in_words(feature: dict[str, Any]) -> str:
    means = feature["mean"], feature["mean_of_others"]
    here, others = (f"{one:.4g}" if category_of(feature["feature"]) is None else percent(one) for one in means)
    return f"{feature['view']} {feature['feature']}: {here}, others {others} ({feature['difference']:+.1f} deviations)"
