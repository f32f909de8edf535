"""What kind a view is, and the transformation that its field uses before rows are compared; and the way back.

Dense and sparse tables come as rows in parts, never all of one at a time. Zeros stay zeros, so sparse tables stay so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import is_sparse
from viewfuse.data.sparse_tables import canonical, with_data

NAMES = ("none", "standard", "log1p", "log", "terms", "weighted", "links")
WEIGHTED = ("standard", "terms", "links")
"""Those with a weight per column."""
_SMALLEST = 1 / float(np.finfo(np.float32).max)
_NO_WEIGHTS = np.zeros(0, np.float32)
Values: TypeAlias = Any
"""A dense array or a scipy.sparse matrix of shape (samples, columns)."""
_CELLS_AT_A_TIME = 8_000_000
"""As float64 64 MB."""
_ROUNDING = 1e-7
"""Of the mean: what float32 cannot tell from none."""
KINDS = ("measurements", "counts", "words", "links", "intensities", "binary")
_SPARSE = 0.9
_SPARSER, _NEARLY_ONE = 0.99, 1.1
"""Zeros among which two rows seldom share a column; mean of the other cells up to which these tell that something is
there, and hardly how often."""
_LONGEST_TEXT = 500
"""Different words of a usual text; a sequenced cell shows more genes than that."""
_MANY_ZEROS = 0.5
_LONG_TAIL, _LONG_TAIL_OF_ZEROS, _LONG_TAIL_OF_FRACTIONS = 10, 3, 100
"""Largest value over the mean of those that are not zero: counts have a long tail, pixels end at 255.

Among many zeros a shorter tail will do: pixels that are not black are bright, while most counts are 1 or 2.

Expected counts and counts per million are fractions; so are many things that are no counts, so more is asked of them.
"""


@dataclass(frozen=True)
class Transform:
    """What is done to the rows of a view before components are sought.

    Attributes
    ----------
    name : "none"; "standard": columns to deviation 1; "log1p": log(1 + x); "log": rows to one sum, then log(1 + x);
        "terms": log(1 + x), times the rarity of the column (idf), rows to length 1; "weighted": the same without
        idf, for values that are weighted already; "links": divided by the roots of the sums of row and column, each
        and the mean one, so that neither a hub nor a row of one link decides
    typical : the median row's sum ("log") or length ("terms", "weighted"), or the mean row's sum ("links"), among
        present rows
    weights : what every column is multiplied by, of shape (columns,): idf ("terms"), one over its deviation
        ("standard") or over the root of its sum and the mean one ("links"), else empty
    """

    name: str
    typical: float = 1.0
    weights: NDArray[np.float32] = field(default_factory=lambda: _NO_WEIGHTS)

    def apply(self, part: Values) -> Values:
        """Rows of shape (rows, columns), dense or CSR, transformed in float64; rows of zeros stay zeros."""
        part = with_stored(part, stored(part).astype(np.float64))
        if self.name == "none":
            return part
        if self.name == "standard":
            return times_columns(part, self.weights.astype(np.float64))
        if self.name == "log1p":
            return _log(part)
        if self.name == "log":
            return _log(times_rows(part, self.typical * _inverse(row_sums(part))))
        if self.name == "links":
            part = with_stored(part, np.maximum(stored(part), 0))
            even = 1 / np.sqrt(row_sums(part) + self.typical)
            return times_rows(times_columns(part, self.weights.astype(np.float64)), even)
        weighted = _weighted(part, self.weights)
        return times_rows(weighted, _inverse(row_lengths(weighted)))

    def undo(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Dense transformed rows in the user's units, as if each had the typical sum or length."""
        if self.name == "none":
            return rows
        if self.name == "standard":
            return rows / self.weights
        if self.name in ("log1p", "log"):
            return np.expm1(rows)
        if self.name == "links":
            return rows * np.sqrt(2 * self.typical) / self.weights
        rows = np.maximum(rows, 0) * self.typical
        return np.expm1(rows / self.weights if len(self.weights) else rows)


def fit_transform(values: Values, present: NDArray[np.bool_], name: str) -> Transform:
    """Measure the present rows of a view of shape (samples, columns) for the transform `name`, one of `NAMES`."""
    if name == "none" or not present.any():
        return Transform("none")
    if name == "log1p":
        return Transform(name)
    if name == "standard":
        deviations = column_deviations(values, present)
        varying = np.where(deviations > _SMALLEST, deviations, 0.0)  # one over less is more than float32 holds
        return Transform(name, weights=_inverse(varying).astype(np.float32))
    if name == "log":
        return Transform(name, _middle([row_sums(part) for part in parts_of(values, present)]))
    if name == "links":
        sums = np.sum([column_sums(part) for part in parts_of(values, present)], axis=0)
        whole = max(float(sums.sum()), 1.0)
        return Transform(name, whole / present.sum(), (1 / np.sqrt(sums + whole / len(sums))).astype(np.float32))
    weights = _rarity(values, present) if name == "terms" else _NO_WEIGHTS
    lengths = [row_lengths(_weighted(part, weights)) for part in parts_of(values, present)]
    return Transform(name, _middle(lengths), weights)


def _rarity(values: Values, present: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Smoothed idf, as scikit-learn has it: 1 + log((1 + rows) / (1 + rows that have the term)); (columns,)."""
    having = np.sum([column_sums(filled(part)) for part in parts_of(values, present)], axis=0)
    return (1 + np.log((1 + present.sum()) / (1 + having))).astype(np.float32)


def _weighted(part: Values, weights: NDArray[np.float32]) -> Values:
    logs = _log(with_stored(part, stored(part).astype(np.float64)))
    return times_columns(logs, weights.astype(np.float64)) if len(weights) else logs


def _log(part: Values) -> Values:
    """log(1 + x); what a new row has below zero, where fitted rows had none, counts as zero."""
    return with_stored(part, np.log1p(np.maximum(stored(part), 0)))


def _inverse(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / x, and 1 for what is not above zero: a row of zeros has no size to take out."""
    return 1 / np.where(sizes > 0, sizes, 1.0)


def _middle(sizes: list[NDArray[np.float64]]) -> float:
    """Median of the sizes above zero; 1 without such."""
    every = np.concatenate(sizes)
    return float(np.median(every[every > 0])) if (every > 0).any() else 1.0


def parts_of(values: Values, present: NDArray[np.bool_]) -> Iterator[Values]:
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


def filled(part: Values) -> Values:
    """1 where a part is not zero, else 0."""
    return with_stored(part, (stored(part) != 0).astype(np.float64))


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


def column_deviations(values: Values, present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Standard deviation of every column over the present rows, of shape (columns,); exactly 0 for constant ones."""
    n, width = int(present.sum()), values.shape[1]
    mean = sum((column_sums(part) for part in parts_of(values, present)), np.zeros(width)) / max(n, 1)
    squares = sum((_squares_about(part, mean) for part in parts_of(values, present)), np.zeros(width))
    deviations = np.sqrt(np.maximum(squares, 0) / max(n, 1))
    return np.where(deviations > _ROUNDING * np.abs(mean), deviations, 0.0)


def _squares_about(part: Values, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of squares of (rows - mean), of shape (columns,); cells that are not stored are zeros."""
    if not is_sparse(part):
        return np.asarray(np.square(part - mean).sum(axis=0))
    about = np.bincount(part.indices, np.square(part.data - mean[part.indices]), minlength=len(mean))
    return about + (part.shape[0] - np.bincount(part.indices, minlength=len(mean))) * np.square(mean)


@dataclass(frozen=True)
class Kind:
    """What a view is, and the numbers that say so, all over its present rows.

    Attributes
    ----------
    name : one of `KINDS`
    zeros : share of cells that are zero
    whole : share of other cells that are whole numbers
    least, largest : bounds of all cells
    tail : largest value over the mean of the cells that are not zero; 0 where some value is negative
    per_row : median number of cells of a row that are not zero
    units : largest standard deviation of a column over the median of those that are not constant
    """

    name: str
    zeros: float
    whole: float
    least: float
    largest: float
    tail: float
    per_row: float
    units: float


def kind_of(values: Values, present: NDArray[np.bool_]) -> Kind:
    """Look at the present rows of a view of shape (samples, columns).

    A view with a negative value holds measurements. Of the others, "binary" holds 0 and 1 only; "words" are 90 % zeros
    with fewer than 500 other cells in the median row, and "links" are 99 % zeros and nearly all
    others 1 (who cites whom); "counts" are whole numbers, the largest of which is
    more than 10 times the mean of those that are not zero (3 times, where more than half are zero), or fractions with
    100 for 10; all else are "intensities".
    """
    cells = int(present.sum()) * values.shape[1]
    looks = [_look(part) for part in parts_of(values, present)]
    count, whole, total = np.sum([look.sums for look in looks], axis=0).tolist() if looks else (0, 0, 0)
    ends = [end for look in looks for end in look.ends] + [0.0] * (count < cells or not cells)
    facts = {
        "zeros": 1 - count / cells if cells else 0.0,
        "whole": whole / count if count else 0.0,
        "least": min(ends),
        "largest": max(ends),
        "tail": max(ends) * count / total if total > 0 and min(ends) >= 0 else 0.0,
        "per_row": float(np.median(np.concatenate([look.per_row for look in looks]))) if looks else 0.0,
    }
    return Kind(_name(**facts), **facts, units=_units(column_deviations(values, present)))


def _units(deviations: NDArray[np.float64]) -> float:
    varying = deviations[deviations > 0]
    return float(varying.max() / np.median(varying)) if varying.size else 1.0


class _Look(NamedTuple):
    """Of cells that are not zero: their number, number of whole ones and sum; bounds; how many each row has."""

    sums: tuple[int, int, float]
    ends: list[float]
    per_row: NDArray[np.float64]


def _look(part: Values) -> _Look:
    cells = stored(part)
    cells = cells[cells != 0]
    ends = [float(cells.min()), float(cells.max())] if cells.size else []
    whole, total = int((cells == np.rint(cells)).sum()), float(cells.sum(dtype=np.float64))
    return _Look((cells.size, whole, total), ends, row_sums(filled(part)))


def _name(zeros: float, whole: float, least: float, largest: float, tail: float, per_row: float) -> str:
    if least < 0 or largest == 0:
        return "measurements"
    if zeros >= _SPARSE and per_row < _LONGEST_TEXT:
        return "links" if zeros >= _SPARSER and whole == 1 and largest <= _NEARLY_ONE * tail else "words"
    if whole == 1 and largest == 1:
        return "binary"
    if whole == 1:
        bound = _LONG_TAIL_OF_ZEROS if zeros > _MANY_ZEROS else _LONG_TAIL
        return "counts" if tail > bound else "intensities"
    return "counts" if tail > _LONG_TAIL_OF_FRACTIONS else "intensities"
