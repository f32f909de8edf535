"""A data set in many Parquet files of the same columns: one row per sample, all views side by side, read a few rows
at a time.

A view is a column of lists, or the columns that a pattern names, or those called VIEW.COLUMN. A sample lacks a view
where its list is empty or missing, or where all of the view's columns are empty.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import Offset
from viewfuse.data.views import Views
from viewfuse.distributed.row_buckets import hashed_ids
from viewfuse.errors import DataError
from viewfuse.io.isolated.jobs import Blocks
from viewfuse.io.readers.parquet import (
    check_lengths,
    check_repeated,
    floats,
    is_list,
    is_numeric,
    is_text,
    list_lengths,
    nth,
)
from viewfuse.io.readers.text import pick_columns
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Setting

_ROWS = 16_384
_BUFFER = 2**20
_FOOTER = 8
"""Bytes at the end of a Parquet file that say how long its description is."""


class Rows(NamedTuple):
    """Some rows of a shard that have a view at least.

    Attributes
    ----------
    ids : array of pyarrow
    keys : hashed ids, of shape (rows,)
    values : float32 array of shape (rows, columns of all views), measured from the layout's offset; NaN where a cell is
        empty or a view is missing
    batch, places : of pyarrow, as it was read, and which of its rows these are
    """

    ids: Any
    keys: NDArray[np.uint64]
    values: NDArray[np.float32]
    batch: Any
    places: NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Which columns of a shard are which view.

    Attributes
    ----------
    sources : per view the columns of the file: its only one, of lists, or several of numbers
    columns : per view the names of its columns, or their numbers
    offset : what the columns of all views are measured from
    """

    id_column: str
    sources: Mapping[str, list[str]]
    columns: tuple[Sequence[str] | range, ...]
    offset: Offset = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(self.sources)

    @property
    def widths(self) -> list[int]:
        """Columns per view."""
        return [len(one) for one in self.columns]

    @property
    def slices(self) -> list[slice]:
        """Where each view is among the columns of all."""
        ends = list(accumulate(self.widths))
        return [slice(end - width, end) for end, width in zip(ends, self.widths, strict=True)]

    def views(self, values: NDArray[np.float32], ids: Any = None) -> Views:
        """Rows, of shape (rows, columns of all views), as Views."""
        parts = {name: values[:, place] for name, place in zip(self.names, self.slices, strict=True)}
        offsets = tuple(map(self.offset_of, self.slices))
        return Views(parts, ids=ids, columns=list(self.columns)).replace(offsets=offsets)

    def offset_of(self, place: slice) -> Offset:
        """What some columns are measured from."""
        own = 0.0 if isinstance(self.offset, float) else self.offset[place]
        return own if np.any(own) else 0.0


class Shards:
    """Parquet files that are one data set.

    Parameters
    ----------
    paths : a folder, a pattern such as "rows/*.parquet", or a list of files
    id_column : by default the first one
    blocks : per view a pattern of its columns, or a list of them
    """

    def __init__(
        self, paths: str | PathLike[str] | Sequence[Any], id_column: str | None = None, blocks: Blocks | None = None
    ) -> None:
        self.paths = found_shards(paths)
        self._parquet: Any = needed("pyarrow.parquet", "io", self.paths[0])
        files = [self._open(path) for path in self.paths]
        self.counts = [file.metadata.num_rows for file in files]
        for path, file in zip(self.paths, files, strict=True):
            check_repeated(path, file.schema_arrow.names)
        schemas = [{field.name: field.type for field in file.schema_arrow} for file in files]
        if not sum(self.counts):
            raise DataError(f"{self.paths[0]}: the data set has no rows; it needs at least one")
        _check_alike(self.paths, schemas)
        chosen, sources = _plan(self.paths[0], schemas[0], id_column, blocks)
        self.layout = Layout(chosen, sources, tuple(self._columns(own, schemas[0]) for own in sources.values()))

    @property
    def ignored(self) -> list[str]:
        """Columns that are neither the ids nor of a view."""
        used = {self.layout.id_column, *(name for own in self.layout.sources.values() for name in own)}
        return [name for name in self._open(self.paths[0]).schema_arrow.names if name not in used]

    def _open(self, path: Path) -> Any:
        try:
            return self._parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is no Parquet file that can be read ({str(error).splitlines()[0]})") from None

    def _batches(self, path: Path, n_rows: int, columns: list[str]) -> Iterator[Any]:
        """Some columns of a shard, so many rows at a time."""
        file = self._open(path)
        try:
            yield from file.iter_batches(n_rows, columns=columns)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path} is damaged, its rows cannot be read ({reason}); use another copy") from None

    def _columns(self, sources: list[str], kinds: Mapping[str, Any]) -> Sequence[str] | range:
        kind = kinds[sources[0]]
        if not is_list(kind):
            return sources
        return range(kind.list_size if "fixed_size" in str(kind) else self._list_width(sources[0]))

    def _list_width(self, column: str) -> int:
        """How long the lists of a column are: the first that is not empty says it."""
        for path in self.paths:
            for batch in self._batches(path, _ROWS, [column]):
                lengths = list_lengths(batch.column(0))
                if lengths.max(initial=0):
                    return int(lengths.max())
        raise DataError(f"{self.paths[0]}, column {column!r}: every list is empty, so nothing can be learned; drop it")

    def measure_from(self, offset: Offset) -> None:
        """Let rows that are read from now on be measured from an offset."""
        self.layout = replace(self.layout, offset=offset)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def names(self) -> list[str]:
        """What each shard is called: its path within the data set, as the name of one file."""
        folder = os.path.commonpath([path.parent for path in self.paths])
        names = [str(path.relative_to(folder)).replace(os.sep, "-") for path in self.paths]
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise DataError(f"two shards are called {twice}; give each a name of its own")
        return names

    def digest(self) -> str:
        """A checksum of sizes, and of what the files say at their ends: another one means other data, the same nothing.

        What tells the same data is `viewfuse.distributed.pass_zero`.
        """
        found = hashlib.blake2b(digest_size=16)
        for own in sorted(_footer(path) + path.stat().st_size.to_bytes(8) for path in self.paths):
            found.update(own)
        return found.hexdigest()

    def read(self, path: Path) -> Iterator[Rows]:
        """The rows of one shard in order, a few at a time; those without any view are left out."""
        first = 0
        columns = [self.layout.id_column, *(name for own in self.layout.sources.values() for name in own)]
        for batch in self._batches(path, _ROWS, columns):
            yield self._rows(path, batch, first)
            first += len(batch)

    def read_ids(self, path: Path) -> Iterator[tuple[Any, NDArray[np.uint64]]]:
        """The ids of one shard, and their hashes, a few at a time."""
        for batch in self._batches(path, 8 * _ROWS, [self.layout.id_column]):
            yield batch.column(0), hashed_ids(batch.column(0), path)

    def _rows(self, path: Path, batch: Any, first: int) -> Rows:
        values = np.full((len(batch), sum(self.layout.widths)), np.nan, np.float32)
        for sources, place in zip(self.layout.sources.values(), self.layout.slices, strict=True):
            if is_list(batch.schema.field(sources[0]).type):
                where = f"{path}, column {sources[0]!r}"
                _fill_lists(values[:, place], batch.column(sources[0]), self.layout.offset_of(place), where, first)
            else:
                for name, column in zip(sources, range(place.start, place.stop), strict=True):
                    offset = self.layout.offset_of(slice(column, column + 1))
                    values[:, column] = _floats(batch.column(name), offset)[:, 0]
        ids = batch.column(self.layout.id_column)
        there = ~np.isnan(values[:, 0])  # most rows need no look at all columns
        there[~there] = ~np.isnan(values[~there]).all(axis=1)
        places = np.flatnonzero(there)
        if there.all():
            return Rows(ids, hashed_ids(ids, path), values, batch, places)
        kept = ids.take(places)
        return Rows(kept, hashed_ids(kept, path), values[there], batch, places)

    def exact(self, batches: Sequence[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Per view or column its cells in rows of pyarrow as the files have them, and its place among all columns."""
        import pyarrow

        table = pyarrow.Table.from_batches(batches)
        for sources, place in zip(self.layout.sources.values(), self.layout.slices, strict=True):
            for column, name in enumerate(sources, place.start):
                cells = table.column(name).combine_chunks()
                flat, width = (cells.flatten(), place.stop - place.start) if is_list(cells.type) else (cells, 1)
                if flat.null_count and "int" in str(flat.type):  # all at once they would become floats
                    yield from ((column + c, nth(flat, c, width).drop_null().to_numpy()[:, None]) for c in range(width))
                    continue
                numbers = flat.to_numpy(zero_copy_only=False)
                if numbers.dtype.kind in "fiu":
                    yield column, numbers.reshape(-1, width)

    def where(self, path: Path, column: int) -> str:
        """A column of all views, in words."""
        v = next(v for v, place in enumerate(self.layout.slices) if column < place.stop)
        name = self.layout.columns[v][column - self.layout.slices[v].start]
        return f"{path}, view {self.layout.names[v]!r}, column {name!r}"


def given_paths(paths: Any) -> list[Path]:
    """One path, or several, as a list."""
    return [Path(one) for one in ([paths] if isinstance(paths, (str, PathLike)) else paths)]


def found_shards(paths: Any) -> list[Path]:
    """The files that are meant, in the order of their names."""
    files: list[Path] = []
    for one in given_paths(paths):
        files += _inside(one) if one.is_dir() else [one] if one.exists() else _matching(one)
    if not files:
        raise DataError("no file was given; give a folder of Parquet files, a pattern, or the files")
    return sorted({path.absolute() for path in files})


def _inside(folder: Path) -> list[Path]:
    """The shards in a folder and below, but for hidden ones."""
    parts = {path: path.relative_to(folder).parts for path in folder.rglob("*.parquet")}
    found = [path for path, names in parts.items() if not any(name.startswith((".", "_")) for name in names)]
    if not found:
        raise DataError(f"{folder} is a folder without .parquet files; give the folder that has them")
    return found


def _matching(pattern: Path) -> list[Path]:
    """The files that a pattern means."""
    found = [Path(name) for name in glob(str(pattern))]
    if not found:
        wrong = "means no file; check the pattern" if has_magic(str(pattern)) else "does not exist; check the path"
        raise DataError(f"{pattern} {wrong}")
    return found


def _check_alike(paths: Sequence[Path], schemas: Sequence[Mapping[str, Any]]) -> None:
    """Refuse shards with other columns than the first."""
    for path, kinds in zip(paths, schemas, strict=True):
        for name in {**schemas[0], **kinds}:
            one, other = schemas[0].get(name), kinds.get(name)
            if one != other:
                raise DataError(
                    f"{path}: column {name!r} is {other or 'not there'}, but {one or 'not there'} in {paths[0].name}; "
                    "give all shards the same columns"
                )


def _plan(
    path: Path, kinds: Mapping[str, Any], id_column: str | None, blocks: Blocks | None
) -> tuple[str, dict[str, list[str]]]:
    """The column of ids, and per view its columns."""
    names = list(kinds)
    chosen = id_column or names[0]
    is_id = chosen in kinds and (is_text(kinds[chosen]) or str(kinds[chosen]).startswith(("int", "uint")))
    if not is_id:
        held = f"holds {kinds[chosen]} values" if chosen in kinds else "is not there"
        fault = f"{path}: column {chosen!r} {held}, but ids are text or whole numbers; name the right one with "
        raise DataError(fault, Setting("id_column"))
    others = [name for name in names if name != chosen]
    lists = [name for name in others if is_list(kinds[name])]
    if blocks:
        sources = pick_columns(path, others, blocks)
    elif lists:
        sources = {name: [name] for name in lists}
    elif others and all(name.partition(".")[2] for name in others):
        sources = {}
        for name in others:
            sources.setdefault(name.partition(".")[0], []).append(name)
        if id_column is None and chosen.partition(".")[0] in sources and "." in chosen:
            fault = f"{path}: the first column {chosen!r} is called like one of a view; name the column of ids with "
            raise DataError(fault, Setting("id_column"))
    else:
        fault = f"{path} does not say which columns are which view; call them VIEW.COLUMN, or name those of each view: "
        raise DataError(fault, Setting("blocks", {"VIEW": "PATTERN"}))
    _check_kinds(path, kinds, sources)
    return chosen, sources


def _check_kinds(path: Path, kinds: Mapping[str, Any], sources: Mapping[str, list[str]]) -> None:
    for own in sources.values():
        for name in own:
            kind = kinds[name]
            if is_list(kind) and len(own) > 1:
                raise DataError(f"{path}: column {name!r} holds lists, so it is a view by itself; name it alone")
            if not is_numeric(str(kind.value_type if is_list(kind) else kind)):
                raise DataError(f"{path}: column {name!r} holds {kind} values, not numbers; drop it, or leave it out")


def _floats(numbers: Any, offset: Offset) -> NDArray[Any]:
    """Numbers of one column or several in turn, of shape (rows, columns), measured from an offset."""
    table = floats(numbers, np.float64 if np.any(offset) else np.float32).reshape(-1, max(1, np.size(offset)))
    return table - offset if np.any(offset) else table


def _fill_lists(values: NDArray[np.float32], cells: Any, offset: Offset, place: str, first: int) -> None:
    """Write lists into rows of shape (rows, columns)."""
    lengths, width = list_lengths(cells), values.shape[1]
    check_lengths(place, lengths, width, first)
    values[lengths > 0] = _floats(cells.flatten(), offset).reshape(-1, width)


def _footer(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - _FOOTER)
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - _FOOTER - length))
        return file.read()
