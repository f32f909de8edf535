"""Clusters beside what is known of the samples, or beside those of another run; and the sections that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from viewfuse import metrics
from viewfuse.data.alignment import read_alike, shown, warn_of_few
from viewfuse.data.input_types import id_key
from viewfuse.data.precision import is_number
from viewfuse.data.side_information.known_labels import is_unknown
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.labels import CsvTable, read_table
from viewfuse.io.source import check_ids
from viewfuse.io.writers import OUTLIER, Sheet
from viewfuse.report.html import filled
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.report.tables import clusters_of, count, headline, how_sure
from viewfuse.selection.decision_texts import records
from viewfuse.utils.console import tell, warn
from viewfuse.utils.settings import Spell

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_LEVELS = 50
"""A column of text with more values than this says who a sample is, not what."""
_FEW_NUMBERS = 12
"""A column of at most this many different whole numbers holds classes; other numbers are measured."""
_MOST_COLUMNS = 20
_MOST_MOVED = 200
_SHADES = 5


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is known of the samples."""

    name: str
    levels: tuple[str, ...]  # the classes in it; empty for numbers
    values: NDArray[np.float64]  # per sample the number, or the place of its class in `levels`; NaN: not known


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two ways to group the same samples."""

    first: NDArray[np.int64]  # the group of each sample
    second: NDArray[np.int64]
    rows: tuple[str, ...]  # names of the groups of the first
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

    @property
    def shown(self) -> list[int]:
        """The columns that a page shows, in the order of the rows that they are matched with."""
        partners = [self.matched[row] for row in sorted(self.matched)]
        return [*partners, *(c for c in range(len(self.columns)) if c not in partners)][:_MOST_COLUMNS]

    @property
    def shades(self) -> NDArray[np.int64]:
        """How strongly a page colours each count: by its share of the row."""
        return np.minimum(_SHADES, -(-_SHADES * self.counts // np.maximum(self.counts.sum(axis=1, keepdims=True), 1)))

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
    keys = [id_key(name) for name in known.ids()]
    check_ids(known.path, keys)
    row = {name: place for place, name in enumerate(keys)}
    places = [row.get(id_key(name)) for name in run.ids]
    shared = sum(place is not None for place in places)
    if not shared:
        raise DataError(
            f"{known.path} and {run.folder} share no id; the first column, or the column id, must hold them"
        )
    warn_of_few(shared, run.ids, keys, f"{run.folder} and {known.path}")
    own = dict.fromkeys(map(id_key, run.ids))
    alone = [name for name in own if name not in row], [name for name in keys if name not in own]
    for one, other in read_alike(*alone)[:1]:
        fault = f"{run.folder} and {known.path}: {shown(one)} and {shown(other)} read alike, but are two samples"
        warn(SuspiciousDataWarning(f"{fault}; spell ids alike in both"))
    return [
        _column(known.path, name, ["" if place is None else column[place].strip() for place in places])
        for name, column in known.columns.items()
        if name != "id"
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


def _column(path: Path, name: str, cells: Sequence[str]) -> Column:
    cells = ["" if is_unknown(cell) and not _is_negative(cell) else cell for cell in cells]
    there = {cell for cell in cells if cell}
    measured = bool(there) and all(map(is_number, there))
    if measured and (len(there) > _FEW_NUMBERS or not all(float(cell).is_integer() for cell in there)):
        return Column(name, (), np.array([float(cell) if cell else np.nan for cell in cells]))
    below = set(filter(_is_negative, there))
    if below and all(map(is_unknown, below)) and len(there) > 2:  # -1, besides which there are two classes at least
        tell(f"{path}, column {name!r}: {sum(cell in below for cell in cells):,} of -1 count as not known")
        cells, there = ["" if cell in below else cell for cell in cells], there - below
    # numbers by size, then text by the alphabet
    levels = sorted(there, key=lambda one: (False, float(one), one) if is_number(one) else (True, 0.0, one))
    place = {level: float(row) for row, level in enumerate(levels)}
    return Column(name, tuple(levels), np.array([place.get(cell, np.nan) for cell in cells]))


def _is_negative(cell: str) -> bool:
    return is_number(cell) and float(cell) < 0


def crossed_with(run: FinishedRun, column: Column) -> Crossing | None:
    """The clusters beside the classes of a column, over the samples whose class is known; None where it has none."""
    known = np.isfinite(column.values) & (run.labels != OUTLIER)
    if not 2 <= len(column.levels) <= MOST_LEVELS or not known.any():
        return None
    names = tuple(map(str, range(run.n_clusters)))
    return Crossing(run.labels[known], column.values[known].astype(np.int64), names, column.levels)


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two runs over the same samples."""

    runs: tuple[FinishedRun, FinishedRun]
    first: NDArray[np.int64]  # rows of the samples that both have
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


def crossings_of(run: FinishedRun, columns: Sequence[Column], survival: Sequence[str] = ()) -> dict[str, Crossing]:
    """The clusters beside every known column of classes, by its name; times and events of `survival` are none."""
    return {one.name: found for one in columns if one.name not in survival and (found := crossed_with(run, one))}


def known_section(run: FinishedRun, columns: Sequence[Column], survival: Sequence[str] = ()) -> Section | None:
    """The clusters beside every known column of classes."""
    if not columns:
        return None
    crossings = crossings_of(run, columns, survival)
    others = [one.name for one in columns if one.name not in crossings]
    return Section("known", "Compared with what you know", filled("known.html", crossings=crossings, others=others))


def pair_verdict(pair: RunPair, spell: Spell) -> Markup:
    """The first screen of two runs: how many samples moved, and what each run says of itself."""
    left_out = []
    for run, other in (pair.runs, pair.runs[::-1]):
        only, outliers = len(set(run.ids) - set(other.ids)), int((run.labels == OUTLIER).sum())
        left_out += [f"{only:,} {'is' if only == 1 else 'are'} only in “{run.name}”"] if only else []
        left_out += [f"{count(outliers, 'outlier')} of “{run.name}”"] if outliers else []
    runs = [(run.name, headline(run), how_sure(run, spell)) for run in pair.runs]
    facts = {"pair": pair, "n_moved": len(pair.moved), "scores": pair.crossing.scores(), "left_out": left_out}
    return filled("pair.html", runs=runs, **facts)


def pair_sections(pair: RunPair) -> list[Section]:
    """How the clusters of two runs belong together, and who moved."""
    first, second = (clusters_of(run) for run in pair.runs)
    matched = [(first[a], second[b]) for a, b in sorted(pair.crossing.matched.items())]
    moved = sorted(pair.sheet().rows, key=lambda row: -min(row[3], row[4]))
    return [
        Section("crossing", "Cluster by cluster", filled("crossing.html", pair=pair, matched=matched)),
        Section("moved", "Who moved", filled("moved.html", shown=moved[:_MOST_MOVED], n_moved=len(moved))),
    ]
