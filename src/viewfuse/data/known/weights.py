"""Weights: how much each sample counts; a weight of 2 is like the sample there twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.known.hints import has_ids, id_key
from viewfuse.errors import DataError

_WHAT = "sample_weight"


def sample_weights(given: Any, ids: NDArray[Any]) -> NDArray[np.float64] | None:
    """Weights of mean 1, of shape (samples,); None where none are given, or all are the same.

    Parameters
    ----------
    given : one number per sample, not negative; by id where it is a mapping, or a pandas Series beside samples with ids
    """
    if given is None:
        return None
    try:
        found = _by_id(given, ids) if isinstance(given, Mapping) or has_ids(given, ids) else np.asarray(given, float)
    except (TypeError, ValueError):
        raise DataError(f"{_WHAT} holds something that is no number; give one number per sample") from None
    if found.shape != (len(ids),):
        raise DataError(f"{_WHAT} is of shape {found.shape} for {len(ids):,} samples; give one number each")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(bad):
        fault = f"the {_WHAT} of {str(ids[bad[0]])!r} is {found[bad[0]]:g}"
        raise DataError(f"{fault}; give numbers of at least 0, one for every sample")
    if not found.any():
        raise DataError(f"every {_WHAT} is zero, so there is nothing to learn from; give some a weight above 0")
    return None if (found == found[0]).all() else found / found.mean()


def _by_id(given: Any, ids: NDArray[Any]) -> NDArray[np.float64]:
    """The weights of the samples, NaN where there is none."""
    listed = {id_key(name): weight for name, weight in given.items()}
    return np.array([listed.get(id_key(one), np.nan) for one in ids.tolist()], dtype=np.float64)
