"""Parquet files with an id column: one view each, or one file of several (blocks, or a list column per view)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.precision import SAMPLED
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.readers.text import ID_NAME, Cells, check_repeated, pick_columns
from viewfuse.io.safety import Allowance
from viewfuse.io.source import FileView
from viewfuse.utils.console import needed, some, warn
from viewfuse.utils.settings import Setting

_SHOWN = 8
_WHOLE = ("int", "uint")
_NAMELESS = "__index_level_"
"""What pandas calls an index without a name."""


def read_parquet(job: ReadJob) -> list[FileView]:
    """The views of one file.

    A column of lists (an embedding) is a view by itself. A file with such columns has these as its views; of any
    other file the columns of numbers are one view, unless `blocks` say more.
    """
    path, reading = job.path, job.reading
    file = needed("pyarrow.parquet", "io", path).ParquetFile(path)
    facts, allowance = file.metadata, Allowance(path, "write it without compression and dictionaries")
    for group in map(facts.row_group, range(facts.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            allowance.take(max(column.total_uncompressed_size, 8 * column.num_values))
    schema = file.schema_arrow
    check_repeated(path, schema.names)
    kinds = {field.name: field.type for field in schema}
    names, id_column = names_and_id(path, file, kinds, reading.id_column)
    columns, unread = reading.chosen(path, [name for name in names if name != id_column])
    lists = [name for name in columns if is_list(kinds[name])]
    if reading.blocks is not None:
        views = pick_columns(path, columns, reading.blocks)
    elif lists:
        views = {name: [name] for name in lists}
        if others := [name for name in columns if not is_list(kinds[name])]:
            _warn_ignored(path, kinds, lists, others)
    else:
        views = {path.stem: columns}
    if not facts.num_rows:
        raise DataError(f"{path} has no rows; it needs at least one")
    if not is_id(kinds[id_column]):
        fault = f"{path}: column {id_column!r} holds no ids but {kinds[id_column]} values; name the column of ids with "
        raise DataError(fault, Setting("id_column"))
    cells = file.read(columns=[id_column]).column(id_column)
    ids = (cells.cast("string") if is_text(cells.type) else cells).to_pylist()
    return [FileView(path, name, *_view(path, file, kinds, own, ids), ids, unread) for name, own in views.items()]


def names_and_id(path: Path, file: Any, kinds: Mapping[str, Any], id_column: str | None) -> tuple[list[str], str]:
    """All columns; and that of ids: the one that is asked for, the index that pandas stored, or the first column."""
    schema = file.schema_arrow
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in stored if isinstance(name, str) and name in schema.names]
    # Row numbers, which pandas stores as an index without a name, are neither ids nor numbers to learn from.
    nothing = {name for name in index if name.startswith(_NAMELESS) and not is_text(kinds[name])}
    nothing -= {id_column or _labels_of_rows(path, file, kinds, index)}
    names = [name for name in schema.names if name not in nothing]
    index = [name for name in index if name not in nothing]
    if id_column is not None and id_column not in names:
        raise DataError(f"{path} has no column {id_column!r}; it has {names[:8]}; name one of these")
    if len(names) < 2:
        raise DataError(f"{path} needs a column of ids and one of numbers; it has {names}; add what is missing")
    if id_column is None and len(index) > 1:
        fault = f"{path}: its rows have {len(index)} labels each ({some(index)}); name the column of ids with "
        raise DataError(fault, Setting("id_column"))
    return names, id_column or (index or names)[0]


def _labels_of_rows(path: Path, file: Any, kinds: Mapping[str, Any], index: list[str]) -> str | None:
    """The index without a name, if it holds whole numbers that may be ids, and the first column seems to hold none."""
    if len(index) != 1 or not index[0].startswith(_NAMELESS):
        return None
    first = file.schema_arrow.names[0]
    if is_text(kinds[first]) or ID_NAME.search(first):
        return None
    if not str(kinds[index[0]]).startswith(_WHOLE):
        return None
    labels = file.read(columns=index).column(0).to_pylist()
    if len(set(labels)) < len(labels) or labels == list(range(len(labels))):
        return None
    if first != index[0] and str(kinds[first]).startswith(_WHOLE):
        labelled = f"{path}: the ids are the row labels that pandas saved ({some(labels)}), not column {first!r}; "
        warn(SuspiciousDataWarning(labelled, Setting("id_column", first), " takes that"))
    return index[0]


def _warn_ignored(path: Path, kinds: Mapping[str, Any], lists: list[str], columns: list[str]) -> None:
    numeric = [name for name in columns if is_numeric(kinds[name])]
    cure: tuple[str | Setting, ...] = ("encode them as numbers if they matter",)
    if numeric:
        cure = Setting("blocks", {name: name for name in [*lists, numeric[0]]}), f" takes {numeric[0]!r} in"
    ignored = f"{path}: {len(columns)} column(s) beside those of lists are ignored: {some(columns, _SHOWN)}; "
    warn(SuspiciousDataWarning(ignored, *cure))


def _view(
    path: Path, file: Any, kinds: Mapping[str, Any], columns: list[str], ids: list[Any]
) -> tuple[Any, Sequence[Any]]:
    """Values and the names of the columns, read batch by batch: numbers as they are, text as in a text table."""
    lists = [column for column in columns if is_list(kinds[column])]
    if lists and len(columns) > 1:
        raise DataError(f"{path}: column {lists[0]!r} holds lists, so it is a view by itself; name it alone")
    if lists:
        return _read_lists(path, file, lists[0], str(kinds[lists[0]].value_type))
    if wrong := [name for name in columns if not is_text(kinds[name]) and not is_numeric(kinds[name])]:
        fault = f"{path}, column {wrong[0]!r} holds {kinds[wrong[0]]} values, not numbers"
        raise DataError(f"{fault}; encode it or drop the column")
    reader, n, worded = Cells(path, columns), 0, categories(file.schema_arrow)
    for batch in file.iter_batches(columns=columns):
        block = np.empty((len(batch), len(columns)))
        for c, column in enumerate(columns):
            cells = batch.column(column)
            if column in worded:
                block[:, c] = reader.category(c, cells.to_pylist())
            elif is_text(kinds[column]):
                text = [cell or "" for cell in cells.cast("string").to_pylist()]
                block[:, c] = reader.column(c, text, ids[n : n + len(batch)])
            else:
                block[:, c] = floats(cells, np.float64)
        reader.add(block, lambda c, batch=batch: _different(batch.column(columns[c])))  # type: ignore[misc]
        n += len(batch)
    return reader.part(0, len(columns))


def categories(schema: Any) -> set[str]:
    """Columns that are categories in the pandas frame; those of whole numbers are stored like any numbers."""
    saved = (schema.pandas_metadata or {}).get("columns", [])
    names = {one.get("field_name") for one in saved if one.get("pandas_type") == "categorical"}
    return {field.name for field in schema if field.name in names and (is_text(field.type) or is_numeric(field.type))}


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow is one of lists."""
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow is one of text, or of a dictionary of such."""
    stored = str(kind).removeprefix("dictionary<values=")
    return stored.startswith(("string", "large_string", "binary", "large_binary", "fixed_size_binary"))


def is_id(kind: Any) -> bool:
    """Whether a type of pyarrow is one of text or whole numbers."""
    return is_text(kind) or str(kind).startswith(_WHOLE)


def is_numeric(kind: Any) -> bool:
    """Whether a type of pyarrow is one of numbers."""
    return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "bool", "null"))


def floats(column: Any, dtype: type[Any]) -> NDArray[Any]:
    """The numbers of a column as float32 or float64, NaN where there is none; too large ones are infinite."""
    return _plain(column.cast(np.dtype(dtype).name, safe=False), np.nan, dtype)


def _lengths(cells: Any) -> NDArray[np.int64]:
    """How many numbers each list of a column has; 0 where there is no list."""
    return _plain(cells.value_lengths().cast("int64"), 0, np.int64)


def list_width(columns: Iterable[Any]) -> int:
    """The length of the first list that is not empty, which all others must have as well; 0 without any."""
    return next((longest for cells in columns if (longest := int(_lengths(cells).max(initial=0)))), 0)


def unlisted(where: str, cells: Any, width: int, before: int) -> tuple[NDArray[np.bool_], Any]:
    """Which cells are lists that are not empty, and all of their numbers in turn; `before` rows were read before."""
    lengths = _lengths(cells)
    wrong = np.flatnonzero((lengths > 0) & (lengths != width))
    if len(wrong):
        raise DataError(
            f"{where}, data row {before + int(wrong[0]) + 1}: {lengths[wrong[0]]} numbers instead of {width}; "
            "give every list the same length, or none"
        )
    return lengths > 0, cells.flatten()


def _plain(column: Any, for_null: float, dtype: type[Any]) -> NDArray[Any]:
    """The numbers in a column, which has that type; to_numpy and fill_null would import pandas, half a second each."""
    if column.null_count == len(column):
        return np.full(len(column), for_null, dtype)
    (present, values), part = column.buffers(), slice(column.offset, column.offset + len(column))
    found = np.frombuffer(values, dtype)[part]
    if column.null_count:
        bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")[part]
        found = np.where(bits, found, dtype(for_null))
    return found


def _different(column: Any) -> list[Any]:
    """Some different cells of a column."""
    return list(column.drop_null().unique()[:SAMPLED].to_pylist())


def _read_lists(path: Path, file: Any, column: str, kind: str) -> tuple[Any, range]:
    """A column of lists as a table; a sample without a list lacks the view."""
    import pyarrow

    where = f"{path}, column {column!r}"
    if not is_numeric(kind):
        raise DataError(f"{where} holds lists of {kind}, not of numbers; drop the column")
    try:
        width = list_width(batch.column(0) for batch in file.iter_batches(columns=[column]))
        if not width:
            raise DataError(f"{where}: every list is empty, so nothing can be learned; leave it out")
        reader, before = Cells(path, range(width)), 0
        for batch in file.iter_batches(columns=[column]):
            there, flat = unlisted(where, batch.column(0), width, before)
            block = np.full((len(there), width), np.nan)
            block[there] = floats(flat, np.float64).reshape(-1, width)
            reader.add(block, lambda c, flat=flat: _different(flat[c::width]))  # type: ignore[misc]
            before += len(there)
    except pyarrow.ArrowInvalid as error:  # of pyarrow before 26
        if "Expected all lists to be of size" not in str(error):
            raise
        fault = f"{where}: pyarrow {pyarrow.__version__} cannot read lists of fixed length some of which are missing"
        raise DataError(f"{fault}; pyarrow 26 can, or write lists of variable length") from None
    return reader.table, range(width)
