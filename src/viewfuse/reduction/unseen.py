"""Words that no fitted row has: which share of a row they are. Components know nothing of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.reduction.frontend import Reduction
from viewfuse.reduction.transforms import Values, column_sums, filled, parts_of, row_sums, stored, times_columns
from viewfuse.reduction.transforms import with_stored as with_values


def unseen_shares(reduction: Reduction, views: Views) -> NDArray[np.float64]:
    """Of new samples, of shape (samples, views); NaN of views that are missing, or hold no words.

    The share of the sum of log(1 + x) of a row that is in columns which are zero in all fitted rows.
    """
    return _shares(reduction, views, [one.high <= 0 for one in reduction.front_ends])


def unseen_by_others(reduction: Reduction, views: Views) -> NDArray[np.float64]:
    """The same of the samples that the reduction was fitted on, each as if it had not been among them.

    Of shape (samples, 0) where no view holds words.
    """
    words = [one.how == "words" for one in reduction.front_ends]
    if not any(words):
        return np.empty((len(views), 0))
    alone = [_in_one_row(x, views.mask[:, v]) if words[v] else np.empty(0, bool) for v, x in enumerate(views.arrays)]
    return _shares(reduction, views, alone)


def _in_one_row(values: Values, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Columns that at most one row has, of shape (columns,)."""
    counts = np.zeros(values.shape[1])
    for part in parts_of(values, present):
        counts += column_sums(filled(part))
    return counts <= 1


def _shares(reduction: Reduction, views: Views, columns: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    found = np.full(views.mask.shape, np.nan)
    for v, (front_end, own) in enumerate(zip(reduction.front_ends, columns, strict=True)):
        if front_end.how == "words":
            parts = [_share(part, own) for part in parts_of(views.arrays[v], views.mask[:, v])]
            found[views.mask[:, v], v] = np.concatenate(parts) if parts else []
    return found


def _share(part: Values, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
    logs = with_values(part, np.log1p(np.maximum(stored(part), 0).astype(np.float64)))
    sums = row_sums(logs)
    return row_sums(times_columns(logs, columns.astype(np.float64))) / np.where(sums > 0, sums, 1.0)
