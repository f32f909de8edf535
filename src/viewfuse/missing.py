"""Hiding views on purpose, each protocol under its own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viewfuse.data.alignment import checked_mask
from viewfuse.data.input_types import Mask, has_row_labels, is_annotated, is_sparse, is_table
from viewfuse.data.precision import exact_frame, has_long_numbers
from viewfuse.data.tables import as_array
from viewfuse.errors import DataError
from viewfuse.utils.settings import wrong

Seed = int | np.random.Generator | None


@dataclass(frozen=True)
class Gaps:
    """What a mask leaves: the same missing rate means other gaps under every protocol.

    Attributes
    ----------
    samples, views : of the mask
    complete : samples that have all views
    missing : cells, pairs of a sample and a view, that are missing
    patterns : different sets of views that samples have, all views among them
    """

    samples: int
    views: int
    complete: int
    missing: int
    patterns: int

    def __str__(self) -> str:
        complete, missing = self.complete / max(self.samples, 1), self.missing / max(self.samples * self.views, 1)
        patterns = f"{self.patterns} pattern{'s' * (self.patterns != 1)}"
        return f"{complete:.0%} of samples complete, {missing:.0%} of cells missing, {patterns}".replace("%", " %")


def describe(mask: ArrayLike) -> Gaps:
    """How many samples are complete, how many cells are missing, and how many patterns there are; as text in shares.

    Parameters
    ----------
    mask : array of shape (samples, views); True or 1 where a view is present
    """
    present = _as_mask(mask)
    patterns = len(np.unique(present, axis=0))
    return Gaps(len(present), present.shape[1], int(present.all(axis=1).sum()), int((~present).sum()), patterns)


def paper_mask(
    n_samples: int, n_views: int, missing_rate: float, missing_number: int, random_state: Seed = None
) -> Mask:
    """The paper's protocol: a share of the samples lacks a fixed number of views.

    Parameters
    ----------
    missing_rate : share of the samples, 0 to 1, that are incomplete (m_r); rounded to whole samples
    missing_number : views that each of them lacks, chosen at random (m_n); less than `n_views`

    Returns
    -------
    boolean array of shape (samples, views); True where a view is present.
    """
    _check_shape(n_samples, n_views, missing_rate)
    if not isinstance(missing_number, Integral) or missing_number < 0:
        raise wrong("missing_number", "a whole number of at least 0", missing_number)
    if missing_number >= n_views:
        raise wrong("missing_number", f"from 0 to {n_views - 1}, so that every sample keeps a view", missing_number)
    return hide_more(np.ones((n_samples, n_views), dtype=bool), missing_rate, missing_number, random_state)


def one_view_mask(n_samples: int, n_views: int, missing_rate: float, random_state: Seed = None) -> Mask:
    """A share of the samples keeps one view each, chosen at random; of two views this is the paper's protocol."""
    return paper_mask(n_samples, n_views, missing_rate, n_views - 1, random_state)


def cells_mask(n_samples: int, n_views: int, missing_rate: float, random_state: Seed = None) -> Mask:
    """A share of all cells, the missing rate over the number of views, is missing; every sample keeps a view.

    Of six views, a missing rate of 0.5 hides a twelfth of the cells.
    """
    _check_shape(n_samples, n_views, missing_rate)
    left = np.ones((n_samples, n_views), dtype=bool)
    count = round(n_samples * missing_rate) if n_views > 1 else 0
    for cell in np.random.default_rng(random_state).permutation(left.size).tolist():
        row, view = divmod(cell, n_views)
        if count and left[row].sum() > 1:
            left[row, view], count = False, count - 1
    return left


def nested_mask(n_samples: int, n_views: int, missing_rate: float, random_state: Seed = None) -> Mask:
    """A share of the samples is hidden from, and of these again only a share of the cells, as `cells_mask` does it."""
    _check_shape(n_samples, n_views, missing_rate)
    rng, left = np.random.default_rng(random_state), np.ones((n_samples, n_views), dtype=bool)
    chosen = rng.choice(n_samples, size=round(n_samples * missing_rate), replace=False)
    left[chosen] = cells_mask(len(chosen), n_views, missing_rate, rng)
    return left


def real_mask(n_samples: int, observed: ArrayLike, random_state: Seed = None) -> Mask:
    """Gaps as in a mask that was observed: each sample gets one of its rows, drawn with replacement.

    Parameters
    ----------
    observed : array of shape (samples, views), such as `Views.mask` of data with gaps
    """
    present = _as_mask(observed)
    _check_shape(n_samples, present.shape[1], 0.0)
    if not len(present):
        raise DataError("the observed mask has no rows; give at least one")
    if len(empty := np.flatnonzero(~present.any(axis=1))):
        raise DataError(f"row {empty[0]} of the observed mask has no view at all; leave out such samples")
    return present[np.random.default_rng(random_state).integers(len(present), size=n_samples)]


def _as_mask(mask: ArrayLike) -> Mask:
    given = np.asarray(mask)
    if given.ndim != 2:
        raise DataError(f"the mask has shape {given.shape}; give one of shape (samples, views)")
    return checked_mask(given, range(len(given)), list(map(str, range(given.shape[1]))))


def _check_shape(n_samples: int, n_views: int, missing_rate: float) -> None:
    for name, count, least in (("n_samples", n_samples, 0), ("n_views", n_views, 1)):
        if not isinstance(count, Integral) or count < least:
            raise wrong(name, f"a whole number of at least {least}", count)
    if not isinstance(missing_rate, Real) or not 0 <= missing_rate <= 1:
        raise wrong("missing_rate", "from 0 to 1", missing_rate)


def hide_more(mask: Mask, missing_rate: float, missing_number: int, random_state: Seed = None) -> Mask:
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
    given: Any = mask
    named: dict[Any, Any] = dict(views) if isinstance(views, Mapping) else dict(enumerate(views))
    names, hidden = [str(name) for name in named], {}
    labelled = {name: view.index for name, view in named.items() if has_row_labels(view)}
    for v, (name, view) in enumerate(named.items()):
        rows, index = range(len(given) if hasattr(given, "__len__") else 0), labelled.get(name)
        if index is not None and not has_row_labels(mask):
            first, own = next(iter(labelled.items()))
            if not index.equals(own):
                raise DataError(
                    f"views {first!r} and {name!r} have row labels that differ, but the mask has none, so the rows "
                    "cannot be matched; give the mask the ids of the samples as index"
                )
        shown = checked_mask(mask, rows if index is None else index.tolist(), names, index)[:, v]
        hidden[name] = _blank(name, view, shown)
    return hidden if isinstance(views, Mapping) else list(hidden.values())


def _blank(name: Any, view: Any, shown: Mask) -> Any:
    """A view with rows of NaN where it is not shown; frames stay frames, with their labels."""
    if is_sparse(view) or is_annotated(view):
        what = "sparse, and an empty row of it is data" if is_sparse(view) else "no array"
        raise DataError(f"view {name!r} is {what}; leave it as it is, and hide rows by Views(data, mask=mask)")
    values = view if hasattr(view, "iloc") else as_array(str(name), view)
    if len(values.shape) != 2 or len(values) != len(shown):
        raise DataError(f"view {name!r} has shape {values.shape}, but the mask has {len(shown)} rows")
    if hasattr(view, "iloc"):
        return exact_frame(view).where(np.broadcast_to(shown[:, None], view.shape))
    if has_long_numbers(values):  # floats would lose their last digits
        values = values.astype(object)
    dtype = np.result_type(values.dtype, np.float32)
    return np.where(shown[:, None], values.astype(dtype, copy=False), np.array(np.nan, dtype=dtype))
