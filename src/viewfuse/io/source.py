"""Views in files: joined by ids or by row, and read all at once or a few samples at a time.

Of ids of several tables the part that counts, and whether they belong together, is found before they are joined.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import as_labels, id_array, in_words, read_alike
from viewfuse.data.categories import category_of, is_nothing
from viewfuse.data.input_types import id_key, is_sparse
from viewfuse.data.longer_ids import misread_ids
from viewfuse.data.side_information.batch_labels import batch_added
from viewfuse.data.sparse_tables import nan_rows, spread_rows
from viewfuse.data.views import Views
from viewfuse.errors import DataError, EmptySampleWarning, SettingError, SuspiciousDataWarning
from viewfuse.io.safety import computing_limit
from viewfuse.utils import memory
from viewfuse.utils.console import some, warn
from viewfuse.utils.settings import Advice, Setting

ABSENT = -1
ROWS_AT_A_TIME = 10_000
"""Samples that are read together where not all are."""
_FEW, _SHARE = 20, 0.05
"""Fewer common ids than this number, and than this share of the smaller table, are hardly any."""
_SECONDS = 10.0
"""Of computing for the ids of a file: ten million are matched in less, and (a+)+$ may take years for a single one."""
_NO_NAMES = ("-", "?")
"""What is written where an id is not known, beside what empty cells are written as."""
Names = dict[Hashable, None]
"""A set that keeps its order, so that examples are the first ones."""


def ending_of(path: Path) -> str:
    """The ending of a file in small letters; that of packed text has two parts, such as .csv.gz."""
    inner, last = Path(path.stem).suffix.lower(), path.suffix.lower()
    return inner + last if last == ".gz" and inner in (".csv", ".tsv") else last


def view_of(path: Path) -> str:
    """What the view of a file is called: like the file, without its ending."""
    return path.name[: len(path.name) - len(ending_of(path))]


@dataclass(frozen=True)
class FileView:
    """One view as it lies in a file.

    Attributes
    ----------
    values : what gives a 2-D array for a slice or an array of row numbers: an array, a memory map, a sparse matrix
    columns : names of the columns, or their numbers
    ids : per row the sample's id; None where row i is sample i
    unread : columns of the file that were left out as asked
    """

    path: Path
    name: str
    values: Any
    columns: Sequence[Hashable]
    ids: Sequence[Hashable] | None = None
    unread: Sequence[str] = ()

    def turned(self) -> FileView:
        """The view of a table whose columns are the samples; what stood for ids are the names of its columns."""
        if isinstance(self.columns, range):
            raise DataError(f"{self.path} has no names of columns, which would be the ids; give it a header of ids")
        check_ids(self.path, self.ids or ())
        text = [name for name in map(category_of, self.columns) if name is not None]
        if text:
            raise DataError(f"{self.path}: the sample in column {text[0]!r} has text; give numbers, or turn the table")
        values = self.values.T.tocsr() if is_sparse(self.values) else self.values.T
        return replace(self, values=values, columns=list(self.ids or ()), ids=list(self.columns))


@dataclass
class Contents:
    """What one file holds.

    Attributes
    ----------
    views : either all with ids, by the union of which they are joined, or all without
    ids : ids of the samples where the views have none
    order : ids that come first, in this order
    mask : boolean array of shape (samples, views); False marks a view as missing
    labels : known labels of the samples, which nothing but a comparison looks at
    """

    views: Sequence[FileView]
    ids: Any = None
    order: Sequence[Hashable] = ()
    mask: Any = None
    labels: NDArray[Any] | None = None


@dataclass(repr=False, eq=False)
class FileSource(Contents):
    """Views in files that belong together, joined; `ids` are of all samples, `batch` as `with_batch` takes it."""

    batch: str | dict[str, str] | None = None

    def __post_init__(self) -> None:
        views = self.views
        if not views:
            raise DataError("there is no view to read; name at least one file, and one of its tables")
        for view in views:
            shape, where = view.values.shape, f"{view.path}: view {view.name!r}"
            if len(shape) != 2:
                raise DataError(f"{where} has shape {shape}; a view has two dimensions, (samples, columns)")
            if not shape[1]:
                raise DataError(f"{where} has no columns: 0 feature(s); leave it out")
            if view.ids is not None and len(view.ids) != shape[0]:
                raise DataError(f"{where} has {shape[0]:,} rows, but there are {len(view.ids):,} ids; give one per row")
            if len(view.columns) != shape[1]:
                fault = f"{where} has {shape[1]:,} columns, but {len(view.columns):,} names of columns; give as many"
                raise DataError(fault)
        self.labels = None if self.labels is None else _text(self.labels)
        self._rows: Sequence[NDArray[np.int64] | None] = [None] * len(views)
        if any(view.ids is not None for view in views):
            self.ids, self._rows = _join(views, self.order)
        else:
            n = views[0].values.shape[0]
            self.ids = np.arange(n) if self.ids is None else as_labels(_text(self.ids))
            self._check_length(n)
        if not len(self.ids):
            raise DataError(f"{views[0].path} has no rows (0 sample(s)); it needs at least one")

    def _check_length(self, n: int) -> None:
        """Refuse views, ids, labels or a mask without ids of `n` samples each."""
        path, n_views, mask = self.views[0].path, len(self.views), self.mask
        counts = {view.name: view.values.shape[0] for view in self.views}
        if set(counts.values()) != {n}:
            listed = ", ".join(f"{name!r} has {count:,}" for name, count in counts.items())
            fault = f"{path}: the views have differing row counts ({listed})"
            raise DataError(f"{fault}; give every view one row per sample")
        for name, found in {"ids": self.ids, "labels": self.labels}.items():
            if found is not None and found.shape != (n,):
                fault = f"{path}: {name!r} has shape {found.shape}, but the views have {n:,} rows; give one per row"
                raise DataError(fault)
        if mask is not None and (np.shape(mask) != (n, n_views) or mask.dtype.kind not in "biuf"):
            raise DataError(
                f"{path}: 'mask' has shape {np.shape(mask)} and holds {mask.dtype}, but {n:,} rows of {n_views} views "
                f"need ({n}, {n_views}); give True or False for each"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.views)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, *, placed: bool = False) -> Views:
        """All samples, where memory allows; those that a model places are not rounded yet."""
        needed = sum(self._bytes_needed(v) for v in range(len(self.views)))
        widths = ", ".join(f"{view.name} {view.values.shape[1]:,}" for view in self.views)
        what = f"{self._files()}: reading {len(self):,} samples with columns {widths}"
        chunks = Advice((", or predict chunk by chunk with ", Setting("read_chunks")))
        memory.require(needed, what, "choose fewer columns, or reduce them first (PCA)", chunks)
        return self._views(slice(0, len(self)), placed=placed)

    def chunks(self, size: int) -> Iterator[Views]:
        """All samples in order, at most `size` at a time, for a model that places them."""
        if size < 1:
            raise SettingError(f"the size of a chunk must be at least 1; got {size!r}")
        if len(self) > size and not any(rows is None for rows in self._rows):  # both spellings may not be in one chunk
            mask = np.stack([rows != ABSENT for rows in self._rows if rows is not None], axis=1)
            for line in misread_ids(self.names, mask, self.ids.tolist()):
                warn(SuspiciousDataWarning(f"{self._files()}: {line}"))
        for first in range(0, len(self), size):
            yield self._views(slice(first, min(first + size, len(self))), placed=True)

    def _views(self, rows: slice, *, placed: bool) -> Views:
        pairs = [self._read_view(v, rows) for v in range(len(self.views))]
        mask = np.stack([present for _, present in pairs], axis=1)
        if self.mask is not None:  # values other than 0 and 1 are left for Views to refuse
            mask = np.where(mask, self.mask[rows], 0)
        kept = self._with_a_view(mask, [values for values, _ in pairs], self.ids[rows])
        arrays = (values if isinstance(kept, slice) else values[kept] for values, _ in pairs)
        try:
            found = Views(
                dict(zip(self.names, arrays, strict=True)),
                mask=mask[kept],
                ids=self.ids[rows][kept],
                columns=[view.columns for view in self.views],
                allow_disjoint=placed,
            )
            return batch_added(found, self.batch)
        except DataError as error:
            raise type(error)(f"{self._files()}: ", *error.parts) from None

    def _with_a_view(self, mask: NDArray[Any], arrays: Sequence[Any], ids: NDArray[Any]) -> Any:
        """Which samples have a view at all; a slice for all of them, so that nothing is copied."""
        there = np.zeros(len(ids), dtype=bool)
        for v, values in enumerate(arrays):
            has_view = mask[:, v] != 0
            if values.dtype.kind == "f":  # a row of NaN lacks the view
                has_view &= ~(nan_rows(values) if is_sparse(values) else np.isnan(values).all(axis=1))
            there |= has_view
        if there.all() or not there.any():
            return slice(None)
        lost = ids[~there]
        name = repr(lost.tolist()[0])
        who = f"{len(lost)} samples, such as {name}, have" if len(lost) > 1 else f"sample {name} has"
        left = "are left out" if len(lost) > 1 else "is left out"
        warn(EmptySampleWarning(f"{self._files()}: {who} no view at all and {left}"))
        return there

    def _files(self) -> str:
        return ", ".join(dict.fromkeys(str(view.path) for view in self.views))

    def _read_view(self, v: int, rows: slice) -> tuple[Any, NDArray[np.bool_]]:
        """Values of shape (samples, columns), zero where absent, and who is there."""
        view, places = self.views[v], self._rows[v]
        there = None if places is None else places[rows]
        present = np.ones(rows.stop - rows.start, dtype=bool) if there is None else there != ABSENT
        found = view.values[rows if there is None else there[present]]
        found = found if is_sparse(found) else np.asarray(found)
        if present.all():
            return found, present
        if is_sparse(found):
            return spread_rows(found, present), present
        values = np.zeros((len(present), found.shape[1]), dtype=found.dtype)
        values[present] = found
        return values, present

    def _bytes_needed(self, v: int) -> int:
        """What reading a view takes beyond what is there: rows in order, the same with gaps, and as float32."""
        values, n = self.views[v].values, len(self)
        if is_sparse(values):
            stored = values.data.nbytes + values.indices.nbytes + values.indptr.nbytes
            return 2 * stored + values.indptr.itemsize * n
        itemsize = 4 if values.dtype == np.float32 else values.dtype.itemsize + 4
        loaded = self._rows[v] is None and isinstance(values, np.ndarray) and not isinstance(values, np.memmap)
        copies = 0 if loaded and values.dtype == np.float32 else itemsize
        return n * values.shape[1] * (copies if self._rows[v] is None else copies + values.dtype.itemsize)


def _text(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids or labels, as text where they were stored as bytes or dates; letters that do not exist are refused."""
    if ids.dtype.kind == "M" and not np.isnat(ids).any():  # one without a date is refused as others are
        return np.datetime_as_string(ids, unit="auto")
    text = np.char.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids
    if text.dtype.kind == "U":
        text = text.astype(text.dtype.newbyteorder("="))
    if text.dtype.kind == "U" and np.frombuffer(text.tobytes(), dtype=np.uint32).max(initial=0) > sys.maxunicode:
        raise ValueError("an id or a label has a letter that does not exist")
    return text


def _join(views: Sequence[FileView], order: Sequence[Hashable]) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """The union of ids in the order of first appearance, and per view the row of each sample, or ABSENT."""
    listed = alike([list(view.ids or ()) for view in views])
    for view, ids in zip(views, listed, strict=True):
        check_ids(view.path, ids)
        _check_names(view.path, ids)
    known = {name for ids in listed for name in ids}
    union = list(dict.fromkeys([*(name for name in order if name in known), *(name for ids in listed for name in ids)]))
    places = ({name: row for row, name in enumerate(ids)} for ids in listed)
    tables = [np.array([place.get(name, ABSENT) for name in union], dtype=np.int64) for place in places]
    return as_labels(id_array(union)), tables


def alike(listed: list[list[Hashable]]) -> list[list[Hashable]]:
    """Ids as whole numbers where all files have such, else as text without blanks around it.

    7 in one file is "7" in another, and a letter with an accent is the same whether it was written as one sign or two.
    """
    if all(isinstance(name, int) for ids in listed for name in ids):
        return listed
    return [[name if name is None else id_key(name) for name in ids] for ids in listed]


def check_ids(path: Path, ids: Sequence[Hashable]) -> None:
    """Refuse ids that are empty or there twice."""
    seen: dict[Hashable, int] = {}
    for row, name in enumerate(ids):
        if name is None or not str(name).strip():
            raise DataError(f"{path}, data row {row + 1} has no id; give every row the id of its sample")
        if name in seen:
            raise DataError(f"{path}: id {name!r} appears twice, in data rows {seen[name] + 1} and {row + 1}; keep one")
        seen[name] = row


def _check_names(path: Path, ids: Sequence[Hashable]) -> None:
    """Refuse ids of text files that say that there is none, as empty cells may be written there."""
    is_text = str(path).lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    for row, name in enumerate(ids if is_text else ()):
        if is_nothing(str(name)) or name in _NO_NAMES:
            fault = f"{path}, data row {row + 1} has the id {name!r}, which stands for none"
            raise DataError(f"{fault}; give every row the id of its sample")


def split_by_prefix(source: FileSource, names: Collection[str]) -> FileSource:
    """The views of one wide table; anything else as it is.

    Only views of a model, of these `names`, are looked for: names of columns, such as genes, often have dots.
    """
    (table, *others) = source.views
    heads = [str(column).partition(".") for column in table.columns]
    if others or table.name in names or not all(dot and view in names for view, dot, _ in heads):
        return source
    parts = []
    for name in names:
        places = [i for i, (view, *_) in enumerate(heads) if view == name]
        if places:  # of columns side by side nothing is copied
            first, last = places[0], places[-1] + 1
            chosen: Any = slice(first, last) if last - first == len(places) else list(places)
            columns = [table.columns[i] for i in places]
            parts.append(replace(table, name=name, values=table.values[:, chosen], columns=columns))
    return FileSource(parts, source.ids, source.ids.tolist(), labels=source.labels, batch=source.batch)


class _Side(NamedTuple):
    """A table: the names of its rows and of its columns, as text; columns with numbers only have none."""

    view: str
    path: Path
    ids: Names
    columns: Names


def with_pattern(view: FileView, pattern: str | None) -> FileView:
    """The view with the part of each id that a pattern matches: its first group, or all of it."""
    if pattern is None:
        return view
    asked = Setting("id_pattern"), f" {pattern!r} "
    try:
        with computing_limit(_SECONDS):
            found = [re.search(pattern, str(name)) for name in view.ids or ()]
    except (re.error, OverflowError, RecursionError, TypeError) as error:
        raise SettingError(*asked, f"is no regular expression ({error})") from None
    except TimeoutError:
        slow = f"was not compared with the ids of {view.path} in {_SECONDS:g} s of computing"
        raise SettingError(*asked, f"{slow}; give one without repetitions inside of repetitions") from None
    for name, one in zip(view.ids or (), found, strict=True):
        if one is None:
            raise DataError(f"{view.path}: id {name!r} does not match ", Setting("id_pattern"), f" {pattern!r}")
    return replace(view, ids=[one[min(1, one.re.groups)] for one in found if one is not None])


def check_matching(views: Sequence[FileView], *, new_samples: bool = False) -> None:
    """Refuse tables whose ids never or hardly match those of any other table.

    Where the names of a table's columns are ids of others, its samples seem to stand in columns. Those of new samples
    may be apart, unless they are spelled otherwise.
    """
    sides: dict[Path, _Side] = {}  # one per file: several views of one have the same ids
    for view, ids in zip(views, alike([list(view.ids or ()) for view in views]), strict=True):
        columns = () if isinstance(view.columns, range) else (str(name).strip() for name in view.columns)
        sides.setdefault(view.path, _Side(view.name, view.path, dict.fromkeys(ids), dict.fromkeys(columns)))

    def others(own: _Side) -> Names:
        return {name: None for side in sides.values() if side is not own for name in side.ids}

    alone = [side for side in sides.values() if not _match(side.ids, others(side))]
    if len(sides) < 2 or not alone:
        return
    turned = [side for side in alone if _match(side.columns, others(side))]
    if turned:
        first = turned[0]
        common = len(first.columns.keys() & others(first).keys())
        raise DataError(
            f"{first.path}: {common:,} of the names of its {len(first.columns):,} columns are ids in another file, so "
            "its samples seem to stand in columns; ",
            Setting("transpose", [side.view for side in turned]),
            " reads it the other way round",
        )
    pairs = [(side, other) for side in alone for other in sides.values() if side is not other]
    spelled = [pair for pair in pairs if read_alike(pair[0].ids, pair[1].ids)]
    if spelled or not new_samples:
        raise _share_nothing(*(spelled or pairs)[0])


def _match(one: Names, other: Names) -> bool:
    """Whether two sets of names share some, and not hardly any."""
    common = len(one.keys() & other.keys())
    return common > 0 and common >= min(_FEW, _SHARE * min(len(one), len(other)))


def _share_nothing(one: _Side, other: _Side) -> DataError:
    common = len(one.ids.keys() & other.ids.keys())
    shared = f"{common:,} of {min(len(one.ids), len(other.ids)):,} ids" if common else "no id"
    columns = len(one.columns.keys() & other.columns.keys())
    beside = f" (but {columns:,} names of columns)" if columns and _match(one.columns, other.columns) else ""
    mine, theirs = (some([name for name in a.ids if name not in b.ids]) for a, b in ((one, other), (other, one)))
    cure: tuple[str | Setting, ...] = ("spell them alike in all files",)
    spelled = read_alike(one.ids, other.ids)
    if spelled:
        cure = (in_words(spelled, one.view, other.view),)
    elif beside:
        turned = Setting("transpose", [one.view, other.view])
        cure = "if samples stand in columns, use ", turned, "; if the files have other samples, join them into one"
    return DataError(
        f"{one.path} and {other.path} share {shared}{beside}: {mine} against {theirs}; ",
        *cure,
        "; if they are meant to be apart, use ",
        Setting("allow_disjoint", True),
    )
