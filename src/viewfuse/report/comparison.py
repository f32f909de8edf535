"""Clusters beside what is known of the samples, and beside the clusters of another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viewfuse import metrics
from viewfuse.data.alignment import warn_of_few
from viewfuse.data.numerals import is_number
from viewfuse.errors import DataError
from viewfuse.io.source import check_ids
from viewfuse.io.writers import Sheet
from viewfuse.report.csv_table import CsvTable, read_table
from viewfuse.report.run_folder import FinishedRun
from viewfuse.selection.messages import records

MOST_LEVELS = 50
"""A column of text with more values than this says who a sample is, not what."""
_FEW_NUMBERS = 12
"""A column of at most this many different whole numbers holds classes; other numbers are measured."""


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
    _check_shared(run, known, sum(place is not None for place in places))
    cells = ((name, column) for name, column in known.columns.items() if name != "id")
    return [
        _column(name, ["" if place is None else column[place].strip() for place in places]) for name, column in cells
    ]


def with_batch(run: FinishedRun, columns: Sequence[Column], batch: str) -> FinishedRun:
    """The run with what a known column says of it that must not decide the clusters: whether they follow it."""
    from viewfuse.selection.trust import on_batch, with_reasons  # which need torch

    column = next((one for one in columns if one.name == batch and one.levels), None)
    if column is None:
        names = ", ".join(one.name for one in columns if one.levels) or "none"
        raise DataError(f"no known column with classes is called {batch!r}; those that are there: {names}")
    there = np.isfinite(column.values)
    reason = on_batch(run.labels[there], column.values[there], batch)
    if reason is None or run.trust is None:
        return run
    decided = {**run.summary["decisions"], **records(with_reasons(run.trust, reason))}
    return replace(run, summary={**run.summary, "decisions": decided})


def _check_shared(run: FinishedRun, known: CsvTable, shared: int) -> None:
    if not shared:
        raise DataError(
            f"{known.path} and {run.folder} share no id; the first column, or the column id, must hold them"
        )
    warn_of_few(shared, run.ids, known.ids(), f"{run.folder} and {known.path}")


def _column(name: str, cells: Sequence[str]) -> Column:
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
    known = np.isfinite(column.values)
    if not 2 <= len(column.levels) <= MOST_LEVELS:
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
    row = {name: place for place, name in enumerate(two.ids)}
    shared = [(place, row[name]) for place, name in enumerate(one.ids) if name in row]
    if not shared:
        raise DataError(f"{one.folder} and {two.folder} share no id; compare runs over the same samples")
    first, second = np.array(shared, dtype=np.int64).T
    if one.name == two.name:
        one, two = (replace(run, title=f"{run.folder.resolve().parent.name}/{run.name}") for run in (one, two))
    names = [tuple(map(str, range(run.n_clusters))) for run in (one, two)]
    return RunPair((one, two), first, second, Crossing(one.labels[first], two.labels[second], names[0], names[1]))
