"""Masks say who has which view: rows are matched by id and columns by the names of views, where a mask has them."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import check_labels, has_row_labels
from viewfuse.data.id_spelling import CURE, read_alike, written
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.utils.caller import outside


def checked_mask(
    mask: Any, ids: Sequence[Hashable] | NDArray[Any], names: Sequence[str], labels: Any = None
) -> NDArray[np.bool_]:
    """A boolean mask of shape (samples, views); True where a view may be looked at.

    Parameters
    ----------
    mask : array, whose rows are the samples in order, or a data frame, whose rows are matched by their labels
    ids : of the samples
    names : of the views
    labels : pandas Index or list of the row labels that the views came with; None where they had none
    """
    n = len(ids)
    if mask is None:
        return np.ones((n, len(names)), dtype=bool)
    if hasattr(mask, "iloc") and len(mask.shape) == 2:
        mask = _by_id(mask, ids, labels)
    columns = [str(column) for column in getattr(mask, "columns", [])]
    if columns and sorted(columns) == sorted(names):
        mask = np.asarray(mask)[:, [columns.index(name) for name in names]]
    elif columns and columns != [str(v) for v in range(len(names))]:
        raise DataError(f"the mask has columns {columns}, but the views are {list(names)}; name them alike")
    given = np.asarray(mask)
    if given.shape != (n, len(names)):
        raise DataError(
            f"the mask has shape {given.shape}, but {n} rows of {len(names)} views need ({n}, {len(names)})"
        )
    if isinstance(mask, np.ma.MaskedArray) or given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
        raise DataError("the mask holds values other than True/False (1/0); give True where a view is present")
    return given.astype(bool)


def _by_id(mask: Any, ids: Sequence[Hashable] | NDArray[Any], labels: Any) -> Any:
    """The rows of a data frame in the order of `ids`; one that counts its rows is in order already."""
    wanted = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    counts = not has_row_labels(mask)
    if counts and (labels is None or not all(isinstance(label, int) for label in labels)):
        if labels is not None and len(mask) == len(wanted):
            _tell_counted(wanted)
        return mask
    check_labels("the mask", mask.index)
    place = {label: row for row, label in enumerate(mask.index.tolist())}
    absent = [name for name in wanted if name not in place]
    if absent or len(place) > len(wanted):
        raise DataError(_unmatched(absent, list(place), wanted))
    return mask.iloc[[place[name] for name in wanted]]


def _tell_counted(ids: Sequence[Hashable]) -> None:
    warnings.warn(
        f"the mask has row labels 0, 1, 2, ..., but the samples have ids such as {ids[0]!r}, so its rows are matched "
        "by their order; give the mask these ids as index",
        SuspiciousDataWarning,
        stacklevel=outside(),
    )


def _unmatched(absent: Sequence[Hashable], labels: Sequence[Hashable], ids: Sequence[Hashable]) -> str:
    """Why a mask does not belong to the samples, and the cure."""
    alike = read_alike(labels, ids)
    if alike:
        found, own = alike[0]
        return f"the mask has row labels {written(found)}, the samples have ids {written(own)}; {CURE}"
    if absent:
        what = f"the mask has no row for {len(absent):,} of {len(ids):,} samples, such as {absent[0]!r}"
    else:
        known = set(ids)
        extra = [label for label in labels if label not in known]
        what = f"the mask has rows for {len(extra):,} samples that the views lack, such as {extra[0]!r}"
    return f"{what}; give it the ids of the samples as index, or an array with their rows in order (mask.to_numpy())"
