"""The transformation that each field uses before it compares rows, and the way back to the user's units.

Zeros stay zeros, so sparse tables stay sparse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from viewfuse.reduction.tables import (
    Values,
    column_deviations,
    column_sums,
    filled,
    parts_of,
    row_lengths,
    row_sums,
    stored,
    times_columns,
    times_rows,
    with_stored,
)

NAMES = ("none", "standard", "log1p", "log", "terms", "weighted")
WEIGHTED = ("standard", "terms")
"""Those with a weight per column."""
_SMALLEST = 1 / float(np.finfo(np.float32).max)
_NO_WEIGHTS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Transform:
    """What is done to the rows of a view before components are sought.

    Attributes
    ----------
    name : "none"; "standard": columns to deviation 1; "log1p": log(1 + x); "log": rows to one sum, then log(1 + x);
        "terms": log(1 + x), times the rarity of the column (idf), rows to length 1; "weighted": the same without
        idf, for values that somebody has weighted already
    typical : the median row's sum ("log") or length ("terms", "weighted") among present rows
    weights : what every column is multiplied by, of shape (columns,): idf ("terms") or one over its deviation
        ("standard"), else empty
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
