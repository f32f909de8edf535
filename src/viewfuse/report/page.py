"""The report: one HTML file that needs nothing else, and the tables beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import SettingError
from viewfuse.io.writers import Sheet, file_names, write_sheets
from viewfuse.report import sections
from viewfuse.report.association import association_section, association_sheet, associations
from viewfuse.report.comparison import (
    MOST_LEVELS,
    Column,
    RunPair,
    columns_for,
    crossed_with,
    known_section,
    pair_of,
    pair_sections,
    pair_verdict,
    read_known,
    with_batch,
)
from viewfuse.report.html import Html, asset, filled, join, paragraphs, tag
from viewfuse.report.payload import map_section, pack, palette, points_of
from viewfuse.report.run_folder import FinishedRun, read_run
from viewfuse.report.sections import Section
from viewfuse.report.tables import headline, methods_text, tables_of
from viewfuse.utils.atomic import write_file
from viewfuse.utils.settings import Spell
from viewfuse.utils.version import __version__

MOST_BYTES = 3_000_000
"""A page that is larger feels stuck; samples are left out until it is not."""
_SHOWN = (20_000, 10_000, 5_000, 2_000, 1_000, 0)
"""Samples that are shown at most, where the page would be too large otherwise."""
_LEAST_COLORS = 8
"""For patterns of missing views."""
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
    """Write the page of a run, or of two side by side, and its tables.

    Parameters
    ----------
    folders : of one run or two, as `viewfuse fit` wrote them
    out : the page
    known : CSV file with ids and what else is known of the samples; for one run only
    spell : how the page spells parameters
    title : what a run is called, where its folder does not have its name yet
    batch : the known column that clusters should not follow
    survival : the known columns of times, and of 1 where the event was seen then, else 0

    Returns
    -------
    The folder of the tables, `tables_beside(out)`.
    """
    if len(folders) not in (1, 2) or (len(folders) > 1 and (known is not None or batch or survival)):
        raise SettingError("a report is about one run, with or without known columns, or compares two runs")
    runs = [replace(read_run(folder), title=title) for folder in folders]
    data = tables_beside(out)
    if len(runs) == 2:
        pair = pair_of(runs[0], runs[1])
        tables, content = _pair_tables(pair), _pair_content(pair, spell)
    else:
        columns = [] if known is None else columns_for(runs[0], read_known(known))
        run = with_batch(runs[0], columns, batch) if batch else runs[0]
        tables = tables_of(run) | _known_tables(run, columns, survival)
        content = _run_content(run, columns, spell, survival)
    write_sheets(data, tables, latex=True)
    for run in runs if len(runs) == 1 else ():
        write_file(data / METHODS, methods_text(run).encode())
    names = [*tables, *([METHODS] if len(runs) == 1 else [])]
    write_file(out, _fitting(content, [f"{data.name}/{name}" for name in names]).encode())
    return data


def tables_beside(out: Path) -> Path:
    """The folder of a page's tables: as the page, with "_data" for its ending."""
    return out.with_name(f"{out.stem}_data")


def run_page(run: FinishedRun, spell: Spell = str) -> str:
    """The page of a run, for those who show it without writing it."""
    return _fitting(_run_content(run, [], spell), [])


class _Content(NamedTuple):
    """What a page shows.

    Attributes
    ----------
    points : gives the samples for the script, for the number that is drawn at most and whether the others are listed
    """

    title: str
    top: Html
    sections: list[Section]
    colors: Mapping[str, Any]
    points: Callable[[int, bool], list[dict[str, Any]]]


def _run_content(run: FinishedRun, columns: Sequence[Column], spell: Spell, survival: Sequence[str] = ()) -> _Content:
    levels = [len(one.levels) for one in columns if len(one.levels) <= MOST_LEVELS]
    colors = palette(max([run.n_clusters, _LEAST_COLORS, *levels]))
    marks = colors["marks"]
    found = [
        sections.cluster_section(run, marks),
        map_section([run]),
        sections.feature_section(run, marks),
        known_section(run, columns, marks),
        association_section(run, columns, survival),
        sections.missing_section(run),
        sections.k_section(run),
        sections.decision_section(run, spell),
        sections.loss_section(run),
        sections.reproduce_section(run),
    ]
    top, shown = sections.verdict(run, spell, marks), [one for one in found if one is not None]

    def points(most: int, others: bool) -> list[dict[str, Any]]:
        return [points_of(run, columns, most, others=others)]

    return _Content(f"{headline(run)}: {run.name}", top, shown, colors, points)


def _pair_content(pair: RunPair, spell: Spell) -> _Content:
    one, two = pair.runs
    second = _colors_of_second(pair)
    colors = palette(max([one.n_clusters, _LEAST_COLORS, *(color + 1 for color in second)]))
    moved = [_moved_column(run, rows[pair.moved]) for run, rows in ((one, pair.first), (two, pair.second))]

    def points(most: int, others: bool) -> list[dict[str, Any]]:
        half = (most + 1) // 2
        first = points_of(one, moved[:1], half, others=others)
        return [first, points_of(two, moved[1:], half, others=others, colors=second)]

    found = [map_section(pair.runs), *pair_sections(pair, colors["marks"])]
    return _Content(f"{one.name} and {two.name}", pair_verdict(pair, spell), found, colors, points)


def _colors_of_second(pair: RunPair) -> list[int]:
    """Per cluster of the second run the colour of its match in the first, or a new one."""
    partner = {after: before for before, after in pair.crossing.matched.items()}
    spare = iter(range(pair.runs[0].n_clusters, pair.runs[0].n_clusters + pair.runs[1].n_clusters))
    return [partner[label] if label in partner else next(spare) for label in range(pair.runs[1].n_clusters)]


def _fitting(content: _Content, files: Sequence[str]) -> str:
    """The page with as many samples as its size allows."""
    page = ""
    for most, others in product(_SHOWN, (True, False)):
        page = _page(content, files, pack({"colors": content.colors, "runs": content.points(most, others)}))
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def _page(content: _Content, files: Sequence[str], data: str) -> str:
    style, script = _style(content.colors), Html("\n".join(map(asset, _SCRIPTS)))
    links = [tag("li", tag("a", one.title, href=f"#{one.key}")) for one in content.sections]
    beside = f"Every number of this page is also in files beside it: {', '.join(files)}." if files else ""
    return filled(
        "page.html",
        title=content.title,
        policy=Html(_policy(style, script)),
        style=style,
        links=join(links),
        top=content.top,
        sections=join(one.html() for one in content.sections),
        files=paragraphs(beside),
        version=__version__,
        data=data,
        script=script,
    )


def _style(colors: Mapping[str, Any]) -> Html:
    """The style sheet, with a class per cluster for either ground."""
    grounds = ["\n".join(f".c{i} {{ fill: {c}; }}" for i, c in enumerate(colors[name])) for name in ("light", "dark")]
    return filled("style.css", light=Html(grounds[0]), dark=Html(grounds[1]))


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing runs but what was written here."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    sources = f"style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _known_tables(run: FinishedRun, columns: Sequence[Column], survival: Sequence[str] = ()) -> dict[str, Sheet]:
    crossings = {column.name: crossed_with(run, column) for column in columns}
    known = {name: crossing for name, crossing in crossings.items() if crossing is not None}
    files = file_names([f"known_{name}" for name in known], ".csv")
    sheets = {file: crossing.sheet("cluster") for file, crossing in zip(files, known.values(), strict=True)}
    rows = [(name, len(one.first), *one.scores().values()) for name, one in known.items()]
    sheets |= {"scores.csv": Sheet(("column", "samples", "accuracy", "NMI", "ARI"), rows)} if rows else {}
    tests = associations(run, columns, survival)
    return sheets | ({"associations.csv": association_sheet(tests)} if tests else {})


def _pair_tables(pair: RunPair) -> dict[str, Sheet]:
    scores = Sheet(("samples", "accuracy", "NMI", "ARI"), [(len(pair.first), *pair.crossing.scores().values())])
    names = ("clusters_before.csv", "clusters_after.csv")
    clusters = {name: tables_of(run)["clusters.csv"] for name, run in zip(names, pair.runs, strict=True)}
    crossing = pair.crossing.sheet("cluster_before")
    return {"moved.csv": pair.sheet(), "crossing.csv": crossing, "scores.csv": scores, **clusters}


def _moved_column(run: FinishedRun, rows: NDArray[np.int64]) -> Column:
    values = np.zeros(len(run.ids))
    values[rows] = 1
    return Column("stayed or moved", ("stayed", "moved"), values)
