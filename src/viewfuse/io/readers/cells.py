"""Cells of text tables as numbers: decimal commas, yes and no, and dates become numbers; any other text is refused.

What a column holds is decided by its first cells, and all others must be of the same kind: one "yes" among numbers is
a mistake, not a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import is_number, is_too_small, text_as_numbers
from viewfuse.errors import DataError
from viewfuse.utils.settings import Setting

NOTHING = ("", "na", "nan", "null", "none", "n/a")
"""What an empty cell may be written as, in small letters."""
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII)
_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*", re.ASCII)
_SHOWN = 6
_SECONDS = 86_400
Lines = Sequence[Sequence[str]]


class Cells:
    """Reads the cells of one file, block by block.

    Parameters
    ----------
    columns : names of those that are read
    commas : whether 1,5 may stand for 1.5: where no comma separates cells
    """

    def __init__(self, path: Path, columns: Sequence[str], *, commas: bool = False) -> None:
        self._path, self._columns, self._commas = path, columns, commas
        self._kinds: dict[int, str] = {}
        self._has_numbers = np.zeros(len(columns), dtype=bool)
        self._comma, self._dot = "", ""

    def numbers(self, cells: Lines, ids: Sequence[str]) -> NDArray[np.float64]:
        """The cells of the samples `ids` as numbers, of shape (rows, columns); NaN where they are empty."""
        cells = self._with_dots(cells, ids) if self._commas else cells
        numbers = text_as_numbers(cells)
        if numbers is None:  # empty cells are rare enough to look for them only now
            cells = [["nan" if cell.strip().lower() in NOTHING else cell for cell in row] for row in cells]
            numbers = text_as_numbers(cells)
        if numbers is None or self._kinds:
            numbers = self._by_column(cells, ids)
        else:
            self._has_numbers |= ~np.isnan(numbers).all(axis=0)
        return numbers

    def _with_dots(self, cells: Lines, ids: Sequence[str]) -> Lines:
        """Cells with points for decimal commas; a file that has both is refused."""
        flat = [(name, c, cell) for name, row in zip(ids, cells, strict=True) for c, cell in enumerate(row)]
        for name, c, cell in flat:
            if _COMMA.fullmatch(cell):
                self._comma = self._comma or cell
            elif "." in cell and is_number(cell):
                self._dot = self._dot or cell
            if self._comma and self._dot:
                fault = f"{self._comma!r} and {self._dot!r} stand in one file; write all numbers alike"
                raise DataError(f"{self._path}, id {name!r}, column {self._columns[c]!r}: {fault}")
        if not self._comma:
            return cells
        return [[cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell for cell in row] for row in cells]

    def _by_column(self, cells: Lines, ids: Sequence[str]) -> NDArray[np.float64]:
        found = np.empty((len(cells), len(self._columns)))
        for c, column in enumerate(zip(*cells, strict=True)):
            there = [cell for cell in column if cell.strip().lower() not in NOTHING]
            if there and not self._has_numbers[c]:
                self._kinds.setdefault(c, _kind(there[0]))
            kind = self._kinds.get(c, "number")
            for row, cell in enumerate(column):
                value = nan if cell.strip().lower() in NOTHING else _value(cell, kind)
                if value is None:
                    where = f"{self._path}, id {ids[row]!r}, column {self._columns[c]!r}"
                    raise DataError(f"{where}: {cell!r} ", *_fault(cell, kind))
                found[row, c] = value
        return found

    def said(self) -> list[str]:
        """What was read in another way than as plain numbers, in words."""
        named = {kind: [self._columns[c] for c, own in sorted(self._kinds.items()) if own == kind] for kind in _READ}
        texts = [f"{_some(columns)} {_READ[kind]}" for kind, columns in named.items() if columns]
        return [f"{self._comma.strip()} is {self._comma.strip().replace(',', '.')}"] * bool(self._comma) + texts


_READ = {"yes or no": "as 1 for yes and 0 for no", "date": "as days since 1970"}


def _kind(cell: str) -> str:
    if cell.strip().lower() in _WORDS:
        return "yes or no"
    return "date" if _DATE.fullmatch(cell.strip()) else "number"


def _value(cell: str, kind: str) -> float | None:
    """The number that a cell stands for; None where it is of another kind."""
    if kind == "number":
        return float(cell) if is_number(cell) else None
    if _kind(cell) != kind:
        return None
    return _WORDS[cell.strip().lower()] if kind == "yes or no" else _days(cell.strip())


def _days(text: str) -> float | None:
    """Days since 1970, of a date in UTC where it names no other zone; None where there is no such day."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / _SECONDS


def _fault(cell: str, kind: str) -> tuple[str | Setting, ...]:
    """What is wrong with a cell that is not of the kind of its column, and the cure."""
    if kind != "number":
        found = {"yes or no": "neither yes nor no", "date": "no date"}[kind]
        return (f"is {found}, unlike other cells of the column; correct it, or empty it if nothing is known",)
    if is_too_small(cell):
        return ("is too small for 64-bit floats, it would be 0; rescale the column",)
    if is_number(cell.replace(",", ".")) or is_number(cell.replace(".", "").replace(",", ".")):
        return ("is not a number; write 1.5 for one and a half, and 1234.5 without a sign for thousands",)
    cure = "empty the cell if nothing is known, encode it, leave the column out with "
    return f"is not a number; {cure}", Setting("drop"), ", or name it with ", Setting("id_column"), " if it holds ids"


def _some(names: Sequence[str]) -> str:
    """The first of many names."""
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
