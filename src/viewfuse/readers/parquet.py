"""Parquet files with an id column: one view each, or one file of several (blocks, or a list column per view)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.readers.blocks import Blocks, pick_columns
from viewfuse.readers.limits import Spool, needed, refuse_growth
from viewfuse.readers.source import FileView

_CURE = "write it without compression and dictionaries"


def read_parquet(path: Path, id_column: str | None, blocks: Blocks | None) -> list[FileView]:
    """The views of one file.

    A column of lists (an embedding) is a view by itself. A file with such columns has these as its views; of any
    other file the columns of numbers are one view, unless `blocks` say more.
    """
    arrow = needed("pyarrow.parquet", "io", path)
    errors = (needed("pyarrow", "io", path).ArrowException, OSError)
    try:
        file = arrow.ParquetFile(path)
        _refuse_bomb(path, file)
        ids = _read_ids(path, file, _id_name(path, file, id_column))
        views = _plan(path, file, id_column, blocks)
        return [FileView(path, name, *_read_view(path, file, columns), ids) for name, columns in views.items()]
    except errors as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is no readable Parquet file ({reason}); write it again") from None


def _refuse_bomb(path: Path, file: Any) -> None:
    facts = file.metadata
    groups = sum(facts.row_group(g).total_byte_size for g in range(facts.num_row_groups))
    refuse_growth(path, max(groups, 8 * facts.num_rows * facts.num_columns), _CURE)


def _id_name(path: Path, file: Any, id_column: str | None) -> str:
    """The column that is asked for, the index that pandas stored, or the first column."""
    names = file.schema_arrow.names
    if id_column is not None and id_column not in names:
        raise DataError(f"{path} has no column {id_column!r}; it has {names[:8]}")
    stored = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
    indexes = [name for name in stored if isinstance(name, str) and name in names]
    if len(names) < 2:
        raise DataError(f"{path} needs a column of ids and one of numbers; it has {names}")
    return id_column or (indexes[0] if indexes else names[0])


def _plan(path: Path, file: Any, id_column: str | None, blocks: Blocks | None) -> Mapping[str, list[str]]:
    """Per view its columns."""
    id_name = _id_name(path, file, id_column)
    columns = [name for name in file.schema_arrow.names if name != id_name]
    if blocks is not None:
        return pick_columns(path, columns, blocks)
    lists = [name for name in columns if _is_list(file, name)]
    return {name: [name] for name in lists} if lists else {path.stem: columns}


def _is_list(file: Any, column: str) -> bool:
    return str(file.schema_arrow.field(column).type).startswith(("list", "large_list", "fixed_size_list"))


def _read_ids(path: Path, file: Any, column: str) -> list[Any]:
    ids = file.read(columns=[column]).column(column).to_pylist()
    if any(isinstance(name, (float, list, dict)) for name in ids[:1]):
        raise DataError(f"{path}: column {column!r} holds no ids but {type(ids[0]).__name__} values; name the column "
                        "of ids with id_column")  # fmt: skip
    return ids


def _read_view(path: Path, file: Any, columns: list[str]) -> tuple[Any, list[str] | range]:
    """Values and the names of the columns, read batch by batch."""
    if not file.metadata.num_rows:
        raise DataError(f"{path} has no rows; it needs at least one")
    lists = [column for column in columns if _is_list(file, column)]
    if lists and len(columns) > 1:
        raise DataError(f"{path}: column {lists[0]!r} holds lists, so it is a view by itself; give it a block alone")
    if lists:
        return _read_lists(path, file, lists[0])
    for column in columns:
        kind = file.schema_arrow.field(column).type
        if not _is_numeric(str(kind)):
            raise DataError(f"{path}, column {column!r} holds {kind} values, not numbers; encode it or drop the column")
    spool = Spool(len(columns))
    for batch in file.iter_batches(columns=columns):
        spool.add(np.stack([_floats(batch.column(column)) for column in columns], axis=1))
    return spool.table(), columns


def _is_numeric(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "bool", "null"))


def _floats(column: Any) -> NDArray[np.float64]:
    return np.asarray(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)


def _read_lists(path: Path, file: Any, column: str) -> tuple[Any, range]:
    """A column of lists as a table; a sample without a list lacks the view."""
    kind = file.schema_arrow.field(column).type.value_type
    if not _is_numeric(str(kind)):
        raise DataError(f"{path}, column {column!r} holds lists of {kind}, not of numbers; drop the column")
    spool, before = None, 0
    for batch in file.iter_batches(columns=[column]):
        cells = batch.column(column)
        lengths = np.array(cells.value_lengths().fill_null(-1))
        if spool is None and lengths.max(initial=-1) > 0:
            spool = Spool(int(lengths.max()))
            spool.add(np.full((before, spool.width), np.nan))
        if spool is not None:
            _refuse_other_lengths(f"{path}, column {column!r}", lengths, spool.width, before)
            block = np.full((len(lengths), spool.width), np.nan)
            block[lengths >= 0] = _floats(cells.flatten()).reshape(-1, spool.width)
            spool.add(block)
        before += len(lengths)
    if spool is None:
        raise DataError(f"{path}, column {column!r}: every list is empty, so nothing can be learned; leave it out")
    return spool.table(), range(spool.width)


def _refuse_other_lengths(place: str, lengths: NDArray[Any], width: int, before: int) -> None:
    wrong = np.flatnonzero((lengths >= 0) & (lengths != width))
    if len(wrong):
        raise DataError(
            f"{place}, data row {before + int(wrong[0]) + 1}: {lengths[wrong[0]]} numbers instead of {width}; "
            "give every list the same length, or none"
        )
