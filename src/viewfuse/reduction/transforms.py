"""The transformation that the field of a view uses before rows are compared, and the way back; the few columns.

Dense and sparse tables come as rows in parts, never all of one at a time. Zeros stay zeros, so sparse tables stay so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import (
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
from viewfuse.data.tables import column_bounds
from viewfuse.reduction.components import Components, fit_components, project

SPARSE = ("words", "links")
"""Ways for views of mostly zeros: rows of length 1 on singular vectors."""
NAMES = ("none", "standard", "log1p", "log", "terms", "weighted", "links")
WEIGHTED = ("standard", "terms", "links")
"""Those with a weight per column."""
MOST = 50
_FEWEST = 10
"""Components that are worth having of any number of samples, and of few."""
_SMALLEST = 1 / float(np.finfo(np.float32).max)
_NO_WEIGHTS = np.zeros(0, np.float32)


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


def fit_wide(values: Values, present: NDArray[np.bool_], how: str, words: str) -> tuple[Any, ...]:
    """What a front end consists of besides what the view is: its transform, `mean`, `axes` and so on.

    Parameters
    ----------
    words : the transform of words: "terms", or "weighted" where values are not whole numbers
    """
    names = {"pca": "none", "standard": "standard", "log1p": "log1p", "counts": "log", "words": words,
             "links": "links"}  # fmt: skip
    transform = fit_transform(values, present, names[how])

    def parts() -> Iterator[Values]:
        return (transform.apply(part) for part in parts_of(values, present))

    low = high = np.zeros(values.shape[1], np.float32)
    if not present.any():
        found = Components(np.zeros(values.shape[1]), np.zeros((values.shape[1], 1)), 1.0)
    else:
        found = fit_components(parts, _rank(len(present)), centred=how not in SPARSE)
        if how == "links":
            squares = np.sum([np.square(project(part, found)).sum(axis=0) for part in parts()], axis=0)
            found = replace(found, axes=found.axes * (squares / max(float(squares.max()), 1e-300)))
        low, high = (bound.astype(np.float32) for bound in column_bounds(values, present))
    length = 0.0
    if how in SPARSE:  # the median length of projected rows; 1 where none has any
        lengths = [np.linalg.norm(project(part, found), axis=1) for part in parts()]
        length = float(np.median(np.concatenate(lengths))) or 1.0 if lengths else 1.0
    mean, axes = found.mean.astype(np.float32), found.axes.astype(np.float32)
    return transform, mean, axes, found.kept, length, low, high


def _rank(n_samples: int) -> int:
    """The root of the number of samples, within bounds: the more samples, the more directions are no accident.

    Samples that lack the view count as well, so that the number does not depend on which samples lack it.
    """
    return int(np.clip(round(np.sqrt(n_samples)), _FEWEST, MOST))
