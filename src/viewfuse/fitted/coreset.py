"""Which training samples a smaller model keeps."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from viewfuse.utils.settings import wrong


def representatives(labels: NDArray[np.int64], present: NDArray[np.bool_], keep: int | None) -> NDArray[np.int64]:
    """Row numbers, in order: every cluster gives its share, samples with many views first; all for None.

    Samples with many views are neighbours in all of them and donors of any; among equals chance decides.

    Parameters
    ----------
    labels : int array of shape (samples,)
    present : boolean array of shape (samples, views)
    """
    n = len(labels)
    if keep is None:
        return np.arange(n)
    if not isinstance(keep, Integral) or isinstance(keep, bool) or not 1 <= keep <= n:
        raise wrong("keep", f"a number of training samples from 1 to {n}", keep)
    chance = np.random.default_rng(0).random(n)
    order = np.lexsort((chance, -present.sum(axis=1)))
    rank = np.empty(n)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)  # the share of the cluster that comes before
    return np.sort(np.lexsort((chance, rank))[: int(keep)])
