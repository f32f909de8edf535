"""Scaling of views, fitted on observed rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.mixed_scaling import views_as_a_whole
from viewfuse.data.tables import column_bounds, present_parts
from viewfuse.data.views import Views
from viewfuse.errors import SettingError
from viewfuse.utils import memory

if TYPE_CHECKING:
    from viewfuse.data.sparse_tables import Values

KINDS = ("minmax", "standard", "view", "mixed", "none")
Unit = Literal["columns", "view", "rows"]
_COLUMNS: Unit = "columns"
_WIDEST_OF_ROWS = 0.5
"""Range of the widest component of rows of one length: ten times the noise of the augmentation.

The smallest components, which are mostly noise themselves, drown in it. Three sets of texts gain 2 to 9 points over
a variance of 1 (results/reduction).
"""
_AS_A_WHOLE = {"minmax": "range", "standard": "view", "mixed": "view"}
"""What a scaling does to a view whose columns share one unit; "range" divides all by the widest range."""


def check_scaling(kind: str, allowed: Sequence[str]) -> None:
    """Refuse what is no name of a scaling."""
    if kind not in allowed:
        raise SettingError(f"scaling must be one of {', '.join(allowed)}; got {kind!r}")


@dataclass(frozen=True)
class Scaler:
    """Column-wise affine maps, one pair of float64 arrays of shape (columns,) per view.

    Attributes
    ----------
    whole : per view whether all of its columns have one factor; empty where that is not known any more
    """

    kind: str
    shifts: tuple[NDArray[np.float64], ...]
    factors: tuple[NDArray[np.float64], ...]
    whole: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        check_scaling(self.kind, KINDS)

    def apply(self, views: Views) -> Views:
        """Scaled views, all dense; missing rows stay zero."""
        views = views.dense()
        if self.kind == "none":
            return views
        arrays = tuple(self._scaled(v, a, views.mask[:, v]) for v, a in enumerate(views.arrays))
        return views.replace(arrays=arrays, offsets=(0.0,) * len(arrays))

    def _scaled(self, v: int, array: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
        """In float64 a part at a time: all of it would take three times the memory of the view."""
        scaled = memory.room((array.shape[0], array.shape[1]))
        for rows in memory.parts(len(array)):
            with np.errstate(over="ignore"):  # the model refuses what is not finite, with its row
                part = ((array[rows] - self.shifts[v]) / self.factors[v]).astype(np.float32)
            scaled[rows] = np.where(present[rows, None], part, np.float32(0))
        return scaled

    def does_the_same(self, other: Scaler) -> bool:
        """Whether another scaling gives the same numbers."""
        pairs = zip((*self.shifts, *self.factors), (*other.shifts, *other.factors), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    def undo(self, view: int, values: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled values of one view, of shape (samples, columns), back in the units of the data."""
        return (values * self.factors[view] + self.shifts[view]).astype(np.float32)


def fit_scaler(views: Views, kind: str, units: Sequence[Unit] = ()) -> Scaler:
    """Measure the observed rows of every view.

    Parameters
    ----------
    units : per view what is known to have a unit of its own: "columns", as one assumes; the "view", so that all of its
        columns are divided by one number; or "rows" of one length, which are made small, whatever the kind
    kind : "minmax" (columns to 0..1), "standard" (columns to mean 0, deviation 1), "view" (columns to mean 0, all
        divided by one number, so that their mean variance is 1), "mixed" ("standard" or "view", whichever suits the
        view, see `viewfuse.data.mixed_scaling`) or "none". Constant columns become 0.
    """
    check_scaling(kind, KINDS)
    units = tuple(units) or (_COLUMNS,) * len(views.arrays)
    asked = views_as_a_whole(views) if kind == "mixed" and "columns" in units else (kind == "view",) * len(units)
    whole = tuple(unit != "columns" or one for unit, one in zip(units, asked, strict=True))
    pairs = [
        _measure(array, views.mask[:, v], _measured(kind, units[v], whole[v])) for v, array in enumerate(views.arrays)
    ]
    return Scaler(kind, tuple(shift for shift, _ in pairs), tuple(factor for _, factor in pairs), whole)


def fit_whole_views(views: Views) -> Scaler:
    """What brings every view to 0..1 as one array: its columns have one least and one largest value in common."""
    pairs = []
    for v, array in enumerate(views.arrays):
        low, factor = 0.0, 1.0
        if views.mask[:, v].any():
            least, largest = column_bounds(array, views.mask[:, v])
            low = float(least.min())
            factor = float(largest.max()) - low or 1.0
        pairs.append((np.full(array.shape[1], low), np.full(array.shape[1], factor)))
    return Scaler("minmax", tuple(low for low, _ in pairs), tuple(own for _, own in pairs), (True,) * len(pairs))


def _measured(kind: str, unit: Unit, whole: bool) -> str:
    """What a scaling does to one view."""
    if kind == "none":
        return "none"
    if unit == "rows":
        return "rows"
    if whole:
        return _AS_A_WHOLE.get(kind, kind)
    return "standard" if kind == "mixed" else kind


def _measure(array: Values, present: NDArray[np.bool_], kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shift and factor of every column, from the rows that are present, a part at a time."""
    if kind == "none" or not present.any():
        return np.zeros(array.shape[1]), np.ones(array.shape[1])
    low, high = (bound.astype(np.float64) for bound in column_bounds(array, present))
    # A constant column has no width; dividing by 1 keeps it, at zero.
    constant, n = high == low, present.sum()
    if kind in ("minmax", "range", "rows"):
        widest = np.full_like(low, (high - low).max())
        width = {"minmax": high - low, "range": widest, "rows": widest / _WIDEST_OF_ROWS}[kind]
        return low, np.where(constant, 1.0, width)
    mean = np.sum([chunk.sum(axis=0, dtype=np.float64) for chunk in present_parts(array, present)], axis=0) / n
    variance = np.sum([np.square(chunk - mean).sum(axis=0) for chunk in present_parts(array, present)], axis=0) / n
    if kind == "view":
        variance = np.full_like(variance, variance.mean())
    return np.where(constant, low, mean), np.where(constant, 1.0, np.sqrt(variance))
