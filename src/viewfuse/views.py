"""Views: several tables about the same samples, some rows of some tables missing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viewfuse.errors import DataError
from viewfuse.tables import Table, labelled, present_rows, read_table


class Views:
    """Named float32 arrays that describe the same samples, and which of their rows are there.

    Parameters
    ----------
    data : list or dict of views, or one 2-D array, which is one view
        A view is an array or data frame of shape (samples, columns), or None where no sample has it. A row
        that is all NaN is a missing view; zeros are data. Frames that carry row labels are joined by them:
        a label that a frame lacks is a missing view.
    mask : boolean array of shape (samples, views), optional
        False marks a view as missing; what stands there in `data` is never looked at.
    ids : sequence of samples' names, optional
        By default the row labels of the frames, else 0, 1, 2, ...
    names : names of the views, optional
        By default the keys of a dict, else ``view_0``, ``view_1``, ...

    Attributes
    ----------
    arrays : tuple of float32 arrays of shape (samples, columns); missing rows are zero.
    mask : boolean array of shape (samples, views); True where a view is present.
    ids : array of shape (samples,); each name once.
    names : tuple of str.
    columns : tuple, per view the names or numbers of its columns.
    """

    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float32], ...]
    mask: NDArray[np.bool_]
    ids: NDArray[Any]
    columns: tuple[Sequence[Hashable], ...]

    def __init__(
        self,
        data: Any,
        *,
        mask: ArrayLike | None = None,
        ids: Sequence[Hashable] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        given, found_ids = _aligned(_named(data, names))
        found = [read_table(name, view) for name, view in given.items()]
        n = _count_rows(found)
        tables = [table._replace(values=np.zeros((n, 0), np.float32)) if table.is_none else table for table in found]
        self.ids = _checked_ids(ids if ids is not None else found_ids, n)
        allowed = _checked_mask(mask, n, len(tables))
        pairs = [present_rows(t, allowed[:, v], self.ids) for v, t in enumerate(tables)]
        self.names = tuple(given)
        self.columns = tuple(t.columns for t in tables)
        self.arrays = tuple(values for values, _ in pairs)
        self.mask = np.stack([present for _, present in pairs], axis=1)
        _refuse_empty_samples(self.mask, self.ids)

    @classmethod
    def of(cls, data: Any) -> Views:
        """Views as they are, or anything else made into Views."""
        return data if isinstance(data, Views) else cls(data)

    def replace(self, **parts: Any) -> Views:
        """A copy in which the named attributes stand for the old ones, without new checks."""
        copy = object.__new__(Views)
        for name in ("names", "arrays", "mask", "ids", "columns"):
            setattr(copy, name, parts.get(name, getattr(self, name)))
        return copy

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
        if isinstance(rows, tuple):
            rows = rows[0]
        if isinstance(rows, (int, np.integer)):
            rows = [range(len(self))[rows]]
        arrays = tuple(a[rows] for a in self.arrays)
        return self.replace(arrays=arrays, mask=self.mask[rows], ids=self.ids[rows])

    def __repr__(self) -> str:
        parts = [
            f"{name}: {width} columns, {count} present"
            for name, width, count in zip(self.names, self.widths, self.mask.sum(axis=0), strict=True)
        ]
        return f"Views({len(self)} samples; {'; '.join(parts)})"

    def conform(self, names: Sequence[str], widths: Sequence[int], *, by_name: bool) -> Views:
        """The views `names`, in that order; absent ones are missing in every sample.

        With `by_name` the views are matched by their names, else by their order.
        """
        known = dict(zip(names, widths, strict=True))
        if by_name:
            _refuse_unknown_names(self.names, names)
            source: dict[str, int] = {name: v for v, name in enumerate(self.names)}
        else:
            _refuse_other_count(self.names, names)
            source = {name: v for v, name in enumerate(names)}
        picks = [(name, known[name], source.get(name)) for name in names]
        arrays = tuple(self._view_of_width(v, name, width) for name, width, v in picks)
        absent = np.zeros(len(self), dtype=bool)
        mask = np.stack([absent if v is None else self.mask[:, v] for _, _, v in picks], axis=1)
        columns = tuple(range(width) if v is None else self.columns[v] for _, width, v in picks)
        return self.replace(names=tuple(names), arrays=arrays, mask=mask, columns=columns)

    def _view_of_width(self, v: int | None, name: str, width: int) -> NDArray[np.float32]:
        if v is None or not self.widths[v]:
            return np.zeros((len(self), width), dtype=np.float32)
        if self.widths[v] != width:
            raise DataError(
                f"view {name!r} has {self.widths[v]} columns, but the model was fitted on {width}; "
                "give the same columns in the same order"
            )
        return self.arrays[v]


def is_one_table(data: Any) -> bool:
    """Whether `data` is one 2-D table rather than a collection of views."""
    if isinstance(data, Views):
        return False
    if hasattr(data, "shape") or not isinstance(data, (Mapping, list, tuple)):
        return True  # one kind of sparse matrix is a dict, too
    if isinstance(data, Mapping):
        return False
    return bool(data) and all(view is not None and _dimensions(view) < 2 for view in data)


def _dimensions(view: Any) -> int:
    shape = getattr(view, "shape", None)
    if shape is not None:
        return len(shape)
    if not isinstance(view, (list, tuple)):
        return 0
    return 1 + max((_dimensions(row) for row in view[:1]), default=0)


def _named(data: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(data, Views):
        raise DataError("the data are Views already; use them as they are")
    if is_one_table(data):
        data = [data]
    if isinstance(data, Mapping):
        views, found = list(data.values()), [str(key) for key in data]
    else:
        views, found = list(data), [f"view_{v}" for v in range(len(data))]
    chosen = found if names is None else [str(name) for name in names]
    if not views:
        raise DataError("no views were given; pass a list or dict with at least one (samples, columns) array")
    if len(chosen) != len(views):
        raise DataError(f"{len(chosen)} names were given for {len(views)} views; give one name per view")
    if len(set(chosen)) != len(chosen):
        raise DataError(f"two views have one name in {chosen}; give each view a name of its own")
    return dict(zip(chosen, views, strict=True))


def _has_row_labels(view: Any) -> bool:
    """Whether a pandas frame carries labels of its own, rather than the default 0, 1, 2, ..."""
    return hasattr(view, "iloc") and type(view.index).__name__ != "RangeIndex"


def _aligned(given: dict[str, Any]) -> tuple[dict[str, Any], Sequence[Hashable] | None]:
    """Join labelled frames by the union of their row labels, in the order of first appearance."""
    frames = {name: view for name, view in given.items() if view is not None}
    labelled = {name: view.index for name, view in frames.items() if _has_row_labels(view)}
    for name, index in labelled.items():
        if index.has_duplicates:
            twice = index[index.duplicated()][0]
            raise DataError(f"view {name!r}: row label {twice!r} appears twice; keep one row per sample")
    if not labelled or all(index.equals(first) for first in list(labelled.values())[:1] for index in labelled.values()):
        return given, next(iter(labelled.values()), None)
    if len(labelled) < len(frames):
        unlabelled = sorted(set(frames) - set(labelled))
        raise DataError(
            f"views {sorted(labelled)} have row labels that differ, but {unlabelled} have none, so the rows "
            "cannot be matched; give every view an index of sample ids"
        )
    union = list(dict.fromkeys(label for index in labelled.values() for label in index))
    return {name: None if view is None else view.reindex(union) for name, view in given.items()}, union


def _count_rows(tables: Sequence[Table]) -> int:
    counts = {table.name: len(table.values) for table in tables if not table.is_none}
    if not counts:
        raise DataError("every view is None, so there is no sample; pass at least one array")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(
            f"the views have differing row counts ({listed}); "
            "give every view one row per sample, all NaN where it is missing"
        )
    n = next(iter(counts.values()))
    if n == 0:
        raise DataError("the views have no rows (0 sample(s)); pass at least one sample")
    return n


def _checked_ids(ids: Sequence[Hashable] | None, n: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(n)
    found = np.asarray(ids)
    if found.ndim != 1:  # several-level labels are tuples, and each is one id
        found = np.empty(len(ids), dtype=object)
        found[:] = list(ids)
    if len(found) != n:
        raise DataError(f"ids have shape {found.shape}, but the views have {n} rows; give one id per row")
    seen: dict[Hashable, int] = {}
    for row, name in enumerate(found.tolist()):
        if name in seen:
            raise DataError(
                f"id {name!r} appears twice, in rows {seen[name]} and {row}; give each sample an id of its own"
            )
        seen[name] = row
    return found


def _checked_mask(mask: ArrayLike | None, n: int, n_views: int) -> NDArray[np.bool_]:
    if mask is None:
        return np.ones((n, n_views), dtype=bool)
    given = np.asarray(mask)
    if given.shape != (n, n_views):
        raise DataError(f"the mask has shape {given.shape}, but {n} rows of {n_views} views need ({n}, {n_views})")
    if not np.isin(given, (0, 1)).all():
        raise DataError("the mask holds values other than True/False (1/0); give True where a view is present")
    return given.astype(bool)


def _refuse_empty_samples(mask: NDArray[np.bool_], ids: NDArray[Any]) -> None:
    empty = np.flatnonzero(~mask.any(axis=1))
    if len(empty):
        row = int(empty[0])
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise DataError(
            f"row {labelled(row, ids)}{more} has no view at all (NaN or masked everywhere); drop such samples"
        )


def _refuse_unknown_names(given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise DataError(
            f"views {unknown} are unknown; got {list(given)}, the model was fitted on {list(known)}; "
            "rename or leave them out"
        )


def _refuse_other_count(given: Sequence[str], known: Sequence[str]) -> None:
    if len(given) != len(known):
        raise DataError(
            f"{len(given)} views were given, but the model was fitted on {len(known)} ({list(known)}); "
            "pass None for a view that is missing in every row, or a dict of the views by name"
        )
