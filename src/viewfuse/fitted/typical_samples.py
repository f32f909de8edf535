"""Samples that stand for a cluster."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_TYPICAL = 5
_DIGITS = 4
"""Digits that files have, so that samples are ranked alike from files."""


def typical_samples(rows: NDArray[np.int64], confidence: NDArray[np.floating]) -> NDArray[np.int64]:
    """The rows that are surest of their cluster, the surest first; of equals those that come first.

    Parameters
    ----------
    rows : row numbers of a cluster's samples, of shape (members,)
    confidence : of all samples, of shape (samples,)
    """
    sure = np.round(confidence[rows].astype(np.float64), _DIGITS)
    return rows[np.argsort(-sure, kind="stable")[:N_TYPICAL]]
