"""A vote of methods that err differently, for where the network and k-means do not find the same.

No score tells when a simple method is right where the network is wrong, but most of seven partitions are rarely wrong
together. The vote takes the place of the network's clusters only where it holds neighbours together better.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.errors import ViewfuseError
from viewfuse.methods.published.filled_kmeans import KNNKMeans
from viewfuse.methods.published.nemo import NEMO
from viewfuse.methods.published.pimvc import PIMVC
from viewfuse.selection.scores import matched_numbers
from viewfuse.utils.console import quiet
from viewfuse.utils.jobs import limited

Labels = NDArray[np.int64]
_METHODS = (KNNKMeans, NEMO, PIMVC)
_ROWS = 1_500
"""More samples gain little by it (60 fits of four sets: 0.05 points) and wait long: 2,000 for seven seconds
on one core."""
_COLUMNS = 500
"""PIMVC decomposes matrices of columns by columns; views are as wide only where the user wants them so."""


def simple_partitions(views: Views, n_clusters: int, seed: int) -> list[Labels]:
    """What simple methods find in filled and reduced views; nothing where there are very many samples or columns.

    A method that cannot have these samples, such as for want of memory, has no vote.
    """
    found: list[Labels] = []
    if len(views) > _ROWS or max(views.widths) > _COLUMNS:
        return found
    views = views.replace(batch=None)  # whose effects are gone
    for method in _METHODS:
        with suppress(ViewfuseError), quiet(), limited(1):  # more threads only wait for each other here
            one = method(n_clusters, reduction="none", device="cpu", random_state=seed)
            found.append(one.fit_predict(views))
    return found


def majority(own: Labels, others: Sequence[Labels]) -> Labels:
    """The cluster of each sample in most partitions, by the numbers of its `own` one, which decides ties.

    >>> majority(np.array([0, 0, 1, 1]), [np.array([2, 2, 2, 0]), np.array([1, 1, 1, 2])]).tolist()
    [0, 0, 0, 1]
    """
    size = int(max(one.max() for one in (own, *others))) + 1
    votes = 1.5 * np.eye(size)[own]
    for other in others:
        votes += np.eye(size)[matched_numbers(other, own, size)[other]]
    return votes.argmax(axis=1).astype(np.int64)
