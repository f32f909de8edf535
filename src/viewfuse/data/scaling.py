"""Scaling of views, fitted on observed rows only.

"mixed" decides which views are scaled column by column, and which as a whole. Columns of one unit (counts of genes,
intensities of pixels) say by their spread how much they matter; columns of different units say nothing by it. The other
views tell which is which: neighbours in one view that are neighbours in others as well are no accident. Each view is
given the scaling under which more of them are.

In tables with categories they also tell what counts (`column_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import blocks_of
from viewfuse.data.input_types import Mask, Values, are_numbered, column_moments, dense_rows
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views
from viewfuse.utils import memory
from viewfuse.utils.settings import check_choice

KINDS = ("minmax", "standard", "view", "mixed", "none")
Unit = Literal["columns", "view", "rows"]
_COLUMNS: Unit = "columns"
_WIDEST_OF_ROWS = 0.5
"""Range of the widest component of rows of one length: ten times the noise of the augmentation.

The smallest components, which are mostly noise themselves, drown in it (results/reduction).
"""
_AS_A_WHOLE = {"minmax": "range", "standard": "view", "mixed": "view"}
"""What a scaling does to a view whose columns share one unit; "range" divides all by the widest range."""
_APART = np.sqrt(2.0)
"""Distance of two values of a category, before it is scaled to 1."""
_MOST_ROWS = 500
_FEWEST_ROWS = 20
_NEIGHBORS, _NEIGHBORS_ELSEWHERE = 4, 10
_MOST_OTHERS = 8
"""Views that each view is compared with; all pairs of 40 views took half a minute."""
_GRAIN = 1e-12
"""Of the largest square: what float64 leaves of a difference between such."""
_CLEARLY = 2.0
"""Standard errors by which the whole view has to be better."""
_CONFIRMED = 4.0
"""The same for a column that other views confirm: neighbours are counted from both ends, and noise reaches 3."""
_UNCONFIRMED = 0.25
"""What other columns of a table with categories count: half the distance, so that they decide nothing by themselves."""
_COLUMNS_PER_THREAD = 1000
"""Wider views are compared by fewer threads at a time, as each has copies of its rows."""


@dataclass(frozen=True)
class Scaler:
    """Column-wise affine maps, one pair of float64 arrays of shape (columns,) per view.

    `whole` says per view whether all of its columns have one factor; it is empty where that is not known any more.
    """

    kind: str
    shifts: tuple[NDArray[np.float64], ...]
    factors: tuple[NDArray[np.float64], ...]
    whole: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        check_choice("scaling", self.kind, KINDS)

    def apply(self, views: Views) -> Views:
        """Scaled views, all dense; missing rows stay zero."""
        views = views.dense()
        if self.kind == "none" and all((own == 1).all() for own in self.factors):
            return views
        arrays = [memory.room((len(views), width)) for width in views.widths]
        for v, (array, scaled) in enumerate(zip(views.arrays, arrays, strict=True)):
            for rows in memory.parts(len(views)):  # all of it would take three times the memory of the view
                with np.errstate(over="ignore"):  # the model refuses what is not finite, with its row
                    part = ((array[rows] - self.shifts[v]) / self.factors[v]).astype(np.float32)
                scaled[rows] = np.where(views.mask[rows, v, None], part, np.float32(0))
        return views.replace(arrays=tuple(arrays), offsets=(0.0,) * len(arrays))

    def weighed(self, weights: Sequence[float] | None) -> Scaler:
        """The scaling that multiplies squared distances in each view by its weight; None leaves all as they are."""
        if weights is None:
            return self
        factors = tuple(own / np.sqrt(weight) for own, weight in zip(self.factors, weights, strict=True))
        return replace(self, factors=factors)

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
        view, see `views_as_a_whole`) or "none". Constant columns become 0. The columns of a category (those of its
        values) have the variance of one column together, or in "minmax" two of its values the distance 1, before they
        are weighed (`column_weights`).
    """
    check_choice("scaling", kind, KINDS)
    units, blocks = tuple(units) or (_COLUMNS,) * len(views.arrays), _blocks(views)
    asked = views_as_a_whole(views) if kind == "mixed" and "columns" in units else (kind == "view",) * len(units)
    asked = tuple(one and (kind != "mixed" or not own) for one, own in zip(asked, blocks, strict=True))
    whole = tuple(unit != "columns" or one for unit, one in zip(units, asked, strict=True))
    weights = [np.ones(1)] * len(units) if kind == "none" else column_weights(views)
    shifts, factors = [], []
    for v, array in enumerate(views.arrays):
        used = _AS_A_WHOLE.get(kind, kind) if whole[v] else "standard" if kind == "mixed" else kind
        if units[v] == "rows" and kind != "none":
            used = "rows"
        shift, factor = _measure(array, views.mask[:, v], used, blocks[v])
        shifts.append(shift)
        factors.append(factor / np.sqrt(weights[v]))
    return Scaler(kind, tuple(shifts), tuple(factors), whole)


def fit_whole_views(views: Views) -> Scaler:
    """What brings every view to 0..1 as one array: its columns have one least and one largest value in common."""
    given = zip(views.arrays, views.mask.T, _blocks(views), strict=True)
    shifts, factors = zip(*(_measure(array, own, "one range", blocks) for array, own, blocks in given), strict=True)
    return Scaler("minmax", shifts, factors, (True,) * len(shifts))


def _blocks(views: Views) -> list[list[list[int]]]:
    """Per view the columns of each of its categories."""
    if are_numbered(views.columns):
        return [[] for _ in views.names]
    return [blocks_of(*own) for own in zip(views.columns, views.arrays, views.mask.T, strict=True)]


def _plain_columns(width: int, blocks: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The columns that belong to no category; all where there are no others."""
    plain = np.setdiff1d(np.arange(width), [c for block in blocks for c in block])
    return plain if len(plain) else np.arange(width)


def _measure(
    array: Values, present: Mask, kind: str, blocks: Sequence[Sequence[int]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shift and factor of every column, from the rows that are present, a part at a time."""
    if kind == "none" or not present.any():
        return np.zeros(array.shape[1]), np.ones(array.shape[1])
    low, high = (bound.astype(np.float64) for bound in column_bounds(array, present))
    plain = _plain_columns(len(low), blocks)
    if kind == "one range":
        low, high = np.full_like(low, low[plain].min()), np.full_like(high, high[plain].max())
        low[[c for block in blocks for c in block]] = 0.0
    # A constant column has no width; dividing by 1 keeps it, at zero.
    constant = high == low
    if kind in ("minmax", "one range", "range", "rows"):
        widest = np.full_like(low, (high - low)[plain].max())
        width = {"range": widest, "rows": widest / _WIDEST_OF_ROWS}.get(kind, high - low)
        factor = np.where(constant, 1.0, width)
        for block in blocks:
            factor[block] = _APART
        return low, factor
    mean, variance = column_moments(array, present)
    used = variance if kind != "view" else np.full_like(low, variance[plain].mean())
    factor = np.where(constant, 1.0, np.sqrt(used))
    for block in blocks:
        factor[block] = np.sqrt(float(variance[block].sum())) or 1.0
    return np.where(constant, low, mean), factor


def column_weights(views: Views) -> list[NDArray[np.float64]]:
    """Per view what squared distances in each column are multiplied by: 1, but in tables with categories.

    The values of a category set samples apart as clearly as groups do, also where they mean nothing. What means
    something, neighbours in other views have in common. In a table with a category of which this is true, numbers and
    categories of which it is not count a quarter; the others count more, so that the table counts the same.
    """
    found = [np.ones(width) for width in views.widths]
    for v, (weights, blocks) in enumerate(zip(found, _blocks(views), strict=True)):
        numbers = np.setdiff1d(np.arange(len(weights)), [c for block in blocks for c in block])
        parts = [*blocks, *numbers[:, None].tolist()]
        confirmed = _confirmed(views, v, parts) if blocks else []
        if any(confirmed[: len(blocks)]):
            most = (len(parts) - _UNCONFIRMED * confirmed.count(False)) / confirmed.count(True)
            for part, one in zip(parts, confirmed, strict=True):
                weights[part] = most if one else _UNCONFIRMED
    return found


def _confirmed(views: Views, v: int, parts: Sequence[list[int]]) -> list[bool]:
    """Per part, which are columns of a view, whether neighbours in other views are clearly alike in it.

    Alike is a product of differences from the mean. It is averaged over the ten nearest under either scaling of another
    view, over views and then over samples.
    """
    gains, counts = np.zeros((len(views), len(parts))), np.zeros(len(views), dtype=np.int64)
    for other, rows in [(sum(pair) - v, rows) for pair, rows in _compared(views) if v in pair]:
        own = views.arrays[v][rows] - views.arrays[v][rows].mean(axis=0, dtype=np.float64)
        for near in _nearest_both_ways(dense_rows(views.arrays[other], rows), _tie_keys(other, len(rows))):
            alike = own * np.mean([own[ids] for ids in near.T], axis=0)
            gains[rows] += np.stack([alike[:, part].sum(axis=1) for part in parts], axis=1) / 2
        counts[rows] += 1
    if not counts.any():
        return [False] * len(parts)
    found = gains[counts > 0] / counts[counts > 0, None]
    return (found.mean(axis=0) > _CONFIRMED * found.std(axis=0) / np.sqrt(len(found))).tolist()


def views_as_a_whole(views: Views) -> tuple[bool, ...]:
    """Per view whether one scale for all of its columns suits it clearly better than a scale for each.

    For pairs of views (`_pairs`), among at most 500 samples that have both: how many of a sample's four nearest in
    the one view are among its ten nearest in the other, under either scaling of the other. The difference between the
    two scalings of the one view is averaged over the other views, and then over samples; it counts where it is two
    standard errors above zero.
    """
    from viewfuse.utils.jobs import side_by_side  # it imports torch, which readers do without

    ties = lru_cache(maxsize=16)(_tie_keys)  # the same for most pairs, and gone with this call
    gains, counts = np.zeros(views.mask.shape), np.zeros(views.mask.shape, dtype=np.int64)
    compared = _compared(views)

    def nearest(one: tuple[tuple[int, int], NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
        pair, rows = one
        return [_nearest_both_ways(dense_rows(views.arrays[v], rows), ties(v, len(rows))) for v in pair]

    share = 1 + max(views.widths) // _COLUMNS_PER_THREAD
    for (pair, rows), near in zip(compared, side_by_side(nearest, compared, share=share), strict=True):
        for v, own, other in zip(pair, near, near[::-1], strict=True):
            columns, whole = (_overlap(neighbors, other) for neighbors in own)
            gains[rows, v] += whole - columns
            counts[rows, v] += 1
    return tuple(_is_clear(gains[counts[:, v] > 0, v], counts[counts[:, v] > 0, v]) for v in range(len(views.names)))


def _compared(views: Views) -> list[tuple[tuple[int, int], NDArray[np.int64]]]:
    """Pairs of views (`_pairs`) that share rows enough, and at most 500 of these."""
    shared = [(pair, _shared_rows(np.asarray(views.mask[:, pair].all(axis=1)))) for pair in _pairs(len(views.names))]
    return [(pair, rows) for pair, rows in shared if len(rows) >= _FEWEST_ROWS]


def _pairs(n_views: int) -> list[tuple[int, int]]:
    """Every two views; of many, each with the eight that stand beside it in an order drawn once and for all."""
    if n_views <= _MOST_OTHERS + 1:
        return list(combinations(range(n_views), 2))
    order = np.random.RandomState(0).permutation(n_views).tolist()
    steps = range(1, _MOST_OTHERS // 2 + 1)
    return [(order[place], order[(place + step) % n_views]) for step in steps for place in range(n_views)]


def _shared_rows(shared: Mask) -> NDArray[np.int64]:
    """The rows that are true, at most `_MOST_ROWS` of them, always the same ones."""
    rows = np.flatnonzero(shared)
    return np.sort(np.random.RandomState(0).permutation(rows)[:_MOST_ROWS])


def _tie_keys(view: int, n: int) -> NDArray[np.float64]:
    """Random tie-break keys of shape (n, n) for points at equal distances, different in every view.

    By the order of rows, or by the same keys, equally far points would be the same in all views.
    """
    return np.random.RandomState(view).random_sample((n, n))


def _nearest_both_ways(values: NDArray[np.float32], ties: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """The ten nearest of each row of a view, of shape (samples, 10): with columns of deviation 1, and as they are.

    Distances that differ by rounding only are equal, and random keys break the tie.
    """
    centred = values - values.mean(axis=0, dtype=np.float64)
    deviations = centred.std(axis=0)
    return [_nearest(points, ties) for points in (centred / np.where(deviations > 0, deviations, 1.0), centred)]


def _nearest(points: NDArray[np.float64], ties: NDArray[np.float64]) -> NDArray[np.int64]:
    """Row numbers of the ten nearest, of shape (points, 10), the nearest first."""
    squares = np.square(points).sum(axis=1) / 2
    grain = squares.max() * _GRAIN or 1.0
    distances = squares - points @ points.T
    distances += squares[:, None]
    distances /= grain
    np.floor(distances, out=distances)  # in place: memory that is mapped anew each time takes longer than the numbers
    distances += ties
    np.fill_diagonal(distances, np.inf)
    some = np.argpartition(distances, _NEIGHBORS_ELSEWHERE, axis=1)[:, :_NEIGHBORS_ELSEWHERE]
    order = np.take_along_axis(distances, some, axis=1).argsort(axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _overlap(near: NDArray[np.int64], elsewhere: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Per point the share of its four nearest neighbours that are near elsewhere as well."""
    nearest = near[:, :_NEIGHBORS, None]
    return np.mean([(nearest == others[:, None]).any(axis=2).mean(axis=1) for others in elsewhere], axis=0)


def _is_clear(gains: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Whether the mean over samples is clearly above zero; `gains` are sums over `counts` other views."""
    if not len(gains):
        return False
    own = gains / counts
    return bool(own.mean() > _CLEARLY * own.std() / np.sqrt(len(own)))
