"""The batch of each sample (a plate, a donor, a run), which must not decide its cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import categories_in, category_of
from viewfuse.data.given import is_anndata, is_mudata
from viewfuse.data.known.hints import labels_of
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.utils.settings import Setting


def with_batch(views: Views, batch: Any, X: Any = None) -> Views:
    """The views with the batch of each sample; as they are where it is None.

    Parameters
    ----------
    batch : one name per sample; by id a mapping or a pandas Series; or the name of a column, of `obs` where X is
        AnnData or MuData or holds AnnData, else of a view, which is then no part of the view any more
    """
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
    tables = [one.obs for one in objects if is_anndata(one) or is_mudata(one)]
    found = [dict(table[key].items()) for table in tables if key in table]
    return {name: value for own in found for name, value in own.items()} if found else None


def _taken_out(views: Views, column: str) -> tuple[Views, NDArray[Any]]:
    """The views without a column, and what stood there: a number, or the value of a category."""
    names = np.full(len(views), "", dtype=object)
    arrays, columns, offsets = list(views.arrays), list(views.columns), list(views.offsets)
    mask = np.array(views.mask)
    for v, own in enumerate(views.columns):
        places = categories_in(own).get(column, []) or [c for c, name in enumerate(own) if name == column]
        for c in places:
            values = np.asarray(views.arrays[v][:, c], dtype=np.float64) + np.broadcast_to(offsets[v], len(own))[c]
            is_value = category_of(own[c]) == column
            rows = np.flatnonzero(views.mask[:, v] & ~np.isnan(values) & ((values == 1) | ~np.bool_(is_value)))
            text = str(own[c]).partition(" = ")[2]
            found = [text if is_value else f"{values[row]:.15g}" for row in rows]
            for row, other in zip(rows, found, strict=True):
                if names[row] not in ("", other):
                    two = f"{names[row]!r} in one view and {other!r} in another"
                    raise DataError(f"the batch {column!r} of {str(views.ids[row])!r} is {two}; correct one of them")
            names[rows] = found
        kept = [c for c in range(len(own)) if c not in places]
        if not kept:
            raise DataError(f"view {views.names[v]!r} has nothing but the batch {column!r}; leave the view out")
        if places:
            arrays[v], columns[v] = np.array(arrays[v][:, kept]), [own[c] for c in kept]
            mask[:, v] &= ~np.isnan(arrays[v]).all(axis=1)
            arrays[v][~mask[:, v]] = 0
            offsets[v] = np.broadcast_to(offsets[v], len(own))[kept] if np.any(offsets[v]) else 0.0
    if columns == list(views.columns):
        raise DataError(Setting("batch"), f" {column!r} is no column of a view; name one, or give the batch by id")
    if not mask.any(axis=1).all():
        raise DataError(f"sample {str(views.ids[mask.any(axis=1).argmin()])!r} has nothing but its batch; drop it")
    return views.replace(arrays=tuple(arrays), columns=tuple(columns), offsets=tuple(offsets), mask=mask), names
