"""One view, whatever it came as, becomes a table of numbers; what is not a number is refused with its place."""

from __future__ import annotations

import reprlib
import sys
from array import array
from collections.abc import Hashable, Iterator, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import AnnotatedTable
from viewfuse.data.digits import (
    EXACT,
    ROUNDING,
    ROWS_THAT_VARY,
    SAMPLED,
    TOO_CLOSE,
    Offset,
    are_fewer_as_floats,
    exact,
    exact_frame,
    filled,
    is_number,
    is_too_small,
    lossy_columns,
    lost_in_words,
    measured,
    objects_as_numbers,
    single,
    whole_numbers,
)
from viewfuse.data.given import dense_rows, is_sparse, is_sparse_frame
from viewfuse.data.sparse_tables import (
    SparseFrame,
    bounds,
    canonical,
    check_sparse,
    dense_parts,
    nan_rows,
    rows_of_cells,
    sparse_frame,
    with_data,
    with_empty_rows,
)
from viewfuse.errors import DataError, NotANumber
from viewfuse.utils import memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_DEEPEST = 3
_OF_CELLS = (str, bytes, range, array, memoryview, Number)
"""Besides what has `__array__`, NumPy knows what to do with these."""


class Table(NamedTuple):
    """One view as it was given, dense or sparse, and what its columns are called."""

    name: str
    values: Any
    columns: Sequence[Hashable]

    @property
    def is_none(self) -> bool:
        """Whether no sample has the view."""
        return self.values.shape[1] == 0


def read_table(name: str, view: Any) -> Table:
    """The view as a 2-D numeric array, whatever it came as, or a sparse matrix; None has no columns."""
    if view is None:
        return Table(name, np.zeros((0, 0), dtype=np.float32), ())
    if is_sparse_frame(view):
        view = sparse_frame(view)
    given = view.matrix if isinstance(view, (SparseFrame, AnnotatedTable)) else view
    values = given if is_sparse(given) else as_array(name, given)
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


def as_array(name: str, view: Any) -> NDArray[Any]:
    """A view of any kind but sparse ones as an array, of objects where its cells are of several kinds."""
    check_convertible(name, view)
    if isinstance(view, np.ma.MaskedArray):
        view = filled(view)
    if hasattr(view, "iloc") and len(view.shape) == 2 and len(set(view.dtypes)) > 1:
        view = exact_frame(view)
    if isinstance(view, (list, tuple)):
        view = _rows_for_none(view)
    try:
        values = np.asarray(view)
    except DataError:
        raise
    except ValueError:
        raise DataError(f"view {name!r} has rows of different lengths; give every row the same columns") from None
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"view {name!r} cannot be made an array ({reason}); pass an array of numbers") from None
    if isinstance(view, (list, tuple)) and values.dtype.kind == "f" and (np.abs(values) >= EXACT).any():
        values = np.asarray(view, dtype=object)  # whole numbers beside others
    pandas = sys.modules.get("pandas")  # which has several values for "nothing"
    if values.dtype.kind == "O" and pandas is not None:
        values = np.where(_is_nothing(pandas, values), np.nan, values)
    return values


def _is_nothing(pandas: Any, cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Which cells hold nothing; some numbers, such as Decimal("sNaN"), raise an error when they are compared."""
    try:
        return np.asarray(pandas.isna(cells))
    except ArithmeticError:
        found = [pandas.isna(cell) is True if type(cell).__module__ != "decimal" else False for cell in cells.ravel()]
        return np.array(found, dtype=bool).reshape(cells.shape)


def _rows_for_none(view: Sequence[Any]) -> Sequence[Any]:
    """A list of rows in which None stands for a missing row, with NaN rows instead; masked cells are empty."""
    view = [filled(row) if isinstance(row, np.ma.MaskedArray) else row for row in view]
    if all(row is not None for row in view):
        return view
    width = max((np.size(row) for row in view if row is not None), default=1)
    return [[np.nan] * width if row is None else row for row in view]


def _numbers(table: Table, allowed: NDArray[np.bool_], ids: NDArray[Any]) -> NDArray[Any]:
    """Object cells as numbers, None as NaN, in the rows that may be looked at; anything else is refused."""
    if table.values.dtype.kind != "O":
        return table.values
    values = np.where(allowed[:, None], table.values, np.nan)
    numbers = objects_as_numbers(values)
    if numbers is None:
        row, column, cell = _first_bad_cell(values)
        raise NotANumber(
            f"view {table.name!r}, row {labelled(row, ids)}, column {called(table.columns, column)}: "
            f"{reprlib.repr(cell)} {_fault(cell)}"
        )
    for column in np.flatnonzero((np.abs(numbers) >= EXACT).any(axis=0)).tolist():
        cells = values[~np.isnan(numbers[:, column]), column]
        some = set(whole_numbers(cells[:: -(-len(cells) // SAMPLED)].tolist()))
        if len(cells) >= ROWS_THAT_VARY and are_fewer_as_floats(some):
            raise DataError(f"view {table.name!r}, column {called(table.columns, column)}: {TOO_CLOSE}")
    return numbers


def _first_bad_cell(values: NDArray[Any]) -> tuple[int, int, Any]:
    cells = ((row, column, values[row, column]) for row, column in np.ndindex(values.shape))
    return next(cell for cell in cells if cell[2] is not None and not is_number(cell[2]))


def _fault(cell: Any) -> str:
    if is_too_small(cell):
        return "is too small for 64-bit floats, it would be 0; rescale the column"
    return "is not a number; encode it or drop the column (an argument must be a number or a string of a number)"


def called(columns: Sequence[Hashable], column: int) -> str:
    """The number of a column, with its name where that is another."""
    name = columns[column]
    return str(column) if name == column else f"{column} ({name!r})"


def labelled(row: int, ids: NDArray[Any]) -> str:
    """A row number, with the sample's id where that is another."""
    name = ids[row : row + 1].tolist()[0]
    return str(row) if name == row else f"{row} (id {name!r})"


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
    given = _numbers(table, allowed, ids)
    looks = [_filled_and_infinite(single(given[rows])) for rows in memory.parts(len(given))]
    filled, infinite = (np.concatenate(found) for found in zip(*looks, strict=True))
    wrong = np.flatnonzero(allowed & infinite)
    if len(wrong):
        _raise_for_row(table._replace(values=given), int(wrong[0]), ids)
    present = allowed & filled
    if placed and given.dtype != np.float32:
        return exact(given, present), present, 0.0
    offset = 0.0 if placed else _offset(table, given, present)
    return measured(given, present, offset), present, offset


def _filled_and_infinite(rows: NDArray[np.float32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows have a value at all, and which an infinite one."""
    finite = np.isfinite(rows)
    if finite.all():
        return np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    return np.asarray(~np.isnan(rows).all(axis=1)), np.asarray(np.isinf(rows).any(axis=1))


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


def check_convertible(name: str, view: Any) -> None:
    """Refuse a view that is no array, frame or list of rows, or a list that holds something else than rows of cells."""
    if not isinstance(view, (list, tuple)):
        if not _is_array(type(view)) and not issubclass(type(view), (array, memoryview, Number)):
            raise DataError(f"view {name!r} is a {type(view).__name__}, which is no table; {_cure(view)}")
        return
    lists: list[Sequence[Any]] = [view]
    for _ in range(_DEEPEST):
        kinds = {kind for one in lists for kind in set(map(type, one))}
        for kind in kinds:
            if _is_container(kind):
                raise DataError(f"view {name!r} is a list that holds {kind.__name__} objects; {_cure(None)}")
        nested = any(issubclass(kind, (list, tuple)) for kind in kinds)
        lists = [cell for one in lists for cell in one if isinstance(cell, (list, tuple))] if nested else []
    if lists:
        raise DataError(f"view {name!r} has more than {_DEEPEST} dimensions, not 2; {_cure(None)}")


def _cure(view: Any) -> str:
    files = "; files are read by read_views" if isinstance(view, str) else ""
    return f"a view is a (samples, columns) array, data frame, sparse matrix or AnnData{files}"


def _is_array(kind: type) -> bool:
    return any(hasattr(kind, name) for name in ("__array__", "__array_interface__", "__array_struct__"))


def _is_container(kind: type) -> bool:
    """Whether it has parts, and is no row or cell."""
    has_parts = any(hasattr(kind, name) for name in ("__getitem__", "__len__", "__iter__"))
    return has_parts and not _is_array(kind) and not issubclass(kind, (list, tuple, *_OF_CELLS))
