"""Which views are scaled column by column, and which as a whole.

Columns of one unit (counts of genes, intensities of pixels) say by their spread how much they matter; columns of
different units say nothing by it. Nobody tells which is which, but the other views do: neighbours in one view that are
neighbours in others as well are no accident. Each view is given the scaling under which more of them are.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.sparse_tables import dense_rows
from viewfuse.data.views import Views

_MOST_ROWS = 500
_FEWEST_ROWS = 20
_NEIGHBORS, _NEIGHBORS_ELSEWHERE = 4, 10
_MOST_OTHERS = 8
"""Views that each view is compared with; all pairs of 40 views took half a minute."""
_GRAIN = 1e-12
"""Of the largest square: what float64 leaves of a difference between such."""
_CLEARLY = 2.0
"""Standard errors by which the whole view has to be better."""
_COLUMNS_PER_THREAD = 1000
"""Wider views are compared by fewer threads at a time, as each has copies of its rows."""


def views_as_a_whole(views: Views) -> tuple[bool, ...]:
    """Per view whether one scale for all of its columns suits it clearly better than a scale for each.

    For pairs of views (`_pairs`), among at most 500 samples that have both: how many of a sample's four nearest in
    the one view are among its ten nearest in the other, under either scaling of the other. The difference between the
    two scalings of the one view is averaged over the other views, and then over samples; it counts where it is two
    standard errors above zero.
    """
    from viewfuse.utils.threads import side_by_side  # it imports torch, which readers do without

    lots = lru_cache(maxsize=16)(_lots)  # the same for most pairs, and gone with this call
    gains, counts = np.zeros(views.mask.shape), np.zeros(views.mask.shape, dtype=np.int64)
    shared = [
        (pair, _shared_rows(views.mask[:, pair[0]] & views.mask[:, pair[1]])) for pair in _pairs(len(views.names))
    ]
    compared = [(pair, rows) for pair, rows in shared if len(rows) >= _FEWEST_ROWS]

    def nearest(one: tuple[tuple[int, int], NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
        pair, rows = one
        return [_nearest_both_ways(dense_rows(views.arrays[v], rows), lots(v, len(rows))) for v in pair]

    share = 1 + max(view.shape[1] for view in views.arrays) // _COLUMNS_PER_THREAD
    for (pair, rows), near in zip(compared, side_by_side(nearest, compared, share=share), strict=True):
        for v, own, other in zip(pair, near, near[::-1], strict=True):
            columns, whole = (_overlap(neighbors, other) for neighbors in own)
            gains[rows, v] += whole - columns
            counts[rows, v] += 1
    return tuple(_is_clear(gains[counts[:, v] > 0, v], counts[counts[:, v] > 0, v]) for v in range(len(views.names)))


def _pairs(n_views: int) -> list[tuple[int, int]]:
    """Every two views; of many, each with the eight that stand beside it in an order drawn once and for all."""
    if n_views <= _MOST_OTHERS + 1:
        return list(combinations(range(n_views), 2))
    order = np.random.RandomState(0).permutation(n_views).tolist()
    steps = range(1, _MOST_OTHERS // 2 + 1)
    return [(order[place], order[(place + step) % n_views]) for step in steps for place in range(n_views)]


def _shared_rows(shared: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rows that are true, at most `_MOST_ROWS` of them, always the same ones."""
    rows = np.flatnonzero(shared)
    return np.sort(np.random.RandomState(0).permutation(rows)[:_MOST_ROWS])


def _lots(view: int, n: int) -> NDArray[np.float64]:
    """Lots of shape (n, n) that decide which of two equally far points is nearer, other ones in every view.

    By the order of rows, or by one lot for all, equally far points would be the same in all views.
    """
    return np.random.RandomState(view).random_sample((n, n))


def _nearest_both_ways(values: NDArray[np.float32], lots: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """The ten nearest of each row of a view, of shape (samples, 10): with columns of deviation 1, and as they are.

    What rounding cannot tell apart is equally far, and a lot decides.
    """
    centred = values - values.mean(axis=0, dtype=np.float64)
    deviations = centred.std(axis=0)
    return [_nearest(points, lots) for points in (centred / np.where(deviations > 0, deviations, 1.0), centred)]


def _nearest(points: NDArray[np.float64], lots: NDArray[np.float64]) -> NDArray[np.int64]:
    """Row numbers of the ten nearest, of shape (points, 10), the nearest first."""
    squares = np.square(points).sum(axis=1) / 2
    grain = squares.max() * _GRAIN or 1.0
    distances = squares - points @ points.T
    distances += squares[:, None]
    distances /= grain
    np.floor(distances, out=distances)  # in place: memory that is mapped anew each time takes longer than the numbers
    distances += lots
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
