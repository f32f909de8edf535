"""What fills empty cells: fitted on observed cells of training samples, and the same for new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.filling.empty_cells import (
    EmptyCells,
    check_rows,
    check_training_cells,
    count_empty,
    empty_parts,
    refuse_any,
)
from viewfuse.data.filling.nearest_rows import NearestRows
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


def check_fill(how: Any) -> None:
    """Refuse what is no way to fill empty cells."""
    if not isinstance(how, str) or how not in FILLS:
        raise wrong("fill", f"one of {', '.join(FILLS)}", how)


@dataclass(frozen=True, eq=False)
class Filler:
    """Fills empty cells of views.

    Attributes
    ----------
    how : "neighbors" takes the mean of the nearest rows, and medians where nobody can help; "median" those only;
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
