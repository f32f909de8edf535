"""One view, whatever it came as, becomes a table of numbers; what is not a number is refused with its place."""

from __future__ import annotations

import reprlib
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data import precision, sparse_tables
from viewfuse.data.alignment import AnnotatedTable, sparse_frame
from viewfuse.data.input_types import Mask, Names, dense_rows, has_row_labels, is_sparse, is_sparse_frame, parts_of
from viewfuse.data.precision import Offset, single
from viewfuse.errors import DataError, NotANumber
from viewfuse.utils import memory
from viewfuse.utils.console import some

_DEEPEST = 3
_OF_CELLS = (str, bytes, range, array, memoryview, Number)
"""Besides what has `__array__`, NumPy knows what to do with these."""


class Table(NamedTuple):
    """One view as it was given, dense or sparse, and what its columns are called."""

    name: str
    values: Any
    columns: Names

    @property
    def is_none(self) -> bool:
        """Whether no sample has the view."""
        return self.values.shape[1] == 0


def read_table(name: str, view: Any) -> Table:
    """The view as a 2-D numeric array, whatever it came as, or a sparse matrix; None has no columns."""
    if view is None:
        return Table(name, np.zeros((0, 0), dtype=np.float32), ())
    values = view.matrix if isinstance(view, AnnotatedTable) else view
    if is_sparse_frame(view):
        values = sparse_frame(name, view)
    if not is_sparse(values):
        values = as_array(name, values)
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
    kind = values.dtype.kind
    if is_sparse(values):
        sparse_tables.check_sparse(f"view {name!r}", values)
    if kind == "c":
        raise DataError(f"view {name!r}: Complex data not supported; pass real and imaginary parts as columns")
    if kind not in ("fiub" if is_sparse(values) else "fiubO"):
        held = "text" if kind in "US" else f"{values.dtype} values"
        raise DataError(f"view {name!r} holds {held}, not real numbers; encode them as numbers or drop them")
    names = getattr(view, "column_names", getattr(view, "columns", None))  # tables of pyarrow have the former
    if names is None and isinstance(view, (list, tuple)):
        names = next((row.index for row in view if _is_named(row)), None)
    columns = range(values.shape[1]) if names is None else list(names)
    return Table(name, sparse_tables.canonical(values) if is_sparse(values) else values, columns)


def check_named_once(table: Table) -> None:
    """Refuse two columns of one name: in another order they would be taken for each other."""
    if isinstance(table.columns, range) or len(set(table.columns)) == len(table.columns):
        return
    twice = next(name for name, count in Counter(table.columns).items() if count > 1)
    raise DataError(
        f"view {table.name!r}: two columns are called {twice!r}; give each a name of its own (AnnData: "
        "var_names_make_unique()), or pass an array, whose columns have none"
    )


def as_array(name: str, view: Any) -> NDArray[Any]:
    """A view of any kind but sparse ones as an array, of objects where its cells are of several kinds."""
    _check_convertible(name, view)
    is_list = isinstance(view, (list, tuple))
    if isinstance(view, np.ma.MaskedArray):
        view = precision.filled(view)
    if hasattr(view, "iloc") and len(view.shape) == 2 and len(set(view.dtypes)) > 1:
        view = precision.exact_frame(view)
    if is_list:
        view = [
            precision.filled(row) if isinstance(row, np.ma.MaskedArray) else row for row in _in_column_order(name, view)
        ]
        if any(row is None for row in view):
            width = max((np.size(row) for row in view if row is not None), default=1)
            view = [[np.nan] * width if row is None else row for row in view]
    try:
        values = np.asarray(view)
    except DataError:
        raise
    except ValueError:
        raise DataError(f"view {name!r} has rows of different lengths; give every row the same columns") from None
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"view {name!r} cannot be made an array ({reason}); pass an array of numbers") from None
    is_other = hasattr(view, "columns") and not hasattr(view, "iloc")  # a table of pyarrow or polars
    if (is_list or is_other) and values.dtype.kind == "f" and (np.abs(values) >= precision.EXACT).any():
        # There may be whole numbers beside others.
        values = np.asarray(view, dtype=object) if is_list else precision.exact_table(view, values)
    pandas = sys.modules.get("pandas")  # which has several values for "nothing"
    if values.dtype.kind == "O" and pandas is not None:
        try:
            nothing = np.asarray(pandas.isna(values))
        except ArithmeticError:  # some numbers, such as Decimal("sNaN"), cannot be compared
            found = [type(cell).__module__ != "decimal" and pandas.isna(cell) is True for cell in values.ravel()]
            nothing = np.array(found, dtype=bool).reshape(values.shape)
        values = np.where(nothing, np.nan, values)
    return values


def _in_column_order(name: str, rows: Sequence[Any]) -> Sequence[Any]:
    """Rows of which those that are pandas Series, whose labels are columns, have these in the order of the first."""
    named = {place: row for place, row in enumerate(rows) if _is_named(row)}
    found = list(rows)
    first: Any = next((row.index for row in named.values()), None)
    for place, row in named.items():
        if row.index.equals(first):
            continue
        if not (row.index.is_unique and set(row.index) == set(first) and len(row) == len(first)):
            fault = f"view {name!r}, row {place} has the columns {some(row.index)}, others have {some(first)}"
            raise DataError(f"{fault}; give every row the same columns, or a data frame")
        found[place] = row.reindex(first)
    return found


def _is_named(row: Any) -> bool:
    return has_row_labels(row) and np.ndim(row) == 1


def _numbers(table: Table, allowed: Mask, ids: NDArray[Any]) -> NDArray[Any]:
    """Object cells as numbers, None as NaN, in the rows that may be looked at; anything else is refused."""
    if table.values.dtype.kind != "O":
        return table.values
    values = np.where(allowed[:, None], table.values, np.nan)
    numbers = precision.objects_as_numbers(values)
    if numbers is None:
        numbered = np.ndenumerate(values)
        bad = ((place, one) for place, one in numbered if one is not None and not precision.is_number(one))
        (row, column), cell = next(bad)
        why = "is not a number; encode it or drop the column (an argument must be a number or a string of a number)"
        if precision.is_too_small(cell):
            why = "is too small for 64-bit floats, it would be 0; rescale the column"
        raise NotANumber(f"{_place(table, row, column, ids)}: {reprlib.repr(cell)} {why}")
    for column in np.flatnonzero((np.abs(numbers) >= precision.EXACT).any(axis=0)).tolist():
        cells = values[~np.isnan(numbers[:, column]), column]
        if precision.are_whole_numbers_lost(cells):
            raise DataError(f"view {table.name!r}, column {called(table.columns, column)}: {precision.TOO_CLOSE}")
    return numbers


def _place(table: Table, row: int, column: int, ids: NDArray[Any]) -> str:
    return f"view {table.name!r}, row {labelled(row, ids)}, column {called(table.columns, column)}"


def called(columns: Names, column: int) -> str:
    """The number of a column, with its name where that is another."""
    name = columns[column]
    return str(column) if name == column else f"{column} ({name!r})"


def labelled(row: int, ids: NDArray[Any]) -> str:
    """A row number, with the sample's id where that is another."""
    name = ids[row : row + 1].tolist()[0]
    return str(row) if name == row else f"{row} (id {name!r})"


def present_rows(table: Table, allowed: Mask, ids: NDArray[Any], *, placed: bool = False) -> tuple[Any, Mask, Offset]:
    """Check the rows that may be looked at; return values, zero where missing, who is present, and the offset.

    Values are float32, measured from the offset. Those of samples that a model places (`placed`) stay as they are, for
    the model knows what it measures from. Empty cells of a row that has others stay NaN. A row of a sparse view is
    missing where all that it stores is NaN; one that stores nothing is zero.
    """
    if table.is_none:
        return table.values, np.zeros(len(ids), dtype=bool), 0.0
    given = table.values
    filled, wrong = np.ones(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
    if is_sparse(given):
        stored = sparse_tables.with_data(given, single(given.data))
        filled = ~sparse_tables.nan_rows(stored)
        wrong = filled & (sparse_tables.rows_of_cells(stored, ~np.isfinite(stored.data)) > 0)
    else:
        given = _numbers(table, allowed, ids)
        for rows in memory.parts(len(given)):
            part = single(given[rows])
            if not np.isfinite(part).all():
                filled[rows], wrong[rows] = ~np.isnan(part).all(axis=1), np.isinf(part).any(axis=1)
    if (allowed & wrong).any():
        _raise_for_row(table._replace(values=given), int((allowed & wrong).argmax()), ids)
    present = allowed & filled
    offset = 0.0 if placed else _offset(table, given, present)
    if is_sparse(given):
        if not present.all():
            stored = sparse_tables.spread_rows(stored[np.flatnonzero(present)], present)
        return sparse_tables.with_data(stored, precision.locked(stored.data)), present, 0.0
    if placed and given.dtype != np.float32:
        double = given.astype(np.float64, copy=False)
        return precision.locked(double if present.all() else np.where(present[:, None], double, 0.0)), present, 0.0
    return precision.measured(given, present, offset), present, offset


def column_bounds(array: Any, present: Mask) -> tuple[NDArray[Any], NDArray[Any]]:
    """Least and largest value of every column over the rows that are present, of which there is one at least.

    Empty cells do not count; a column of nothing else has NaN.
    """
    if is_sparse(array):
        columns = (array if present.all() else array[np.flatnonzero(present)]).tocsc()
        return columns.min(axis=0).toarray().ravel(), columns.max(axis=0).toarray().ravel()
    pairs = [(np.fmin.reduce(rows), np.fmax.reduce(rows)) for rows in parts_of(array, present)]
    return np.fmin.reduce([low for low, _ in pairs]), np.fmax.reduce([high for _, high in pairs])


def _offset(table: Table, given: Any, present: Mask) -> Offset:
    """What columns are measured from that vary, but not within the digits of float32: all of their values, or most.

    Columns whose distances from a number near them lose these digits as well are refused.
    """
    if present.sum() < precision.ROWS_THAT_VARY or given.dtype in (np.float32, np.float16, np.bool_):
        return 0.0
    least, largest = column_bounds(given, present)
    low, high = least.astype(np.float64), largest.astype(np.float64)
    varies = high - low > precision.ROUNDING * np.maximum(np.abs(low), np.abs(high))
    if given.dtype.kind in "iu":  # nothing is rounding there
        varies = largest != least
    alike = varies & (single(low) == single(high))
    lossy = precision.lossy_columns(given, present, alike)
    lost = np.flatnonzero(~lossy.kept | (low == high)[lossy.columns])
    if len(lost):
        column = int(lossy.columns[lost[0]])
        why = precision.TOO_CLOSE if alike[column] else precision.lost_in_words(float(lossy.near[lost[0]]))
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
    place = _place(table, row, column, ids)
    if np.isnan(cells[column]):
        raise DataError(
            f"{place}: NaN in a row of a sparse view that has other values; store the value, nothing for zero, or "
            "NaN and nothing else to say that this sample lacks the view"
        )
    if np.isinf(cells[column]):
        raise DataError(f"{place}: the value is inf; replace it by a finite number")
    raise DataError(f"{place}: {cells[column]:.3g} is too large for 32-bit floats, it would be inf; rescale the column")


def _check_convertible(name: str, view: Any) -> None:
    """Refuse a view that is no array, frame or list of rows, or a list that holds something else than rows of cells."""
    arrays = ("__array__", "__array_interface__", "__array_struct__")
    cure = "a view is a (samples, columns) array, data frame, sparse matrix or AnnData"

    def has(kind: type, *names: str) -> bool:
        return any(hasattr(kind, one) for one in names)

    if not isinstance(view, (list, tuple)):
        if not has(type(view), *arrays) and not issubclass(type(view), (array, memoryview, Number)):
            files = "; files are read by read_views" if isinstance(view, str) else ""
            raise DataError(f"view {name!r} is a {type(view).__name__}, which is no table; {cure}{files}")
        return
    lists: list[Sequence[Any]] = [view]
    for _ in range(_DEEPEST):
        kinds = {kind for one in lists for kind in set(map(type, one))}
        for kind in kinds:
            is_cell = has(kind, *arrays) or issubclass(kind, (list, tuple, *_OF_CELLS))
            if has(kind, "__getitem__", "__len__", "__iter__") and not is_cell:
                raise DataError(f"view {name!r} is a list that holds {kind.__name__} objects; {cure}")
        nested = any(issubclass(kind, (list, tuple)) for kind in kinds)
        lists = [cell for one in lists for cell in one if isinstance(cell, (list, tuple))] if nested else []
    if lists:
        raise DataError(f"view {name!r} has more than {_DEEPEST} dimensions, not 2; {cure}")
