"""Views in files: joined by ids or by row, and read all at once or a few samples at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse import memory
from viewfuse.errors import DataError
from viewfuse.views import Views

ABSENT = -1


@dataclass(frozen=True)
class FileView:
    """One view as it lies in a file.

    Attributes
    ----------
    values : what gives a 2-D array for a slice or an array of row numbers: an array, a memory map, a sparse matrix
    columns : names of the columns, or their numbers
    ids : per row the sample's id; None where row i is sample i
    """

    path: Path
    name: str
    values: Any
    columns: Sequence[Hashable]
    ids: Sequence[Hashable] | None = None

    def rows(self, chosen: slice | NDArray[np.int64]) -> NDArray[Any]:
        """The chosen rows as a dense array."""
        values = self.values[chosen]
        return values.toarray() if hasattr(values, "toarray") else np.asarray(values)


class Source:
    """Views in files that belong together.

    Parameters
    ----------
    views : the views, either all with ids, by the union of which they are joined, or all without
    ids : ids of the samples where the views have none
    order : ids that come first, in this order
    mask : boolean array of shape (samples, views); False marks a view as missing
    labels : known labels of the samples, which nothing but a comparison looks at
    """

    def __init__(
        self,
        views: Sequence[FileView],
        *,
        ids: Any = None,
        order: Sequence[Hashable] = (),
        mask: Any = None,
        labels: NDArray[Any] | None = None,
    ) -> None:
        self.views, self.labels, self._mask = views, labels, mask
        self._rows: list[NDArray[np.int64] | None]
        if all(view.ids is None for view in views):
            n = _common_length(views)
            self._rows = [None] * len(views)
            self.ids: NDArray[Any] = np.arange(n) if ids is None else ids
            _refuse_other_length(views, n, self.ids, mask)
        else:
            self.ids, self._rows = _join(views, order)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.views)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, rows: slice = slice(None)) -> Views:
        """The samples in a slice; all by default, where memory allows."""
        first, last, _ = rows.indices(len(self))
        self._refuse_too_large(last - first)
        pairs = [self._read_view(v, slice(first, last)) for v in range(len(self.views))]
        mask = np.stack([present for _, present in pairs], axis=1)
        if self._mask is not None:
            mask = _within(mask, self._mask[first:last])
        try:
            return Views(
                dict(zip(self.names, (values for values, _ in pairs), strict=True)),
                mask=mask,
                ids=self.ids[first:last],
                columns=[view.columns for view in self.views],
            )
        except DataError as error:
            files = ", ".join(dict.fromkeys(str(view.path) for view in self.views))
            raise type(error)(f"{files}: {error}") from None

    def chunks(self, size: int) -> Iterator[Views]:
        """All samples in order, at most `size` at a time."""
        for first in range(0, len(self), size):
            yield self.read(slice(first, first + size))

    def _read_view(self, v: int, rows: slice) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values of shape (samples, columns), zero where absent, and who is there."""
        view, places = self.views[v], self._rows[v]
        if places is None:
            return view.rows(rows), np.ones(rows.stop - rows.start, dtype=bool)
        there = places[rows]
        present = there != ABSENT
        found = view.rows(there[present])
        values = np.zeros((len(there), found.shape[1]), dtype=found.dtype)
        values[present] = found
        return values, present

    def _refuse_too_large(self, n: int) -> None:
        for view, places in zip(self.views, self._rows, strict=True):
            if places is not None or not isinstance(view.values, np.ndarray):
                width = view.values.shape[1]
                what = f"{view.path}: view {view.name!r} as a table of {n:,} samples x {width:,} columns"
                cure = "choose fewer columns, reduce them first (PCA), or predict chunk by chunk with read_chunks"
                memory.require(4 * n * width, what, cure)


def _common_length(views: Sequence[FileView]) -> int:
    counts = {view.name: view.values.shape[0] for view in views}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} has {count:,}" for name, count in counts.items())
        raise DataError(
            f"{views[0].path}: the views have differing row counts ({listed}); give every view one row per sample"
        )
    return next(iter(counts.values()))


def _refuse_other_length(views: Sequence[FileView], n: int, ids: Any, mask: Any) -> None:
    path = views[0].path
    if np.ndim(ids) != 1 or len(ids) != n:
        raise DataError(f"{path}: 'ids' has shape {np.shape(ids)}, but the views have {n:,} rows; give one id per row")
    if mask is not None and np.shape(mask) != (n, len(views)):
        raise DataError(
            f"{path}: 'mask' has shape {np.shape(mask)}, but {n:,} rows of {len(views)} views need "
            f"({n}, {len(views)}); give one row per sample and one column per view"
        )


def _within(present: NDArray[np.bool_], allowed: NDArray[Any]) -> NDArray[Any]:
    """Both masks in one; values other than 0 and 1 are left for Views to refuse."""
    return np.where(present, allowed, 0)


def _join(views: Sequence[FileView], order: Sequence[Hashable]) -> tuple[NDArray[Any], list[NDArray[np.int64] | None]]:
    """The union of ids in the order of first appearance, and per view the row of each sample, or ABSENT."""
    listed = [_alike(view, views) for view in views]
    for view, ids in zip(views, listed, strict=True):
        refuse_bad_ids(view.path, ids)
    known = {name for ids in listed for name in ids}
    union = [name for name in order if name in known]
    union = list(dict.fromkeys([*union, *(name for ids in listed for name in ids)]))
    place = {name: sample for sample, name in enumerate(union)}
    tables: list[NDArray[np.int64] | None] = []
    for ids in listed:
        rows = np.full(len(union), ABSENT, dtype=np.int64)
        rows[[place[name] for name in ids]] = np.arange(len(ids))
        tables.append(rows)
    return np.array(union), tables


def _alike(view: FileView, views: Sequence[FileView]) -> list[Hashable]:
    """Ids as whole numbers where all files have such, else as text: 7 in one file is "7" in another."""
    ids = list(view.ids or ())
    if all(isinstance(name, int) for other in views for name in other.ids or ()):
        return ids
    return [name if name is None else str(name) for name in ids]


def refuse_bad_ids(path: Path, ids: Sequence[Hashable]) -> None:
    """Refuse ids that are empty or there twice."""
    seen: dict[Hashable, int] = {}
    for row, name in enumerate(ids):
        if name is None or not str(name).strip():
            raise DataError(f"{path}, data row {row + 1} has no id; give every row the id of its sample")
        if name in seen:
            raise DataError(f"{path}: id {name!r} appears twice, in data rows {seen[name] + 1} and {row + 1}; keep one")
        seen[name] = row
