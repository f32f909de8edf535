"""Samples by the views that they lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Patterns(NamedTuple):
    """Which views are missing together: all views first, then the most frequent patterns.

    Attributes
    ----------
    present : boolean array of shape (patterns, views)
    sizes : int64 array of shape (patterns,): samples with each pattern
    of_sample : int64 array of shape (samples,): the pattern of each sample
    """

    present: NDArray[np.bool_]
    sizes: NDArray[np.int64]
    of_sample: NDArray[np.int64]


def find_patterns(mask: NDArray[np.bool_]) -> Patterns:
    """Patterns in a mask of shape (samples, views)."""
    found, of_sample, sizes = np.unique(mask, axis=0, return_inverse=True, return_counts=True)
    order = np.array(sorted(range(len(found)), key=lambda p: (not found[p].all(), -sizes[p])))
    place = np.empty(len(found), dtype=np.int64)
    place[order] = np.arange(len(found))
    return Patterns(found[order], sizes[order], place[of_sample.ravel()])


def lacking(present: NDArray[np.bool_], view_names: Sequence[str], longest: int = 40) -> str:
    """A pattern in words of at most `longest` characters."""
    if present.all():
        return "all views"
    there = [name for name, is_there in zip(view_names, present, strict=True) if is_there]
    lost = [name for name, is_there in zip(view_names, present, strict=True) if not is_there]
    words = f"only {', '.join(there)}" if len(there) < len(lost) else f"without {', '.join(lost)}"
    return words if len(words) <= longest else words[: longest - 1] + "…"
