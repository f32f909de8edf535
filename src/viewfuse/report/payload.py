"""The map and the look-up of samples: their section, and what the script needs of every sample, packed as text."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.io.writers import as_json
from viewfuse.plots.places import find_patterns, lacking
from viewfuse.plots.style import as_hex, distinct_colors, distinct_markers
from viewfuse.report.charts import CORNERS, cuts_of
from viewfuse.report.comparison import Column
from viewfuse.report.html import filled, join, paragraphs
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.report.tables import apart_in_words, headline, merges_of

_GRID = 4096
"""Places of a map are whole numbers up to this: finer than a screen."""


def pack(facts: Any) -> str:
    """Facts as base64 of compressed JSON; the same facts give the same text."""
    return base64.b64encode(gzip.compress(as_json(facts).encode(), compresslevel=6, mtime=0)).decode()


def palette(n: int) -> dict[str, Any]:
    """Colours and marks of n groups, for a light and a dark ground."""
    grounds = {"light": distinct_colors(n), "dark": distinct_colors(n, on_dark=True)}
    found: dict[str, Any] = {name: [as_hex(one) for one in colors] for name, colors in grounds.items()}
    return found | {"marks": distinct_markers(n), "shapes": CORNERS}


def points_of(
    run: FinishedRun, columns: Sequence[Column], most: int, *, others: bool, colors: Sequence[int] | None = None
) -> dict[str, Any]:
    """Samples for the map and the look-up.

    Parameters
    ----------
    most : samples that are shown; of more a random choice
    others : whether the rest is there with ids, clusters and confidence
    colors : per cluster the number of its colour; its own number by default
    """
    rows, places = _shown(run, most)
    patterns = find_patterns(run.present)
    facts: dict[str, Any] = {
        "name": run.name,
        "n": len(run.ids),
        "views": run.views,
        "about": ["; ".join(words) for words in apart_in_words(run).values()],
        "colors": list(colors) if colors is not None else list(range(run.n_clusters)),
        "patterns": [lacking(one, run.views) for one in patterns.present],
        "present": patterns.present.astype(int).tolist(),
        "cuts": {str(k): groups for k, groups in cuts_of(merges_of(run), run.n_clusters).items()},
        "columns": [_column(one, rows) for one in (*columns, *_own_columns(run))],
        "points": _facts(run, rows) | {"pattern": patterns.of_sample[rows].tolist()} | places | _why(run, rows),
    }
    if run.cluster_names:
        facts["names"] = run.cluster_names
    if others and len(rows) < len(run.ids):
        facts["others"] = _facts(run, np.setdiff1d(np.arange(len(run.ids)), rows))
    return facts


def _shown(run: FinishedRun, most: int) -> tuple[NDArray[np.int64], dict[str, list[int]]]:
    """Rows of the samples that are shown, and their places on the map where there is one."""
    if run.map is None:
        return _choice(np.arange(len(run.ids)), most), {}
    row = {name: place for place, name in enumerate(run.ids)}
    there = [(place, row[name]) for place, name in enumerate(run.map.ids()) if name in row]
    chosen = _choice(np.arange(len(there)), most)
    place, rows = np.array(there, dtype=np.int64).reshape(-1, 2)[chosen].T
    xy = np.stack([run.map.numbers("x"), run.map.numbers("y")])[:, place]
    low = xy.min(axis=1, keepdims=True) if xy.size else 0
    span = max(float((xy - low).max()), 1e-12) if xy.size else 1.0
    x, y = np.round((xy - low) / span * _GRID).astype(int).tolist()
    return rows, {"x": x, "y": y}


def _choice(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).permutation(rows)[:most])


def _facts(run: FinishedRun, rows: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Id, cluster and confidence of samples."""
    return {
        "id": [run.ids[row] for row in rows.tolist()],
        "label": run.labels[rows].tolist(),
        "confidence": _rounded(run.confidence[rows]),
    }


def _why(run: FinishedRun, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Second-best cluster, weights of views and donors of missing ones, where the run says so."""
    table = run.explained
    if table is None:
        return {}
    place = {name: row for row, name in enumerate(table.ids())}
    found = [place.get(run.ids[row]) for row in rows.tolist()]
    taken = np.array([-1 if row is None else row for row in found], dtype=np.int64)

    def numbers(name: str) -> list[float | None]:
        return _rounded(np.where(taken >= 0, table.numbers(name)[taken], np.nan)) if len(table) else []

    donors = {name: table.column(f"donors_{name}") for name in run.views}
    return {
        "second": numbers("second_label"),
        "second_confidence": numbers("second_confidence"),
        "weights": [numbers(f"weight_{name}") for name in run.views],
        "donors": [["" if row is None else donors[name][row] for row in found] for name in run.views],
    }


def _own_columns(run: FinishedRun) -> list[Column]:
    """What else the run says of its samples: whether they are outliers, and how far they lie from others."""
    found = [Column("novelty", (), run.novelty)] if len(run.novelty) else []
    marked = [Column("outliers", ("not far from others", "outlier"), run.outlier.astype(float))]
    return found + (marked if run.outlier.any() else [])


def _column(column: Column, rows: NDArray[np.int64]) -> dict[str, Any]:
    values = [float(f"{one:.6g}") if np.isfinite(one) else None for one in column.values[rows].tolist()]
    return {"name": column.name, "levels": list(column.levels), "values": values}


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers as JSON has them, and None where there is none."""
    return [_short(value) if np.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float:
    """Three digits; not quite all stays below 1, and a little above 0, as the page would call them 100% and 0%."""
    return min(max(round(value, 3), 0.001), 0.999) if 0 < value < 1 else round(value, 3)


def map_section(runs: Sequence[FinishedRun]) -> Section:
    """Find a sample, see it on the map, and read why it is there."""
    maps = [
        filled("map.html", number=number, run=run.name, found=headline(run))
        for number, run in enumerate(runs)
        if run.map is not None
    ]
    without = [f"“{run.name}” was written without a map; fit it again to get one." for run in runs if run.map is None]
    body = filled("maps.html", count=len(runs), maps=join(maps), without=paragraphs(*without))
    return Section("map", "Map and samples", body)
