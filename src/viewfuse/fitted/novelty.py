"""How far samples lie from what a model knows: distances to the nearest training samples, view by view, in ranks.

The distance is ranked among those that the training samples have to each other; in views of words, so is the share of
words that no training sample has. Fisher's sum of -log(1 - share), over the root of their number, combines them.
Novelty is the share of the training samples with as many views that have less.

Components are fitted to training samples, and spread these more than others. So in a reduced view some of them are
measured as if they were new, with components that were fitted without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors

from viewfuse.data.input_types import column_sums, parts_of, row_sums, times_columns
from viewfuse.data.input_types import stored as stored_values
from viewfuse.data.input_types import with_stored as with_values
from viewfuse.data.views import Views
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples
from viewfuse.reduction.reduce import Reduction, fit_front_end
from viewfuse.reduction.transforms import SPARSE
from viewfuse.selection.rules import neighbor_distances

USUAL = 0.95
"""Novelty above which a sample fits nowhere; one in twenty of a known kind is."""
_LEAST = 30
"""Training samples with a number of views from which on samples with as many are compared with these alone."""
_FOLDS, _MEASURED, _MOST = 10, 200, 1_000
"""Folds, and samples that are measured in reduced views at least, where there are as many, and at most in one fold."""
_EDGE = 1e-3
"""Added before the logarithm: a view in which a sample is farther than all others must not outweigh all views."""


class LeftOut(NamedTuple):
    """What is known of training samples as if the front ends had been fitted without them.

    Attributes
    ----------
    words : of shape (samples, views), see `unseen_shares`; without columns where no view holds words
    distances : of shape (samples, views), see `distances_left_out`; without columns where no view is reduced
    """

    words: NDArray[np.float64]
    distances: NDArray[np.float64]

    @classmethod
    def of(cls, reduction: Reduction, views: Views) -> LeftOut:
        """Measure the samples that a reduction was fitted on, which reduces some view."""
        words = unseen_shares(reduction, views, by_others=True) if reduction.has_words else np.empty((len(views), 0))
        return cls(words, distances_left_out(reduction, views))

    def take(self, rows: NDArray[Any]) -> LeftOut:
        """The samples at `rows`, numbers or booleans."""
        return LeftOut(self.words[rows], self.distances[rows])

    def joined_by(self, words: NDArray[np.float64]) -> LeftOut:
        """These samples and new ones, of which the words are known."""
        distances = np.full((len(words), self.distances.shape[1]), np.nan)
        return LeftOut(np.concatenate([self.words, words]), np.concatenate([self.distances, distances]))


@dataclass(frozen=True)
class Surroundings:
    """How far training samples lie from each other, against which any samples are compared.

    `known` has distances to the nearest other training sample, of shape (samples, views), NaN where a view is missing,
    and beside them, where there are views of words, the shares of words that no other training sample has. In reduced
    views the distances of samples that were not `measured`, of shape (samples,), are estimates; `times` are those of
    all samples as in `LeftOut.distances`.
    """

    stored: Samples
    known: NDArray[np.float64]
    measured: NDArray[np.bool_]
    times: NDArray[np.float64]

    @classmethod
    def of(cls, stored: Samples, left_out: LeftOut) -> Surroundings:
        """Measure the training samples."""
        distances = neighbor_distances(stored, stored)
        measured, times = np.ones(len(stored), dtype=bool), np.full(distances.shape, np.nan)
        for v, given in enumerate(left_out.distances.T):
            has_view = ~np.isnan(distances[:, v])
            there, own = ~np.isnan(given) & has_view, distances[has_view, v]
            if there.any():
                measured &= there | ~has_view
                # Of others the rank among the samples is known.
                times[has_view, v] = np.quantile(given[there], share_below(np.sort(own), own))
                times[there, v] = given[there]
                distances[:, v] = np.median(own) * times[:, v]
        return cls(stored, np.hstack([distances, left_out.words]), measured, times)

    def distances(self, samples: Samples, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those to the nearest training sample, of shape (samples, views); at `rows` are those that are one, else -1.

        Neighbours of `samples` are stored ones.
        """
        known = self.known[rows, : len(self.stored.values)]
        return np.where((rows == NO_NEIGHBOR)[:, None], neighbor_distances(samples, self.stored), known)

    def novelty(self, samples: Samples, rows: NDArray[np.int64], words: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of shape (samples,), from 0 to 1, given the shares of unseen words; for the rest see `distances`."""
        known = self.known[rows, len(self.stored.values) :]
        new = np.hstack([self.distances(samples, rows), np.where((rows == NO_NEIGHBOR)[:, None], words, known)])
        found, asked = combined(new, self._columns), samples.present.sum(dim=1).cpu().numpy()
        shares = np.empty(len(found))
        for count in np.unique(asked).tolist():
            shares[asked == count] = share_below(self._sums.get(count, self._sums[0]), found[asked == count])
        return shares

    @cached_property
    def _columns(self) -> list[NDArray[np.float64]]:
        """What is known, column by column, in rising order: a request of one row has no time to sort it."""
        return [np.sort(own[~np.isnan(own)]) for own in self.known[self.measured].T]

    @cached_property
    def _sums(self) -> dict[int, NDArray[np.float64]]:
        """What `combined` gives of training samples, by their number of views where many have it, of all for 0."""
        own = combined(self.known[self.measured], self._columns)
        counts = self.stored.present.sum(dim=1).cpu().numpy()[self.measured]
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


def distances_left_out(reduction: Reduction, views: Views) -> NDArray[np.float64]:
    """Distances of samples to the nearest other one, in components that were fitted without them.

    Of shape (samples, views), in times of the median distance of the samples that these were fitted on to each other;
    NaN where a view is missing or not reduced, and in large sets of most samples. About 200 are measured, in folds of a
    tenth: larger folds leave too few samples for components like those of all.
    """
    found, n = np.full(views.mask.shape, np.nan), len(views)
    size = max(n // _FOLDS, 1)
    order = np.random.default_rng(0).permutation(n)
    folds = [order[start : start + size][:_MOST] for start in range(0, min(n, max(_MEASURED, size)), size)]
    for v, front_end in enumerate(reduction.front_ends):
        if front_end.how == "none":
            continue
        # Words are hardly ever there: of stored values alone logarithms take a tenth of the time.
        values = csr_array(views.arrays[v]) if front_end.how in SPARSE else views.arrays[v]
        for fold in folds:
            there, aside = views.mask[:, v], np.isin(np.arange(n), fold)
            rest, asked = np.flatnonzero(there & ~aside), np.flatnonzero(there & aside)
            if len(rest) < _FOLDS or not len(asked):
                continue
            own = fit_front_end(values, there & ~aside, front_end.how).apply(values, there)
            search = NearestNeighbors(n_neighbors=2, algorithm="brute").fit(own[rest])
            among = np.linspace(0, len(rest) - 1, min(len(rest), _MOST)).astype(np.int64)
            usual = float(np.median(search.kneighbors(own[rest][among])[0][:, 1]))
            if usual > 0:
                found[asked, v] = search.kneighbors(own[asked], 1)[0][:, 0] / usual
    # How far components spread their own samples falls with the number of these, of which there were a tenth less.
    measured = ~np.isnan(found).all(axis=0)
    found[:, measured] *= np.nanmedian(found[:, measured], axis=0) ** (-1 / _FOLDS)
    return found


def unseen_shares(reduction: Reduction, views: Views, *, by_others: bool = False) -> NDArray[np.float64]:
    """Shares of words that no training sample has, of shape (samples, views); NaN where a view has none.

    The share of the sum of log(1 + x) of a row that is in columns which are zero in all fitted rows. `by_others`: the
    samples are those that the reduction was fitted on, each as if it had not been among them.
    """
    found = np.full(views.mask.shape, np.nan)
    for v, front_end in enumerate(reduction.front_ends):
        if front_end.how not in SPARSE:
            continue
        array, there, shares = views.arrays[v], views.mask[:, v], [np.empty(0)]
        if by_others:  # columns that at most one row has
            unseen = sum((column_sums(part != 0) for part in parts_of(array, there)), np.zeros(views.widths[v])) <= 1
        else:
            unseen = front_end.high <= 0
        for part in parts_of(array, there):
            logs = with_values(part, np.log1p(np.maximum(stored_values(part), 0).astype(np.float64)))
            sums = row_sums(logs)
            shares.append(row_sums(times_columns(logs, unseen.astype(np.float64))) / np.where(sums > 0, sums, 1.0))
        found[there, v] = np.concatenate(shares)
    return found
