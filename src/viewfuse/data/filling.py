"""What fills empty cells: fitted on observed cells of training samples, and the same for new ones.

Values come from the nearest rows of the same view, by exact nan-Euclidean distances on the columns that both rows have,
or from medians of columns. scikit-learn's KNNImputer gives the same as `NearestRows`, but looks for donors column by
column: a minute where this takes seconds (5,000 rows of 2,000 columns, 5 % of them empty).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.empty_cells import (
    EmptyCells,
    check_rows,
    check_training_cells,
    count_empty,
    empty_parts,
    refuse_any,
)
from viewfuse.data.sparse_tables import is_sparse, with_data
from viewfuse.data.views import Views
from viewfuse.utils import memory
from viewfuse.utils.settings import wrong

FILLS = ("neighbors", "median", "error")
_MOST_DONORS, _MOST_CELLS = 5_000, 4_000_000
"""Training rows of a view that a model keeps to fill from, and their cells: 16 MB."""
_MOST_ROWS = 20_000
"""Of which medians are taken."""
_CELLS_AT_A_TIME = 4_000_000
N_DONORS = 5
_CANDIDATES = 32
"""Nearest rows among which donors of all cells of a row are looked for first."""
_GRAIN = 1e-11
"""Differences of squared distances below this share of the largest square are rounding."""
_TINY = 1e-300


def check_fill(how: Any) -> None:
    """Refuse what is no way to fill empty cells."""
    if not isinstance(how, str) or how not in FILLS:
        raise wrong("fill", f"one of {', '.join(FILLS)}", how)


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
            return _sparse_filled(array, self.medians[v]), 0
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
        donors = tuple(NearestRows(_spread(one.values, n_rows)) for one in self.donors)
        return replace(self, donors=donors)


def fit_filler(views: Views, how: str = "neighbors") -> Filler:
    """Keep what fills empty cells of views like these; views of which too much is empty are refused."""
    check_fill(how)
    if how == "error":
        refuse_any(views)
        return Filler(how)
    check_training_cells(views)
    medians = tuple(column_medians(array, views.mask[:, v]) for v, array in enumerate(views.arrays))
    return Filler(how, medians, tuple(_donors(views, v, how) for v in range(len(views.names))))


def filled_by_median(views: Views) -> Views:
    """The views with medians in empty cells, however many these are: for a look at the data."""
    arrays = list(views.arrays)
    for cells in count_empty(views):
        v = views.names.index(cells.view)
        medians = column_medians(arrays[v], views.mask[:, v])
        arrays[v] = np.where(np.isnan(arrays[v]), medians, arrays[v])
    return views.replace(arrays=tuple(arrays))


def _donors(views: Views, v: int, how: str) -> NearestRows:
    array, rows = views.arrays[v], np.flatnonzero(views.mask[:, v])
    if how != "neighbors" or is_sparse(array):
        return NearestRows(np.zeros((0, array.shape[1]), np.float32))
    most = min(_MOST_DONORS, max(1, _MOST_CELLS // max(1, array.shape[1])))
    return NearestRows(np.array(array[_spread(rows, most)], dtype=np.float32, order="C"))


def _spread(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many of the rows, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def column_medians(array: Any, present: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Of the observed cells of every column, of shape (columns,); 0 without any. Whole numbers stay whole.

    Of many rows some are looked at, evenly spread.
    """
    medians = np.zeros(array.shape[1], dtype=np.float32)
    rows = _spread(np.flatnonzero(present), _MOST_ROWS)
    for columns, values in _column_parts(array, rows):
        ordered = np.sort(values, axis=0)
        counts = len(rows) - np.isnan(ordered).sum(axis=0)
        low, high = (
            ordered[np.maximum(place, 0), np.arange(len(columns))] for place in ((counts - 1) // 2, counts // 2)
        )
        found = np.where(counts > 0, (low.astype(np.float64) + high) / 2, 0.0)
        whole = (np.rint(ordered) == ordered).sum(axis=0) == counts
        medians[columns] = np.where(whole, np.rint(found), found)
    return medians


def _column_parts(array: Any, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Numbers of columns and their values, some at a time; of a sparse view those that are not mostly zero."""
    chosen, table = np.arange(array.shape[1] if len(rows) else 0), array
    if is_sparse(array):
        table = array[rows].tocsc()
        chosen = np.flatnonzero(2 * np.diff(table.indptr) >= max(1, len(rows)))
    step = max(1, _CELLS_AT_A_TIME // max(1, len(rows)))
    for start in range(0, len(chosen), step):
        columns = chosen[start : start + step]
        yield columns, table[:, columns].toarray() if is_sparse(array) else table[rows, columns[0] : columns[-1] + 1]


def _sparse_filled(matrix: Any, medians: NDArray[np.float32]) -> Any:
    """A sparse view whose empty cells, which are those of columns that are not there, are medians."""
    return with_data(matrix, np.where(np.isnan(matrix.data), medians[matrix.indices], matrix.data))


@dataclass(frozen=True, eq=False)
class NearestRows:
    """Training rows that lend their values.

    Attributes
    ----------
    values : float32 array of shape (rows, columns), NaN where a cell is empty
    """

    values: NDArray[np.float32]

    @cached_property
    def _observed(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.values)

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
    def is_whole(self) -> NDArray[np.bool_]:
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
        if not len(self.values):
            return filled
        step = max(1, _CELLS_AT_A_TIME // max(len(self.values), rows.shape[1]))
        for start in range(0, len(rows), step):
            self._fill_part(filled[start : start + step])
        return filled

    def _fill_part(self, rows: NDArray[np.float32]) -> None:
        far, (places, columns) = self._distances(rows), np.nonzero(np.isnan(rows))
        nearest = _nearest(far, min(_CANDIDATES, far.shape[1]))
        step = max(1, _CELLS_AT_A_TIME // nearest.shape[1])
        for start in range(0, len(places), step):
            own, c = places[start : start + step], columns[start : start + step]
            use = self._usable(far, own, c, nearest[own])
            rows[own, c] = self._mean(nearest[own], c, use)
            short = use.sum(axis=1) < N_DONORS
            self._search_all(rows, far, own[short], c[short])

    def _usable(
        self, far: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64], near: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Per cell which of its candidates, of shape (cells, candidates) and the nearest first, are its donors."""
        there = self._observed[near, columns[:, None]] & np.isfinite(far[rows[:, None], near])
        return there & (np.cumsum(there, axis=1) <= N_DONORS)

    def _mean(self, near: NDArray[np.int64], columns: NDArray[np.int64], use: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Of the donors of each cell; NaN without any."""
        lent = np.where(use, self.values[near, columns[:, None]], np.float32(0)).sum(axis=1, dtype=np.float64)
        counts = use.sum(axis=1)
        mean = np.where(counts > 0, lent / np.maximum(counts, 1), np.nan)
        return np.where(self.is_whole[columns], np.rint(mean), mean)

    def _search_all(
        self, rows: NDArray[np.float32], far: NDArray[np.float64], places: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> None:
        """Fill cells with too few donors among the candidates; columns that the same rows have are searched at once."""
        kinds = self._column_kinds[columns]
        for kind in np.unique(kinds):
            cells = np.flatnonzero(kinds == kind)
            donors = np.flatnonzero(self._observed[:, columns[cells[0]]])
            if not len(donors):
                continue
            own, inverse = np.unique(places[cells], return_inverse=True)
            near = donors[_nearest(far[np.ix_(own, donors)], min(N_DONORS, len(donors)))][inverse]
            use = self._usable(far, places[cells], columns[cells], near)
            rows[places[cells], columns[cells]] = self._mean(near, columns[cells], use)

    @cached_property
    def _column_kinds(self) -> NDArray[np.int64]:
        """Per column a number that is the same where the same rows have it."""
        patterns = np.packbits(self._observed, axis=0).T
        return np.unique(patterns, axis=0, return_inverse=True)[1].ravel()

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
        if some.any():
            squares -= gone[:, some].astype(np.float64) @ (old[:, some] ** 2).T
        if others.any():
            squares -= (new[:, others] ** 2) @ unknown[:, others].astype(np.float64).T
        if (some & others).any():
            both = some & others
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
