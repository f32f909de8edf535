"""The directions in which the present rows differ most.

A table with few rows or few columns is solved exactly, by its Gram matrix; a larger one by subspace iteration that
starts from random numbers per row. Neither depends on the order of columns, and neither holds more of the table than
a part of its rows in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from viewfuse.data.given import Values, column_sums, is_sparse, stored

Parts = Callable[[], Iterator[Values]]
"""Gives the rows anew at each call: parts of shape (rows, columns), float64, dense or CSR."""
Solution = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Sums of squares along axes, falling, of shape (axes,); and the axes, of shape (columns, axes)."""

_EXACT = 2_500
"""Rows or columns up to which eigenvectors of all pairs take seconds."""
_PAIRED_PARTS = 16
_SPARE, _ROUNDS = 20, 5
_NOTHING, _ROUNDING = 1e-10, 1e-14
"""Of the largest variance what counts as none; of all squares what float64 leaves of none."""


@dataclass(frozen=True)
class Components:
    """Directions, and what they keep.

    Attributes
    ----------
    mean : of the rows, of shape (columns,); zeros where rows are not centred
    axes : orthonormal columns, of shape (columns, components), by falling variance
    kept : share of the sum of squares about `mean` that lies along the axes, 0 to 1
    """

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]
    kept: float


def fit_components(parts: Parts, count: int, *, centred: bool) -> Components:
    """At most `count` directions of the rows, of which there is one: of variance where `centred`, else singular ones.

    Directions along which no row differs are left out; where none is left, there is one of zeros.
    """
    size = _measure(parts)
    mean = size.total / size.rows if centred else np.zeros_like(size.total)
    values, axes = _solver(size)(parts, mean, min(count, size.rows, len(mean)))
    real = values > max(_NOTHING * values.max(initial=0.0), _ROUNDING * size.squares)
    if not real.any():
        return Components(mean, np.zeros((len(mean), 1)), 1.0)
    whole = size.squares - size.rows * float(mean @ mean)
    axes = axes[:, real]
    return Components(mean, axes * np.where((axes**3).sum(axis=0) < 0, -1.0, 1.0), _share(values[real].sum(), whole))


def _share(kept: float, whole: float) -> float:
    return float(np.clip(kept / whole, 0, 1)) if whole > 0 else 1.0


def project(part: Values, components: Components) -> NDArray[np.float64]:
    """Rows of shape (rows, columns) along the axes: of shape (rows, components)."""
    return _dot(part, components.mean, components.axes)


@dataclass(frozen=True)
class _Size:
    """Rows, parts, sum of the rows of shape (columns,), and sum of all squares."""

    rows: int
    parts: int
    total: NDArray[np.float64]
    squares: float


def _measure(parts: Parts) -> _Size:
    looks = [(part.shape[0], column_sums(part), np.square(stored(part)).sum()) for part in parts()]
    rows, total, squares = (sum(look[i] for look in looks) for i in range(3))
    return _Size(int(rows), len(looks), np.asarray(total), float(squares))


def _solver(size: _Size) -> Callable[[Parts, NDArray[np.float64], int], Solution]:
    """Exact where the pairs of columns or of rows are few, and pairs of parts as well: each is made anew."""
    if len(size.total) <= min(size.rows, _EXACT):
        return _by_columns
    if size.rows <= _EXACT and size.parts <= _PAIRED_PARTS:
        return _by_rows
    return _by_iteration


def _dot(part: Values, mean: NDArray[np.float64], axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows - mean) @ axes, with no dense copy of sparse rows; of dense ones a large offset must cost no digits."""
    return np.asarray(part @ axes - mean @ axes if is_sparse(part) else (part - mean) @ axes)


def _dot_back(part: Values, mean: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows - mean).T @ scores, in the same way."""
    return np.asarray(part.T @ scores - np.outer(mean, scores.sum(axis=0)))


def _by_columns(parts: Parts, mean: NDArray[np.float64], count: int) -> Solution:
    """From the products of all pairs of columns."""
    gram = np.zeros((len(mean), len(mean)))
    for part in parts():
        gram += _column_products(part, mean)
    return _largest(gram, count)


def _column_products(part: Values, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The product (rows - mean).T @ (rows - mean)."""
    if not is_sparse(part):
        return np.asarray((part - mean).T @ (part - mean))
    crossed = np.outer(mean, column_sums(part))
    return np.asarray((part.T @ part).toarray() - crossed - crossed.T + part.shape[0] * np.outer(mean, mean))


def _by_rows(parts: Parts, mean: NDArray[np.float64], count: int) -> Solution:
    """From the products of all pairs of rows."""
    gram = np.block([[_row_products(part, other, mean) for other in parts()] for part in parts()])
    values, scores = _largest(gram, count)
    axes, start = np.zeros((len(mean), scores.shape[1])), 0
    for part in parts():
        axes += _dot_back(part, mean, scores[start : start + part.shape[0]])
        start += part.shape[0]
    return values, axes / np.sqrt(np.where(values > 0, values, 1.0))


def _row_products(part: Values, other: Values, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The product (rows - mean) @ (other rows - mean).T."""
    if not is_sparse(part):
        return np.asarray((part - mean) @ (other - mean).T)
    return np.asarray((part @ other.T).toarray() - (part @ mean)[:, None] - other @ mean + mean @ mean)


def _by_iteration(parts: Parts, mean: NDArray[np.float64], count: int) -> Solution:
    """By subspace iteration: multiply by all pairs of columns again and again, and keep the directions apart."""
    rng, width = np.random.RandomState(0), min(count + _SPARE, len(mean))
    basis = np.zeros((len(mean), width))
    for part in parts():
        basis += _dot_back(part, mean, rng.standard_normal((part.shape[0], width)))
    for _ in range(_ROUNDS):
        axes, basis = _orthonormal(basis), np.zeros_like(basis)
        for part in parts():
            basis += _dot_back(part, mean, _dot(part, mean, axes))
    axes = _orthonormal(basis)
    small = np.sum([np.dot(scores.T, scores) for scores in (_dot(part, mean, axes) for part in parts())], axis=0)
    values, turn = _largest(small, count)
    return values, axes @ turn


def _orthonormal(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(qr(basis, mode="economic")[0])


def _largest(gram: NDArray[np.float64], count: int) -> Solution:
    """The `count` largest eigenvalues, falling, and their vectors in columns."""
    size = len(gram)
    values, vectors = eigh(gram, subset_by_index=(size - count, size - 1))
    return values[::-1], vectors[:, ::-1]
