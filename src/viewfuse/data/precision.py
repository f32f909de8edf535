"""Digits that columns lose as 32-bit floats: beside a large offset few are left for what tells samples apart.

Such columns are measured from one of their values, in 64 bits, before they become 32-bit floats: time stamps, positions
in a genome, metres, m/z. What still loses digits is refused: sparse columns, which would no longer be sparse, and whole
numbers that 64-bit floats cannot tell apart.

Here is as well which cells are numbers, the one place where text becomes one. Python's `float` reads more than a table
means: "1_2" as 12, digits of other scripts, dates as days.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import Mask, is_sparse
from viewfuse.utils import memory

ROWS_THAT_VARY = 10
"""A few rows may be alike by chance; only from so many on is a column judged."""
ROUNDING = 1e-12
"""Values that differ by less, relative to their size, are one value up to rounding."""
EXACT = 2.0**53
"""Up to here a float of 64 bits holds every whole number."""
TOO_CLOSE = "its values differ by less than 32-bit floats can tell; subtract their mean, or rescale them"
Offset = NDArray[np.float64] | float
"""What the columns of a view are measured from, of shape (columns,); 0.0 where all are as they were given."""
SAMPLED = 500
"""Rows that are looked at; where there are more, they are drawn."""
_MOST_DIGITS = 308
"""What has more is no float at all, which is refused elsewhere."""
_MOST_CELLS = 2_000_000
_PARTS = 10
_MOST_LOST = 1 / 8
"""Of the width of a tenth of the rows, as the error of rounding: a tenth then has four different values at most."""
_MATTERS = 1e-4
"""Of the width of the middle 80 % of the rows: a smaller error is none that clusters could tell."""
_CELLS_AT_A_TIME = 30_000
"""So few that they are still in the processor's cache when they are read."""
_PLAIN = {float, int, bool, type(None), np.float64, np.float32, np.int64, np.int32, np.bool_}
"""Types whose objects are numbers, or nothing, without a look at each."""
_SMALL = {sign: re.compile(rf"{sign}-\d{{3}}") for sign in "eE"}
_ZEROS = "0" * 200
"""With as many after its point a number may be too small without an exponent, or with one of two digits."""
_LOST = re.compile(r"[^eE]*[1-9]")
"""What is not zero before its exponent."""


def single(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """In 32 bits; what is too large is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32, copy=False)


def measured(given: NDArray[Any], present: Mask, offset: Offset) -> NDArray[np.float32]:
    """In float32, measured from `offset`, with zeros where a row is missing; the same memory where that is possible."""
    if not np.any(offset) and given.dtype == np.float32 and given.flags.c_contiguous and present.all():
        return locked(given)
    values = memory.room((given.shape[0], given.shape[1]))
    for rows in memory.parts(len(given)):
        part = given[rows].astype(np.float64) - offset if np.any(offset) else given[rows]
        values[rows] = np.where(present[rows, None], single(part), np.float32(0))
    return locked(values)


def locked(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, which cannot be written to: they may be the caller's own memory."""
    shown = values.view()
    shown.flags.writeable = False
    return shown


def has_long_numbers(values: Any) -> bool:
    """Whether an array has whole numbers that floats of 64 bits cannot tell from others."""
    is_long = values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size
    return bool(is_long and max(float(values.max()), -float(values.min())) >= EXACT)


def filled(view: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """A masked array with NaN where it hides something; what holds no numbers stays as it is."""
    kind = np.float64 if view.dtype.kind in "biuf" else object if view.dtype.kind == "O" else view.dtype
    kind = object if has_long_numbers(view.data) else kind
    return np.asarray(np.ma.filled(view.astype(kind), np.nan) if kind is not view.dtype else view)


def exact_frame(view: Any) -> Any:
    """A data frame as objects where it has such numbers, which would be made floats among others; else as it is."""
    if len(view.shape) != 2:  # which is refused elsewhere
        return view
    kinds = (view.select_dtypes([kind]).to_numpy() for kind in ("int64", "uint64"))
    return view.astype(object) if any(map(has_long_numbers, kinds)) else view


def are_fewer_as_floats(numbers: Collection[int]) -> bool:
    """Whether more than a tenth of different whole numbers are the same as others once they are floats of 64 bits.

    Of `SAMPLED` numbers so many are where rounding is about `_MATTERS` of their range.
    """
    return 10 * len(set(map(float, numbers))) < 9 * len(numbers)


def are_whole_numbers_lost(cells: NDArray[Any]) -> bool:
    """Whether the whole numbers among the cells of a column, of which some are looked at, are fewer as floats."""
    some = set(whole_numbers(cells[:: -(-len(cells) // SAMPLED)].tolist()))
    return len(cells) >= ROWS_THAT_VARY and are_fewer_as_floats(some)


def exact_table(view: Any, values: NDArray[Any]) -> NDArray[Any]:
    """A table of pyarrow or polars as objects where it has whole numbers of 64 bits; else its values as they are."""
    columns = view.get_columns() if hasattr(view, "get_columns") else getattr(view, "columns", ())
    kinds = [str(getattr(column, "type", getattr(column, "dtype", ""))).lower() for column in columns]
    if not {"int64", "uint64"} & set(kinds):
        return values
    listed = (column.to_pylist() if hasattr(column, "to_pylist") else column.to_list() for column in columns)
    return np.array(list(zip(*listed, strict=True)), dtype=object)


def whole_numbers(cells: Iterable[Any]) -> Iterator[int]:
    """The cells that are whole numbers, or text of them, with all of their digits, but for those beyond floats."""
    for cell in cells:
        try:
            number = Decimal(int(cell) if isinstance(cell, Integral) else cell)
        except (TypeError, ValueError, ArithmeticError):
            continue
        if number.is_finite() and number.adjusted() < _MOST_DIGITS and number == number.to_integral_value():
            yield int(number)


class Lossy(NamedTuple):
    """Columns of a view that lose digits which tell their rows apart: their numbers, increasing, and of each
    one of its values, near the middle; and whether distances from that keep these digits, as in dense columns only.
    """

    columns: NDArray[np.int64]
    near: NDArray[np.float64]
    kept: Mask


def lossy_columns(given: Any, present: Mask, alike: Mask | bool = False) -> Lossy:
    """Look at a few rows of a view; `alike`, of shape (columns,), are known to lose all of their differences."""
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


def loses_digits(rows: NDArray[Any], kind: type[np.floating[Any]] = np.float32) -> Mask:
    """Which columns lose digits that tell their rows apart as floats of that kind, of shape (columns,).

    Rounding is compared with how far apart neighbours are, a tenth of the rows from the next one: far rows are few, so
    the range of a column says little. Rows that are the same are no neighbours. Empty cells are NaN.
    """
    low = np.fmin.reduce(rows)
    if rows.dtype.kind == "f":
        apart = rows.astype(np.float64) - low
    else:  # whole numbers are subtracted before anything is rounded
        wide = rows.astype(np.uint64 if rows.dtype.kind == "u" else np.int64)
        apart = (wide.view(np.uint64) - low.astype(wide.dtype).view(np.uint64)).astype(np.float64)
    counts = len(rows) - np.isnan(apart).sum(axis=0)
    ends = np.rint(np.linspace(0, 1, _PARTS + 1)[:, None] * np.maximum(counts - 1, 0)).astype(np.int64)
    cuts = np.take_along_axis(np.sort(apart, axis=0), ends, axis=0)
    sizes = np.abs(low.astype(np.float64) + cuts)
    sizes = np.maximum(sizes[1:], sizes[:-1])
    with np.errstate(over="ignore", invalid="ignore"):
        errors, widths = np.spacing(sizes.astype(kind)).astype(np.float64) / 2, np.diff(cuts, axis=0)
        is_rounded = ((rows.astype(kind).astype(rows.dtype) != rows) & (rows == rows)).any(axis=0)
    noise = np.where(sizes < EXACT, ROUNDING, 0.0) if rows.dtype.kind == "f" else 0.0
    differ = widths > noise * sizes
    ratios = np.where(differ, errors / np.where(differ, widths, 1.0), np.nan)
    ratios[0] = np.where(differ.any(axis=0), ratios[0], 0.0)
    local = np.nanmedian(ratios, axis=0) > _MOST_LOST
    matters = errors[_PARTS // 2] > _MATTERS * (cuts[-2] - cuts[1])
    return np.asarray((counts >= ROWS_THAT_VARY) & local & matters & is_rounded)


def is_number(cell: Any) -> bool:
    """Whether a cell is a number, or text of one: plain decimal or scientific notation in ASCII digits."""
    is_text = isinstance(cell, (str, bytes))
    text = cell.decode("latin-1") if isinstance(cell, bytes) else cell
    kind = getattr(getattr(cell, "dtype", None), "kind", "f")  # those of NumPy may be dates, too
    if is_text and (not text.strip().isascii() or "_" in text):
        return False
    if not is_text and (kind not in "biuf" or not any(hasattr(type(cell), to) for to in ("__float__", "__index__"))):
        return False
    try:
        value = float(text)
    except (TypeError, ValueError, ArithmeticError):
        return False
    return value != 0 or (not is_too_small(text) if is_text else bool(cell == 0))


def is_too_small(cell: Any) -> bool:
    """Whether a cell is text of a number that 64 bits can only hold as zero, such as 1e-400."""
    text = cell.decode("latin-1") if isinstance(cell, bytes) else cell
    try:
        return isinstance(text, str) and bool(_LOST.match(text)) and float(text) == 0
    except ValueError:
        return False


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
        part = cells[first : first + step].ravel().tolist()
        kinds = set(map(type, part))
        odd = kinds - _PLAIN - {str}
        if str in kinds and not _is_plain(" ".join(cell for cell in part if type(cell) is str)):
            odd.add(str)
        if odd and not all(is_number(cell) for cell in part if type(cell) in odd):
            return None
        try:
            found[first : first + step] = cells[first : first + step]
        except (TypeError, ValueError, ArithmeticError):
            return None
    return found


def _is_plain(text: str) -> bool:
    """Whether `float` reads all of many cells as tables mean them, if it reads them; else each has to be looked at."""
    is_small = _ZEROS in text or any(sign in text and small.search(text) for sign, small in _SMALL.items())
    return text.isascii() and "_" not in text and not is_small
