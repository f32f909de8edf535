"""What a comparison shows: tables, and the picture of ranks."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from viewfuse.comparison.results import COSTS, Comparison
from viewfuse.io.writers import as_json
from viewfuse.plots.canvas import why_not_drawn
from viewfuse.plots.critical_difference import draw_critical_difference
from viewfuse.utils.atomic import write_file


def write_comparison(folder: Path, found: Comparison, title: str) -> str | None:
    """Tables and the picture of ranks; returns why there is no picture, None where there is one."""
    write_file(folder / "table.csv", _as_csv(found.rows()))
    write_file(folder / "table.md", markdown(found, title).encode())
    pairs = zip(found.methods, found.agreement().tolist(), strict=True)
    write_file(folder / "agreement.csv", _as_csv([{"method": a, **_named(found, own)} for a, own in pairs]))
    of_ranks, picture = folder / "ranks.json", folder / "critical-difference.png"
    for stale in (of_ranks, picture):
        stale.unlink(missing_ok=True)  # it may be that of other methods
    if len(found.methods) < 2:
        return "one method has no rank"
    ranks, metric = found.ranks(), found.metrics[0]
    write_file(of_ranks, as_json({"metric": metric, **asdict(ranks)}, indent=1).encode())
    return why_not_drawn(draw_critical_difference, picture, ranks, title=f"{title}, by {NAMES[metric]}")


def _named(found: Comparison, own: Sequence[float]) -> dict[str, float]:
    return dict(zip(found.methods, own, strict=True))


NAMES = {
    "acc": "accuracy", "nmi": "NMI", "ari": "ARI", "evidence": "neighbour agreement", "seconds": "seconds",
    "memory_mb": "memory, MB",
}  # fmt: skip
"""Of what is measured; scores are in percent."""


def cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """A header and lines of text, best first within each missing rate."""
    by, shown = found.metrics[0], [*found.metrics, *COSTS]
    rows = sorted(found.rows(), key=lambda row: (row["missing_rate"], -row[by] if not isnan(row[by]) else np.inf))
    header = ["missing rate", "method", *(NAMES[name] for name in shown), "runs"]
    lines = [
        [f"{row['missing_rate']:g}", row["method"], *(_cell(row, name) for name in shown), str(row["runs"])]
        for row in rows
    ]
    return header, lines


def _cell(row: dict[str, Any], name: str) -> str:
    if isnan(row[name]):
        return "failed" if not row["runs"] else "-"
    digits = 0 if name == "memory_mb" else 1
    spread = "" if isnan(row[f"{name}_sd"]) or name in COSTS else f" ± {row[f'{name}_sd']:.{digits}f}"
    return f"{row[name]:.{digits}f}{spread}"


def markdown(found: Comparison, title: str) -> str:
    """The table as Markdown, with what failed below."""
    header, lines = cells(found)
    table = "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))
    failed = "\n".join(f"- {row['method']}: {row['failed']}" for row in found.rows() if row["failed"])
    said = "Mean ± standard deviation over runs, scores in percent."
    return f"# {title}\n\n{said}\n\n{table}\n" + (f"\nFailed:\n\n{failed}\n" if failed else "")


def _as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _rounded(value) for k, value in row.items()})
    return text.getvalue().encode()


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if isnan(value) else f"{value:.6g}"
