"""A comparison on disk: one file per run, so that it can be gone on with, and its tables."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from viewfuse.comparison.results import COSTS, Comparison, Run
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite
from viewfuse.io.writers import as_json
from viewfuse.plots.canvas import why_not_drawn
from viewfuse.plots.critical_difference import draw_critical_difference
from viewfuse.utils.atomic import write_file

RUNS = "runs"
_PLAN = "plan.json"


def data_checksum(views: Views) -> str:
    """Of values and of who has which view."""
    found = hashlib.sha256(views.mask.tobytes())
    for array in views.arrays:
        parts = [array.data, array.indices, array.indptr] if hasattr(array, "indptr") else [array]
        for part in parts:
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def take_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Keep what is compared in the folder, by name; refuse a folder of another comparison.

    Methods that come in addition are kept as well.
    """
    own: dict[str, Any] = json.loads(as_json(plan))
    try:
        known: dict[str, Any] = dict(json.loads((folder / _PLAN).read_bytes()))
    except (OSError, ValueError, TypeError):
        known = {}
    differs = [name for name in own if name in known and known[name] != own[name]]
    if differs:
        told = ", ".join(f"{name} was {known[name]}, is {own[name]}" for name in differs[:3])
        raise CannotWrite(f"{folder} holds another comparison ({told}); give another folder for this one")
    if known | own != known:
        write_file(folder / _PLAN, as_json(known | own, indent=1).encode())


def run_file(folder: Path, method: str, missing_rate: float, seed: int) -> Path:
    """Where a run is kept."""
    return folder / RUNS / method / f"rate-{missing_rate:g}-seed-{seed}.json"


def write_run(path: Path, run: Run, mark: str) -> None:
    """Keep a run; `mark` says of what."""
    facts = {**asdict(run), "labels": None if run.labels is None else run.labels.tolist(), "mark": mark}
    write_file(path, as_json(facts).encode())


def read_run(path: Path, mark: str) -> Run | None:
    """A run that was kept under the same mark; None where there is none, or none that is whole."""
    try:
        facts = json.loads(path.read_text())
        if facts.pop("mark") != mark or facts["failed"]:
            return None
        numbers = {name: np.nan if facts[name] is None else facts[name] for name in ("evidence", *COSTS)}
        return Run(**{**facts, **numbers, "labels": np.array(facts["labels"], dtype=np.int64)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_comparison(folder: Path, found: Comparison, title: str) -> str | None:
    """Tables and the picture of ranks; returns why there is no picture, None where there is one."""
    write_file(folder / "table.csv", _as_csv(found.rows()))
    write_file(folder / "table.md", markdown(found, title).encode())
    pairs = zip(found.methods, found.agreement().tolist(), strict=True)
    write_file(folder / "agreement.csv", _as_csv([{"method": a, **_named(found, own)} for a, own in pairs]))
    if len(found.methods) < 2:
        return "one method has no rank"
    ranks, metric = found.ranks(), found.metrics[0]
    write_file(folder / "ranks.json", as_json({"metric": metric, **asdict(ranks)}, indent=1).encode())
    where, title = folder / "critical-difference.png", f"{title}, by {NAMES[metric]}"
    return why_not_drawn(draw_critical_difference, where, ranks, title=title)


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
