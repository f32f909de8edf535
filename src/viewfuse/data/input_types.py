"""What data were given as: one table or several, dense, sparse or annotated, with ids or without; and rows of them."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.sparse_tables import canonical, with_data
from viewfuse.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CELLS_AT_A_TIME = 8_000_000
"""As float64 64 MB."""
_ROUNDING = 1e-7
"""Of the mean: what float32 cannot tell from none."""
Values: TypeAlias = Any
"""A dense array or a scipy.sparse matrix of shape (samples, columns)."""
Mask: TypeAlias = NDArray[np.bool_]
"""Whether something is there: of shape (samples,), or (samples, views)."""
Names: TypeAlias = Sequence[Hashable]
"""Of samples or columns: text, numbers, whatever can be a key."""


def is_sparse(array: Any) -> TypeGuard[csr_array]:
    """Whether an array is a sparse one of SciPy, of any format."""
    return hasattr(type(array), "tocsr")


def is_sparse_frame(view: Any) -> bool:
    """Whether a pandas frame has sparse columns of numbers only, in which what is not stored is zero."""
    if not hasattr(view, "iloc") or len(view.shape) != 2 or not view.shape[1]:
        return False
    kinds = set(view.dtypes)
    return all(hasattr(kind, "fill_value") and kind.subtype.kind in "fiub" and kind.fill_value == 0 for kind in kinds)


def take(array: Any, rows: Any) -> Any:
    """Rows of a dense or sparse array, in every way in which NumPy picks them."""
    return array[np.arange(array.shape[0])[rows]] if is_sparse(array) else array[rows]


def dense_rows(array: Any, rows: Any) -> NDArray[Any]:
    """Some rows of a dense or sparse array, as a dense one."""
    found = take(array, rows)
    return found.toarray() if is_sparse(found) else found


def is_anndata(data: Any) -> bool:
    """Whether `data` is an AnnData object; without an import of anndata there is none."""
    return isinstance(data, getattr(sys.modules.get("anndata"), "AnnData", ()))


def is_mudata(data: Any) -> bool:
    """Whether `data` is a MuData object."""
    return isinstance(data, getattr(sys.modules.get("mudata"), "MuData", ()))


def is_annotated(data: Any) -> bool:
    """Whether `data` is an object of either kind."""
    return is_anndata(data) or is_mudata(data)


def holds_annotated(data: Any) -> bool:
    """Whether `data` is such an object, or a list or dict of views with one."""
    if isinstance(data, Mapping) and not hasattr(data, "shape"):
        data = list(data.values())
    return any(map(is_annotated, data)) if isinstance(data, (list, tuple)) else is_annotated(data)


def is_table(data: Any) -> bool:
    """Whether `data` is one 2-D table rather than a collection of views."""
    if is_annotated(data):
        return False
    if hasattr(data, "shape") or hasattr(data, "__array__"):  # one kind of sparse matrix is a dict, too
        is_objects = isinstance(data, np.ndarray) and data.dtype == object and data.size > 0
        return not (is_objects and getattr(data.flat[0], "ndim", 0) == 2)  # as arrays of MATLAB files hold views
    if not isinstance(data, (list, tuple)) or not data or not all(isinstance(row, (list, tuple)) for row in data):
        return False
    firsts = [cell for row in data for cell in row[:1]]
    return not any(isinstance(cell, (list, tuple)) or len(getattr(cell, "shape", ())) > 0 for cell in firsts)


def named_views(data: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """The views by name, in order."""
    if is_table(data):
        data = [data]
    elif isinstance(data, np.ndarray):
        data = list(data.ravel())
    if not isinstance(data, (Mapping, list, tuple)):
        raise DataError(
            f"a {type(data).__name__} is no collection of views; pass a list or dict of (samples, columns) arrays"
        )
    keys, views = (data.keys(), data.values()) if isinstance(data, Mapping) else (range(len(data)), data)
    chosen = [str(key) if isinstance(data, Mapping) else f"view_{key}" for key in keys]
    chosen = chosen if names is None else [str(name) for name in names]
    if not len(views):
        raise DataError("no views were given; pass a list or dict with at least one (samples, columns) array")
    if len(chosen) != len(views):
        raise DataError(f"{len(chosen)} names were given for {len(views)} views; give one name per view")
    if len(set(chosen)) != len(chosen):
        raise DataError(f"two views have one name in {chosen}; give each view a name of its own")
    return dict(zip(chosen, views, strict=True))


def has_row_labels(view: Any) -> bool:
    """Whether a frame carries labels of its own, rather than the default 0, 1, 2, ..."""
    if hasattr(view, "is_numbered"):  # a table of AnnData
        return not view.is_numbered
    if not hasattr(view, "iloc"):
        return False
    index = view.index
    return not (type(index).__name__ == "RangeIndex" and index.start == 0 and (index.step == 1 or len(index) < 2))


def are_numbered(columns: Sequence[Names]) -> bool:
    """Whether no view has columns with names, so that none is that of a category; None has no columns at all."""
    return all(isinstance(own, range) or len(own) == 0 for own in columns)


def id_key(name: Hashable) -> str:
    """A name as text without blanks around it, in which a letter with an accent is one sign and not two."""
    return normalize("NFC", str(name).strip())


def looks(text: str) -> str:
    """Text as people see it: every dash is a hyphen, every blank one blank, and signs without width are not there."""
    if text.isascii():
        return text.strip()
    kinds = [(sign, category(sign)) for sign in normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")]
    return "".join("-" if kind == "Pd" else sign for sign, kind in kinds if kind != "Cf").strip()


def only_counted(ids: NDArray[Any]) -> bool:
    """Whether ids are 0, 1, 2, ..., as those of arrays are: then they name no samples. Labels are objects then."""
    return ids.dtype.kind in "iu" and np.array_equal(ids, np.arange(len(ids)))


def parts_of(values: Values, present: Mask) -> Iterator[Values]:
    """The rows that are present, a part at a time and in order; sparse parts are CSR."""
    table = canonical(values) if is_sparse(values) else values
    for rows in part_slices(table):
        if present[rows].any():
            yield table[rows] if present[rows].all() else table[rows][present[rows]]


def part_slices(values: Values) -> Iterator[slice]:
    """Slices of rows, such that a part of them is small as float64."""
    cells = values.nnz if is_sparse(values) else values.shape[0] * values.shape[1]
    step = max(1, int(_CELLS_AT_A_TIME * values.shape[0] // max(cells, 1)))
    for start in range(0, values.shape[0], step):
        yield slice(start, min(start + step, values.shape[0]))


def stored(part: Values) -> NDArray[Any]:
    """All values of a part that may differ from zero, in one line."""
    return part.data if is_sparse(part) else part.ravel()


def with_stored(part: Values, values: NDArray[Any]) -> Values:
    """A part with other values at the same places."""
    return with_data(part, values) if is_sparse(part) else values.reshape(part.shape)


def row_sums(part: Values) -> NDArray[np.float64]:
    """Of shape (rows,)."""
    return _sums(part, 1)


def column_sums(part: Values) -> NDArray[np.float64]:
    """Of shape (columns,)."""
    return _sums(part, 0)


def _sums(part: Values, axis: int) -> NDArray[np.float64]:
    """In float64; SciPy would add float32 values of sparse tables as such, whatever dtype it is asked for."""
    wide = with_stored(part, part.data.astype(np.float64, copy=False)) if is_sparse(part) else part
    return np.asarray(wide.sum(axis=axis, dtype=np.float64)).ravel()


def row_lengths(part: Values) -> NDArray[np.float64]:
    """Euclidean lengths of the rows, of shape (rows,)."""
    return np.sqrt(row_sums(with_stored(part, np.square(stored(part), dtype=np.float64))))


def times_rows(part: Values, factors: NDArray[np.float64]) -> Values:
    """Every row times its own number; `factors` is of shape (rows,)."""
    if is_sparse(part):
        return with_stored(part, part.data * np.repeat(factors, np.diff(part.indptr)))
    return part * factors[:, None]


def times_columns(part: Values, factors: NDArray[np.float64]) -> Values:
    """Every column times its own number; `factors` is of shape (columns,)."""
    if is_sparse(part):
        return with_stored(part, part.data * factors[part.indices])
    return part * factors


def column_moments(values: Values, present: Mask) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of every column over the present rows."""
    n, width = int(present.sum()), values.shape[1]
    mean = sum((column_sums(part) for part in parts_of(values, present)), np.zeros(width)) / max(n, 1)
    squares = np.zeros(width)
    for part in parts_of(values, present):
        if is_sparse(part):  # cells that are not stored are zeros
            zeros = part.shape[0] - np.bincount(part.indices, minlength=width)
            about = np.bincount(part.indices, np.square(part.data - mean[part.indices]), minlength=width)
            squares += about + zeros * np.square(mean)
        else:
            squares += np.square(part - mean).sum(axis=0)
    return mean, squares / max(n, 1)


def column_deviations(values: Values, present: Mask) -> NDArray[np.float64]:
    """Standard deviation of every column over the present rows, of shape (columns,); exactly 0 for constant ones."""
    mean, variance = column_moments(values, present)
    deviations = np.sqrt(variance)
    return np.where(deviations > _ROUNDING * np.abs(mean), deviations, 0.0)
