"""Clusters beside what is known of the samples, or beside those of another run; and the sections that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viewfuse import metrics
from viewfuse.data.alignment import warn_of_few
from viewfuse.data.digits import is_number
from viewfuse.errors import DataError
from viewfuse.io.labels import CsvTable, read_table
from viewfuse.io.source import check_ids
from viewfuse.io.writers import OUTLIER, Sheet
from viewfuse.report import charts
from viewfuse.report.html import Html, cell, join, note, paragraphs, samples, table, tag, whole
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.report.tables import clusters_of, count, headline, how_sure, percent
from viewfuse.selection.messages import records
from viewfuse.utils.settings import Spell

MOST_LEVELS = 50
"""A column of text with more values than this says who a sample is, not what."""
_UNKNOWN = ("na", "nan", "n/a", "null")
"""Empty cells as R, pandas and databases write them, in small letters; none may well be a class."""
_FEW_NUMBERS = 12
"""A column of at most this many different whole numbers holds classes; other numbers are measured."""
_MOST_COLUMNS = 20
_MOST_MOVED = 200
_SHADES = 5


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is known of the samples.

    Attributes
    ----------
    levels : the classes in it; empty for numbers
    values : float64 array of shape (samples,): the number, or the place of the class in `levels`; NaN: not known
    """

    name: str
    levels: tuple[str, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two ways to group the same samples.

    Attributes
    ----------
    first, second : int64 arrays of shape (samples,)
    rows, columns : names of the groups of the first and of the second
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Samples in both groups, of shape (rows, columns)."""
        counts = np.zeros((len(self.rows), len(self.columns)), dtype=np.int64)
        np.add.at(counts, (self.first, self.second), 1)
        return counts

    @cached_property
    def matched(self) -> dict[int, int]:
        """Per row the column that it is matched with, so that as many samples as possible are in both."""
        from scipy.optimize import linear_sum_assignment  # only where two runs are compared

        pairs = zip(*linear_sum_assignment(self.counts, maximize=True), strict=True)
        return {int(row): int(column) for row, column in pairs if self.counts[row, column]}

    @cached_property
    def agrees(self) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), are in a pair of matched groups."""
        partner = np.array([self.matched.get(row, -1) for row in range(len(self.rows))])
        return partner[self.first] == self.second

    def scores(self) -> dict[str, float]:
        """How well both agree."""
        pair = self.second, self.first
        return {"accuracy": float(self.agrees.mean()), "NMI": metrics.nmi(*pair), "ARI": metrics.ari(*pair)}

    def sheet(self, first: str) -> Sheet:
        """The counts as a table."""
        rows = zip(self.rows, self.counts.tolist(), strict=True)
        return Sheet((first, *self.columns), [(name, *counts) for name, counts in rows])


def read_known(path: Path) -> CsvTable:
    """A CSV file with ids in the column "id", or in the first one, and anything else in the others."""
    table = read_table(path)
    if "id" not in table.columns:
        first = next(iter(table.columns))
        table = CsvTable(path, {"id": table.columns[first], **{n: c for n, c in table.columns.items() if n != first}})
        check_ids(path, table.ids())
    if len(table.columns) == 1:
        raise DataError(f"{path} has one column only; it needs ids in the first, and what is known in others")
    return table


def columns_for(run: FinishedRun, known: CsvTable) -> list[Column]:
    """What is known of the samples of a run, in their order."""
    row = {name: place for place, name in enumerate(known.ids())}
    places = [row.get(name) for name in run.ids]
    shared = sum(place is not None for place in places)
    if not shared:
        raise DataError(
            f"{known.path} and {run.folder} share no id; the first column, or the column id, must hold them"
        )
    warn_of_few(shared, run.ids, known.ids(), f"{run.folder} and {known.path}")
    cells = ((name, column) for name, column in known.columns.items() if name != "id")
    return [
        _column(name, ["" if place is None else column[place].strip() for place in places]) for name, column in cells
    ]


def with_batch(run: FinishedRun, columns: Sequence[Column], batch: str) -> FinishedRun:
    """The run with what a known column says of it that must not decide the clusters: whether they follow it."""
    from viewfuse.selection.rules import on_batch, with_reasons  # which need torch

    column = next((one for one in columns if one.name == batch and one.levels), None)
    if column is None:
        names = ", ".join(one.name for one in columns if one.levels) or "none"
        raise DataError(f"no known column with classes is called {batch!r}; those that are there: {names}")
    there = np.isfinite(column.values) & (run.labels != OUTLIER)
    reason = on_batch(run.labels[there], column.values[there], batch)
    if reason is None or run.trust is None:
        return run
    decided = {**run.summary["decisions"], **records(with_reasons(run.trust, reason))}
    return replace(run, summary={**run.summary, "decisions": decided})


def _column(name: str, cells: Sequence[str]) -> Column:
    cells = ["" if cell.lower() in _UNKNOWN else cell for cell in cells]
    there = [cell for cell in cells if cell]
    levels = tuple(sorted(set(there), key=_order))
    measured = bool(there) and all(is_number(cell) for cell in there)
    if measured and (len(levels) > _FEW_NUMBERS or not all(float(level).is_integer() for level in levels)):
        return Column(name, (), np.array([float(cell) if cell else np.nan for cell in cells]))
    place = {level: float(row) for row, level in enumerate(levels)}
    return Column(name, levels, np.array([place.get(cell, np.nan) for cell in cells]))


def _order(level: str) -> tuple[bool, float, str]:
    """Numbers by size, then text by the alphabet."""
    return (False, float(level), level) if is_number(level) else (True, 0.0, level)


def crossed_with(run: FinishedRun, column: Column) -> Crossing | None:
    """The clusters beside the classes of a column, over the samples whose class is known; None where it has none."""
    known = np.isfinite(column.values) & (run.labels != OUTLIER)
    if not 2 <= len(column.levels) <= MOST_LEVELS or not known.any():
        return None
    names = tuple(map(str, range(run.n_clusters)))
    return Crossing(run.labels[known], column.values[known].astype(np.int64), names, column.levels)


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two runs over the same samples.

    Attributes
    ----------
    first, second : int64 arrays of shape (shared,): the rows of the samples that both have
    """

    runs: tuple[FinishedRun, FinishedRun]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    crossing: Crossing

    @property
    def moved(self) -> NDArray[np.int64]:
        """Places, among the shared samples, of those that are in a cluster that is not matched with their first one."""
        return np.flatnonzero(~self.crossing.agrees)

    def sheet(self) -> Sheet:
        """Who moved."""
        one, two = self.runs
        rows = zip(self.first[self.moved].tolist(), self.second[self.moved].tolist(), strict=True)
        header = ("id", "cluster_before", "cluster_after", "confidence_before", "confidence_after")
        facts = [
            (one.ids[a], int(one.labels[a]), int(two.labels[b]), float(one.confidence[a]), float(two.confidence[b]))
            for a, b in rows
        ]
        return Sheet(header, facts)


def pair_of(one: FinishedRun, two: FinishedRun) -> RunPair:
    """Match the samples of two runs by id, and their clusters by the samples in them."""
    row = {name: place for place, name in enumerate(two.ids) if two.labels[place] != OUTLIER}
    shared = [(p, row[name]) for p, name in enumerate(one.ids) if name in row and one.labels[p] != OUTLIER]
    if not shared:
        raise DataError(f"{one.folder} and {two.folder} share no id; compare runs over the same samples")
    first, second = np.array(shared, dtype=np.int64).T
    if one.name == two.name:
        one, two = (replace(run, title=f"{run.folder.resolve().parent.name}/{run.name}") for run in (one, two))
    names = [tuple(map(str, range(run.n_clusters))) for run in (one, two)]
    return RunPair((one, two), first, second, Crossing(one.labels[first], two.labels[second], names[0], names[1]))


def known_section(run: FinishedRun, columns: Sequence[Column], marks: Sequence[str]) -> Section | None:
    """The clusters beside every known column of classes."""
    if not columns:
        return None
    crossings = [(column, crossed_with(run, column)) for column in columns]
    parts = [_known(column.name, crossing, marks) for column, crossing in crossings if crossing is not None]
    others = [column.name for column, crossing in crossings if crossing is None]
    said = note(
        "Unless hints came from them, the clusters were found without these columns. Strongly coloured cells hold a "
        "large share of their cluster. Framed cells are the best one-to-one match, and accuracy is the share of the "
        "samples in them. NMI and ARI are 1 for the same groups; ARI is 0 for groups that agree no more than by chance."
    )
    rest = f"Not compared, but a colour on the map: {', '.join(others)}." if others else ""
    return Section("known", "Compared with what you know", join([said, *parts, paragraphs(rest)]))


def _known(name: str, crossing: Crossing, marks: Sequence[str]) -> Html:
    scores = crossing.scores()
    sure = ", ".join(f"{score} {value:.3f}" for score, value in scores.items())
    n = count(len(crossing.first), "sample")
    words = f"Of {n} whose {name} is known, {percent(scores['accuracy'])} are in the matching cluster ({sure})."
    return join([tag("h3", name), tag("p", words), _crossing_table(f"known-{name}", name, crossing, marks)])


def _crossing_table(key: str, caption: str, crossing: Crossing, marks: Sequence[str]) -> Html:
    """Counts; columns in the order of the clusters that they are matched with."""
    partners = [crossing.matched[row] for row in sorted(crossing.matched)]
    order = [*partners, *(c for c in range(len(crossing.columns)) if c not in partners)]
    shown = order[:_MOST_COLUMNS]
    rows = [_crossing_row(crossing, row, shown, marks) for row in range(len(crossing.rows))]
    more = f"; {len(order) - len(shown)} more columns are in the CSV file" if len(order) > len(shown) else ""
    return table(key, f"{caption}{more}", ["Cluster", *(crossing.columns[c] for c in shown)], rows)


def _crossing_row(crossing: Crossing, row: int, shown: Sequence[int], marks: Sequence[str]) -> list[Html]:
    counts = crossing.counts[row]
    total = max(int(counts.sum()), 1)
    cells = []
    for column in shown:
        n = int(counts[column])
        name = f"number shade{min(_SHADES, -(-_SHADES * n // total))}"
        name += " matched" if crossing.matched.get(row) == column else ""
        cells.append(tag("td", f"{n:,}", class_=name, data_value=n))
    return [cell(join([charts.swatch(row, marks[row]), tag("b", crossing.rows[row])]), crossing.rows[row]), *cells]


def pair_verdict(pair: RunPair, spell: Spell) -> Html:
    """The first screen of two runs: how many samples moved, and what each run says of itself."""
    n, moved, left = len(pair.first), len(pair.moved), _left_out(pair)
    title = f"{count(moved, 'sample')} of {n:,} moved" if moved else f"None of {n:,} samples moved"
    scores = pair.crossing.scores()
    words = (
        f"Before: “{pair.runs[0].name}”; after: “{pair.runs[1].name}”. Their clusters are matched so that as many "
        f"samples as possible stay: {percent(scores['accuracy'])} of those in both runs do. The adjusted Rand index is "
        f"{scores['ARI']:.3f} (1 means the same clusters, 0 means no more than chance)."
    )
    extra = f"Samples that have no cluster in both runs are not counted: {', '.join(left)}." if left else ""
    runs = [
        tag("div", tag("h2", run.name), tag("p", tag("b", headline(run))), paragraphs(*how_sure(run, spell)))
        for run in pair.runs
    ]
    return tag("header", tag("h1", title), paragraphs(words, extra), tag("div", *runs, class_="pair"), id="verdict")


def _left_out(pair: RunPair) -> list[str]:
    """Which samples are not counted, in words."""
    found = []
    for run, other in (pair.runs, pair.runs[::-1]):
        only = len(set(run.ids) - set(other.ids))
        outliers = int((run.labels == OUTLIER).sum())
        found += [f"{only:,} {'is' if only == 1 else 'are'} only in “{run.name}”"] if only else []
        found += [f"{count(outliers, 'outlier')} of “{run.name}”"] if outliers else []
    return found


def pair_sections(pair: RunPair, marks: Sequence[str]) -> list[Section]:
    """How the clusters of two runs belong together, and who moved."""
    one, two = pair.runs
    said = (
        f"Rows are clusters of “{one.name}”, columns those of “{two.name}”. A framed cell is the same cluster in both."
    )
    crossing = _crossing_table("crossing", "Samples by cluster in both runs", pair.crossing, marks)
    return [
        Section("crossing", "Cluster by cluster", join([note(said), crossing, _facts_table(pair)])),
        Section("moved", "Who moved", _moved_table(pair)),
    ]


def _facts_table(pair: RunPair) -> Html:
    first, second = (clusters_of(run) for run in pair.runs)
    header = ["Cluster before", "Cluster after", "Samples before", "Samples after"]
    rows = []
    for before, after in ((first[a], second[b]) for a, b in sorted(pair.crossing.matched.items())):
        labels = [cell(str(one.label), one.label) for one in (before, after)]
        sizes = [whole(one.samples) for one in (before, after)]
        rows.append([*labels, *sizes, *(_sure(one.confidence) for one in (before, after))])
    return table("matched", "Matched clusters", [*header, "Confidence before", "Confidence after"], rows)


def _sure(confidence: float) -> Html:
    return cell(percent(confidence), f"{confidence:.4f}", number=True)


def _moved_table(pair: RunPair) -> Html:
    sheet = list(pair.sheet().rows)
    if not sheet:
        return tag("p", "No sample moved: each is in the matched cluster.")
    sheet.sort(key=lambda row: -min(row[3], row[4]))
    rows = [
        [samples([row[0]]), *(cell(str(label), label) for label in row[1:3]), *map(_sure, row[3:])]
        for row in sheet[:_MOST_MOVED]
    ]
    words = f"The {len(rows)} surest of {len(sheet)} are listed; moved.csv has all. " if len(sheet) > len(rows) else ""
    said = note(f"{words}Those at the top were sure of their cluster both times, and still moved.")
    header = ("Sample", "Cluster before", "Cluster after", "Confidence before", "Confidence after")
    return join([said, table("moved", "Samples that moved", header, rows)])
