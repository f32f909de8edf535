"""Which cells are numbers: the one place where text becomes one.

Python's `float` reads more than a table means: "1_2" as 12, digits of other scripts, dates as days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CELLS_AT_A_TIME = 30_000
"""So few that they are still in the processor's cache when they are read."""
_PLAIN = {float, int, bool, type(None), np.float64, np.float32, np.int64, np.int32, np.bool_}
"""Types whose objects are numbers, or nothing, without a look at each."""
_SMALL = {sign: re.compile(rf"{sign}-\d{{3}}") for sign in "eE"}
_LOST = re.compile(r"[^eE]*[1-9]")
"""What is not zero before its exponent."""


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
    return value != 0 or not is_too_small(cell)


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
    is_small = any(sign in text and small.search(text) for sign, small in _SMALL.items())
    return text.isascii() and "_" not in text and not is_small
