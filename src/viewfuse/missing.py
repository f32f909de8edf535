"""Hiding views on purpose, each protocol under its own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viewfuse.data.alignment import checked_mask, has_row_labels, is_table
from viewfuse.data.sparse_tables import is_sparse
from viewfuse.data.tables import filled
from viewfuse.errors import DataError
from viewfuse.utils.settings import wrong


def paper_mask(
    n_samples: int,
    n_views: int,
    missing_rate: float,
    missing_number: int,
    random_state: int | np.random.Generator | None = None,
) -> NDArray[np.bool_]:
    """The paper's protocol: a share of the samples lacks a fixed number of views.

    Parameters
    ----------
    missing_rate : share of the samples, 0 to 1, that are incomplete (m_r); rounded to whole samples
    missing_number : views that each of them lacks, chosen at random (m_n); less than `n_views`

    Returns
    -------
    boolean array of shape (samples, views); True where a view is present.
    """
    for name, count in {"n_samples": n_samples, "n_views": n_views, "missing_number": missing_number}.items():
        if not isinstance(count, Integral) or count < (name == "n_views"):
            raise wrong(name, f"a whole number of at least {int(name == 'n_views')}", count)
    if not isinstance(missing_rate, Real) or not 0 <= missing_rate <= 1:
        raise wrong("missing_rate", "from 0 to 1", missing_rate)
    if missing_number >= n_views:
        raise wrong("missing_number", f"from 0 to {n_views - 1}, so that every sample keeps a view", missing_number)
    return hide_more(np.ones((n_samples, n_views), dtype=bool), missing_rate, missing_number, random_state)


def hide_more(
    mask: NDArray[np.bool_],
    missing_rate: float,
    missing_number: int,
    random_state: int | np.random.Generator | None = None,
) -> NDArray[np.bool_]:
    """The paper's protocol where some views are missing already: every sample keeps one of those that it has.

    Parameters
    ----------
    mask : boolean array of shape (samples, views); True where a view is present
    missing_rate, missing_number : share of the samples that lose views, and how many of those that they have; see
        `paper_mask`, which is the same for complete samples
    """
    rng, left = np.random.default_rng(random_state), mask.copy()
    chosen = rng.choice(len(mask), size=round(len(mask) * missing_rate), replace=False)
    order = rng.random((len(chosen), mask.shape[1])).argsort(axis=1)
    has = np.take_along_axis(mask[chosen], order, axis=1)
    rank = np.cumsum(has, axis=1)  # of a view among those that the sample has
    lost = has & (rank <= missing_number) & (rank < rank[:, -1:])
    rows, places = np.nonzero(lost)
    left[chosen[rows], order[rows, places]] = False
    return left


def apply_mask(views: Sequence[ArrayLike] | Mapping[str, ArrayLike], mask: ArrayLike) -> Any:
    """The views, in a list or dict as given, with rows of NaN where `mask` is False; the input is not changed.

    The rows of a mask that is a data frame are matched by id with those of each view, as `Views` does it.
    """
    if is_table(views):
        raise DataError("one table or Views were given; pass a list or dict of views")
    named = dict(views) if isinstance(views, Mapping) else dict(enumerate(views))
    _check_order(named, mask)
    names = [str(name) for name in named]
    hidden = {name: _blank(name, view, _shown(mask, view, names)[:, v]) for v, (name, view) in enumerate(named.items())}
    return hidden if isinstance(views, Mapping) else list(hidden.values())


def _check_order(views: Mapping[Any, Any], mask: Any) -> None:
    """Refuse views whose rows are in another order each, where the mask does not say whose rows it has."""
    labelled = {name: view.index for name, view in views.items() if has_row_labels(view)}
    for name, index in labelled.items():
        first, own = next(iter(labelled.items()))
        if not has_row_labels(mask) and not index.equals(own):
            raise DataError(
                f"views {first!r} and {name!r} have row labels that differ, but the mask has none, so the rows cannot "
                "be matched; give the mask the ids of the samples as index"
            )


def _shown(mask: Any, view: Any, names: Sequence[str]) -> NDArray[np.bool_]:
    """The mask with its rows in the order of a view."""
    if has_row_labels(view):
        return checked_mask(mask, view.index.tolist(), names, view.index)
    return checked_mask(mask, range(len(np.asarray(mask))), names)


def _blank(name: Any, view: Any, shown: NDArray[np.bool_]) -> Any:
    if is_sparse(view):
        raise DataError(
            f"view {name!r} is sparse, and an empty row of it is data; leave it as it is, and hide rows by "
            "Views(data, mask=mask)"
        )
    values = view if hasattr(view, "iloc") else np.asarray(view)
    if len(values.shape) != 2 or len(values) != len(shown):
        raise DataError(f"view {name!r} has shape {values.shape}, but the mask has {len(shown)} rows")
    if hasattr(view, "iloc"):  # frames stay frames, with their labels
        return view.where(np.broadcast_to(shown[:, None], view.shape))
    if isinstance(view, np.ma.MaskedArray):
        values = filled(view)
    dtype = np.result_type(values.dtype, np.float32)
    return np.where(shown[:, None], values.astype(dtype, copy=False), np.array(np.nan, dtype=dtype))
