"""One view becomes a table of numbers: float32, measured from an offset where that would lose digits.

Beside a large offset 32 bits leave few digits for what tells samples apart. Such columns are measured from one of their
values, in 64 bits, before they become 32-bit floats: time stamps, positions in a genome, metres, m/z. What still loses
digits is refused: sparse columns, which would no longer be sparse, and whole numbers that 64-bit floats cannot tell
apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import EXACT, ROWS_THAT_VARY, SAMPLED, TOO_CLOSE, as_array, called, cells_as_numbers, labelled
from viewfuse.data.sparse_tables import (
    NamedMatrix,
    bounds,
    canonical,
    check_sparse,
    dense_parts,
    is_sparse_frame,
    nan_rows,
    rows_of_cells,
    with_data,
    with_empty_rows,
)
from viewfuse.errors import DataError
from viewfuse.utils import memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Values = NDArray[np.float32] | csr_array

ROUNDING = 1e-12
"""Values that differ by less, relative to their size, are one value up to rounding."""
Offset = NDArray[np.float64] | float
"""What the columns of a view are measured from, of shape (columns,); 0.0 where all are as they were given."""
_MOST_CELLS = 2_000_000
_PARTS = 10
_MOST_LOST = 1 / 8
"""Of the width of a tenth of the rows, as the error of rounding: a tenth then has four different values at most."""
_MATTERS = 1e-4
"""Of the width of the middle 80 % of the rows: a smaller error is none that clusters could tell."""


def is_sparse(array: Any) -> TypeGuard[csr_array]:
    """Whether an array is a sparse one of SciPy, of any format."""
    return hasattr(type(array), "tocsr")


def take(array: Any, rows: Any) -> Any:
    """Rows of a dense or sparse array, in every way in which NumPy picks them."""
    return array[np.arange(array.shape[0])[rows]] if is_sparse(array) else array[rows]


def dense_rows(array: Any, rows: Any) -> NDArray[Any]:
    """Some rows of a dense or sparse array, as a dense one."""
    found = take(array, rows)
    return found.toarray() if is_sparse(found) else found


class Table(NamedTuple):
    """One view as it was given, dense or sparse, and what its columns are called."""

    name: str
    values: Any
    columns: Sequence[Hashable]

    @property
    def is_none(self) -> bool:
        """Whether no sample has the view."""
        return self.values.shape[1] == 0


def is_plain(view: Any) -> bool:
    """Whether a view is an array of numbers already, as most are, so that nothing has to be found out."""
    return type(view) is np.ndarray and view.dtype.kind in "biuf"


def read_table(name: str, view: Any) -> Table:
    """The view as a 2-D numeric array, whatever it came as, or a sparse matrix; None has no columns."""
    if view is None:
        return Table(name, np.zeros((0, 0), dtype=np.float32), ())
    if not isinstance(view, np.ndarray) and is_sparse_frame(view):
        view = NamedMatrix.of(view)
    given = view.matrix if isinstance(view, NamedMatrix) else view
    values = given if is_sparse(given) or is_plain(given) else as_array(name, given)
    if values.ndim != 2:
        raise DataError(
            f"view {name!r} has {values.ndim} dimension(s), not 2. Reshape your data to (samples, columns): "
            "array.reshape(-1, 1) is one column, array.reshape(1, -1) is one sample"
        )
    if values.shape[1] == 0:
        raise DataError(
            f"view {name!r} has no columns: 0 feature(s) (shape={values.shape}) while a minimum of 1 is required; "
            "leave it out, or pass None if no sample has it"
        )
    if is_sparse(values):
        check_sparse(f"view {name!r}", values)
    names = getattr(view, "column_names", getattr(view, "columns", None))  # tables of pyarrow have the former
    columns = range(values.shape[1]) if names is None else list(names)
    if values.dtype.kind == "c":
        raise DataError(f"view {name!r}: Complex data not supported; pass real and imaginary parts as columns")
    if values.dtype.kind not in ("fiub" if is_sparse(values) else "fiubO"):
        held = "text" if values.dtype.kind in "US" else f"{values.dtype} values"
        raise DataError(f"view {name!r} holds {held}, not real numbers; encode them as numbers or drop them")
    return Table(name, canonical(values) if is_sparse(values) else values, columns)


def renamed_columns(tables: Sequence[Table], columns: Sequence[Sequence[Hashable]]) -> list[Table]:
    """The tables with other names of columns."""
    if [len(names) for names in columns] != [table.values.shape[1] for table in tables]:
        given, wanted = [len(names) for names in columns], [table.values.shape[1] for table in tables]
        raise DataError(f"columns has {given} names per view, but the views have {wanted} columns; name each once")
    return [table._replace(columns=names) for table, names in zip(tables, columns, strict=True)]


def present_rows(
    table: Table, allowed: NDArray[np.bool_], ids: NDArray[Any], *, placed: bool = False
) -> tuple[Any, NDArray[np.bool_], Offset]:
    """Check the rows that may be looked at; return values, zero where missing, who is present, and the offset.

    Values are float32, measured from the offset. Those of samples that a model places (`placed`) stay as they are, for
    the model knows what it measures from. Empty cells of a row that has others stay NaN. A row of a sparse view is
    missing where all that it stores is NaN; one that stores nothing is zero.
    """
    if table.is_none:
        return table.values, np.zeros(len(ids), dtype=bool), 0.0
    if is_sparse(table.values):
        return _present_sparse_rows(table, allowed, ids, placed)
    given = table.values
    if given.dtype.kind == "O":
        given = cells_as_numbers(table, allowed, ids)
    filled, infinite = np.ones(len(given), dtype=bool), np.zeros(len(given), dtype=bool)
    for rows in memory.parts(len(given)):
        part = single(given[rows])
        if not np.isfinite(part).all():
            filled[rows], infinite[rows] = ~np.isnan(part).all(axis=1), np.isinf(part).any(axis=1)
    wrong = np.flatnonzero(allowed & infinite)
    if len(wrong):
        _raise_for_row(table._replace(values=given), int(wrong[0]), ids)
    present = allowed & filled
    if placed and given.dtype != np.float32:
        return exact(given, present), present, 0.0
    offset = 0.0 if placed else _offset(table, given, present)
    return measured(given, present, offset), present, offset


def _present_sparse_rows(
    table: Table, allowed: NDArray[np.bool_], ids: NDArray[Any], placed: bool
) -> tuple[csr_array, NDArray[np.bool_], Offset]:
    given = table.values
    stored = with_data(given, single(given.data))
    gone = nan_rows(stored)
    wrong = np.flatnonzero(allowed & ~gone & (rows_of_cells(stored, ~np.isfinite(stored.data)) > 0))
    if len(wrong):
        _raise_for_row(table, int(wrong[0]), ids)
    present = allowed & ~gone
    if not placed:
        _offset(table, given, present)
    values = with_empty_rows(stored, present)
    shown = values.data.view()
    shown.flags.writeable = False  # it may be the caller's own memory
    return with_data(values, shown), present, 0.0


def column_bounds(array: Any, present: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Least and largest value of every column over the rows that are present, of which there is one at least.

    Empty cells do not count; a column of nothing else has NaN.
    """
    if is_sparse(array):
        return bounds(array, present)
    pairs = [(np.fmin.reduce(rows), np.fmax.reduce(rows)) for rows in present_parts(array, present)]
    return np.fmin.reduce([low for low, _ in pairs]), np.fmax.reduce([high for _, high in pairs])


def present_parts(array: Any, present: NDArray[np.bool_]) -> Iterator[NDArray[Any]]:
    """The rows that are present, a part at a time; those of a sparse array are made dense for it."""
    if is_sparse(array):
        return dense_parts(array, present)
    return (array[rows][present[rows]] for rows in memory.parts(len(array)) if present[rows].any())


def _offset(table: Table, given: Any, present: NDArray[np.bool_]) -> Offset:
    """What columns are measured from that vary, but not within the digits of float32: all of their values, or most.

    Columns whose distances from a number near them lose these digits as well are refused.
    """
    if present.sum() < ROWS_THAT_VARY or given.dtype in (np.float32, np.float16, np.bool_):
        return 0.0
    least, largest = column_bounds(given, present)
    low, high = least.astype(np.float64), largest.astype(np.float64)
    varies = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    if given.dtype.kind in "iu":  # nothing is rounding there
        varies = largest != least
    alike = varies & (single(low) == single(high))
    lossy = lossy_columns(given, present, alike)
    lost = np.flatnonzero(~lossy.kept | (low == high)[lossy.columns])
    if len(lost):
        column = int(lossy.columns[lost[0]])
        why = TOO_CLOSE if alike[column] else lost_in_words(float(lossy.near[lost[0]]))
        raise DataError(f"view {table.name!r}, column {called(table.columns, column)}: {why}")
    if not len(lossy.columns):
        return 0.0
    offset = np.zeros(given.shape[1])
    offset[lossy.columns] = lossy.near
    return offset


def _raise_for_row(table: Table, row: int, ids: NDArray[Any]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        cells = dense_rows(table.values, [row])[0].astype(np.float64)
        column = int(np.flatnonzero(~np.isfinite(cells.astype(np.float32)))[0])
    place = f"view {table.name!r}, row {labelled(row, ids)}, column {called(table.columns, column)}"
    if np.isnan(cells[column]):
        raise DataError(
            f"{place}: NaN in a row of a sparse view that has other values; store the value, nothing for zero, or "
            "NaN and nothing else to say that this sample lacks the view"
        )
    if np.isinf(cells[column]):
        raise DataError(f"{place}: the value is inf; replace it by a finite number")
    raise DataError(f"{place}: {cells[column]:.3g} is too large for 32-bit floats, it would be inf; rescale the column")


def single(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """In 32 bits; what is too large is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32, copy=False)


def measured(given: NDArray[Any], present: NDArray[np.bool_], offset: Offset) -> NDArray[np.float32]:
    """In float32, measured from `offset`, with zeros where a row is missing; the same memory where that is possible."""
    if not np.any(offset) and given.dtype == np.float32 and given.flags.c_contiguous and present.all():
        return _locked(given)
    values = memory.room((given.shape[0], given.shape[1]))
    for rows in memory.parts(len(given)):
        part = given[rows].astype(np.float64) - offset if np.any(offset) else given[rows]
        values[rows] = np.where(present[rows, None], single(part), np.float32(0))
    return _locked(values)


def exact(given: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """In float64, with zeros where a row is missing; the same memory where that is possible."""
    values = given.astype(np.float64, copy=False)
    return _locked(values if present.all() else np.where(present[:, None], values, 0.0))


def _locked(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, which cannot be written to: they may be the caller's own memory."""
    shown = values.view()
    shown.flags.writeable = False
    return shown


class Lossy(NamedTuple):
    """Columns of a view that lose digits which tell their rows apart, all of shape (such columns,).

    Attributes
    ----------
    columns : their numbers, increasing
    near : one of the values of each, near the middle
    kept : whether their distances from `near` keep these digits; never of sparse columns, whose zeros stay zeros
    """

    columns: NDArray[np.int64]
    near: NDArray[np.float64]
    kept: NDArray[np.bool_]


def lossy_columns(given: Any, present: NDArray[np.bool_], alike: NDArray[np.bool_] | bool = False) -> Lossy:
    """Look at a few rows of a view.

    Parameters
    ----------
    given : dense or sparse array of shape (samples, columns), as it was given
    alike : of shape (columns,): which columns are known to lose all of their differences
    """
    rows, none = np.flatnonzero(present), Lossy(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    if len(rows) < ROWS_THAT_VARY or given.dtype.itemsize < 4 or given.dtype == np.float32:
        return none
    columns, alike = np.arange(given.shape[1]), np.broadcast_to(alike, given.shape[1:])
    if is_sparse(given):  # a tenth of zeros, and the middle of a column is wider than any offset
        columns = np.flatnonzero(alike | (np.bincount(given.indices, minlength=len(columns)) >= 0.9 * len(rows)))
    if not len(columns):
        return none
    count = min(SAMPLED, max(5 * ROWS_THAT_VARY, _MOST_CELLS // len(columns)))
    if len(rows) > count:
        rows = np.sort(np.random.default_rng(0).choice(rows, count, replace=False))
    sample = given[rows][:, columns].toarray() if is_sparse(given) else given[rows]
    lost = alike[columns] | loses_digits(sample)
    if not lost.any():
        return none
    sample = sample[:, lost]
    double = sample.astype(np.float64)
    near = np.nanquantile(double, 0.5, axis=0, method="lower")
    kept = ~loses_digits(double - near) & ~loses_digits(sample, np.float64)
    return Lossy(columns[lost], near, kept & (not is_sparse(given)))


def lost_in_words(number: float) -> str:
    """What is wrong with a column whose values are near a number, and the cure."""
    return (
        "most of its values differ by less than 32-bit floats can tell; subtract a number near them first, such as "
        f"{number:.15g}, or round them if those digits say nothing"
    )


def loses_digits(rows: NDArray[Any], kind: type[np.floating[Any]] = np.float32) -> NDArray[np.bool_]:
    """Which columns lose digits that tell their rows apart as floats of that kind, of shape (columns,).

    Rounding is compared with how far apart neighbours are, a tenth of the rows from the next one: far rows are few, so
    the range of a column says little. Rows that are the same are no neighbours. Empty cells are NaN.
    """
    low = np.fmin.reduce(rows)
    if rows.dtype.kind == "f":
        apart = rows.astype(np.float64) - low
    else:  # whole numbers, of which nothing is rounded before
        wide = rows.astype(np.uint64 if rows.dtype.kind == "u" else np.int64)
        apart = (wide.view(np.uint64) - low.astype(wide.dtype).view(np.uint64)).astype(np.float64)
    counts = len(rows) - np.isnan(apart).sum(axis=0)
    ends = np.rint(np.linspace(0, 1, _PARTS + 1)[:, None] * np.maximum(counts - 1, 0)).astype(np.int64)
    cuts = np.take_along_axis(np.sort(apart, axis=0), ends, axis=0)
    sizes = np.abs(low.astype(np.float64) + cuts)
    sizes = np.maximum(sizes[1:], sizes[:-1])
    with np.errstate(over="ignore"):
        errors, widths = np.spacing(sizes.astype(kind)).astype(np.float64) / 2, np.diff(cuts, axis=0)
    noise = np.where(sizes < EXACT, ROUNDING, 0.0) if rows.dtype.kind == "f" else 0.0
    differ = widths > noise * sizes
    ratios = np.where(differ, errors / np.where(differ, widths, 1.0), np.nan)
    ratios[0] = np.where(differ.any(axis=0), ratios[0], 0.0)
    local = np.nanmedian(ratios, axis=0) > _MOST_LOST
    matters = errors[_PARTS // 2] > _MATTERS * (cuts[-2] - cuts[1])
    with np.errstate(over="ignore", invalid="ignore"):
        is_rounded = ((rows.astype(kind).astype(rows.dtype) != rows) & (rows == rows)).any(axis=0)
    return np.asarray((counts >= ROWS_THAT_VARY) & local & matters & is_rounded)
