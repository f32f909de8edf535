"""The directions in which the present rows differ most.

A table with few rows or few columns is solved exactly, by its Gram matrix; a larger one by subspace iteration that
starts from random numbers per row. Neither depends on the order of columns, and neither holds more of the table than
a part of its rows in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from viewfuse.data.input_types import Values, column_sums, is_sparse, stored

Parts = Callable[[], Iterator[Values]]
"""Gives the rows anew at each call: parts of shape (rows, columns), float64, dense or CSR."""
Numbers = NDArray[np.float64]
Solution = tuple[Numbers, Numbers]
"""Sums of squares along axes, falling, of shape (axes,); and the axes, of shape (columns, axes)."""

_EXACT = 2_500
"""Rows or columns up to which eigenvectors of all pairs take seconds."""
_PAIRED_PARTS = 16
_SPARE, _ROUNDS = 20, 5
_NOTHING, _ROUNDING = 1e-10, 1e-14
"""Of the largest variance what counts as none; of all squares what float64 leaves of none."""


class Components(NamedTuple):
    """Directions, and what they keep."""

    mean: Numbers  # of the rows, of shape (columns,); zeros where rows are not centred
    axes: Numbers  # orthonormal columns, of shape (columns, components), by falling variance
    kept: float = 1.0  # share of the sum of squares about the mean that lies along the axes

    def project(self, part: Values) -> Numbers:
        """Rows of shape (rows, columns) along the axes: of shape (rows, components)."""
        return _dot(part, self.mean, self.axes)


def fit_components(parts: Parts, count: int, *, centred: bool) -> Components:
    """At most `count` directions of the rows, of which there is one: of variance where `centred`, else singular ones.

    Directions along which no row differs are left out; where none is left, there is one of zeros.
    """
    looks = [(part.shape[0], column_sums(part), np.square(stored(part)).sum()) for part in parts()]
    n_rows, squares = sum(look[0] for look in looks), float(sum(look[2] for look in looks))
    total: Numbers = np.asarray(sum(look[1] for look in looks))
    mean = total / n_rows if centred else np.zeros_like(total)
    # Exact where the pairs of columns or of rows are few, and pairs of parts as well: each is made anew.
    by_rows = _by_rows if n_rows <= _EXACT and len(looks) <= _PAIRED_PARTS else _by_iteration
    solve = _by_columns if len(mean) <= min(n_rows, _EXACT) else by_rows
    values, axes = solve(parts, mean, min(count, n_rows, len(mean)))
    real = values > max(_NOTHING * values.max(initial=0.0), _ROUNDING * squares)
    if not real.any():
        return Components(mean, np.zeros((len(mean), 1)))
    whole = squares - n_rows * float(mean @ mean)
    kept = float(np.clip(values[real].sum() / whole, 0, 1)) if whole > 0 else 1.0
    axes = axes[:, real]
    return Components(mean, axes * np.where((axes**3).sum(axis=0) < 0, -1.0, 1.0), kept)


def _dot(part: Values, mean: Numbers, axes: Numbers) -> Numbers:
    """(rows - mean) @ axes, with no dense copy of sparse rows; of dense ones a large offset must cost no digits."""
    return np.asarray(part @ axes - mean @ axes if is_sparse(part) else (part - mean) @ axes)


def _dot_back(part: Values, mean: Numbers, scores: Numbers) -> Numbers:
    """(rows - mean).T @ scores, in the same way."""
    return np.asarray(part.T @ scores - np.outer(mean, scores.sum(axis=0)))


def _by_columns(parts: Parts, mean: Numbers, count: int) -> Solution:
    """From the products of all pairs of columns."""
    gram = np.zeros((len(mean), len(mean)))
    for part in parts():
        if is_sparse(part):
            crossed = np.outer(mean, column_sums(part))
            gram += (part.T @ part).toarray() - crossed - crossed.T + part.shape[0] * np.outer(mean, mean)
        else:
            gram += (part - mean).T @ (part - mean)
    return _largest(gram, count)


def _by_rows(parts: Parts, mean: Numbers, count: int) -> Solution:
    """From the products of all pairs of rows."""

    def products(part: Values, other: Values) -> Numbers:
        if not is_sparse(part):
            return np.asarray((part - mean) @ (other - mean).T)
        return np.asarray((part @ other.T).toarray() - (part @ mean)[:, None] - other @ mean + mean @ mean)

    gram = np.block([[products(part, other) for other in parts()] for part in parts()])
    values, scores = _largest(gram, count)
    axes, start = np.zeros((len(mean), scores.shape[1])), 0
    for part in parts():
        axes += _dot_back(part, mean, scores[start : start + part.shape[0]])
        start += part.shape[0]
    return values, axes / np.sqrt(np.where(values > 0, values, 1.0))


def _by_iteration(parts: Parts, mean: Numbers, count: int) -> Solution:
    """By subspace iteration: multiply by all pairs of columns again and again, and keep the directions apart."""
    rng, width = np.random.RandomState(0), min(count + _SPARE, len(mean))
    basis = np.zeros((len(mean), width))
    for part in parts():
        basis += _dot_back(part, mean, rng.standard_normal((part.shape[0], width)))
    axes = qr(basis, mode="economic")[0]
    for _ in range(_ROUNDS):
        basis = np.zeros_like(basis)
        for part in parts():
            basis += _dot_back(part, mean, _dot(part, mean, axes))
        axes = qr(basis, mode="economic")[0]
    small = np.sum([np.dot(scores.T, scores) for scores in (_dot(part, mean, axes) for part in parts())], axis=0)
    values, turn = _largest(small, count)
    return values, axes @ turn


def _largest(gram: Numbers, count: int) -> Solution:
    """The `count` largest eigenvalues, falling, and their vectors in columns."""
    values, vectors = eigh(gram, subset_by_index=(len(gram) - count, len(gram) - 1))
    return values[::-1], vectors[:, ::-1]
