"""A view as rows in parts: dense and sparse tables under one roof, never all of one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Values: TypeAlias = Any
"""A dense array or a scipy.sparse matrix of shape (samples, columns)."""

_CELLS_AT_A_TIME = 8_000_000
"""As float64 64 MB."""
_ROUNDING = 1e-7
"""Of the mean: what float32 cannot tell from none."""


def parts_of(values: Values, present: NDArray[np.bool_]) -> Iterator[Values]:
    """The rows that are present, a part at a time and in order; sparse parts are CSR."""
    table = as_rows(values)
    for rows in part_slices(table):
        if present[rows].any():
            yield table[rows] if present[rows].all() else table[rows][present[rows]]


def part_slices(values: Values) -> Iterator[slice]:
    """Slices of rows, such that a part of them is small as float64."""
    cells = values.nnz if sp.issparse(values) else values.shape[0] * values.shape[1]
    step = max(1, int(_CELLS_AT_A_TIME * values.shape[0] // max(cells, 1)))
    for start in range(0, values.shape[0], step):
        yield slice(start, min(start + step, values.shape[0]))


def as_rows(values: Values) -> Values:
    """A sparse table as CSR with each cell stored once, a dense one as it is; the input is not changed."""
    if not sp.issparse(values):
        return values
    rows = values.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def stored(part: Values) -> NDArray[Any]:
    """All values of a part that may differ from zero, in one line."""
    return part.data if sp.issparse(part) else part.ravel()


def with_stored(part: Values, values: NDArray[Any]) -> Values:
    """A part with other values at the same places."""
    if sp.issparse(part):
        return sp.csr_matrix((values, part.indices, part.indptr), shape=part.shape)
    return values.reshape(part.shape)


def row_sums(part: Values) -> NDArray[np.float64]:
    """Of shape (rows,)."""
    return _sums(part, 1)


def column_sums(part: Values) -> NDArray[np.float64]:
    """Of shape (columns,)."""
    return _sums(part, 0)


def _sums(part: Values, axis: int) -> NDArray[np.float64]:
    """In float64; SciPy would add float32 values of sparse tables as such, whatever dtype it is asked for."""
    wide = with_stored(part, part.data.astype(np.float64, copy=False)) if sp.issparse(part) else part
    return np.asarray(wide.sum(axis=axis, dtype=np.float64)).ravel()


def row_lengths(part: Values) -> NDArray[np.float64]:
    """Euclidean lengths of the rows, of shape (rows,)."""
    return np.sqrt(row_sums(with_stored(part, np.square(stored(part), dtype=np.float64))))


def filled(part: Values) -> Values:
    """1 where a part is not zero, else 0."""
    return with_stored(part, (stored(part) != 0).astype(np.float64))


def times_rows(part: Values, factors: NDArray[np.float64]) -> Values:
    """Every row times its own number; `factors` is of shape (rows,)."""
    if sp.issparse(part):
        return with_stored(part, part.data * np.repeat(factors, np.diff(part.indptr)))
    return part * factors[:, None]


def times_columns(part: Values, factors: NDArray[np.float64]) -> Values:
    """Every column times its own number; `factors` is of shape (columns,)."""
    if sp.issparse(part):
        return with_stored(part, part.data * factors[part.indices])
    return part * factors


def column_bounds(values: Values, present: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and largest value of every column over the present rows, each of shape (columns,); zeros without rows."""
    pairs = [(_bound(part, "min"), _bound(part, "max")) for part in parts_of(values, present)]
    if not pairs:
        return np.zeros(values.shape[1], np.float32), np.zeros(values.shape[1], np.float32)
    low, high = np.min([low for low, _ in pairs], axis=0), np.max([high for _, high in pairs], axis=0)
    return low.astype(np.float32), high.astype(np.float32)


def _bound(part: Values, which: str) -> NDArray[Any]:
    found = getattr(part, which)(axis=0)
    return found.toarray().ravel() if sp.issparse(found) else np.asarray(found).ravel()


def column_deviations(values: Values, present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Standard deviation of every column over the present rows, of shape (columns,); exactly 0 for constant ones."""
    n, width = int(present.sum()), values.shape[1]
    mean = sum((column_sums(part) for part in parts_of(values, present)), np.zeros(width)) / max(n, 1)
    squares = sum((_squares_about(part, mean) for part in parts_of(values, present)), np.zeros(width))
    deviations = np.sqrt(np.maximum(squares, 0) / max(n, 1))
    return np.where(deviations > _ROUNDING * np.abs(mean), deviations, 0.0)


def _squares_about(part: Values, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of squares of (rows - mean), of shape (columns,); cells that are not stored are zeros."""
    if not sp.issparse(part):
        return np.asarray(np.square(part - mean).sum(axis=0))
    about = np.bincount(part.indices, np.square(part.data - mean[part.indices]), minlength=len(mean))
    return about + (part.shape[0] - np.bincount(part.indices, minlength=len(mean))) * np.square(mean)
