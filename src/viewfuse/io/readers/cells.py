"""Cells of text tables as numbers: decimal commas, yes and no, dates and categories; any other text is refused.

What a column holds is decided by its first cells, and all others must be of the same kind: one "yes" among numbers is
a mistake, not a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import DROP, TextValues, is_nothing, is_value, names_with_values, too_many, with_values
from viewfuse.data.digits import (
    EXACT,
    ROWS_THAT_VARY,
    SAMPLED,
    TOO_CLOSE,
    are_fewer_as_floats,
    is_number,
    is_too_small,
    text_as_numbers,
    whole_numbers,
)
from viewfuse.errors import DataError
from viewfuse.io.safety import Spool
from viewfuse.utils import memory
from viewfuse.utils.console import some
from viewfuse.utils.settings import Setting

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

    Attributes
    ----------
    texts : per column of text, by its number, the different ones
    """

    def __init__(self, path: Path, columns: Sequence[str], *, commas: bool = False) -> None:
        self._path, self._columns, self._commas = path, columns, commas
        self._kinds: dict[int, str] = {}
        self.texts: dict[int, TextValues] = {}
        self._first: dict[int, tuple[Hashable, str]] = {}
        self._has_numbers = np.zeros(len(columns), dtype=bool)
        self._comma, self._dot = "", ""

    def numbers(self, cells: Lines, ids: Sequence[str]) -> NDArray[np.float64]:
        """The cells of the samples `ids` as numbers, of shape (rows, columns); NaN where they are empty."""
        if self._commas:
            cells = self._with_dots(cells, ids)
        numbers = text_as_numbers(cells)
        if numbers is None:  # empty cells are rare enough to look for them only now
            cells = [["nan" if is_nothing(cell) else cell for cell in row] for row in cells]
            numbers = text_as_numbers(cells)
        if numbers is None or self._kinds:
            columns = enumerate(zip(*cells, strict=True))
            numbers = np.stack([self.column(c, column, ids) for c, column in columns], axis=1)
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

    def column(self, c: int, cells: Sequence[str], ids: Sequence[Hashable]) -> NDArray[np.float64]:
        """The cells of one column, by its number, as numbers, or as those of their texts."""
        there = [cell for cell in cells if not is_nothing(cell)]
        if there and c not in self._kinds and not self._has_numbers[c]:
            self._kinds[c] = _kind(there[0])
            self._first[c] = ids[cells.index(there[0])], there[0]
        kind, found = self._kinds.get(c, "number"), np.empty(len(cells))
        for row, cell in enumerate(cells):
            value: float | None = nan
            if is_nothing(cell):
                pass
            elif kind == "text":
                value = None if is_number(cell) else self.texts.setdefault(c, TextValues()).code(cell.strip())
            elif kind == "number":
                value = float(cell) if is_number(cell) else None
            else:
                value = _days(cell.strip()) if _kind(cell) == kind else None
            if value is None:
                self._refuse(c, ids[row], cell, kind)
            found[row] = value
        return found

    def _refuse(self, c: int, name: Hashable, cell: str, kind: str) -> NoReturn:
        """Say what is wrong with a cell unlike the others of its column: of text and numbers, with the text."""
        column, unlike = f"column {self._columns[c]!r}", "unlike other cells of the column; correct it, or empty it if"
        if kind == "text":
            if not is_number(cell):
                raise DataError(f"{self._path}, {too_many(column)}", *DROP)
            name, cell = self._first[c]
        fault: tuple[str | Setting, ...]
        if kind == "date":
            fault = (f"is no date, {unlike} nothing is known",)
        elif is_too_small(cell):
            fault = ("is too small for 64-bit floats, it would be 0; rescale the column",)
        elif is_number(cell.replace(",", ".")) or is_number(cell.replace(".", "").replace(",", ".")):
            fault = ("is not a number; write 1.5 for one and a half, and 1234.5 without a sign for thousands",)
        elif kind == "text":
            fault = (f"is not a number, {unlike} nothing is known",)
        else:
            cure = "empty the cell if nothing is known, begin all with a letter if they are categories, "
            fault = f"is not a number; {cure}", *DROP
        raise DataError(f"{self._path}, id {name!r}, {column}: {cell!r} ", *fault)

    def part(self, table: NDArray[np.float64], first: int, width: int) -> tuple[NDArray[np.float64], list[Hashable]]:
        """Some columns of what was read, those of text replaced by columns of their values, and the names of all."""
        own = {c - first: texts for c, texts in self.texts.items() if first <= c < first + width}
        try:
            names = names_with_values(self._columns[first : first + width], own)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None
        cut = table[:, first : first + width] if width < table.shape[1] else table  # a part of one on disk is copied
        if not own:
            return cut, names
        spool = Spool(len(names))
        for rows in memory.parts(len(cut)):
            spool.add(with_values(cut[rows], own))
        return spool.table(), names

    def said(self) -> list[str]:
        """What was read in another way than as plain numbers, in words."""
        words, texts = ([c for c, own in sorted(self.texts.items()) if own.are_words is yes] for yes in (True, False))
        dates = [c for c, kind in sorted(self._kinds.items()) if kind == "date"]
        named = {"as 1 for yes and 0 for no": words, "as days since 1970": dates, "as categories": texts}
        kinds = [f"{some([self._columns[c] for c in own], _SHOWN)} {how}" for how, own in named.items() if own]
        return [f"{self._comma.strip()} is {self._comma.strip().replace(',', '.')}"] * bool(self._comma) + kinds


def _kind(cell: str) -> str:
    if _DATE.fullmatch(cell.strip()):
        return "date"
    return "text" if is_value(cell) else "number"


def _days(text: str) -> float | None:
    """Days since 1970, of a date in UTC where it names no other zone; None where there is no such day."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / _SECONDS


class CheckedRows:
    """Rows of numbers, block by block; whole numbers that differ in the file, but not as floats, are refused."""

    def __init__(self, path: Path, columns: Sequence[Any]) -> None:
        self._path, self._columns, self._spool = path, columns, Spool(len(columns))
        self._seen: dict[int, set[int]] = {}

    def add(self, block: NDArray[np.float64], exact: Callable[[int], Iterable[Any]]) -> None:
        """Append rows, of shape (rows, columns); `exact` gives the cells of a column as the file has them."""
        for column in np.flatnonzero((np.abs(block) >= EXACT).any(axis=0)).tolist():
            seen = self._seen.setdefault(column, set())
            if len(seen) < SAMPLED:
                seen.update(whole_numbers(exact(column)))
        self._spool.add(block)

    def table(self) -> NDArray[np.float64]:
        """All rows, of shape (rows, columns)."""
        table = self._spool.table()
        for column, seen in self._seen.items():
            if are_fewer_as_floats(seen) and np.isfinite(table[:, column]).sum() >= ROWS_THAT_VARY:
                where = f"{self._path}, column {self._columns[column]!r}"
                raise DataError(f"{where}: {TOO_CLOSE}; ids belong into the column of ids")
        return table
