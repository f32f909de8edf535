"""Empty cells of rows that have other values: how many there may be, what fills them, and both in words.

What fills them is fitted on observed cells of training samples, and the same for new ones: values of nearest rows of
the same view, or medians of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import Mask, Names, is_sparse
from viewfuse.data.sparse_tables import rows_of_cells, with_data
from viewfuse.data.tables import called, labelled
from viewfuse.data.views import Views
from viewfuse.errors import DataError, EmptyCellsWarning
from viewfuse.utils import memory
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Setting, check_choice

FILLS = ("neighbors", "median", "error")
_MOST_DONORS, _MOST_CELLS = 5_000, 4_000_000
"""Training rows of a view that a model keeps to fill from, and their cells: 16 MB."""
_MOST_ROWS = 20_000
"""Of which medians are taken."""
MOST_OF_VIEW = 0.3
"""Share of a view's cells that may be empty in training samples."""
MOST_OF_LINE = 0.8
"""Share of a row's cells that may be empty, and in training samples of a column's."""
_SHOWN = 3
_CELLS_AT_A_TIME = 4_000_000
N_DONORS = 5
_CANDIDATES = 32
"""Nearest rows among which donors of all cells of a row are looked for first."""
_GRAIN, _TINY = 1e-11, 1e-300
"""Differences of squared distances below this share of the largest square are rounding."""


@dataclass(frozen=True, eq=False)
class NearestRows:
    """Training rows that lend their values, by exact nan-Euclidean distances on the columns that both rows have.

    scikit-learn's KNNImputer gives the same, but looks for donors column by column, which takes many times as long.
    `values`, of shape (rows, columns), are NaN where a cell is empty.
    """

    values: NDArray[np.float32]

    @cached_property
    def _observed(self) -> Mask:
        return ~np.isnan(self.values)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Rows by a hash of what they hold: of rows that are equally far the first lend, wherever they stand."""
        cells = np.where(self._observed, self.values + np.float32(0), np.float32(np.nan))  # no -0, one NaN
        return np.argsort([int.from_bytes(blake2b(row.tobytes(), digest_size=7).digest()) for row in cells])

    @cached_property
    def _scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean of each column, and what it is multiplied by: columns of any unit count alike, constant ones nothing."""
        counts = np.maximum(self._observed.sum(axis=0), 1)
        mean = np.nansum(self.values, axis=0, dtype=np.float64) / counts
        variance = np.nansum(np.square(self.values - mean), axis=0) / counts
        constant = variance <= 1e-14 * np.square(mean)
        return mean, np.where(constant, 0.0, 1 / np.sqrt(np.where(constant, 1.0, variance)))

    @cached_property
    def _scaled(self) -> NDArray[np.float64]:
        return self._on_scale(self.values)

    @cached_property
    def _column_kinds(self) -> NDArray[np.int64]:
        """Per column a number that is the same where the same rows have it."""
        return np.unique(np.packbits(self._observed, axis=0).T, axis=0, return_inverse=True)[1].ravel()

    @cached_property
    def is_whole(self) -> Mask:
        """Columns of whole numbers, of shape (columns,): counts and codes, which stay such."""
        return np.asarray((np.rint(self.values) == self.values).sum(axis=0) == self._observed.sum(axis=0))

    def _on_scale(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Zero where a cell is empty."""
        mean, factor = self._scale
        scaled: NDArray[np.float64] = (rows - mean) * factor
        scaled[np.isnan(rows)] = 0.0
        return scaled

    def fill(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of shape (rows, columns) with the mean of their donors in empty cells; NaN where no row can help."""
        filled = np.array(rows)
        step = max(1, _CELLS_AT_A_TIME // max(1, len(self.values), rows.shape[1]))
        for start in range(0, len(rows) if len(self.values) else 0, step):
            self._fill_part(filled[start : start + step])
        return filled

    def _fill_part(self, rows: NDArray[np.float32]) -> None:
        """Look among the nearest rows; then, for cells with too few donors there, among all rows that have the cell."""
        far, (places, columns) = self._distances(rows), np.nonzero(np.isnan(rows))
        nearest = self._order[_nearest(far[:, self._order], min(_CANDIDATES, far.shape[1]))]
        step = max(1, _CELLS_AT_A_TIME // nearest.shape[1])
        for start in range(0, len(places), step):
            own, c = places[start : start + step], columns[start : start + step]
            short = self._lend(rows, far, own, c, nearest[own])
            own, c = own[short], c[short]
            kinds = self._column_kinds[c]  # columns that the same rows have are searched at once
            for kind in np.unique(kinds):
                some = kinds == kind
                donors = self._order[self._observed[self._order, c[some][0]]]
                if len(donors):
                    unique, inverse = np.unique(own[some], return_inverse=True)
                    near = donors[_nearest(far[np.ix_(unique, donors)], min(N_DONORS, len(donors)))][inverse]
                    self._lend(rows, far, own[some], c[some], near)

    def _lend(
        self, rows: NDArray[np.float32], far: NDArray[np.float64], own: NDArray[np.int64], c: NDArray[np.int64],
        near: NDArray[np.int64],
    ) -> Mask:  # fmt: skip
        """Fill cells with the mean of the first of their candidates `near`, of shape (cells, candidates).

        Returns which have too few donors among them.
        """
        use = self._observed[near, c[:, None]] & np.isfinite(far[own[:, None], near])
        use &= np.cumsum(use, axis=1) <= N_DONORS
        lent = np.where(use, self.values[near, c[:, None]], np.float32(0)).sum(axis=1, dtype=np.float64)
        counts = use.sum(axis=1)
        mean = np.where(counts > 0, lent / np.maximum(counts, 1), np.nan)
        rows[own, c] = np.where(self.is_whole[c], np.rint(mean), mean)
        return np.asarray(counts < N_DONORS)

    def _distances(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Mean squared difference in the columns that both have, of shape (rows, donors); infinite without any.

        Differences that rounding alone may have made are rounded away: what is equally far stays so, however many
        rows are compared at a time.
        """
        new, old = self._on_scale(rows), self._scaled
        gone, unknown = np.isnan(rows), ~self._observed
        own, others_own = (new**2).sum(axis=1)[:, None], (old**2).sum(axis=1)
        squares = own + others_own - 2 * (new @ old.T)
        common = rows.shape[1] - gone.sum(axis=1)[:, None] - unknown.sum(axis=1).astype(np.float64)
        some, others = gone.any(axis=0), unknown.any(axis=0)
        both = some & others
        squares -= gone[:, some].astype(np.float64) @ (old[:, some] ** 2).T
        squares -= (new[:, others] ** 2) @ unknown[:, others].astype(np.float64).T
        common += gone[:, both].astype(np.float32) @ unknown[:, both].astype(np.float32).T
        grain = _GRAIN * (own + others_own.max()) + _TINY
        far = np.rint(np.maximum(squares, 0) / grain) * grain / np.maximum(common, 1)
        return np.where(common > 0, far, np.inf)


def _nearest(far: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Per row the numbers of the nearest columns, the nearest first, and of equals the lower number."""
    last = np.partition(far, count - 1, axis=1)[:, count - 1 : count]
    nearer, equal = far < last, far == last
    found = nearer | (equal & (np.cumsum(equal, axis=1) <= count - nearer.sum(axis=1)[:, None]))
    places = np.nonzero(found)[1].reshape(len(far), count)
    order = np.argsort(np.take_along_axis(far, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


@dataclass(frozen=True, eq=False)
class Filler:
    """Fills empty cells of views.

    Attributes
    ----------
    how : "neighbors" takes the mean of the nearest rows, and medians where no row can help; "median" those only;
        "error" refuses empty cells
    medians : per view a float32 array of shape (columns,); none where `how` is "error"
    donors : per view the rows that lend their values; those of sparse views have none
    """

    how: str
    medians: tuple[NDArray[np.float32], ...] = ()
    donors: tuple[NearestRows, ...] = ()

    def apply(self, views: Views) -> tuple[Views, list[EmptyCells]]:
        """The views without empty cells, and how many they had; views without any come back as they are."""
        found = count_empty(views)
        if not found:
            return views, found
        if self.how == "error":
            refuse_any(views)
        check_rows(views)
        arrays = list(views.arrays)
        for i, cells in enumerate(found):
            v = views.names.index(cells.view)
            arrays[v], by_median = self._filled(v, arrays[v])
            found[i] = replace(cells, by_median=by_median)
        return views.replace(arrays=tuple(arrays)), found

    def _filled(self, v: int, array: Any) -> tuple[Any, int]:
        """A view without empty cells, and how many are medians though neighbours were asked for."""
        if is_sparse(array):
            return with_data(array, np.where(np.isnan(array.data), self.medians[v][array.indices], array.data)), 0
        filled, n_left = memory.room(array.shape), 0
        filled[:] = array
        for rows, _ in empty_parts(array):
            found = self.donors[v].fill(array[rows]) if self.how == "neighbors" else array[rows]
            left = np.isnan(found)
            filled[rows] = np.where(left, self.medians[v], found)
            n_left += int(left.sum())
        filled.flags.writeable = False
        return filled, n_left if self.how == "neighbors" else 0

    def thinned(self, n_rows: int) -> Filler:
        """With so many donors per view at most."""
        return replace(self, donors=tuple(NearestRows(_spread(one.values, n_rows)) for one in self.donors))


def fit_filler(views: Views, how: str = "neighbors") -> Filler:
    """Keep what fills empty cells of views like these; views of which too much is empty are refused."""
    check_choice("fill", how, FILLS)
    if how == "error":
        refuse_any(views)
        return Filler(how)
    check_training_cells(views)
    medians, donors = [], []
    for v, array in enumerate(views.arrays):
        medians.append(column_medians(array, views.mask[:, v]))
        lent = np.zeros((0, array.shape[1]), np.float32)
        if how == "neighbors" and not is_sparse(array):
            rows = np.flatnonzero(views.mask[:, v])
            most = min(_MOST_DONORS, max(1, _MOST_CELLS // max(1, array.shape[1])))
            lent = np.array(array[_spread(rows, most)], dtype=np.float32, order="C")
        donors.append(NearestRows(lent))
    return Filler(how, tuple(medians), tuple(donors))


def filled_by_median(views: Views) -> Views:
    """The views with medians in empty cells, however many these are: for a look at the data."""
    arrays = list(views.arrays)
    for cells in count_empty(views):
        v = views.names.index(cells.view)
        arrays[v] = np.where(np.isnan(arrays[v]), column_medians(arrays[v], views.mask[:, v]), arrays[v])
    return views.replace(arrays=tuple(arrays))


def _spread(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many of the rows, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def column_medians(array: Any, present: Mask) -> NDArray[np.float32]:
    """Of the observed cells of every column, of shape (columns,); 0 without any. Whole numbers stay whole.

    Of many rows some are looked at, evenly spread.
    """
    medians = np.zeros(array.shape[1], dtype=np.float32)
    rows = _spread(np.flatnonzero(present), _MOST_ROWS)
    chosen, table = np.arange(array.shape[1] if len(rows) else 0), array
    if is_sparse(array):  # the median of a column that is mostly zero is known
        table = array[rows].tocsc()
        chosen = np.flatnonzero(2 * np.diff(table.indptr) >= max(1, len(rows)))
    step = max(1, _CELLS_AT_A_TIME // max(1, len(rows)))
    for start in range(0, len(chosen), step):
        columns = chosen[start : start + step]
        values = table[:, columns].toarray() if is_sparse(array) else table[rows, columns[0] : columns[-1] + 1]
        ordered = np.sort(values, axis=0)
        counts = len(rows) - np.isnan(ordered).sum(axis=0)
        low, high = (
            ordered[np.maximum(place, 0), np.arange(len(columns))] for place in ((counts - 1) // 2, counts // 2)
        )
        found = np.where(counts > 0, (low.astype(np.float64) + high) / 2, 0.0)
        whole = (np.rint(ordered) == ordered).sum(axis=0) == counts
        medians[columns] = np.where(whole, np.rint(found), found)
    return medians


@dataclass(frozen=True, eq=False)
class EmptyCells:
    """The empty cells of one view, counted by column, and how many were filled with medians, as no row could help."""

    view: str
    n_rows: int
    columns: Names
    counts: NDArray[np.int64]
    by_median: int = 0

    @property
    def total(self) -> int:
        """Of all columns together."""
        return int(self.counts.sum())

    @property
    def share(self) -> float:
        """Of all cells of rows that have the view."""
        return self.total / max(1, self.n_rows * len(self.counts))

    def __add__(self, other: EmptyCells) -> EmptyCells:
        """Of other rows of the same view as well."""
        n_rows, counts = self.n_rows + other.n_rows, self.counts + other.counts
        return replace(self, n_rows=n_rows, counts=counts, by_median=self.by_median + other.by_median)

    def by_column(self) -> dict[str, int]:
        """Per column that has any, how many; the worst first."""
        order = np.argsort(-self.counts, kind="stable")
        return {str(self.columns[c]): int(self.counts[c]) for c in order.tolist() if self.counts[c]}

    def facts(self) -> dict[str, Any]:
        """In a form that JSON can hold."""
        return {"cells": self.total, "share": self.share, "by_median": self.by_median, "columns": self.by_column()}


def in_words(view: str, facts: dict[str, Any]) -> str:
    """What `EmptyCells.facts` says, for people."""
    columns = list(facts["columns"].items())
    worst = ", ".join(f"{name!r} ({count})" for name, count in columns[:_SHOWN])
    several = f"{len(columns):,} columns, most in {worst}" if len(columns) > _SHOWN else f"columns {worst}"
    medians = f"; {facts['by_median']:,} of them take medians, as no row could help" if facts["by_median"] else ""
    share = f"{facts['share']:.1%}" if facts["share"] >= 0.0005 else "below 0.1%"
    return f"{view}: {facts['cells']:,} cell{'s' * (facts['cells'] > 1)} ({share}) in {several}{medians}"


def count_empty(views: Views) -> list[EmptyCells]:
    """The views that have empty cells, with their numbers."""
    found = []
    for v, (name, columns) in enumerate(zip(views.names, views.columns, strict=True)):
        counts = np.zeros(views.widths[v], np.int64)
        for _, empty in empty_parts(views.arrays[v]):
            counts += empty.sum(axis=0)
        if counts.any():
            found.append(EmptyCells(name, int(views.mask[:, v].sum()), columns, counts))
    return found


def empty_parts(array: Any) -> Iterator[tuple[NDArray[np.int64], Mask]]:
    """Rows of a view that have an empty cell, with their empty cells, of shape (rows, columns), a part at a time."""
    if is_sparse(array):  # in which only columns that are not there are empty
        places = np.flatnonzero(rows_of_cells(array, np.isnan(array.data)))
        step = max(1, _CELLS_AT_A_TIME // array.shape[1])
        for start in range(0, len(places), step):
            yield places[start : start + step], np.isnan(array[places[start : start + step]].toarray())
        return
    for rows in memory.parts(len(array)):
        empty = np.isnan(array[rows])  # rows that lack the view are zero
        places = np.flatnonzero(empty.any(axis=1))
        if len(places):
            yield places + rows.start, empty[places]


def check_training_cells(views: Views) -> None:
    """Refuse views of which too much is empty to be learned from, with the worst columns and rows."""
    for cells in count_empty(views):
        v, n_rows, is_empty = views.names.index(cells.view), cells.n_rows, cells.share > MOST_OF_VIEW
        if not is_empty and not (cells.counts > MOST_OF_LINE * n_rows).any():
            continue
        why = f"more than {MOST_OF_VIEW:.0%}" if is_empty else f"and a column more than {MOST_OF_LINE:.0%}"
        by_column = list(cells.by_column().items())[:_SHOWN]
        columns = ", ".join(f"{name!r} ({count:,} of {n_rows:,} rows)" for name, count in by_column)
        by_row = sorted(
            pair
            for rows, empty in empty_parts(views.arrays[v])
            for pair in zip((-empty.sum(axis=1)).tolist(), rows.tolist(), strict=True)
        )[:_SHOWN]
        ids = views.ids.tolist()
        worst = ", ".join(f"{ids[row]!r} ({-count:,} of {views.widths[v]:,} cells)" for count, row in by_row)
        raise DataError(
            f"view {cells.view!r}: {cells.total:,} cells of its {n_rows:,} rows are empty ({cells.share:.0%}), "
            f"{why}, so too little is known to fill them; worst columns: {columns}; worst rows: {worst}; "
            "leave these out, or empty whole rows to say that the samples lack the view"
        )
    check_rows(views)


def check_rows(views: Views) -> None:
    """Refuse rows of which hardly anything is there, and which are not wholly empty either."""
    for v, (name, width) in enumerate(zip(views.names, views.widths, strict=True)):
        for rows, empty in empty_parts(views.arrays[v]):
            counts = empty.sum(axis=1)
            worst = int(counts.argmax())
            if counts[worst] > MOST_OF_LINE * width:
                raise DataError(
                    f"view {name!r}, row {labelled(int(rows[worst]), views.ids)}: {counts[worst]:,} of its {width:,} "
                    f"cells are empty, more than {MOST_OF_LINE:.0%}; empty the whole row to say that this sample "
                    "lacks the view, or drop it"
                )


def refuse_any(views: Views) -> None:
    """Refuse the first empty cell."""
    for v, (name, columns) in enumerate(zip(views.names, views.columns, strict=True)):
        for rows, empty in empty_parts(views.arrays[v]):
            place = f"row {labelled(int(rows[0]), views.ids)}, column {called(columns, int(empty[0].argmax()))}"
            raise DataError(
                f"view {name!r}, {place}: the cell is empty, and nothing fills it (",
                Setting("fill", "error"),
                ", or a model of an older viewfuse); fill it, fit with ",
                Setting("fill", "neighbors"),
                ", or empty the whole row to say that this sample lacks the view",
            )


def warn_of_filled(found: Sequence[EmptyCells]) -> None:
    """Warn once of all cells that were filled."""
    if found:
        filled = "; ".join(in_words(cells.view, cells.facts()) for cells in found)
        warn(EmptyCellsWarning(f"empty cells were filled: {filled}"))


class Filled:
    """Counts what a model fills in empty cells of new samples."""

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted
        self._cells: dict[str, EmptyCells] = {}

    def complete(self, views: Views) -> Views:
        """Samples as the model takes them."""
        complete, found = self._fitted.complete(views)
        for cells in found:
            self._cells[cells.view] = self._cells[cells.view] + cells if cells.view in self._cells else cells
        return complete

    def totals(self) -> dict[str, int]:
        """Per view that had empty cells, how many."""
        return {name: cells.total for name, cells in self._cells.items()}

    def facts(self, as_json: bool) -> dict[str, Any]:
        """For the output of a verb; nothing where no cell was empty."""
        facts = {name: cells.facts() for name, cells in self._cells.items()}
        if not facts:
            return {}
        return {"filled_cells": facts if as_json else [in_words(*pair) for pair in facts.items()]}
