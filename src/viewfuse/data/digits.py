"""Cells as numbers with all of their digits, whatever a view came as; what is not a number is refused with its place.

This is the one place where text becomes a number. Python's `float` reads more than a table means: "1_2" as 12, digits
of other scripts, dates as days.
"""

from __future__ import annotations

import re
import reprlib
import sys
from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from decimal import Decimal
from numbers import Integral, Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError, NotANumber

_DEEPEST = 3
_OF_CELLS = (str, bytes, range, array, memoryview, Number)
"""Besides what has `__array__`, NumPy knows what to do with these."""


ROWS_THAT_VARY = 10
"""A few rows may be alike by chance; only from so many on is a column judged."""
EXACT = 2.0**53
"""Up to here a float of 64 bits holds every whole number."""
TOO_CLOSE = "its values differ by less than 32-bit floats can tell; subtract their mean, or rescale them"
SAMPLED = 500
"""Rows that are looked at; where there are more, they are drawn."""
_MOST_DIGITS = 308
"""What has more is no float at all, which is refused elsewhere."""
_CELLS_AT_A_TIME = 30_000
"""So few that they are still in the processor's cache when they are read."""
_PLAIN = {float, int, bool, type(None), np.float64, np.float32, np.int64, np.int32, np.bool_}
"""Types whose objects are numbers, or nothing, without a look at each."""
_SMALL = {sign: re.compile(rf"{sign}-\d{{3}}") for sign in "eE"}
_ZEROS = "0" * 200
"""With as many after its point a number may be too small without an exponent, or with one of two digits."""
_LOST = re.compile(r"[^eE]*[1-9]")
"""What is not zero before its exponent."""


def has_long_numbers(values: Any) -> bool:
    """Whether an array has whole numbers that floats of 64 bits cannot tell from others."""
    is_long = values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size
    return bool(is_long and max(float(values.max()), -float(values.min())) >= EXACT)


def exact_frame(view: Any) -> Any:
    """A data frame as objects where it has such numbers, which would be made floats among others; else as it is."""
    kinds = (view.select_dtypes([kind]).to_numpy() for kind in ("int64", "uint64"))
    return view.astype(object) if any(map(has_long_numbers, kinds)) else view


def are_fewer_as_floats(numbers: Collection[int]) -> bool:
    """Whether more than a tenth of different whole numbers are the same as others once they are floats of 64 bits.

    Of `SAMPLED` numbers so many are where rounding is about `_MATTERS` of their range.
    """
    return 10 * len(set(map(float, numbers))) < 9 * len(numbers)


def whole_numbers(cells: Iterable[Any]) -> Iterator[int]:
    """The cells that are whole numbers, or text of them, with all of their digits, but for those beyond floats."""
    for cell in cells:
        try:
            number = Decimal(int(cell) if isinstance(cell, Integral) else cell)
        except (TypeError, ValueError, ArithmeticError):
            continue
        if number.is_finite() and number.adjusted() < _MOST_DIGITS and number == number.to_integral_value():
            yield int(number)


def is_number(cell: Any) -> bool:
    """Whether a cell is a number, or text of one: plain decimal or scientific notation in ASCII digits."""
    if isinstance(cell, bytes):
        cell = cell.decode("latin-1")
    if isinstance(cell, str):
        text = cell.strip()
        if not text.isascii() or "_" in text:
            return False
    elif not _has_value(cell):
        return False
    try:
        value = float(cell)
    except (TypeError, ValueError, ArithmeticError):
        return False
    return value != 0 or (not is_too_small(cell) if isinstance(cell, (str, bytes)) else bool(cell == 0))


def is_too_small(cell: Any) -> bool:
    """Whether a cell is text of a number that 64 bits can only hold as zero, such as 1e-400."""
    text = cell.decode("latin-1") if isinstance(cell, bytes) else cell
    if not isinstance(text, str) or not _LOST.match(text):
        return False
    try:
        return float(text) == 0
    except ValueError:
        return False


def _has_value(cell: Any) -> bool:
    """Whether an object that is no text is a real number; those of NumPy may be dates, too."""
    kind = getattr(getattr(cell, "dtype", None), "kind", "f")
    return kind in "biuf" and any(hasattr(type(cell), name) for name in ("__float__", "__index__"))


def text_as_numbers(rows: Sequence[Sequence[str]]) -> NDArray[np.float64] | None:
    """Rows of text as numbers of the same shape; None where a cell is none."""
    try:
        numbers = np.array(rows, dtype=np.float64)
    except ValueError:
        return None
    fits = _is_plain(" ".join(map(" ".join, rows))) or all(is_number(cell) for row in rows for cell in row)
    return numbers if fits else None


def objects_as_numbers(cells: NDArray[Any]) -> NDArray[np.float64] | None:
    """An array of objects, of shape (rows, columns), as numbers, None as NaN; None where a cell is no number."""
    found = np.empty(cells.shape, dtype=np.float64)
    step = max(1, _CELLS_AT_A_TIME // max(1, cells.shape[1]))
    for first in range(0, len(cells), step):
        part = cells[first : first + step]
        if not _are_numbers(part.ravel().tolist()):
            return None
        try:
            found[first : first + step] = part
        except (TypeError, ValueError, ArithmeticError):
            return None
    return found


def _are_numbers(cells: list[Any]) -> bool:
    """Whether what `float` may read are numbers; objects of most types, and plain text, need no look at each."""
    kinds = set(map(type, cells))
    odd = kinds - _PLAIN - {str}
    if str in kinds:
        texts = cells if kinds == {str} else [cell for cell in cells if type(cell) is str]
        odd |= set() if _is_plain(" ".join(texts)) else {str}
    return not odd or all(is_number(cell) for cell in cells if type(cell) in odd)


def _is_plain(text: str) -> bool:
    """Whether `float` reads all of many cells as tables mean them, if it reads them; else each has to be looked at."""
    is_small = _ZEROS in text or any(sign in text and small.search(text) for sign, small in _SMALL.items())
    return text.isascii() and "_" not in text and not is_small


def called(columns: Sequence[Hashable], column: int) -> str:
    """The number of a column, with its name where that is another."""
    name = columns[column]
    return str(column) if name == column else f"{column} ({name!r})"


def labelled(row: int, ids: NDArray[Any]) -> str:
    """A row number, with the sample's id where that is another."""
    name = ids[row : row + 1].tolist()[0]
    return str(row) if name == row else f"{row} (id {name!r})"


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


def filled(view: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """A masked array with NaN where it hides something; what holds no numbers stays as it is."""
    kind = np.float64 if view.dtype.kind in "biuf" else object if view.dtype.kind == "O" else view.dtype
    kind = object if has_long_numbers(view.data) else kind
    return np.asarray(np.ma.filled(view.astype(kind), np.nan) if kind is not view.dtype else view)


def _rows_for_none(view: Sequence[Any]) -> Sequence[Any]:
    """A list of rows in which None stands for a missing row, with NaN rows instead; masked cells are empty."""
    view = [filled(row) if isinstance(row, np.ma.MaskedArray) else row for row in view]
    if all(row is not None for row in view):
        return view
    width = max((np.size(row) for row in view if row is not None), default=1)
    return [[np.nan] * width if row is None else row for row in view]


def cells_as_numbers(table: Any, allowed: NDArray[np.bool_], ids: NDArray[Any]) -> NDArray[Any]:
    """Object cells as numbers, None as NaN, in the rows that may be looked at; anything else is refused."""
    if table.values.dtype.kind != "O":
        return table.values
    values = np.where(allowed[:, None], table.values, np.nan)
    numbers = objects_as_numbers(values)
    if numbers is None:
        cells = ((row, column, values[row, column]) for row, column in np.ndindex(values.shape))
        row, column, cell = next(one for one in cells if one[2] is not None and not is_number(one[2]))
        raise NotANumber(
            f"view {table.name!r}, row {labelled(row, ids)}, column {called(table.columns, column)}: "
            f"{reprlib.repr(cell)} {_fault(cell)}"
        )
    for column in np.flatnonzero((np.abs(numbers) >= EXACT).any(axis=0)).tolist():
        there = values[~np.isnan(numbers[:, column]), column]
        some = set(whole_numbers(there[:: -(-len(there) // SAMPLED)].tolist()))
        if len(there) >= ROWS_THAT_VARY and are_fewer_as_floats(some):
            raise DataError(f"view {table.name!r}, column {called(table.columns, column)}: {TOO_CLOSE}")
    return numbers


def _fault(cell: Any) -> str:
    if is_too_small(cell):
        return "is too small for 64-bit floats, it would be 0; rescale the column"
    return "is not a number; encode it or drop the column (an argument must be a number or a string of a number)"


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
