"""Row numbers to network input: neighbour lists gathered, views dropped, noise added (KIDA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from viewfuse.neighbors.donors import MultiViewIndex, neighbor_lists
from viewfuse.neighbors.row_lookup import find_rows, index_rows
from viewfuse.neighbors.view_index import NO_NEIGHBOR
from viewfuse.nn.streams import map_views
from viewfuse.settings import Settings

LEAST_VIEW_DROPOUT = 0.15
"""Epsilon of the paper's equation "aug ratio"."""
_ALMOST_ONE = 1 - 2.0**-24
"""Rounding must not reach 1, where the normal quantile is infinite."""


@dataclass(frozen=True)
class Samples:
    """Scaled samples with their neighbours among stored samples.

    Attributes
    ----------
    values : per view a tensor of shape (samples, columns); missing rows are zero
    present : boolean tensor of shape (samples, views)
    neighbor_ids : int64 tensor of shape (samples, views, depth)
    search : finds neighbours among these samples; None where nobody asks for them
    """

    values: Sequence[Tensor]
    present: Tensor
    neighbor_ids: Tensor
    search: MultiViewIndex | None = None

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Tensor | slice) -> Samples:
        """The samples at `rows`."""
        return Samples([view[rows] for view in self.values], self.present[rows], self.neighbor_ids[rows])

    def to(self, device: torch.device) -> Samples:
        """The same samples on `device`."""
        values, present = [view.to(device) for view in self.values], self.present.to(device)
        return Samples(values, present, self.neighbor_ids.to(device), self.search and MultiViewIndex(values, present))


@dataclass(frozen=True)
class Batch:
    """Input of the network.

    Attributes
    ----------
    tokens : per view a tensor of shape (batch, list length, columns); zero where padded (x-bar)
    valid : boolean tensor of shape (batch, views, list length) (m-bar)
    available : boolean tensor of shape (batch, views): views that are the sample's own (m)
    """

    tokens: Sequence[Tensor]
    valid: Tensor
    available: Tensor


def index_training_set(values: Sequence[Tensor], present: Tensor, settings: Settings) -> Samples:
    """Samples that are each other's neighbours: the training set. Equal samples have one list of neighbours."""
    search = MultiViewIndex(values, present)
    neighbor_ids = search.neighbors_of_own(settings.search_depth)
    first = find_rows(index_rows(values, present), values, present, values, present)
    return Samples(values, present, neighbor_ids[first], search)


def index_new_samples(values: Sequence[Tensor], present: Tensor, stored: Samples, known: Tensor) -> Samples:
    """Samples whose neighbours are stored ones.

    Parameters
    ----------
    known : int64 tensor of shape (samples,): the stored sample that this is, whose neighbours it has; else NOBODY
    """
    neighbor_ids = stored.neighbor_ids[known.clamp(min=0)]
    new = (known == NO_NEIGHBOR).nonzero().squeeze(1)
    new_values = [view[new] for view in values]
    search = stored.search or MultiViewIndex(stored.values, stored.present)
    neighbor_ids[new] = search.neighbors_of_new(new_values, present[new], neighbor_ids.shape[2])
    return Samples(values, present, neighbor_ids)


def gather_neighbors(samples: Samples, available: Tensor, stored: Samples, settings: Settings) -> Batch:
    """Gather every sample's neighbour lists, given the views that it may use (KNNI)."""
    members, valid = neighbor_lists(samples.neighbor_ids, available, stored.present, settings)
    rows, shown = members.clamp(min=0), valid[..., None]

    def gather(v: int) -> Tensor:
        tokens = stored.values[v][rows[:, v]]  # (batch, list length, columns)
        tokens[:, 0] = torch.where(available[:, v, None], samples.values[v], tokens[:, 0])
        return tokens.mul_(shown[:, v])

    return Batch(map_views(gather, len(stored.values)), valid, available)


def view_dropout_rate(present: Tensor) -> float:
    """phi_1 from the share of missing views (equation "aug ratio")."""
    missing = 1.0 - float(present.double().mean())
    return LEAST_VIEW_DROPOUT + (1.0 - LEAST_VIEW_DROPOUT) * missing**2


def drop_views(present: Tensor, rate: float | Tensor, draws: Tensor) -> Tensor:
    """Drop each view with chance `rate` (equation "VD"); a sample that would lose all keeps one at random.

    Parameters
    ----------
    present : boolean tensor of shape (..., views)
    draws : uniform numbers of shape (..., 2 * views)
    """
    chances, lots = draws.chunk(2, dim=-1)
    kept = present & (chances >= rate)
    lucky = (lots * present).argmax(dim=-1, keepdim=True)
    spared = torch.zeros_like(present).scatter_(-1, lucky, ~kept.any(dim=-1, keepdim=True))
    return kept | spared


def add_noise(tokens: Sequence[Tensor], valid: Tensor, settings: Settings, draws: Tensor) -> None:
    """Gaussian noise and random feature dropout on all that is not padding (equation "GNRD"), in place.

    Parameters
    ----------
    tokens : per view a tensor of shape (..., list length, columns)
    valid : boolean tensor of shape (..., views, list length)
    draws : uniform numbers of shape (..., list length, columns of all views). A number decides whether a value is
        dropped and, if it is not, also its noise: above the dropout rate the number is uniform again.
    """
    rate = settings.feature_dropout
    kept = draws >= rate
    noise = (draws * (2 / (1 - rate)) - (1 + rate) / (1 - rate)).clamp_(-_ALMOST_ONE, _ALMOST_ONE).erfinv_()
    ends = list(accumulate(view.shape[-1] for view in tokens))

    def spoil(v: int) -> None:
        columns = slice(ends[v] - tokens[v].shape[-1], ends[v])
        tokens[v].add_(noise[..., columns], alpha=settings.noise * 2**0.5)
        tokens[v].mul_(kept[..., columns] & valid[..., v, :, None])

    map_views(spoil, len(tokens))


def draws_per_sample(stored: Samples, settings: Settings) -> tuple[int, int]:
    """How many random numbers `two_branches` needs for a sample: for dropping views, and for noise."""
    return 2 * len(stored.values), settings.list_length * sum(view.shape[1] for view in stored.values)


def plain_batch(samples: Samples, stored: Samples, settings: Settings) -> Batch:
    """The samples as they are."""
    return gather_neighbors(samples, samples.present, stored, settings)


def hide_view(batch: Batch, view: int) -> Batch:
    """The batch with nothing in one view: neither the samples' own values nor donors."""
    tokens = [torch.zeros_like(clean) if v == view else clean for v, clean in enumerate(batch.tokens)]
    kept = torch.arange(batch.available.shape[1], device=batch.available.device) != view
    return Batch(tokens, batch.valid & kept[:, None], batch.available & kept)


def two_branches(
    stored: Samples, rows: Tensor, settings: Settings, rate: float | Tensor, draws: Tensor
) -> tuple[Samples, Batch]:
    """KIDA in the paper: stored samples as they are, and the same samples augmented, as one batch.

    Parameters
    ----------
    rows : int64 tensor of shape (replicates, samples of each)
    rate : view dropout, a number or a tensor of shape (replicates, 1, 1)
    draws : uniform numbers of shape (replicates, samples of each, `draws_per_sample` together)

    Returns
    -------
    The samples and the batch. Each holds, per replicate, first its plain samples and then the same ones again, in the
    batch augmented.
    """
    twice = rows[:, None].expand(-1, 2, -1)
    samples = stored.take(twice.flatten())
    for_views, for_noise = torch.split(draws, list(draws_per_sample(stored, settings)), dim=-1)
    present = torch.unflatten(samples.present, 0, twice.shape)[:, 0]
    available = torch.stack([present, drop_views(present, rate, for_views)], dim=1)
    batch = gather_neighbors(samples, available.flatten(0, 2), stored, settings)
    augmented = [torch.unflatten(view, 0, twice.shape)[:, 1] for view in batch.tokens]
    valid = torch.unflatten(batch.valid, 0, twice.shape)[:, 1]
    add_noise(augmented, valid, settings, torch.unflatten(for_noise, -1, (settings.list_length, -1)))
    return samples, batch
