"""CSV and TSV files with an id column: one view each, or one wide file of several."""

from __future__ import annotations

import csv
import reprlib
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.readers.blocks import Blocks, ColumnsOf, pick_columns
from viewfuse.readers.limits import Spool
from viewfuse.readers.source import FileView
from viewfuse.tables import is_number

DELIMITERS = {".csv": ",", ".tsv": "\t"}
NOTHING = ("", "na", "nan", "null", "none", "n/a")
"""What an empty cell may be written as, in small letters."""
_ROWS_AT_A_TIME = 2_000
Lines = list[list[str]]


def read_text(path: Path, id_column: str | None, blocks: Blocks | None) -> list[FileView]:
    """The views of one file; with `blocks` several, and columns that belong to none are not looked at."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=DELIMITERS[path.suffix.lower()], strict=True)
            header = next(lines, [])
            place = _id_place(path, header, id_column)
            columns = header[:place] + header[place + 1 :]
            views = {path.stem: columns} if blocks is None else pick_columns(path, columns, blocks)
            _refuse_repeated_columns(path, header, [column for found in views.values() for column in found])
            wanted = [header.index(column) for found in views.values() for column in found]
            ids, table = _read_rows(path, lines, header, place, wanted)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); save it as UTF-8 {path.suffix}") from None
    return [FileView(path, view, values, found, ids) for view, found, values in _cut(table, views)]


def _cut(table: NDArray[Any], views: dict[str, list[str]]) -> Iterator[tuple[str, list[str], Any]]:
    """Per view its name, its columns and its part of the table."""
    start = 0
    for view, columns in views.items():
        whole = len(columns) == table.shape[1]
        yield view, columns, table if whole else ColumnsOf(table, range(start, start + len(columns)))
        start += len(columns)


def _id_place(path: Path, header: list[str], id_column: str | None) -> int:
    if len(header) < 2:
        sign = DELIMITERS[path.suffix.lower()]
        raise DataError(
            f"{path}: its first line is {reprlib.repr(sign.join(header))}, but it needs a header with a column of ids "
            f"and one of numbers; write the names of the columns there, with {sign!r} between them"
        )
    if id_column is None:
        return 0
    if id_column not in header:
        raise DataError(f"{path} has no column {id_column!r}; it has {header[:8]}")
    return header.index(id_column)


def _refuse_repeated_columns(path: Path, header: list[str], columns: Sequence[str]) -> None:
    for column in columns:
        if header.count(column) > 1:
            raise DataError(f"{path}: two columns are called {column!r}; give each a name of its own")


def _read_rows(
    path: Path, lines: Iterator[list[str]], header: list[str], place: int, wanted: list[int]
) -> tuple[list[str], NDArray[np.float64]]:
    """Ids and the wanted columns, a few lines at a time; empty lines are passed over."""
    ids: list[str] = []
    spool = Spool(len(wanted))
    take = itemgetter(*wanted) if len(wanted) > 1 else lambda row: (row[wanted[0]],)
    filled = (line for line in lines if line)
    while block := list(islice(filled, _ROWS_AT_A_TIME)):
        _refuse_ragged(path, block, len(header), len(ids))
        names = [row[place] for row in block]
        spool.add(_numbers(path, [list(take(row)) for row in block], [header[c] for c in wanted], names))
        ids += names
    if not ids:
        raise DataError(f"{path} has a header but no rows; it needs at least one row")
    return ids, spool.table()


def _refuse_ragged(path: Path, rows: Lines, width: int, before: int) -> None:
    for row, cells in enumerate(rows):
        if len(cells) != width:
            raise DataError(
                f"{path}, data row {before + row + 1} has {len(cells)} cells instead of {width}; "
                "check quotes and delimiters"
            )


def _numbers(path: Path, cells: Lines, columns: Sequence[str], ids: Sequence[str]) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:  # empty cells are rare enough to look for them only now
        cells = [["nan" if cell.strip().lower() in NOTHING else cell for cell in row] for row in cells]
    for name, row in zip(ids, cells, strict=True):
        for column, cell in zip(columns, row, strict=True):
            if not is_number(cell):
                raise DataError(
                    f"{path}, id {name!r}, column {column!r}: {cell!r} is not a number; encode it or drop the column"
                )
    return np.array(cells, dtype=np.float64)
