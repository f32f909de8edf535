"""How far samples lie from what a model knows: distances to the nearest training samples, view by view, in ranks.

The distance is ranked among those that the training samples have to each other; in views of words, so is the share of
words that no training sample has. Fisher's sum of -log(1 - share), over the root of their number, combines them.
Novelty is the share of the training samples with as many views that have less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import column_sums, filled, parts_of, row_sums, times_columns
from viewfuse.data.input_types import stored as stored_values
from viewfuse.data.input_types import with_stored as with_values
from viewfuse.data.views import Views
from viewfuse.neighbors.samples import Samples
from viewfuse.reduction.reduce import Reduction
from viewfuse.reduction.transforms import SPARSE
from viewfuse.selection.rules import neighbor_distances

USUAL = 0.95
"""Novelty above which a sample fits nowhere; one in twenty of a known kind is."""
_LEAST = 30
"""Training samples with a number of views from which on samples with as many are compared with these alone."""
_EDGE = 1e-3
"""Added before the logarithm: a view in which a sample is farther than all others must not outweigh all views."""


@dataclass(frozen=True)
class Surroundings:
    """How far training samples lie from each other, against which any samples are compared.

    `known` has distances to the nearest other training sample, of shape (samples, views), NaN where a view is missing,
    and beside them, where there are views of words, the shares of words that no other training sample has.
    """

    stored: Samples
    known: NDArray[np.float64]

    @classmethod
    def of(cls, stored: Samples, unseen: NDArray[np.float64]) -> Surroundings:
        """Measure the training samples; for `unseen` see `unseen_by_others`."""
        return cls(stored, np.hstack([neighbor_distances(stored, stored), unseen]))

    def novelty(self, samples: Samples, unseen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of shape (samples,), from 0 to 1; neighbours of `samples` are stored ones, and of these not themselves."""
        new = np.hstack([neighbor_distances(samples, self.stored), unseen])
        found, asked = combined(new, self._columns), samples.present.sum(dim=1).cpu().numpy()
        shares = np.empty(len(found))
        for count in np.unique(asked).tolist():
            shares[asked == count] = share_below(self._sums.get(count, self._sums[0]), found[asked == count])
        return shares

    @cached_property
    def _columns(self) -> list[NDArray[np.float64]]:
        """What is known, column by column, in rising order: a request of one row has no time to sort it."""
        return [np.sort(own[~np.isnan(own)]) for own in self.known.T]

    @cached_property
    def _sums(self) -> dict[int, NDArray[np.float64]]:
        """What `combined` gives of training samples, by their number of views where many have it, of all for 0."""
        own, counts = combined(self.known, self._columns), self.stored.present.sum(dim=1).cpu().numpy()
        often = [count for count in np.unique(counts).tolist() if (counts == count).sum() >= _LEAST]
        return {0: np.sort(own)} | {count: np.sort(own[counts == count]) for count in often}


def combined(distances: NDArray[np.float64], known: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Fisher's sum over views of shape (samples,), given distances of shape (samples, views); 0 without any view.

    `known` has, per view, the distances among which these are ranked, in rising order.
    """
    ranks = [share_below(own, found) for own, found in zip(known, distances.T, strict=True)]
    there = ~np.isnan(distances)
    parts = np.where(there, -np.log(1 - np.stack(ranks, axis=1) + _EDGE), 0.0)
    return np.asarray(parts.sum(axis=1) / np.sqrt(np.maximum(there.sum(axis=1), 1)))


def share_below(known: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which share of the known numbers, in rising order, lies below each value, equal ones by half; 0 without any."""
    if not len(known):
        return np.zeros(len(values))
    sides = np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")
    return np.asarray(sides / (2 * len(known)))


def unseen_shares(reduction: Reduction, views: Views) -> NDArray[np.float64]:
    """Shares of words that no training sample has, of shape (samples, views); NaN where a view has none.

    The share of the sum of log(1 + x) of a row that is in columns which are zero in all fitted rows.
    """
    return _shares(reduction, views, [one.high <= 0 for one in reduction.front_ends])


def unseen_by_others(reduction: Reduction, views: Views) -> NDArray[np.float64]:
    """The same of the samples that the reduction was fitted on, each as if it had not been among them."""
    alone = [np.empty(0, bool)] * len(views.names)  # columns that at most one row has
    for v, front_end in enumerate(reduction.front_ends):
        if front_end.how in SPARSE:
            parts = parts_of(views.arrays[v], views.mask[:, v])
            alone[v] = sum((column_sums(filled(part)) for part in parts), np.zeros(views.widths[v])) <= 1
    return _shares(reduction, views, alone)


def _shares(reduction: Reduction, views: Views, columns: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    found = np.full(views.mask.shape, np.nan)
    for v, (front_end, own) in enumerate(zip(reduction.front_ends, columns, strict=True)):
        if front_end.how in SPARSE:
            shares = []
            for part in parts_of(views.arrays[v], views.mask[:, v]):
                logs = with_values(part, np.log1p(np.maximum(stored_values(part), 0).astype(np.float64)))
                sums = row_sums(logs)
                shares.append(row_sums(times_columns(logs, own.astype(np.float64))) / np.where(sums > 0, sums, 1.0))
            found[views.mask[:, v], v] = np.concatenate(shares) if shares else []
    return found
