"""Scaling of views, fitted on observed rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        return views.replace(arrays=tuple(self._scaled(v, a, views.mask[:, v]) for v, a in enumerate(views.arrays)))

    def _scaled(self, v: int, array: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
        """In float64 a part at a time: all of it would take three times the memory of the view."""
        scaled = memory.room((array.shape[0], array.shape[1]))
        for rows in memory.parts(len(array)):
            with np.errstate(over="ignore"):  # the model refuses what is not finite, with its row
                part = ((array[rows] - self.shifts[v]) / self.factors[v]).astype(np.float32)
            scaled[rows] = np.where(present[rows, None], part, np.float32(0))
        return scaled

    def undo(self, view: int, values: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled values of one view, of shape (samples, columns), back in the units of the data."""
        return (values * self.factors[view] + self.shifts[view]).astype(np.float32)


def fit_scaler(views: Views, kind: str, one_unit: Sequence[bool] = ()) -> Scaler:
    """Measure the observed rows of every view.

    Parameters
    ----------
    one_unit : per view whether its columns are known to share one unit, so that all are divided by one number
    kind : "minmax" (columns to 0..1), "standard" (columns to mean 0, deviation 1), "view" (columns to mean 0, all
        divided by one number, so that their mean variance is 1), "mixed" ("standard" or "view", whichever suits the
        view, see `viewfuse.data.mixed_scaling`) or "none". Constant columns become 0.
    """
    check_scaling(kind, KINDS)
    known = one_unit or (False,) * len(views.arrays)
    found = views_as_a_whole(views) if kind == "mixed" and not all(known) else (kind == "view",) * len(known)
    whole = tuple(a or b for a, b in zip(known, found, strict=True))
    column_wise = "standard" if kind == "mixed" else kind
    pairs = [
        _measure(array, views.mask[:, v], _AS_A_WHOLE.get(kind, kind) if whole[v] else column_wise)
        for v, array in enumerate(views.arrays)
    ]
    return Scaler(kind, tuple(shift for shift, _ in pairs), tuple(factor for _, factor in pairs), whole)


def _measure(array: Values, present: NDArray[np.bool_], kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shift and factor of every column, from the rows that are present, a part at a time."""
    if kind == "none" or not present.any():
        return np.zeros(array.shape[1]), np.ones(array.shape[1])
    low, high = (bound.astype(np.float64) for bound in column_bounds(array, present))
    # A constant column has no width; dividing by 1 keeps it, at zero.
    constant, n = high == low, present.sum()
    if kind in ("minmax", "range"):
        width = np.full_like(low, (high - low).max()) if kind == "range" else high - low
        return low, np.where(constant, 1.0, width)
    mean = np.sum([chunk.sum(axis=0, dtype=np.float64) for chunk in present_parts(array, present)], axis=0) / n
    variance = np.sum([np.square(chunk - mean).sum(axis=0) for chunk in present_parts(array, present)], axis=0) / n
    if kind == "view":
        variance = np.full_like(variance, variance.mean())
    return np.where(constant, low, mean), np.where(constant, 1.0, np.sqrt(variance))
