"""Views: several tables about the same samples, some rows of some tables missing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viewfuse.data.alignment import Use, aligned, as_labels, check_written, checked_ids, checked_mask, opened
from viewfuse.data.categories import DROP, FEWEST, blocks_of, category_of, conformed, encoded_frame
from viewfuse.data.input_types import (
    Values,
    are_numbered,
    has_row_labels,
    holds_annotated,
    is_sparse,
    is_table,
    named_views,
    take,
)
from viewfuse.data.precision import Offset, measured
from viewfuse.data.sparse_tables import all_dense, empty
from viewfuse.data.tables import Table, called, check_named_once, labelled, present_rows, read_table
from viewfuse.errors import DataError, IgnoredColumnsWarning
from viewfuse.utils.console import some, warn

_ATTRIBUTES = ("names", "arrays", "mask", "ids", "columns", "offsets", "batch")


class Views:
    """Named float32 arrays that describe the same samples, and which of their rows are there.

    Parameters
    ----------
    data : list or dict of views, MuData, or one 2-D array or AnnData, which is one view
        A view is an array, data frame, AnnData or sparse matrix of shape (samples, columns), or None where no sample
        has it. Each modality of a MuData object is a view.
        Columns of text of a data frame become categories: one column of 0 and 1 per value.
        A row that is all NaN is a missing view, and so is a row of a sparse matrix that stores NaN and nothing else;
        zeros are data, stored or not. Other NaN are empty cells, which are filled later. Frames that
        carry row labels, and cells, which have names, are joined by them: a label that a view lacks is a missing row.
    mask : boolean array of shape (samples, views), optional
        False marks a view as missing; what stands there in `data` is never looked at. Of a data frame, columns are
        matched by the names of the views, and rows by id; the rows of an array are the samples in order.
    ids : sequence of samples' names, optional
        By default the row labels of the frames, else 0, 1, 2, ...
    names : names of the views, optional
        By default the keys of a dict, else ``view_0``, ``view_1``, ...
    columns : per view the names of its columns, optional
        By default those of the frames, else 0, 1, 2, ...
    use : str or dict by view, optional
        For AnnData and MuData: "X" (the default), "layers/NAME" or "obsm/NAME". With a dict one AnnData can be
        several views: ``{"rna": "X", "protein": "obsm/protein"}``.
    allow_disjoint : whether frames may share no row label, which is an error otherwise; for samples that a fitted model
        places, as `predict` does it. Their arrays are float64 unless they came as float32: the model rounds them.

    Attributes
    ----------
    arrays : tuple of float32 arrays of shape (samples, columns); missing rows are zero, empty cells NaN. What came as
        a sparse matrix is a `scipy.sparse.csr_array`, whose missing rows hold nothing; `dense()` gives arrays only.
    mask : boolean array of shape (samples, views); True where a view is present.
    ids : array of shape (samples,); each name once.
    names : tuple of str.
    columns : tuple, per view the names or numbers of its columns.
    offsets : tuple, per view what its columns are measured from: 0.0, as they were given, or a float64 array of shape
        (columns,) where some would lose digits that tell samples apart as float32, such as time stamps. `in_units`
        adds it to the arrays.
    batch : array of shape (samples,), the name of each sample's batch, as `fit` and `predict` set it; None without any.
    """

    names: tuple[str, ...]
    arrays: tuple[Values, ...]
    mask: NDArray[np.bool_]
    ids: NDArray[Any]
    columns: tuple[Sequence[Hashable], ...]
    offsets: tuple[Offset, ...]
    batch: NDArray[Any] | None = None

    def __init__(
        self,
        data: Any,
        *,
        mask: ArrayLike | None = None,
        ids: Sequence[Hashable] | NDArray[Any] | None = None,
        names: Sequence[str] | None = None,
        columns: Sequence[Sequence[Hashable]] | None = None,
        use: Use | None = None,
        allow_disjoint: bool = False,
    ) -> None:
        if use is not None or holds_annotated(data):
            data = opened(data, use)
        given = named_views(data, names)
        given = {name: encoded_frame(view) if hasattr(view, "iloc") else view for name, view in given.items()}
        found_ids = None
        if any(map(has_row_labels, given.values())):
            given, found_ids = aligned(given, allow_disjoint=allow_disjoint)
        found = [read_table(name, view) for name, view in given.items()]
        if columns is not None:
            own, wanted = [len(names) for names in columns], [table.values.shape[1] for table in found]
            if own != wanted:
                raise DataError(
                    f"columns has {own} names per view, but the views have {wanted} columns; name each once"
                )
            found = [table._replace(columns=names) for table, names in zip(found, columns, strict=True)]
        for table in found:
            check_named_once(table)
        n = _count_rows(found)
        tables = [table._replace(values=np.zeros((n, 0), np.float32)) if table.is_none else table for table in found]
        self.ids = np.arange(n)
        if ids is not None or found_ids is not None:
            self.ids = checked_ids(found_ids if ids is None else ids, n)
            if found_ids is not None or getattr(getattr(ids, "dtype", None), "kind", "") == "O":
                self.ids = as_labels(self.ids)
            check_written(self.ids)
        if ids is not None and found_ids is not None and list(ids) != list(found_ids) and set(ids) == set(found_ids):
            raise DataError(
                "ids are the row labels of the views in another order; leave ids out, as the samples have their labels"
            )
        allowed = np.ones((n, len(given)), dtype=bool)
        if mask is not None:
            allowed = checked_mask(mask, self.ids, list(given), found_ids)
        self.names = tuple(given)
        self.columns = tuple(t.columns for t in tables)
        self._read(tables, allowed, placed=allow_disjoint)
        _check_no_empty_samples(self.mask, self.ids)

    def _read(self, tables: Sequence[Table], allowed: NDArray[np.bool_], *, placed: bool = False) -> None:
        found = [present_rows(t, allowed[:, v], self.ids, placed=placed) for v, t in enumerate(tables)]
        self.arrays, present, self.offsets = zip(*found, strict=True)
        self.mask = np.stack(present, axis=1)
        self.mask.flags.writeable = False

    @classmethod
    def of(cls, data: Any) -> Views:
        """Views for a fit, in float32: as they are but for rare values of categories, or made of anything else."""
        found = data if isinstance(data, Views) else cls(data)
        if any(array.dtype != np.float32 for array in found.arrays):
            found = found.replace()
            found._read([Table(*own) for own in zip(found.names, found.arrays, found.columns, strict=True)], found.mask)
        return found if are_numbered(found.columns) else without_rare(found)

    def replace(self, **parts: Any) -> Views:
        """A copy in which the named attributes stand for the old ones, without new checks."""
        unknown = sorted(set(parts) - set(_ATTRIBUTES))
        if unknown:
            raise TypeError(f"Views have no {', '.join(unknown)}; what can be replaced is {', '.join(_ATTRIBUTES)}")
        copy = object.__new__(Views)
        for name in _ATTRIBUTES:
            setattr(copy, name, parts.get(name, getattr(self, name)))
        return copy

    def dense(self) -> Views:
        """The same with dense arrays only, where memory allows: for what cannot work on sparse ones."""
        if not any(is_sparse(a) for a in self.arrays):
            return self
        pairs = zip(self.names, self.arrays, strict=True)
        return self.replace(arrays=tuple(all_dense(name, a) if is_sparse(a) else a for name, a in pairs))

    def in_units(self) -> Views:
        """The same as it was given: without offsets, in float64 where there were any."""
        pairs = zip(self.arrays, self.offsets, self.mask.T, strict=True)
        arrays = tuple(np.where(own[:, None], a + offset, 0.0) if np.any(offset) else a for a, offset, own in pairs)
        return self.replace(arrays=arrays, offsets=(0.0,) * len(arrays))

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns per view; 0 for a view that was given as None."""
        return tuple(a.shape[1] for a in self.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and views."""
        return self.mask.shape[0], self.mask.shape[1]

    def __len__(self) -> int:
        return self.mask.shape[0]

    def __getitem__(self, rows: Any) -> Views:
        """The samples at `rows` (numbers, a slice or booleans), as scikit-learn's splitters ask for them."""
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] in (Ellipsis, slice(None)):
            rows = rows[0]
        if rows is None or isinstance(rows, (str, tuple)):
            raise DataError(f"{rows!r} picks no samples; give row numbers, a slice or booleans; views are in .arrays")
        if isinstance(rows, (int, np.integer)):
            rows = [range(len(self))[rows]]
        arrays = tuple(take(a, rows) for a in self.arrays)
        batch = None if self.batch is None else self.batch[rows]
        return self.replace(arrays=arrays, mask=self.mask[rows], ids=self.ids[rows], batch=batch)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        raise DataError("Views are several tables, not one array; use .arrays")

    def __repr__(self) -> str:
        parts = [
            f"{name}: {a.shape[1]} {'sparse ' if is_sparse(a) else ''}columns, {count} present"
            for name, a, count in zip(self.names, self.arrays, self.mask.sum(axis=0), strict=True)
        ]
        return f"Views({len(self)} samples; {'; '.join(parts)})"

    def conform(self, names: Sequence[str], columns: Sequence[Sequence[Hashable]], *, by_name: bool) -> Views:
        """The views `names` with their `columns`, in that order; absent ones are missing in every sample.

        With `by_name` the views are matched by their names, else by their order. Columns are matched by name where
        both sides have names: unknown ones are left out with a warning, cells of absent ones are empty.
        """
        source: dict[str, int] = {name: v for v, name in enumerate(self.names if by_name else names)}
        if by_name and (unknown := [name for name in self.names if name not in names]):
            raise DataError(
                f"views {unknown} are unknown; got {list(self.names)}, the model was fitted on {list(names)}; "
                "rename them or leave them out"
            )
        if not by_name and len(self.names) != len(names):
            given = "1 view was" if len(self.names) == 1 else f"{len(self.names)} views were"
            raise DataError(
                f"{given} given, but the model was fitted on {len(names)} ({list(names)}); "
                "pass None for a view that is missing in every row, or a dict of the views by name"
            )
        found: list[tuple[Values, NDArray[np.bool_], Offset, Sequence[Hashable]]] = []
        for name, own in zip(names, columns, strict=True):
            v = source.get(name)
            if v is None or not self.widths[v]:
                found.append((empty((len(self), len(own))), np.zeros(len(self), dtype=bool), 0.0, ()))
            else:
                found.append(conformed(name, self.arrays[v], self.mask[:, v], self.offsets[v], self.columns[v], own))
        arrays, present, offsets, ignored = zip(*found, strict=True)
        if any(ignored):
            listed = [f"{name} {len(own):,} ({some(own)})" for name, own in zip(names, ignored, strict=True) if own]
            what = "columns that the model was not fitted on are ignored"
            warn(IgnoredColumnsWarning(f"{what}: {'; '.join(listed)}"))
        mask = np.stack(present, axis=1)
        _check_no_empty_samples(mask, self.ids)
        return self.replace(names=tuple(names), arrays=arrays, mask=mask, columns=tuple(columns), offsets=offsets)


def with_columns(views: Views, kept: Mapping[int, Sequence[int]]) -> Views:
    """The same with some columns only, at these places, of the views of these numbers."""
    arrays, columns, offsets = list(views.arrays), list(views.columns), list(views.offsets)
    for v, places in kept.items():
        own = np.broadcast_to(offsets[v], views.widths[v])[places]
        arrays[v], columns[v] = arrays[v][:, places], [columns[v][place] for place in places]
        if not is_sparse(arrays[v]):
            arrays[v].flags.writeable = False
        offsets[v] = own if np.any(own) else 0.0
    return views.replace(arrays=tuple(arrays), columns=tuple(columns), offsets=tuple(offsets))


def without_rare(views: Views) -> Views:
    """The Views of a fit without the columns of values that hardly any sample has: those are none of the values.

    A column of texts most of which stand there once or twice is refused.
    """
    kept: dict[int, list[int]] = {}
    for v, columns in enumerate(views.columns):
        counts: dict[int, float] = {}
        for places in blocks_of(columns, views.arrays[v], views.mask[:, v]):
            rows = views.arrays[v][views.mask[:, v]]
            own = dict(zip(places, rows[:, places].sum(axis=0).tolist(), strict=True))
            counts |= own
            if sum(count for count in own.values() if count >= FEWEST) < sum(own.values()) / 2:
                name, category = views.names[v], category_of(columns[places[0]])
                what = f"view {name!r}, column {category!r} has {len(own)} different texts, most of them once or twice"
                raise DataError(f"{what}, so it is no category; ", *DROP)
        if any(count < FEWEST for count in counts.values()):
            kept[v] = [place for place in range(views.widths[v]) if counts.get(place, FEWEST) >= FEWEST]
    return with_columns(views, kept) if kept else views


def measured_from(views: Views, offsets: Sequence[Offset]) -> Views:
    """The same in float32, measured from a model's offsets; samples that were rounded without these are refused."""
    arrays = []
    for v, (array, own, offset) in enumerate(zip(views.arrays, views.offsets, offsets, strict=True)):
        present = views.mask[:, v]
        if array.dtype == np.float32 and np.array_equal(own, offset):
            arrays.append(array)
            continue
        if not present.any():
            arrays.append(empty((len(views), views.widths[v])))
            continue
        rounded = np.broadcast_to((own == 0.0) & (offset != 0.0), views.widths[v])
        if not is_sparse(array):
            rounded = rounded & (array.dtype == np.float32) & ~np.isnan(array[present]).all(axis=0)
        if rounded.any():
            column = called(views.columns[v], int(np.flatnonzero(rounded)[0]))
            raise DataError(
                f"view {views.names[v]!r}, column {column}: as sparse matrices or 32-bit floats these samples lose "
                "digits that the model tells samples apart by; give arrays or frames of 64-bit floats, not Views made "
                "of them"
            )
        arrays.append(measured(array, present, offset - own))
    return views.replace(arrays=tuple(arrays), offsets=tuple(offsets))


def stacked(several: Sequence[Views]) -> Views:
    """The samples of Views of the same columns and offsets, without sparse arrays, as one; they are numbered anew."""
    arrays = tuple(np.concatenate(own) for own in zip(*(one.arrays for one in several), strict=True))
    mask = np.concatenate([one.mask for one in several])
    return several[0].replace(arrays=arrays, mask=mask, ids=np.arange(len(mask)))


def is_one_table(data: Any) -> bool:
    """Whether `data` is one 2-D table rather than Views or a collection of views."""
    return not isinstance(data, Views) and is_table(data)


def _count_rows(tables: Sequence[Table]) -> int:
    counts = {table.name: table.values.shape[0] for table in tables if not table.is_none}
    if not counts:
        raise DataError("every view is None, so there is no sample; pass at least one array")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(
            f"the views have differing row counts ({listed}); "
            "give every view one row per sample, all NaN where it is missing, or DataFrames with the ids as index"
        )
    n = next(iter(counts.values()))
    if n == 0:
        raise DataError("the views have no rows (0 sample(s)); pass at least one sample")
    return n


def _check_no_empty_samples(mask: NDArray[np.bool_], ids: NDArray[Any]) -> None:
    empty = np.flatnonzero(~mask.any(axis=1))
    if len(empty):
        row = int(empty[0])
        has = f"and {len(empty) - 1} more have" if len(empty) > 1 else "has"
        raise DataError(f"row {labelled(row, ids)} {has} no view at all; drop such samples")
