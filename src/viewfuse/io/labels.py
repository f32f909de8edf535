"""Tables of labels: what is known of samples by their ids."""

from __future__ import annotations

import csv
from pathlib import Path

from viewfuse.errors import DataError
from viewfuse.io.csv_text import open_utf8, unmarked
from viewfuse.io.readers import open_source
from viewfuse.io.source import check_ids
from viewfuse.utils.console import some


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
                raise DataError(f"{path} has the columns {some(header, 5)}; it needs the columns id and {column}")
            rows = [(unmarked(row["id"] or ""), row[column]) for row in lines]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file") from None
    check_ids(path, [name for name, _ in rows])
    return {name: label for name, label in rows if label}
