"""Results as files: tables that a spreadsheet can open without harm, and arrays written block by block."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.atomic import writing
from viewfuse.errors import CannotWrite, MissingPackage
from viewfuse.tables import is_number
from viewfuse.views import Views

if TYPE_CHECKING:
    from viewfuse.explanation import Explanation

LABELS_HEADER = ("id", "label", "confidence", "views_present")
Blocks = Iterable[tuple[Views, NDArray[np.float32]]]
"""Samples, a few at a time, each time with their results of shape (samples, width)."""


def labels_csv(views: Views, chances: NDArray[np.float32]) -> bytes:
    """One line per sample: id, label, confidence, the views that it has; `chances` of shape (samples, clusters)."""
    return table_csv(LABELS_HEADER, _label_rows(views, chances))


def write_labels(path: Path, blocks: Blocks) -> None:
    """The same, block by block, for more samples than memory holds; `blocks` come with chances."""
    _write_rows(path, LABELS_HEADER, (row for block in blocks for row in _label_rows(*block)))


def _label_rows(views: Views, chances: NDArray[np.float32]) -> Iterator[Sequence[Any]]:
    names = np.array(views.names)
    best = zip(views.ids.tolist(), chances.argmax(axis=1).tolist(), chances.max(axis=1), views.mask, strict=True)
    return ((name, label, f"{sure:.4f}", " ".join(names[mask])) for name, label, sure, mask in best)


def history_csv(history: Mapping[str, Sequence[Any]]) -> bytes:
    """One line per epoch."""
    return table_csv(tuple(history), zip(*history.values(), strict=True))


def explanation_files(explanation: Explanation) -> dict[str, bytes]:
    """The three tables of an explanation by the names of their files."""
    from viewfuse.explanation import cluster_sheet, feature_sheet, sample_sheet  # with torch, which others need not

    sheets = {
        "samples.csv": (sample_sheet(explanation), ".4f"),
        "clusters.csv": (cluster_sheet(explanation), ".4f"),
        "features.csv": (feature_sheet(explanation), ".7g"),  # in the data's units, of which float32 has 7 digits
    }
    return {name: table_csv(sheet.header, _rounded(sheet.rows, digits)) for name, (sheet, digits) in sheets.items()}


def _rounded(rows: Iterable[Sequence[Any]], digits: str) -> Iterator[Sequence[Any]]:
    for row in rows:
        yield [format(cell, digits) if isinstance(cell, float) else cell for cell in row]


def write_embedding(path: Path, n: int, width: int, blocks: Blocks) -> None:
    """Embeddings of `n` samples as .npy, .csv or .parquet, by the ending of `path`; the last two with ids."""
    columns = [f"z{c}" for c in range(width)]
    if path.suffix == ".csv":
        _write_rows(path, ("id", *columns), _embedding_rows(blocks))
    elif path.suffix == ".parquet":
        _write_parquet(path, columns, blocks)
    elif path.suffix == ".npy":
        with writing(path) as temporary:
            array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=(n, width))
            done = 0
            for _, block in blocks:
                array[done : done + len(block)] = block
                done += len(block)
            array.flush()
    else:
        raise CannotWrite(f"{path}: an embedding is written as .npy, .csv or .parquet; give one of these endings")


def _embedding_rows(blocks: Blocks) -> Iterator[Sequence[Any]]:
    return ((name, *row) for views, block in blocks for name, row in zip(views.ids, block.tolist(), strict=True))


def _write_parquet(path: Path, columns: Sequence[str], blocks: Blocks) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage(f"{path} cannot be written without pyarrow; pip install 'viewfuse[io]'") from None
    with writing(path) as temporary:
        writer = None
        for views, block in blocks:
            table = pa.table({"id": views.ids.tolist(), **dict(zip(columns, block.T, strict=True))})
            writer = writer or parquet.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def write_views(folder: Path, names: Sequence[str], blocks: Iterable[Views]) -> None:
    """One CSV file per view with ids and columns, block by block, as `read_views` takes them."""
    with ExitStack() as stack:
        temporaries = [stack.enter_context(writing(folder / file_name(name, ".csv"))) for name in names]
        files = [stack.enter_context(path.open("w", newline="", encoding="utf-8")) for path in temporaries]
        for number, views in enumerate(blocks):
            for file, array, columns in zip(files, views.arrays, views.columns, strict=True):
                rows = ((name, *row) for name, row in zip(views.ids.tolist(), array.tolist(), strict=True))
                header = [] if number else [("id", *(str(column) for column in columns))]
                _writer(file).writerows(_harmless_rows([*header, *rows]))


def file_name(name: str, ending: str) -> str:
    """A file called like a view, without anything that could lead out of its folder."""
    return re.sub(r"[^\w.,+ -]", "_", name).lstrip(".") + ending


def table_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A table as the bytes of a CSV file."""
    text = io.StringIO(newline="")
    _writer(text).writerows(_harmless_rows([header, *rows]))
    return text.getvalue().encode()


def _write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        _writer(file).writerow(header)
        _writer(file).writerows(_harmless_rows(rows))


def _writer(file: Any) -> Any:
    return csv.writer(file)


def _harmless_rows(rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    return ([_harmless(cell) for cell in row] for row in rows)


def _harmless(cell: Any) -> Any:
    """Text that a spreadsheet would run as a formula, marked as text."""
    risky = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not is_number(cell)
    return f"'{cell}" if risky else cell
