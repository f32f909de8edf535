"""Results as files: tables that a spreadsheet can open without harm, and arrays, written block by block."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite
from viewfuse.io.csv_text import write_harmless
from viewfuse.utils.atomic import writing
from viewfuse.utils.optional import needed

Parts = Iterable[tuple[Views, NDArray[np.float32]]]
"""Samples, a few at a time, each time with their results of shape (samples, width)."""


_LABEL_COLUMNS = ("id", "label", "confidence", "uncertain", "views_present")
UNCERTAIN_BELOW = 0.5
"""A sample whose best cluster is less probable is marked as uncertain."""


def write_labels(path: Path, parts: Parts, below: float = UNCERTAIN_BELOW) -> None:
    """One line per sample: id, label, confidence, whether that is below a level, the views that it has.

    `parts` come with probabilities.
    """
    _write_rows(path, _LABEL_COLUMNS, (row for part in parts for row in _labels(*part, below)))


def write_predictions(
    path: Path,
    parts: Iterable[tuple[Views, NDArray[np.float32], NDArray[np.bool_]]],
    below: float = UNCERTAIN_BELOW,
) -> None:
    """As `write_labels`, and whether a sample is far outside of what the model was fitted on."""
    rows = (
        (*row, int(is_far))
        for views, probabilities, far in parts
        for row, is_far in zip(_labels(views, probabilities, below), far, strict=True)
    )
    _write_rows(path, (*_LABEL_COLUMNS, "out_of_range"), rows)


def _labels(views: Views, probabilities: NDArray[np.float32], below: float) -> Iterator[Sequence[Any]]:
    names, labels = np.array(views.names), probabilities.argmax(axis=1).tolist()
    best = zip(views.ids.tolist(), labels, probabilities.max(axis=1), views.mask, strict=True)
    return ((name, label, f"{sure:.4f}", int(sure < below), " ".join(names[mask])) for name, label, sure, mask in best)


def write_history(path: Path, history: Mapping[str, Sequence[Any]]) -> None:
    """One line per epoch."""
    _write_rows(path, tuple(history), zip(*history.values(), strict=True))


class Sheet(NamedTuple):
    """A table without pandas, and how its fractions are written."""

    header: Sequence[str]
    rows: Iterable[tuple[Any, ...]]
    digits: str = ".4f"


def write_sheets(folder: Path, sheets: Mapping[str, Sheet]) -> None:
    """Tables as CSV files, by name."""
    for name, sheet in sheets.items():
        _write_rows(folder / name, sheet.header, _rounded(sheet.rows, sheet.digits))


def _rounded(rows: Iterable[Sequence[Any]], digits: str) -> Iterator[Sequence[Any]]:
    for row in rows:
        yield [format(cell, digits) if isinstance(cell, float) else cell for cell in row]


def write_embedding(path: Path, n: int, width: int, parts: Parts) -> None:
    """Embeddings of `n` samples as .npy, .csv or .parquet, by the ending of `path`; the last two with ids."""
    columns = [f"z{c}" for c in range(width)]
    if path.suffix == ".csv":
        _write_rows(path, ("id", *columns), _embeddings(parts))
    elif path.suffix == ".parquet":
        _write_parquet(path, columns, parts)
    elif path.suffix == ".npy":
        _write_npy(path, (n, width), parts)
    else:
        raise CannotWrite(f"{path}: an embedding is written as .npy, .csv or .parquet; give one of these endings")


def _embeddings(parts: Parts) -> Iterator[Sequence[Any]]:
    return ((name, *map(str, row)) for views, part in parts for name, row in zip(views.ids.tolist(), part, strict=True))


def _write_npy(path: Path, shape: tuple[int, int], parts: Parts) -> None:
    with writing(path) as temporary, temporary.open("wb") as file:
        facts = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, facts)
        for _, part in parts:
            file.write(np.ascontiguousarray(part, dtype="<f4").data)


def _write_parquet(path: Path, columns: Sequence[str], parts: Parts) -> None:
    arrow, parquet = needed("pyarrow", "io", path), needed("pyarrow.parquet", "io", path)
    with writing(path) as temporary, ExitStack() as stack:
        writer = None
        for views, part in parts:
            table = arrow.table({"id": views.ids.tolist(), **dict(zip(columns, part.T, strict=True))})
            writer = writer or stack.enter_context(parquet.ParquetWriter(temporary, table.schema))
            writer.write_table(table)


def write_views(folder: Path, names: Sequence[str], parts: Iterable[Views]) -> None:
    """One CSV file per view with ids and columns, block by block, as `read_views` takes them."""
    with ExitStack() as stack:
        temporaries = [stack.enter_context(writing(folder / name)) for name in file_names(names, ".csv")]
        files = [stack.enter_context(path.open("w", newline="", encoding="utf-8")) for path in temporaries]
        for number, views in enumerate(parts):
            for file, array, columns in zip(files, views.dense().arrays, views.columns, strict=True):
                rows = ((name, *map(str, row)) for name, row in zip(views.ids.tolist(), array, strict=True))
                header = [] if number else [("id", *(str(column) for column in columns))]
                write_harmless(file, [*header, *rows])


def file_names(names: Sequence[str], ending: str) -> list[str]:
    """Files called like views, each once, without anything that could lead out of their folder."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.,+ -]", "_", name).lstrip(".") or "view"
        taken = {other.lower() for other in found}  # some systems take a and A for one name
        tries = (f"{plain}{number}{ending}" for number in ("", *(f"_{i}" for i in range(2, len(names) + 2))))
        found.append(next(name for name in tries if name.lower() not in taken))
    return found


def as_json(facts: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that it does not know become text."""
    return json.dumps(_plain(facts), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_harmless(file, [header])
        write_harmless(file, rows)
