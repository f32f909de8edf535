"""Parquet files with an id column: one view each, or one file of several (blocks, or a list column per view)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import SAMPLED
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.readers.cells import Cells
from viewfuse.io.readers.text import Digits, pick_columns
from viewfuse.io.safety import Allowance, Spool
from viewfuse.io.source import FileView
from viewfuse.utils.console import needed, some, warn
from viewfuse.utils.settings import Setting

_CURE = "write it without compression and dictionaries"
_SHOWN = 8


def read_parquet(job: ReadJob) -> list[FileView]:
    """The views of one file.

    A column of lists (an embedding) is a view by itself. A file with such columns has these as its views; of any
    other file the columns of numbers are one view, unless `blocks` say more.
    """
    path = job.path
    file = needed("pyarrow.parquet", "io", path).ParquetFile(path)
    _check_bomb(path, file)
    table = _Table(path, file, file.schema_arrow, job.id_column)
    views = table.plan(job)
    if not file.metadata.num_rows:
        raise DataError(f"{path} has no rows; it needs at least one")
    ids = table.ids()
    return [FileView(path, name, *table.view(columns, ids), ids, table.unread) for name, columns in views.items()]


def _check_bomb(path: Path, file: Any) -> None:
    facts, allowance = file.metadata, Allowance(path, _CURE)
    for g in range(facts.num_row_groups):
        group = facts.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            allowance.take(max(column.total_uncompressed_size, 8 * column.num_values))


class _Table:
    """A file with its schema, which is costly to ask for."""

    def __init__(self, path: Path, file: Any, schema: Any, id_column: str | None) -> None:
        self.path, self._file = path, file
        check_repeated(path, schema.names)
        self._kinds = {field.name: field.type for field in schema}
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
        index = [name for name in stored if isinstance(name, str) and name in self._kinds]
        # Row numbers, which pandas stores as an index without a name, are neither ids nor numbers to learn from.
        nothing = {name for name in index if name.startswith("__index_level_") and not is_text(self._kinds[name])}
        self._names = [name for name in schema.names if name not in nothing]
        self._id = self._id_name(id_column, [name for name in index if name not in nothing])

    def _id_name(self, id_column: str | None, index: list[str]) -> str:
        """The column that is asked for, the index that pandas stored, or the first column."""
        if id_column is not None and id_column not in self._names:
            raise DataError(f"{self.path} has no column {id_column!r}; it has {self._names[:8]}; name one of these")
        if len(self._names) < 2:
            raise DataError(
                f"{self.path} needs a column of ids and one of numbers; it has {self._names}; add what is missing"
            )
        if id_column is None and len(index) > 1:
            fault = f"{self.path}: its rows have {len(index)} labels each ({some(index)}); name the column of ids with "
            raise DataError(fault, Setting("id_column"))
        return id_column or (index or self._names)[0]

    def plan(self, job: ReadJob) -> Mapping[str, list[str]]:
        """Per view its columns."""
        every = [name for name in self._names if name != self._id]
        columns = job.chosen(every)
        kept = set(columns)
        self.unread = tuple(name for name in every if name not in kept)
        if job.blocks is not None:
            return pick_columns(self.path, columns, job.blocks)
        lists = [name for name in columns if is_list(self._kinds[name])]
        if lists and len(lists) < len(columns):
            self._tell_ignored(lists, [name for name in columns if not is_list(self._kinds[name])])
        return {name: [name] for name in lists} if lists else {self.path.stem: columns}

    def _tell_ignored(self, lists: list[str], columns: list[str]) -> None:
        numeric = [name for name in columns if is_numeric(str(self._kinds[name]))]
        blocks = {name: name for name in [*lists, *numeric[:1]]}
        cure: tuple[str | Setting, ...] = ("encode them as numbers if they matter",)
        if numeric:
            cure = Setting("blocks", blocks), f" takes {numeric[0]!r} in"
        ignored = f"{self.path}: {len(columns)} column(s) beside those of lists are ignored: {some(columns, _SHOWN)}; "
        warn(SuspiciousDataWarning(ignored, *cure))

    def ids(self) -> list[Any]:
        """The id of each row, as text or a whole number."""
        kind = str(self._kinds[self._id])
        if not is_text(kind) and not kind.startswith(("int", "uint")):
            raise DataError(
                f"{self.path}: column {self._id!r} holds no ids but {kind} values; name the column of ids with ",
                Setting("id_column"),
            )
        column = self._file.read(columns=[self._id]).column(self._id)
        return column.cast("string").to_pylist() if is_text(kind) else column.to_pylist()

    def view(self, columns: list[str], ids: list[Any]) -> tuple[Any, list[str] | range]:
        """Values and the names of the columns, read batch by batch."""
        lists = [column for column in columns if is_list(self._kinds[column])]
        if lists and len(columns) > 1:
            raise DataError(f"{self.path}: column {lists[0]!r} holds lists, so it is a view by itself; name it alone")
        if lists:
            return _read_lists(self.path, self._file, lists[0], str(self._kinds[lists[0]].value_type))
        for column in columns:
            if not is_numeric(str(self._kinds[column])) and not is_text(self._kinds[column]):
                raise DataError(
                    f"{self.path}, column {column!r} holds {self._kinds[column]} values, not numbers; encode it or "
                    "drop the column"
                )
        return self._numbers(columns, ids)

    def _numbers(self, columns: list[str], ids: list[Any]) -> tuple[Any, list[Any]]:
        """Columns of numbers as they are, and of text as in a text table."""
        spool, digits, n = Spool(len(columns)), Digits(), 0
        text = [c for c, column in enumerate(columns) if is_text(self._kinds[column])]
        reader = Cells(self.path, columns)
        for batch in self._file.iter_batches(columns=columns):
            block = np.full((len(batch), len(columns)), np.nan)
            for c in set(range(len(columns))) - set(text):
                block[:, c] = floats(batch.column(columns[c]), np.float64)
            for c in text:
                cells = (cell or "" for cell in batch.column(columns[c]).cast("string").to_pylist())
                block[:, c] = reader.column(c, list(cells), ids[n : n + len(batch)])
            digits.look(block, lambda c, batch=batch: _different(batch.column(columns[c])))  # type: ignore[misc]
            spool.add(block)
            n += len(batch)
        table = spool.table()
        digits.check(self.path, columns, table)
        return reader.part(table, 0, len(columns))


def check_repeated(path: Path, names: list[str]) -> None:
    """Refuse two columns of one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; give each a name of its own")


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow is one of lists."""
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow is one of text, or of a dictionary of such."""
    stored = str(kind).removeprefix("dictionary<values=")
    return stored.startswith(("string", "large_string", "binary", "large_binary", "fixed_size_binary"))


def is_numeric(kind: str) -> bool:
    """Whether the name of a type of pyarrow is one of numbers."""
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "bool", "null"))


def floats(column: Any, dtype: type[Any]) -> NDArray[Any]:
    """The numbers of a column as float32 or float64, NaN where there is none; too large ones are infinite."""
    return _plain(column.cast(np.dtype(dtype).name, safe=False), np.nan, dtype)


def list_lengths(cells: Any) -> NDArray[np.int64]:
    """How many numbers each list of a column has; 0 where there is no list."""
    return _plain(cells.value_lengths().cast("int64"), 0, np.int64)


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


def nth(cells: Any, column: int, width: int) -> Any:
    """A column of those that stand in turn in one of pyarrow."""
    import pyarrow

    return cells.take(pyarrow.array(np.arange(column, len(cells), width)))


def _read_lists(path: Path, file: Any, column: str, kind: str) -> tuple[Any, range]:
    """A column of lists as a table; a sample without a list lacks the view."""
    if not is_numeric(kind):
        raise DataError(f"{path}, column {column!r} holds lists of {kind}, not of numbers; drop the column")
    spool, digits, before = None, Digits(), 0
    for batch in _list_batches(path, file, column):
        cells = batch.column(column)
        lengths = list_lengths(cells)
        if spool is None and lengths.max(initial=0) > 0:
            spool = Spool(int(lengths.max()))
            spool.add(np.full((before, spool.width), np.nan))
        if spool is not None:
            check_lengths(f"{path}, column {column!r}", lengths, spool.width, before)
            block = np.full((len(lengths), spool.width), np.nan)
            flat, width = cells.flatten(), spool.width
            block[lengths > 0] = floats(flat, np.float64).reshape(-1, width)
            digits.look(block, lambda c, flat=flat, width=width: _different(nth(flat, c, width)))  # type: ignore[misc]
            spool.add(block)
        before += len(lengths)
    if spool is None:
        raise DataError(f"{path}, column {column!r}: every list is empty, so nothing can be learned; leave it out")
    table = spool.table()
    digits.check(path, range(spool.width), table)
    return table, range(spool.width)


def _list_batches(path: Path, file: Any, column: str) -> Iterator[Any]:
    """The column of lists, part by part; pyarrow before 26 fails where lists of fixed length are missing."""
    import pyarrow

    try:
        yield from file.iter_batches(columns=[column])
    except pyarrow.ArrowInvalid as error:
        if "Expected all lists to be of size" not in str(error):
            raise
        raise DataError(
            f"{path}, column {column!r}: pyarrow {pyarrow.__version__} cannot read lists of fixed length some of which "
            "are missing; pyarrow 26 can, or write lists of variable length"
        ) from None


def check_lengths(place: str, lengths: NDArray[Any], width: int, before: int) -> None:
    """Refuse lists of other lengths; `before` rows were read before."""
    wrong = np.flatnonzero((lengths > 0) & (lengths != width))
    if len(wrong):
        raise DataError(
            f"{place}, data row {before + int(wrong[0]) + 1}: {lengths[wrong[0]]} numbers instead of {width}; "
            "give every list the same length, or none"
        )
