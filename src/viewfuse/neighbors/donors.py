"""Donors that stand in for missing views (Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from viewfuse.neighbors.exact_search import NO_NEIGHBOR


def neighbor_lists(neighbor_ids: Tensor, available: Tensor, present: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """KNNI in the paper (Algorithm 1), for a batch and all its views at once.

    A view that the sample has lists the sample itself and its nearest neighbours. A view that it lacks lists
    donors: neighbours in the views that it has, which themselves have the missing view. Only where the printed
    algorithm finds nobody, more distant neighbours are tried: a view without any content helps nobody.

    Parameters
    ----------
    neighbor_ids : int64 tensor of shape (batch, views, depth): stored samples nearest to each sample, without itself
    available : boolean tensor of shape (batch, views): the views that the sample may use
    present : boolean tensor of shape (stored samples, views)
    length : entries of a list, the sample itself included; k in the paper

    Returns
    -------
    members : int64 tensor of shape (batch, views, list length) of stored samples. NO_NEIGHBOR where padded, and in
        the first place of a view that the sample has: there stands the sample itself.
    valid : boolean tensor of the same shape: False where padded (m-bar in the paper).
    """
    donors = _donors(neighbor_ids, available, present, length)
    own = torch.full_like(donors[:, :, :1], NO_NEIGHBOR)
    known = torch.cat([own, neighbor_ids[:, :, : length - 1]], dim=2)
    members = torch.where(available[:, :, None], known, donors)
    valid = members != NO_NEIGHBOR
    valid[:, :, 0] |= available
    return members, valid


def _donors(neighbor_ids: Tensor, available: Tensor, present: Tensor, length: int) -> Tensor:
    """The first `length` donors of every view, in the order in which Algorithm 1 meets them."""
    usable = torch.where(available[:, :, None], neighbor_ids, NO_NEIGHBOR)
    candidates = usable.transpose(1, 2).flatten(1)  # (batch, met): nearness outside, views inside
    helps = present[candidates.clamp(min=0)] & (candidates != NO_NEIGHBOR)[:, :, None]  # (batch, met, views)
    # The printed algorithm counts the sample itself as neighbour 0, so its k neighbours are k - 1 others.
    printed = (length - 1) * available.shape[1]
    helps[:, printed:] &= ~helps[:, :printed].any(dim=1, keepdim=True)
    return _first(candidates, helps.transpose(1, 2), length)


def _first(candidates: Tensor, helps: Tensor, length: int) -> Tensor:
    """The first `length` entries of `candidates` for which `helps`, of shape (batch, views, met), holds."""
    rank = helps.cumsum(dim=2) - 1
    # Entries that do not help, or come too late, are written to a last place that is cut off.
    place = torch.where(helps & (rank < length), rank, length)
    chosen = torch.full((*helps.shape[:2], length + 1), NO_NEIGHBOR, dtype=torch.int64, device=candidates.device)
    chosen.scatter_(2, place, candidates[:, None, :].expand_as(place))
    return chosen[:, :, :length]
