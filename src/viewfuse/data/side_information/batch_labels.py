"""The batch of each sample (a plate, a donor, a run), which must not decide its cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import categories_in, category_of
from viewfuse.data.input_types import dense_rows, is_annotated, is_sparse
from viewfuse.data.side_information.known_labels import labels_of
from viewfuse.data.views import Views, with_columns
from viewfuse.errors import DataError
from viewfuse.utils.settings import Setting

_ROUNDED = 2**24
"""From here on floats of 32 bits do not hold every whole number."""


def with_batch(X: Any, batch: Any) -> Views:
    """Views with the batch of each sample, for all that a model fitted with batches can do with new samples.

    Parameters
    ----------
    X : Views, or what they are made of
    batch : one name per sample; by id a mapping or a pandas Series; or the name of a column, of `obs` where X is
        AnnData or MuData or holds AnnData, else of a view, which is then no part of the view any more
    """
    return batch_added(X if isinstance(X, Views) else Views(X, allow_disjoint=True), batch, X)


def batch_added(views: Views, batch: Any, X: Any = None) -> Views:
    """Views, made of X, with the batch of each sample, see `with_batch`; as they are where it is None."""
    if batch is None:
        return views
    if isinstance(batch, str):
        known = _from_obs(X, batch)
        views, batch = _taken_out(views, batch) if known is None else (views, known)
    names = labels_of(batch, views.ids, "batch")
    unknown = [str(one) for one, name in zip(views.ids.tolist(), names, strict=True) if not name]
    if unknown:
        raise DataError(f"the batch of {unknown[0]!r} is not known; name that of every sample in ", Setting("batch"))
    return views.replace(batch=np.array(names, dtype=object))


def _from_obs(X: Any, key: str) -> dict[Any, Any] | None:
    """Per cell what stands in a column of `obs`; None where no object has such a column."""
    objects: Iterable[Any] = X.values() if isinstance(X, Mapping) else X if isinstance(X, (list, tuple)) else [X]
    whole = [one for one in objects if is_annotated(one)]  # MuData calls a column of its parts rna:batch, if at all
    tables = [part.obs for one in whole for part in (one, *getattr(one, "mod", {}).values())]
    columns = [table[key] for table in tables if key in table]
    found: dict[Any, Any] = {}
    for name, value in (pair for column in columns for pair in column.dropna().items()):
        if found.setdefault(name, value) != value:
            raise _two_batches(key, name, found[name], value)
    return found if columns else None


def _two_batches(column: str, name: Any, one: Any, other: Any) -> DataError:
    two = f"{str(one)!r} in one view and {str(other)!r} in another"
    return DataError(f"the batch {column!r} of {str(name)!r} is {two}; correct one of them")


def _taken_out(views: Views, column: str) -> tuple[Views, NDArray[Any]]:
    """The views without a column, and what stood there: a number, or the value of a category."""
    names = np.full(len(views), "", dtype=object)
    kept: dict[int, list[int]] = {}
    for v, own in enumerate(views.columns):
        places = categories_in(own).get(column, []) or [c for c, name in enumerate(own) if name == column]
        for c in places:
            for row, name in _names_in(views, v, c, column):
                if names[row] not in ("", name):
                    raise _two_batches(column, views.ids[row], names[row], name)
                names[row] = name
        if places:
            kept[v] = [c for c in range(len(own)) if c not in places]
            if not kept[v]:
                raise DataError(f"view {views.names[v]!r} has nothing but the batch {column!r}; leave the view out")
    if not kept:
        raise DataError(Setting("batch"), f" {column!r} is no column of a view; name one, or give the batch by id")
    left = with_columns(views, kept)
    arrays, mask = list(left.arrays), np.array(left.mask)
    for v in kept:
        if not is_sparse(arrays[v]):  # whose missing rows are known already
            mask[:, v] &= ~np.isnan(arrays[v]).all(axis=1)
            arrays[v] = np.where(mask[:, v, None], arrays[v], np.float32(0))
    if not mask.any(axis=1).all():
        raise DataError(f"sample {str(views.ids[mask.any(axis=1).argmin()])!r} has nothing but its batch; drop it")
    return left.replace(arrays=tuple(arrays), mask=mask), names


def _names_in(views: Views, v: int, c: int, column: str) -> list[tuple[int, str]]:
    """The rows that a column says the batch of, and the batch: the same whether a number was rounded or not."""
    own, array = views.columns[v], views.arrays[v]
    exactly = np.broadcast_to(views.offsets[v], len(own))[c]
    values = dense_rows(array[:, [c]], slice(None))[:, 0].astype(np.float64) + exactly
    there = views.mask[:, v] & ~np.isnan(values)
    if category_of(own[c]) == column:
        text = str(own[c]).partition(" = ")[2]
        return [(row, text) for row in np.flatnonzero(there & (values == 1)).tolist()]
    is_single = not exactly and array.dtype == np.float32
    if is_single and (np.abs(values[there]) >= _ROUNDED).any():
        large = f"the batch {column!r} has numbers beyond {_ROUNDED:,}, of which 32-bit floats lose digits"
        raise DataError(f"{large}; write them as text that begins with a letter, or give the batch by id")
    return [
        (row, f"{values[row]:.15g}" if exactly or values[row].is_integer() else str(np.float32(values[row])))
        for row in np.flatnonzero(there).tolist()
    ]
