"""The report: one HTML file that needs nothing else, and the tables beside it."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import SettingError
from viewfuse.io.writers import Sheet, as_json, file_names, write_sheets
from viewfuse.plots.layout import find_patterns, lacking
from viewfuse.plots.style import as_hex, distinct_colors, distinct_markers
from viewfuse.report import comparison, sections
from viewfuse.report.association import Association, association_section, associations
from viewfuse.report.charts import cuts_of
from viewfuse.report.comparison import MOST_LEVELS, Column, Crossing, RunPair
from viewfuse.report.html import CORNERS, asset, filled
from viewfuse.report.run_folder import FinishedRun, read_run
from viewfuse.report.tables import apart_in_words, headline, merges_of, methods_text, tables_of
from viewfuse.utils.atomic import write_file
from viewfuse.utils.settings import Spell
from viewfuse.utils.version import __version__

MOST_BYTES = 3_000_000
"""A page that is larger feels stuck; samples are left out until it is not."""
_SHOWN = (20_000, 10_000, 5_000, 2_000, 1_000, 0)
"""Samples that are shown at most, where the page would be too large otherwise."""
_LEAST_COLORS = 8
"""For patterns of missing views."""
_GRID = 4096
"""Places of a map are whole numbers up to this: finer than a screen."""
METHODS = "methods.txt"
_SCRIPTS = ("base.js", "coloring.js", "map.js", "lookup.js", "tables.js", "main.js")


def write_report(
    folders: Sequence[Path],
    out: Path,
    known: Path | None = None,
    spell: Spell = str,
    title: str = "",
    batch: str = "",
    survival: Sequence[str] = (),
) -> Path:
    """Write the page of a run, or of two side by side, and its tables; gives the folder of these.

    `known` is a CSV file with ids and what else is known of the samples of one run: `batch` is its column that clusters
    should not follow, `survival` those of times, and of 1 where the event was seen then, else 0. `title` is what a run
    is called whose folder does not have its name yet.
    """
    if len(folders) not in (1, 2) or (len(folders) > 1 and (known is not None or batch or survival)):
        raise SettingError("a report is about one run, with or without known columns, or compares two runs")
    run, *others = (replace(read_run(folder), title=title) for folder in folders)
    data = tables_beside(out)
    if others:
        pair = comparison.pair_of(run, others[0])
        tables, content = _pair_tables(pair), _pair_content(pair, spell)
    else:
        columns = [] if known is None else comparison.columns_for(run, comparison.read_known(known))
        run = comparison.with_batch(run, columns, batch) if batch else run
        tests = associations(run, columns, survival)
        tables = tables_of(run) | _known_tables(comparison.crossings_of(run, columns, survival), tests)
        content = _content(run, columns, spell, survival, tests)
        write_file(data / METHODS, methods_text(run).encode())
    write_sheets(data, tables, latex=True)
    names = [*tables, *([] if others else [METHODS])]
    write_file(out, _fitting(files=[f"{data.name}/{name}" for name in names], **content).encode())
    return data


def tables_beside(out: Path) -> Path:
    """The folder of a page's tables: as the page, with "_data" for its ending."""
    return out.with_name(f"{out.stem}_data")


def run_page(run: FinishedRun, spell: Spell = str) -> str:
    """The page of a run, for those who show it without writing it."""
    return _fitting(files=[], **_content(run, [], spell))


def _content(
    run: FinishedRun,
    columns: Sequence[Column],
    spell: Spell,
    survival: Sequence[str] = (),
    tests: Sequence[Association] = (),
) -> dict[str, Any]:
    """What the page of a run shows, see `_fitting`."""
    levels = [len(one.levels) for one in columns if len(one.levels) <= MOST_LEVELS]
    found = [
        sections.cluster_section(run),
        sections.map_section([run]),
        sections.feature_section(run),
        comparison.known_section(run, columns, survival),
        association_section(run, columns, survival, tests),
        sections.missing_section(run),
        sections.k_section(run),
        sections.decision_section(run, spell),
        sections.loss_section(run),
        sections.reproduce_section(run),
    ]
    return {
        "title": f"{headline(run)}: {run.name}",
        "top": sections.verdict(run, spell),
        "sections": [one for one in found if one is not None],
        "colors": _palette(max([run.n_clusters, _LEAST_COLORS, *levels])),
        "points": lambda most, others: [points_of(run, columns, most, others=others)],
    }


def _pair_content(pair: RunPair, spell: Spell) -> dict[str, Any]:
    """What the page of two runs shows; a cluster of the second has the colour of its match, or a new one."""
    one, two = pair.runs
    partner, spare = {after: before for before, after in pair.crossing.matched.items()}, one.n_clusters
    second = []
    for label in range(two.n_clusters):
        second.append(partner.get(label, spare))
        spare += label not in partner
    moved = []
    for run, rows in ((one, pair.first), (two, pair.second)):
        has_moved = np.isin(np.arange(len(run.ids)), rows[pair.moved])
        moved.append(Column("stayed or moved", ("stayed", "moved"), has_moved.astype(float)))

    def points(most: int, others: bool) -> list[dict[str, Any]]:
        half = (most + 1) // 2
        first = points_of(one, moved[:1], half, others=others)
        return [first, points_of(two, moved[1:], half, others=others, colors=second)]

    return {
        "title": f"{one.name} and {two.name}",
        "top": comparison.pair_verdict(pair, spell),
        "sections": [sections.map_section(pair.runs), *comparison.pair_sections(pair)],
        "colors": _palette(max([one.n_clusters, _LEAST_COLORS, *(color + 1 for color in second)])),
        "points": points,
    }


def _palette(n: int) -> dict[str, Any]:
    light, dark = ([as_hex(one) for one in distinct_colors(n, on_dark=on_dark)] for on_dark in (False, True))
    return {"light": light, "dark": dark, "marks": distinct_markers(n), "shapes": CORNERS}


def _fitting(points: Callable[[int, bool], list[dict[str, Any]]], colors: dict[str, Any], **shown: Any) -> str:
    """The page with as many samples as its size allows; it loads nothing, and runs nothing but its own script.

    `points` gives the samples for the number that is drawn at most and whether the others are listed.
    """
    style, script = filled("style.css", colors=colors), "\n".join(map(asset, _SCRIPTS))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    shown |= {"style": style, "script": script, "policy": policy, "version": __version__}
    page = ""
    for most, others in product(_SHOWN, (True, False)):
        page = filled("page.html", data=pack({"colors": colors, "runs": points(most, others)}), **shown)
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def pack(facts: Any) -> str:
    """Facts as base64 of compressed JSON; the same facts give the same text."""
    return base64.b64encode(gzip.compress(as_json(facts).encode(), compresslevel=6, mtime=0)).decode()


def points_of(
    run: FinishedRun, columns: Sequence[Column], most: int, *, others: bool, colors: Sequence[int] | None = None
) -> dict[str, Any]:
    """Samples for the map and the look-up: `most`, drawn at random, and all others as ids, clusters and confidence.

    `colors` are per cluster the number of its colour; its own number by default.
    """
    rows, places = _shown(run, most)
    present, _, pattern = find_patterns(run.present)
    own = [Column("novelty", (), run.novelty)] if len(run.novelty) else []
    if run.outlier.any():
        own.append(Column("outliers", ("not far from others", "outlier"), run.outlier.astype(float)))
    listed = []
    for one in (*columns, *own):
        values = [float(f"{value:.6g}") if np.isfinite(value) else None for value in one.values[rows].tolist()]
        listed.append({"name": one.name, "levels": list(one.levels), "values": values})
    facts: dict[str, Any] = {
        "name": run.name,
        "n": len(run.ids),
        "views": run.views,
        "about": ["; ".join(words) for words in apart_in_words(run).values()],
        "colors": list(colors) if colors is not None else list(range(run.n_clusters)),
        "patterns": [lacking(one, run.views) for one in present],
        "present": present.astype(int).tolist(),
        "cuts": {str(k): groups for k, groups in cuts_of(merges_of(run), run.n_clusters).items()},
        "columns": listed,
        "points": _facts(run, rows) | {"pattern": pattern[rows].tolist()} | places | _why(run, rows),
    }
    if run.cluster_names:
        facts["names"] = run.cluster_names
    if others and len(rows) < len(run.ids):
        facts["others"] = _facts(run, np.setdiff1d(np.arange(len(run.ids)), rows))
    return facts


def _shown(run: FinishedRun, most: int) -> tuple[NDArray[np.int64], dict[str, list[int]]]:
    """Rows of the samples that are shown, and their places on the map where there is one."""

    def choice(n: int) -> NDArray[np.int64]:
        return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).permutation(n)[:most])

    if run.map is None:
        return choice(len(run.ids)), {}
    row = {name: place for place, name in enumerate(run.ids)}
    there = [(place, row[name]) for place, name in enumerate(run.map.ids()) if name in row]
    place, rows = np.array(there, dtype=np.int64).reshape(-1, 2)[choice(len(there))].T
    xy = np.stack([run.map.numbers("x"), run.map.numbers("y")])[:, place]
    low = xy.min(axis=1, keepdims=True) if xy.size else 0
    span = max(float((xy - low).max()), 1e-12) if xy.size else 1.0
    x, y = np.round((xy - low) / span * _GRID).astype(int).tolist()
    return rows, {"x": x, "y": y}


def _facts(run: FinishedRun, rows: NDArray[np.int64]) -> dict[str, list[Any]]:
    ids = [run.ids[row] for row in rows.tolist()]
    return {"id": ids, "label": run.labels[rows].tolist(), "confidence": _rounded(run.confidence[rows])}


def _why(run: FinishedRun, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Second-best cluster, weights of views and donors of missing ones, where the run says so."""
    table = run.explained
    if table is None:
        return {}
    place = {name: row for row, name in enumerate(table.ids())}
    taken = np.array([place.get(run.ids[row], -1) for row in rows.tolist()], dtype=np.int64)

    def numbers(name: str) -> list[float | None]:
        return _rounded(np.where(taken >= 0, table.numbers(name)[taken], np.nan)) if len(table) else []

    donors = [table.column(f"donors_{name}") for name in run.views]
    return {
        "second": numbers("second_label"),
        "second_confidence": numbers("second_confidence"),
        "weights": [numbers(f"weight_{name}") for name in run.views],
        "donors": [["" if row < 0 else own[row] for row in taken.tolist()] for own in donors],
    }


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Three digits, and None where there is no number."""

    def short(value: float) -> float:  # not quite all stays below 1, as the page would call it 100%
        return min(max(round(value, 3), 0.001), 0.999) if 0 < value < 1 else round(value, 3)

    return [short(value) if np.isfinite(value) else None for value in values.tolist()]


def _known_tables(known: Mapping[str, Crossing], tests: Sequence[Association]) -> dict[str, Sheet]:
    files = file_names([f"known_{name}" for name in known], ".csv")
    sheets = {file: found.sheet("cluster") for file, found in zip(files, known.values(), strict=True)}
    rows = [(name, len(one.first), *one.scores().values()) for name, one in known.items()]
    sheets |= {"scores.csv": Sheet(("column", "samples", "accuracy", "NMI", "ARI"), rows)} if rows else {}
    return sheets | ({"associations.csv": Sheet(Association._fields, tests, ".4g")} if tests else {})


def _pair_tables(pair: RunPair) -> dict[str, Sheet]:
    scores = Sheet(("samples", "accuracy", "NMI", "ARI"), [(len(pair.first), *pair.crossing.scores().values())])
    before, after = (tables_of(run)["clusters.csv"] for run in pair.runs)
    crossing = pair.crossing.sheet("cluster_before")
    return {"moved.csv": pair.sheet(), "crossing.csv": crossing, "scores.csv": scores} | {
        "clusters_before.csv": before, "clusters_after.csv": after,
    }  # fmt: skip
