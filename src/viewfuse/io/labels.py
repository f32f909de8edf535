"""Tables of labels: what is known of samples by their ids."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from viewfuse.data.known.pairs import PairTable
from viewfuse.errors import DataError
from viewfuse.io.csv_text import open_utf8, unmarked
from viewfuse.io.readers import open_source
from viewfuse.io.source import check_ids


def read_labels(path: Path, column: str = "label") -> dict[str, str]:
    """Per id its label, from a table with the columns id and `column`, or from data that carry labels."""
    if not path.exists() or path.is_fifo() or path.is_char_device():
        raise DataError(f"{path} is no file; check the path")
    if path.is_dir() or path.suffix.lower() in (".npz", ".mat"):
        source = open_source(path)
        if source.labels is None:
            raise DataError(f"{path} holds no labels; give a CSV file with the columns id and {column}")
        return dict(zip(map(str, source.ids.tolist()), map(str, source.labels.tolist()), strict=True))
    try:
        with open_utf8(path) as file:
            lines = csv.DictReader(file)
            header = lines.fieldnames or []
            if not {"id", column} <= set(header):
                raise DataError(f"{path} has the columns {_some(header)}; it needs the columns id and {column}")
            rows = [(unmarked(row["id"] or ""), row[column]) for row in lines]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file") from None
    check_ids(path, [name for name, _ in rows])
    return {name: label for name, label in rows if label}


def read_pairs(path: Path) -> PairTable:
    """Pairs of ids, from a table of two columns, with or without a header."""
    if not path.is_file():
        raise DataError(f"{path} is no file; check the path")
    rows, places = [], []
    try:
        with open_utf8(path) as file:
            lines = csv.reader(file)
            for cells in lines:
                found = [unmarked(cell).strip() for cell in cells]
                if not any(found):
                    continue
                if len(found) != 2 or not all(found):
                    raise DataError(f"{path}, line {lines.line_num} does not hold two ids; write one pair per line")
                rows.append((found[0], found[1]))
                places.append(f"{path}, line {lines.line_num}")
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file") from None
    return PairTable(rows, places)


def _some(names: Sequence[str]) -> str:
    """The first of many names."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
