"""CSV files with a header, as columns of text; tables of labels, which are known of samples by their ids."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import id_key
from viewfuse.data.precision import is_number, text_as_numbers
from viewfuse.data.side_information.known_labels import is_unknown
from viewfuse.data.side_information.pairs import PairTable
from viewfuse.errors import DataError
from viewfuse.io.formulas import unmarked
from viewfuse.io.readers import open_source
from viewfuse.io.source import check_ids
from viewfuse.utils import memory
from viewfuse.utils.console import some, tell

_BYTES_PER_BYTE = 15
"""Memory that text in lists takes, for each byte of the file."""
_LOOKED_AT = 1_000
"""Characters; UTF-16 without its mark has a zero byte in nearly each."""


@dataclass(frozen=True)
class CsvTable:
    """Columns of text: per name its cells, equally many in all."""

    path: Path
    columns: dict[str, list[str]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        if name not in self.columns:
            raise DataError(f"{self.path} has no column {name!r}, but {list(self.columns)}; check the file")
        return self.columns[name]

    def ids(self) -> list[str]:
        """The column id."""
        return self.column("id")

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers."""
        cells = self.column(name)
        found = text_as_numbers([cells])
        if found is None:
            row = next(row for row, cell in enumerate(cells) if not is_number(cell))
            where = f"{self.path}, data row {row + 1}, column {name}"
            raise DataError(f"{where}: {cells[row]!r} is no number; check the file")
        return found[0]

    def whole_numbers(self, name: str) -> NDArray[np.int64]:
        """A column of whole numbers."""
        found = self.numbers(name)
        if not np.isfinite(found).all() or (found != np.round(found)).any():
            raise DataError(f"{self.path}, column {name}: not all are whole numbers; check the file")
        return found.astype(np.int64)


def read_table(path: Path) -> CsvTable:
    """Read a CSV file with a header; a column "id" has an id in every row, none of them twice."""
    rows = [cells for _, cells in _lines(path)]
    header = [unmarked(name.strip()) for name in rows[0]] if rows else []
    if not header or len(set(header)) < len(header):
        raise DataError(f"{path} has no header of different names; its first line must name the columns")
    wrong = next((row for row, cells in enumerate(rows) if len(cells) != len(header)), None)
    if wrong is not None:
        raise DataError(f"{path}, data row {wrong} has {len(rows[wrong])} cells and not {len(header)}; check the file")
    columns = {name: [unmarked(row[c]) for row in rows[1:]] for c, name in enumerate(header)}
    if "id" in columns:
        check_ids(path, columns["id"])
    return CsvTable(path, columns)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that hold anything, as cells, each with its number."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path} is no plain file; give a CSV file")
        what = f"reading {path}"
        memory.require(_BYTES_PER_BYTE * path.stat().st_size, what, "use a machine with more memory, or fewer samples")
        with path.open(newline="", encoding="utf-8-sig") as file:
            if "\0" in file.read(_LOOKED_AT):
                raise UnicodeError
            file.seek(0)
            lines = csv.reader(file, strict=True)  # else a quote without its end takes all lines below it for one cell
            return [(lines.line_num, cells) for cells in lines if cells]
    except UnicodeError:
        fault = f"{path} is no text in UTF-8 (UTF-16, perhaps?); save it as CSV in UTF-8"
        raise DataError(fault) from None
    except FileNotFoundError:
        raise DataError(f"{path} is not there; check the path") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file") from None


def read_labels(path: Path, column: str = "label", id_column: str | None = None) -> dict[str, str]:
    """Per id its label, from a table with ids and a column `column`, or from data that carry labels.

    Ids are in `id_column` where the table has one, else in the column id, else in the first one. Both are without
    blanks around them, and empty labels are left out.
    """
    return {name: label for name, label in _labels(path, column, id_column).items() if label}


def read_classes(path: Path) -> tuple[dict[str, str], list[str]]:
    """Per id its label where it names a class, and the ids of all other samples, which a line counts."""
    labels = _labels(path, "label")
    unknown = [name for name, label in labels.items() if is_unknown(label)]
    if unknown:
        count = "1 label names" if len(unknown) == 1 else f"{len(unknown):,} labels name"
        tell(f"{path}: {count} no class (empty, NA or -1), such as that of {unknown[0]!r}; they are left out")
    return {name: label for name, label in labels.items() if not is_unknown(label)}, unknown


def _labels(path: Path, column: str, id_column: str | None = None) -> dict[str, str]:
    if not path.exists() or path.is_fifo() or path.is_char_device():
        raise DataError(f"{path} is no file; check the path")
    if path.is_dir() or path.suffix.lower() in (".npz", ".mat"):
        source = open_source(path)
        if source.labels is None:
            raise DataError(f"{path} holds no labels; give a CSV file with the columns id and {column}")
        ids, labels = source.ids.tolist(), list(map(str, source.labels.tolist()))
    else:
        table = read_table(path)
        first = next(name for name in (id_column, "id", next(iter(table.columns))) if name in table.columns)
        if column not in table.columns or first == column:
            where = f"ids may also be in {f'{id_column!r}, or ' * bool(id_column)}the first column"
            there = f"{path} has the columns {some(table.columns, 5)}"
            raise DataError(f"{there}; it needs the columns id and {column}; {where}")
        ids, labels = table.column(first), table.column(column)
    keys = [id_key(name) for name in ids]
    check_ids(path, keys)
    return {name: label.strip() for name, label in zip(keys, labels, strict=True)}


def read_pairs(path: Path) -> PairTable:
    """Pairs of ids, from a table of two columns, with or without a header."""
    rows, places = [], []
    for number, cells in _lines(path):
        found = [unmarked(cell).strip() for cell in cells]
        if not any(found):
            continue
        if len(found) != 2 or not all(found):
            raise DataError(f"{path}, line {number} does not hold two ids; write one pair per line")
        rows.append((found[0], found[1]))
        places.append(f"{path}, line {number}")
    return PairTable(rows, places)
