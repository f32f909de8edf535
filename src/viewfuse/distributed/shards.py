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

from viewfuse.data.precision import Offset
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.isolated.jobs import Blocks
from viewfuse.io.readers import parquet
from viewfuse.io.readers.text import check_repeated, pick_columns
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Setting

_ROWS = 16_384
_BUFFER = 2**20
_FOOTER = 8
"""Bytes at the end of a Parquet file that say how long its description is."""


class Rows(NamedTuple):
    """Some rows of a shard that have a view at least: their ids, and these hashed, of shape (rows,).

    Values, of shape (rows, columns of all views), are measured from the layout's offset, and NaN where a cell is empty
    or a view is missing. `batch` has the rows as they were read; ids and batch are of pyarrow.
    """

    ids: Any
    keys: NDArray[np.uint64]
    values: NDArray[np.float32]
    batch: Any


@dataclass(frozen=True)
class Layout:
    """Which columns of a shard are which view, and what the columns of all views are measured from.

    A view has one column of lists as its source, or several of numbers; its own columns have names, or numbers.
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
    def used(self) -> list[str]:
        """The columns of the file that are read: ids first."""
        return [self.id_column, *(name for own in self.sources.values() for name in own)]

    @property
    def width(self) -> int:
        """Columns of all views."""
        return sum(map(len, self.columns))

    @property
    def slices(self) -> list[slice]:
        """Where each view is among the columns of all."""
        ends = accumulate(map(len, self.columns))
        return [slice(end - len(own), end) for own, end in zip(self.columns, ends, strict=True)]

    def views(self, values: NDArray[np.float32], ids: Any = None) -> Views:
        """Rows, of shape (rows, columns of all views), as Views."""
        parts = {name: values[:, place] for name, place in zip(self.names, self.slices, strict=True)}
        offsets = tuple(map(self.offset_of, self.slices))
        return Views(parts, ids=ids, columns=list(self.columns)).replace(offsets=offsets)

    def offset_of(self, place: slice) -> Offset:
        """What some columns are measured from."""
        own = 0.0 if isinstance(self.offset, float) else self.offset[place]
        return own if np.any(own) else 0.0

    def measured(self, numbers: Any, place: slice) -> NDArray[Any]:
        """Numbers of some columns that stand in turn, of shape (rows, columns), less what they are measured from."""
        offset = self.offset_of(place)
        kind = np.float64 if np.any(offset) else np.float32
        return parquet.floats(numbers, kind).reshape(-1, place.stop - place.start) - offset


class Shards:
    """Parquet files that are one data set: those in a folder, of a pattern such as "rows/*.parquet", or of a list."""

    def __init__(
        self, paths: str | PathLike[str] | Sequence[Any], id_column: str | None = None, blocks: Blocks | None = None
    ) -> None:
        given = [Path(one) for one in ([paths] if isinstance(paths, (str, PathLike)) else paths)]
        self.folders = [path for path in given if path.is_dir()]
        self.paths = sorted({file.absolute() for path in given for file in _meant(path)})
        if not self.paths:
            raise DataError("no file was given; give a folder of Parquet files, a pattern, or the files")
        self._parquet: Any = needed("pyarrow.parquet", "io", self.paths[0])
        files = [self._open(path) for path in self.paths]
        self.counts = [file.metadata.num_rows for file in files]
        if not len(self):
            raise DataError(f"{self.paths[0]}: the data set has no rows; it needs at least one")
        first = {field.name: field.type for field in files[0].schema_arrow}
        for path, file in zip(self.paths, files, strict=True):
            check_repeated(path, file.schema_arrow.names)
            kinds = {field.name: field.type for field in file.schema_arrow}
            for name in {**first, **kinds}:
                one, other = (schema.get(name) or "not there" for schema in (first, kinds))
                if one != other:
                    fault = f"{path}: column {name!r} is {other}, but {one} in {self.paths[0].name}"
                    raise DataError(f"{fault}; give all shards the same columns")
        names, chosen = parquet.names_and_id(self.paths[0], files[0], first, id_column)
        words = parquet.categories(files[0].schema_arrow) - {chosen}
        kinds = {name: "category" if name in words else first[name] for name in names}
        sources = _plan(self.paths[0], kinds, chosen, id_column, blocks)
        columns = tuple(self._columns(own, first[own[0]]) for own in sources.values())
        self.layout = Layout(chosen, sources, columns)
        used = set(self.layout.used)
        self.ignored = [name for name in names if name not in used]

    def __len__(self) -> int:
        return sum(self.counts)

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

    def _columns(self, sources: list[str], kind: Any) -> Sequence[str] | range:
        """Names of the columns of a view; numbers for lists, whose length the first one that is not empty says."""
        if not parquet.is_list(kind):
            return sources
        cells = (batch.column(0) for path in self.paths for batch in self._batches(path, _ROWS, sources))
        width = kind.list_size if "fixed_size" in str(kind) else parquet.list_width(cells)
        if not width:
            fault = f"{self.paths[0]}, column {sources[0]!r}: every list is empty"
            raise DataError(f"{fault}, so nothing can be learned; drop it")
        return range(width)

    def measure_from(self, offset: Sequence[float] | None) -> None:
        """Measure rows that are read from now on from an offset per column; None changes nothing."""
        if offset is not None:
            self.layout = replace(self.layout, offset=np.array(offset, np.float64))

    @property
    def named(self) -> list[tuple[Path, str]]:
        """Each shard, and what it is called: its path within the data set, as the name of one file."""
        folder = os.path.commonpath([path.parent for path in self.paths])
        names = [str(path.relative_to(folder)).replace(os.sep, "-") for path in self.paths]
        name, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise DataError(f"two shards are called {name}; give each a name of its own")
        return list(zip(self.paths, names, strict=True))

    def digest(self) -> str:
        """A checksum of sizes, and of what the files say at their ends: another one means other data, the same nothing.

        What tells the same data is `viewfuse.distributed.first_pass`.
        """
        ends = []
        for path in self.paths:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(size - _FOOTER)
                length = int.from_bytes(file.read(4), "little")
                file.seek(max(0, size - _FOOTER - length))
                ends.append(file.read() + size.to_bytes(8))
        return hashlib.blake2b(b"".join(sorted(ends)), digest_size=16).hexdigest()

    def read(self, path: Path) -> Iterator[Rows]:
        """The rows of one shard in order, a few at a time; those without any view are left out."""
        first, layout = 0, self.layout
        for batch in self._batches(path, _ROWS, layout.used):
            values = np.full((len(batch), layout.width), np.nan, np.float32)
            for sources, place in zip(layout.sources.values(), layout.slices, strict=True):
                cells = batch.column(sources[0])
                if parquet.is_list(cells.type):
                    where = f"{path}, column {sources[0]!r}"
                    there, numbers = parquet.unlisted(where, cells, place.stop - place.start, first)
                    values[there, place] = layout.measured(numbers, place)
                else:
                    for column, name in enumerate(sources, place.start):
                        own = slice(column, column + 1)
                        values[:, own] = layout.measured(batch.column(name), own)
            there = ~np.isnan(values[:, 0])  # most rows need no look at all columns
            there[~there] = ~np.isnan(values[~there]).all(axis=1)
            first += len(batch)
            if not there.all():
                batch, values = batch.take(np.flatnonzero(there)), values[there]
            if len(batch):
                ids = batch.column(layout.id_column)
                yield Rows(ids, hashed_ids(ids, path), values, batch)

    def exact(self, batches: Sequence[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Per view or column its cells in rows of pyarrow as the files have them, and its place among all columns."""
        import pyarrow

        table = pyarrow.Table.from_batches(batches)
        for sources, place in zip(self.layout.sources.values(), self.layout.slices, strict=True):
            for column, name in enumerate(sources, place.start):
                cells = table.column(name).combine_chunks()
                flat, width = (cells.flatten(), place.stop - place.start) if parquet.is_list(cells.type) else (cells, 1)
                if flat.null_count and "int" in str(flat.type):  # all at once they would become floats
                    yield from ((column + c, flat[c::width].drop_null().to_numpy()[:, None]) for c in range(width))
                    continue
                numbers = flat.to_numpy(zero_copy_only=False)
                if numbers.dtype.kind in "fiu":
                    yield column, numbers.reshape(-1, width)

    def where(self, path: Path, column: int) -> str:
        """A column of all views, in words."""
        v = next(v for v, place in enumerate(self.layout.slices) if column < place.stop)
        name = self.layout.columns[v][column - self.layout.slices[v].start]
        return f"{path}, view {self.layout.names[v]!r}, column {name!r}"


def _meant(path: Path) -> list[Path]:
    """The files that a path or a pattern means; of a folder all shards in it and below, but for hidden ones."""
    if path.is_dir():
        parts = {file: file.relative_to(path).parts for file in path.rglob("*.parquet")}
        found = [file for file, names in parts.items() if not any(name.startswith((".", "_")) for name in names)]
        fault = "is a folder without .parquet files; give the folder that has them"
    elif path.exists():
        return [path]
    else:
        found = [Path(name) for name in glob(str(path))]
        fault = "means no file; check the pattern" if has_magic(str(path)) else "does not exist; check the path"
    if not found:
        raise DataError(f"{path} {fault}")
    return found


def _plan(
    path: Path, kinds: Mapping[str, Any], chosen: str, id_column: str | None, blocks: Blocks | None
) -> Mapping[str, list[str]]:
    """Per view its columns; `chosen` are the ids, also where no column was asked for."""
    if not parquet.is_id(kinds[chosen]):
        fault = f"{path}: column {chosen!r} holds {kinds[chosen]} values, but ids are text or whole numbers; "
        raise DataError(f"{fault}name the right one with ", Setting("id_column"))
    others = [name for name in kinds if name != chosen]
    sources: dict[str, list[str]] = {name: [name] for name in others if parquet.is_list(kinds[name])}
    if blocks:
        sources = dict(pick_columns(path, others, blocks))
    elif not sources and others and all(name.partition(".")[2] for name in others):
        for name in others:
            sources.setdefault(name.partition(".")[0], []).append(name)
        is_first = id_column is None and chosen == next(iter(kinds))
        if is_first and "." in chosen and chosen.partition(".")[0] in sources:
            fault = f"{path}: the first column {chosen!r} is called like one of a view; name the column of ids with "
            raise DataError(fault, Setting("id_column"))
    if not sources:
        fault = f"{path} does not say which columns are which view; call them VIEW.COLUMN, or name those of each view: "
        raise DataError(fault, Setting("blocks", {"VIEW": "PATTERN"}))
    for own in sources.values():
        for name in own:
            kind = kinds[name]
            if parquet.is_list(kind) and len(own) > 1:
                raise DataError(f"{path}: column {name!r} holds lists, so it is a view by itself; name it alone")
            if not parquet.is_numeric(str(kind.value_type if parquet.is_list(kind) else kind)):
                raise DataError(f"{path}: column {name!r} holds {kind} values, not numbers; drop it, or leave it out")
    return sources


def hashed_ids(ids: Any, path: Path) -> NDArray[np.uint64]:
    """One number per id, of shape (rows,); text and whole numbers only, none of them missing.

    Every byte of a text is mixed with its place and added up: a collision among 10^8 ids has a chance of 1 in 4000.
    """
    if "dictionary" in str(ids.type):
        ids = ids.dictionary_decode()
    if ids.null_count:
        raise DataError(f"{path}: {ids.null_count:,} rows have no id; give every row the id of its sample")
    if str(ids.type).startswith(("int", "uint")):
        return mixed(np.asarray(ids.cast("int64", safe=False)).view(np.uint64) + np.uint64(1))
    text = ids.cast("large_binary")
    ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    lengths, starts = np.diff(ends), ends[:-1] - ends[0]
    if not lengths.all():
        raise DataError(f"{path}: a row has an empty id; give every row the id of its sample")
    letters = np.frombuffer(text.buffers()[2], np.uint8)[ends[0] : ends[-1]].astype(np.uint64)
    places = np.arange(len(letters), dtype=np.uint64) - np.repeat(starts.astype(np.uint64), lengths)
    sums = np.add.reduceat(mixed((places << np.uint64(8)) + letters + np.uint64(1)), starts)
    return mixed(sums + lengths.astype(np.uint64))


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's hash."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
