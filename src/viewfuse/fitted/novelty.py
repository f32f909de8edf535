"""How far samples lie from what a model knows: distances to the nearest training samples, view by view, in ranks.

In each view that a sample has, the distance to the nearest training sample is ranked among those that the training
samples have to each other: the share of them that is nearer. Views are combined as Fisher combines tests, by the sum of
-log(1 - share), over the root of their number. Novelty is the share of the training samples, of those with as many
views, that have less: above 0.95 lies one in twenty samples of the same kind.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR

_LEAST = 30
"""Training samples with a number of views from which on samples with as many are compared with these alone."""
_EDGE = 1e-3
"""Added before the logarithm: a view in which a sample is farther than all others must not outweigh all views."""
_ROWS = 8_192
_AMONG, _FENCE, _TIMES = 5, 4.0, 5.0
"""Of `outlying`. On 15 real sets and four made ones without outliers 7 of 19,757 samples are marked."""


def novelty(samples: Samples, stored: Samples) -> NDArray[np.float64]:
    """Of shape (samples,), from 0 to 1; neighbours of `samples` are stored ones, and of these not themselves."""
    known, new = nearest_distances(stored, stored), nearest_distances(samples, stored)
    own, found = combined(known, known), combined(new, known)
    counts, asked = (part.present.sum(dim=1).cpu().numpy() for part in (stored, samples))
    shares = np.empty(len(found))
    for count in np.unique(asked):
        alike = own[counts == count] if (counts == count).sum() >= _LEAST else own
        shares[asked == count] = share_below(alike, found[asked == count])
    return shares


def nearest_distances(samples: Samples, stored: Samples) -> NDArray[np.float64]:
    """Per view the distance to the nearest stored sample, of shape (samples, views); NaN where a view is missing."""
    parts = torch.split(torch.arange(len(samples), device=samples.present.device), _ROWS)
    found = [[_distances(samples, stored, rows, v) for v in range(len(stored.values))] for rows in parts]
    return torch.cat([torch.stack(part, dim=1) for part in found]).cpu().numpy()


def _distances(samples: Samples, stored: Samples, rows: Tensor, view: int) -> Tensor:
    ids = samples.neighbor_ids[rows, view, 0]
    far = (samples.values[view][rows].double() - stored.values[view][ids.clamp(min=0)]).square().sum(dim=1).sqrt()
    return torch.where(ids == NO_NEIGHBOR, torch.nan, far)


def outlying(stored: Samples) -> NDArray[np.float64]:
    """How many times as far as usual the fifth neighbour of each sample is, of shape (samples, views).

    0 where a sample is no outlier in a view: where the logarithm of the distance is less than the upper quartile plus
    four times the range of the quartiles (Tukey's fence), or the distance less than five times the median.
    Samples that lie far from most others, but in a group of six, are a cluster.
    """
    found = [_times_as_far(stored, v) for v in range(len(stored.values))]
    return np.stack(found, axis=1)


def _times_as_far(stored: Samples, view: int) -> NDArray[np.float64]:
    ids, values = stored.neighbor_ids[:, view, :_AMONG], stored.values[view].double()
    last = ids.gather(1, ((ids != NO_NEIGHBOR).sum(dim=1).clamp(min=1) - 1)[:, None])[:, 0]
    far = torch.cat([(values[rows] - values[last[rows].clamp(min=0)]).norm(dim=1)
                     for rows in torch.split(torch.arange(len(ids), device=ids.device), _ROWS)])  # fmt: skip
    there = (last != NO_NEIGHBOR).cpu().numpy()
    times = np.zeros(len(ids))
    usual = float(np.median(far.cpu().numpy()[there])) if there.any() else 0.0
    if usual <= 0:
        return times
    times[there] = far.cpu().numpy()[there] / usual
    low, high = np.percentile(np.log(np.maximum(times[there], _EDGE)), [25, 75])
    return np.where((times > _TIMES) & (np.log(np.maximum(times, _EDGE)) > high + _FENCE * (high - low)), times, 0.0)


def combined(distances: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fisher's sum over views of shape (samples,), given distances of shape (samples, views); 0 without any view."""
    ranks = [share_below(own[~np.isnan(own)], found) for own, found in zip(known.T, distances.T, strict=True)]
    there = ~np.isnan(distances)
    parts = np.where(there, -np.log(1 - np.stack(ranks, axis=1) + _EDGE), 0.0)
    return np.asarray(parts.sum(axis=1) / np.sqrt(np.maximum(there.sum(axis=1), 1)))


def share_below(known: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which share of the known numbers lies below each value, equal ones by half; 0 without any."""
    if not len(known):
        return np.zeros(len(values))
    ordered = np.sort(known)
    sides = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(sides / (2 * len(ordered)))
