"""What a comparison shows: tables, and what can be read from them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from viewfuse.comparison.results import BELOW_BEST, COSTS, HELD_OUT, STABILITY, Comparison
from viewfuse.io.csv_text import as_csv
from viewfuse.utils.atomic import write_file


def write_comparison(folder: Path, found: Comparison, title: str) -> None:
    """The tables of a comparison."""
    write_file(folder / "table.csv", _as_csv(found.rows()))
    write_file(folder / "table.md", markdown(found, title).encode())
    pairs = zip(found.methods, found.agreement().tolist(), strict=True)
    write_file(folder / "agreement.csv", _as_csv([{"method": a, **_named(found, own)} for a, own in pairs]))


def _named(found: Comparison, own: Sequence[float]) -> dict[str, float]:
    return dict(zip(found.methods, own, strict=True))


NAMES = {
    "acc": "accuracy", "nmi": "NMI", "ari": "ARI", HELD_OUT: "held-out agreement", BELOW_BEST: "below the best",
    STABILITY: "stability", "seconds": "seconds", "memory_mb": "memory, MB",
}  # fmt: skip
"""Of what is measured; scores are in percent."""


def cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """A header and lines of text: within each missing rate the best first, then methods of which runs failed."""
    shown = [*found.metrics, *((BELOW_BEST,) if found.metrics else ()), STABILITY, *COSTS]
    rows = sorted(found.rows(), key=lambda row: (row["missing_rate"], *_place(row, found.metrics)))
    header = ["missing rate", "method", *(NAMES[name] for name in shown), "runs"]
    lines = [
        [f"{row['missing_rate']:g}", row["method"], *(_cell(row, name) for name in shown), _runs(row)] for row in rows
    ]
    return header, lines


def _place(row: dict[str, Any], metrics: Sequence[str]) -> tuple[bool, bool, float]:
    score = row[metrics[0]] if metrics and row["runs"] else 0.0
    return not row["runs"], row["failed_runs"] > 0, -score


def _cell(row: dict[str, Any], name: str) -> str:
    if isnan(row[name]):
        return "failed" if not row["runs"] else "-"
    digits, deviation = 0 if name == "memory_mb" else 1, row.get(f"{name}_sd", np.nan)
    spread = "" if isnan(deviation) or name in COSTS else f" ± {deviation:.{digits}f}"
    return f"{row[name]:.{digits}f}{spread}"


def _runs(row: dict[str, Any]) -> str:
    return f"{row['runs']} of {row['runs'] + row['failed_runs']}" if row["failed_runs"] else str(row["runs"])


def note(found: Comparison) -> str:
    """How the methods are ordered, and what the order does not say."""
    if not found.metrics:
        return (
            "Methods are in the order that was asked for: without labels and held-out views nothing says which is "
            "better. Stability is how much runs with other masks and seeds agree (ARI); stable clusters may be wrong."
        )
    return (
        f"Highest {NAMES[found.metrics[0]]} first; differences to the best are those on the same masks. This is one "
        "data set: its runs share samples, so no test is made, and other data may order the methods otherwise."
    )


def markdown(found: Comparison, title: str) -> str:
    """The table as Markdown, with what it says and what failed below."""
    header, lines = cells(found)
    table = "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))
    failed = "\n".join(f"- {line}" for line in failures(found))
    said = "Mean ± standard deviation over runs, scores in percent."
    return f"# {title}\n\n{said}\n\n{table}\n\n{note(found)}\n" + (f"\nFailed:\n\n{failed}\n" if failed else "")


def failures(found: Comparison) -> list[str]:
    """Which methods failed, how often, and why."""
    return [
        f"{row['method']} failed in {row['failed_runs']} of {row['runs'] + row['failed_runs']} runs at missing rate "
        f"{row['missing_rate']:g}: {row['failed']}"
        for row in found.rows()
        if row["failed"]
    ]


def _as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    return as_csv([list(rows[0]), *(list(map(_rounded, row.values())) for row in rows)]).encode()


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if isnan(value) else f"{value:.6g}"
