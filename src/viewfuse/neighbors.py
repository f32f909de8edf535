"""Nearest neighbours per view, and the donors that stand in for missing views (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from viewfuse.settings import Settings

NOBODY = -1
"""Stands in a neighbour or donor list where there is no sample."""

_CELLS_PER_CHUNK = 4_000_000
"""Distances held at a time: 32 MB of float64 instead of samples x samples."""


_GRAIN = 1e-11
"""Differences of squared distances below this share of the largest square are rounding."""
_TINY = 1e-300


def nearest(queries: Tensor, pool: Tensor, count: int, *, same: bool) -> Tensor:
    """Rows of `pool` closest to each query, in Euclidean distance, exactly.

    Parameters
    ----------
    queries : tensor of shape (queries, columns)
    pool : tensor of shape (rows, columns)
    same : the queries are the pool, and no row is its own neighbour.

    Returns
    -------
    int64 tensor of shape (queries, count): row numbers, nearest first, NOBODY where the pool is too small.
    """
    found = min(count, len(pool) - same)
    near = torch.full((len(queries), count), NOBODY, dtype=torch.int64, device=pool.device)
    if found <= 0 or not len(queries):
        return near
    # Centred float64 keeps |a|^2 + |b|^2 - 2ab exact enough where a column has a large offset.
    centre = pool.double().mean(dim=0)
    points = pool.double() - centre
    squares = points.square().sum(dim=1)
    lots = _tie_breakers(len(pool), pool.device)
    step = max(1, _CELLS_PER_CHUNK // len(pool))
    for start in range(0, len(queries), step):
        chunk = queries[start : start + step].double() - centre
        own_squares = chunk.square().sum(dim=1, keepdim=True)
        distances = torch.addmm(squares, chunk, points.T, alpha=-2).add_(own_squares)
        # Rounding differs with the shape of the chunk. Distances that only rounding tells apart are equal here, so
        # that a sample's neighbours do not depend on its company.
        distances.div_(_GRAIN * (squares.max() + own_squares) + _TINY).round_().add_(lots)
        if same:
            own = torch.arange(len(chunk), device=pool.device)
            distances[own, start + own] = torch.inf
        near[start : start + step, :found] = distances.topk(found, dim=1, largest=False).indices
    return near


def _tie_breakers(n: int, device: torch.device) -> Tensor:
    """Numbers in 0..1 that decide between equal distances: fixed, and blind to the order of the rows in a file."""
    return (torch.arange(n, device=device) * 2_654_435_761 % 2**32).double() / 2**32


def neighbor_table(
    values: Sequence[Tensor],
    present: Tensor,
    depth: int,
    new_values: Sequence[Tensor] | None = None,
    new_present: Tensor | None = None,
) -> Tensor:
    """Neighbours of every sample in every view, searched among the samples that have the view.

    Parameters
    ----------
    values : per view a tensor of shape (samples, columns)
    present : boolean tensor of shape (samples, views)
    new_values, new_present : other samples whose neighbours are wanted; by default the samples themselves,
        none of which is then its own neighbour.

    Returns
    -------
    int64 tensor of shape (samples asked for, views, depth); NOBODY where the view is missing or the list ends.
    """
    same = new_values is None or new_present is None
    asked_values = values if new_values is None else new_values
    asked_present = present if new_present is None else new_present
    table = torch.full((*asked_present.shape, depth), NOBODY, dtype=torch.int64, device=present.device)
    for v, view in enumerate(values):
        rows = present[:, v].nonzero().squeeze(1)
        asked = asked_present[:, v].nonzero().squeeze(1)
        near = nearest(asked_values[v][asked], view[rows], depth, same=same)
        if len(rows):
            table[asked, v] = torch.where(near == NOBODY, NOBODY, rows[near.clamp(min=0)])
    return table


def neighbor_lists(near: Tensor, have: Tensor, present: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """KNNI in the paper (Algorithm 1), for a batch and all its views at once.

    A view that the sample has lists the sample itself and its nearest neighbours. A view that it lacks lists
    donors: neighbours in the views that it has, which themselves have the missing view. Only where the printed
    algorithm finds nobody, more distant neighbours are tried: a view without any content helps nobody.

    Parameters
    ----------
    near : int64 tensor of shape (batch, views, depth): stored samples nearest to each sample, itself not among them
    have : boolean tensor of shape (batch, views): the views that the sample may use
    present : boolean tensor of shape (stored samples, views)

    Returns
    -------
    members : int64 tensor of shape (batch, views, list length) of stored samples. NOBODY where padded, and in
        the first place of a view that the sample has: there stands the sample itself.
    filled : boolean tensor of the same shape: False where padded (m-bar in the paper).
    """
    length = settings.list_length
    donors = _donors(near, have, present, settings)
    own = torch.full_like(donors[:, :, :1], NOBODY)
    known = torch.cat([own, near[:, :, : length - 1]], dim=2)
    members = torch.where(have[:, :, None], known, donors)
    filled = members != NOBODY
    filled[:, :, 0] |= have
    return members, filled


def _donors(near: Tensor, have: Tensor, present: Tensor, settings: Settings) -> Tensor:
    """The first `list_length` donors of every view, in the order in which Algorithm 1 meets them."""
    usable = torch.where(have[:, :, None], near, NOBODY)
    met = usable.transpose(1, 2).flatten(1)  # (batch, met): nearness outside, views inside
    helps = present[met.clamp(min=0)] & (met != NOBODY)[:, :, None]  # (batch, met, views)
    # The printed algorithm counts the sample itself as neighbour 0, so its k neighbours are k - 1 others.
    printed = (settings.list_length - 1) * have.shape[1]
    helps[:, printed:] &= ~helps[:, :printed].any(dim=1, keepdim=True)
    return _first(met, helps.transpose(1, 2), settings.list_length)


def _first(met: Tensor, helps: Tensor, length: int) -> Tensor:
    """The first `length` entries of `met` for which `helps`, of shape (batch, views, met), holds."""
    rank = helps.cumsum(dim=2) - 1
    # Entries that do not help, or come too late, are written to a last place that is cut off.
    place = torch.where(helps & (rank < length), rank, length)
    chosen = torch.full((*helps.shape[:2], length + 1), NOBODY, dtype=torch.int64, device=met.device)
    chosen.scatter_(2, place, met[:, None, :].expand_as(place))
    return chosen[:, :, :length]
