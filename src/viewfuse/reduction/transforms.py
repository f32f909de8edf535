"""The transformation that the field of a view uses before rows are compared, and the way back; the few columns.

Dense and sparse tables come as rows in parts, never all of one at a time. Zeros stay zeros, so sparse tables stay so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import (
    Values,
    column_deviations,
    column_sums,
    parts_of,
    row_lengths,
    row_sums,
    stored,
    times_columns,
    times_rows,
    with_stored,
)

SPARSE = ("words", "links")
"""Ways for views of mostly zeros: rows of length 1 on singular vectors."""
NAMES = ("none", "standard", "log1p", "log", "terms", "weighted", "links")
WEIGHTED = ("standard", "terms", "links")
"""Those with a weight per column."""
_SMALLEST = 1 / float(np.finfo(np.float32).max)
_NO_WEIGHTS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Transform:
    """What is done to the rows of a view before components are sought.

    "none"; "standard": columns to deviation 1; "log1p": log(1 + x); "log": rows to one sum, then log(1 + x); "terms":
    log(1 + x), times the rarity of the column (idf), rows to length 1; "weighted": the same without idf, for values
    that are weighted already; "links": divided by the roots of the sums of row and column, each and the mean one, so
    that neither a hub nor a row of one link decides.
    """

    name: str
    typical: float = 1.0  # median sum ("log") or length ("terms", "weighted") of present rows, or mean sum ("links")
    weights: NDArray[np.float32] = field(default_factory=lambda: _NO_WEIGHTS)  # of the columns; empty where all are 1

    def apply(self, part: Values) -> Values:
        """Rows of shape (rows, columns), dense or CSR, transformed in float64; rows of zeros stay zeros."""
        part, weights = with_stored(part, stored(part).astype(np.float64)), self.weights.astype(np.float64)
        if self.name in ("terms", "weighted"):
            part = _weighted(part, weights)
            return times_rows(part, _inverse(row_lengths(part)))
        if self.name == "links":
            part = with_stored(part, np.maximum(stored(part), 0))
            even = 1 / np.sqrt(row_sums(part) + self.typical)
            return times_rows(times_columns(part, weights), even)
        if self.name == "log":
            part = times_rows(part, self.typical * _inverse(row_sums(part)))
        if self.name in ("log", "log1p"):
            return _log(part)
        return times_columns(part, weights) if self.name == "standard" else part

    def undo(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Dense transformed rows in the user's units, as if each had the typical sum or length."""
        if self.name in ("terms", "weighted"):
            rows = np.maximum(rows, 0) * self.typical
            return np.expm1(rows / self.weights if len(self.weights) else rows)
        if self.name in ("log", "log1p"):
            return np.expm1(rows)
        if self.name == "links":
            rows = rows * np.sqrt(2 * self.typical)
        return rows / self.weights if len(self.weights) else rows


def fit_transform(values: Values, present: NDArray[np.bool_], name: str) -> Transform:
    """Measure the present rows of a view of shape (samples, columns) for the transform `name`, one of `NAMES`."""
    if not present.any():
        return Transform("none")
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
    if name not in ("terms", "weighted"):
        return Transform(name)
    weights = _NO_WEIGHTS
    if name == "terms":  # smoothed idf, as scikit-learn has it
        having = np.sum([column_sums(part != 0) for part in parts_of(values, present)], axis=0)
        weights = (1 + np.log((1 + present.sum()) / (1 + having))).astype(np.float32)
    wide = weights.astype(np.float64)
    return Transform(name, _middle([row_lengths(_weighted(part, wide)) for part in parts_of(values, present)]), weights)


def _weighted(part: Values, weights: NDArray[np.float64]) -> Values:
    logs = _log(with_stored(part, stored(part).astype(np.float64)))
    return times_columns(logs, weights) if len(weights) else logs


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
