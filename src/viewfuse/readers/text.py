"""CSV and TSV files, one per view, joined by an id column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.tables import is_number
from viewfuse.views import Views

DELIMITERS = {".csv": ",", ".tsv": "\t"}
NOTHING = ("", "na", "nan", "null", "none", "n/a")
"""What an empty cell may be written as, in small letters."""


class TextTable(NamedTuple):
    """One file: ids, names of the columns of numbers, and values of shape (rows, columns) with NaN where empty."""

    ids: list[str]
    columns: list[str]
    values: NDArray[np.float64]


def read_tables(paths: Sequence[Path], id_column: str | None) -> Views:
    """One view per file, rows joined by the union of ids in the order of first appearance."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        raise DataError(f"two files are called alike: {', '.join(map(str, paths))}; a view is called like its file")
    tables = [_read_table(path, id_column) for path in paths]
    union = {name: row for row, name in enumerate(dict.fromkeys(i for table in tables for i in table.ids))}
    arrays = {}
    for name, table in zip(names, tables, strict=True):
        array = np.full((len(union), len(table.columns)), np.nan)
        array[[union[i] for i in table.ids]] = table.values
        arrays[name] = array
    return Views(arrays, ids=list(union)).replace(columns=tuple(table.columns for table in tables))


def _read_table(path: Path, id_column: str | None) -> TextTable:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, delimiter=DELIMITERS[path.suffix.lower()], strict=True))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); save it as UTF-8 {path.suffix}") from None
    header, rows = (lines[0], [line for line in lines[1:] if line]) if lines else ([], [])
    if len(header) < 2 or not rows:
        raise DataError(f"{path} needs a header with a column of ids and one of numbers, and at least one row")
    place = _id_place(path, header, id_column)
    _refuse_ragged(path, rows, len(header))
    ids = [row.pop(place) for row in rows]
    _refuse_repeated(path, ids)
    columns = header[:place] + header[place + 1 :]
    return TextTable(ids, columns, _numbers(path, rows, columns, ids))


def _id_place(path: Path, header: list[str], id_column: str | None) -> int:
    if id_column is None:
        return 0
    if id_column not in header:
        raise DataError(f"{path} has no column {id_column!r}; it has {header[:8]}")
    return header.index(id_column)


def _refuse_ragged(path: Path, rows: list[list[str]], width: int) -> None:
    for row, cells in enumerate(rows):
        if len(cells) != width:
            raise DataError(
                f"{path}, data row {row + 1} has {len(cells)} cells instead of {width}; check quotes and delimiters"
            )


def _refuse_repeated(path: Path, ids: list[str]) -> None:
    seen: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not name.strip():
            raise DataError(f"{path}, data row {row + 1} has no id; give every row the id of its sample")
        if name in seen:
            raise DataError(f"{path}: id {name!r} appears twice, in data rows {seen[name] + 1} and {row + 1}; keep one")
        seen[name] = row


def _numbers(path: Path, rows: list[list[str]], columns: list[str], ids: list[str]) -> NDArray[np.float64]:
    cells = [["nan" if cell.strip().lower() in NOTHING else cell for cell in row] for row in rows]
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for name, row in zip(ids, cells, strict=True):
            for column, cell in zip(columns, row, strict=True):
                if not is_number(cell):
                    raise DataError(
                        f"{path}, id {name!r}, column {column!r}: {cell!r} is not a number; "
                        "encode it or drop the column"
                    ) from None
        raise
