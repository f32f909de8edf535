"""Rows to network input: neighbour lists are looked up (KNNI), views are dropped and noise is added (KIDA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from viewfuse.methods.urrl.config import Config
from viewfuse.neighbors.samples import Samples, neighbor_lists
from viewfuse.nn.layers import map_views

LEAST_VIEW_DROPOUT = 0.15
"""Epsilon of the paper's equation "aug ratio"."""
_ALMOST_ONE = 1 - 2.0**-24
"""Rounding must not reach 1, where the normal quantile is infinite."""


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


def members_of(samples: Samples, available: Tensor, stored: Samples, config: Config) -> tuple[Tensor, Tensor]:
    """Who stands in every sample's neighbour lists, given the views that it may use; see `neighbor_lists`."""
    nearest = samples.neighbor_ids[:, :, : config.search_depth]
    return neighbor_lists(nearest, available, stored.present, config.list_length)


def gather_neighbors(samples: Samples, available: Tensor, stored: Samples, config: Config) -> Batch:
    """Gather every sample's neighbour lists, given the views that it may use (KNNI)."""
    members, valid = members_of(samples, available, stored, config)
    rows, shown = members.clamp(min=0), valid[..., None]

    def gather(v: int) -> Tensor:
        tokens = stored.values[v][rows[:, v]]  # (batch, list length, columns)
        tokens[:, 0] = torch.where(available[:, v, None], samples.values[v], tokens[:, 0])
        return tokens.mul_(shown[:, v])

    return Batch(map_views(gather, len(stored.values)), valid, available)


def plain_batch(samples: Samples, stored: Samples, config: Config) -> Batch:
    """The samples as they are."""
    return gather_neighbors(samples, samples.present, stored, config)


def empty_batch(batch: Batch) -> Batch:
    """As many samples with nothing in any view: neither values of their own nor donors."""
    tokens = [torch.zeros_like(clean) for clean in batch.tokens]
    return Batch(tokens, torch.zeros_like(batch.valid), torch.zeros_like(batch.available))


def view_dropout_rate(present: Tensor) -> float:
    """phi_1 from the share of missing views (equation "aug ratio")."""
    missing = 1.0 - float(present.double().mean())
    return LEAST_VIEW_DROPOUT + (1.0 - LEAST_VIEW_DROPOUT) * missing**2


def dropout_of(config: Config, present: Tensor) -> float:
    """phi_1 as it is set, or as the missing views say."""
    rate = config.view_dropout
    return view_dropout_rate(present) if isinstance(rate, str) else float(rate)


def drop_views(present: Tensor, rate: float | Tensor, draws: Tensor) -> Tensor:
    """Drop each view with probability `rate` (equation "VD"); a sample that would lose all keeps one at random.

    Parameters
    ----------
    present : boolean tensor of shape (..., views)
    draws : uniform numbers of shape (..., 2 * views)
    """
    chances, tie_breaks = draws.chunk(2, dim=-1)
    kept = present & (chances >= rate)
    lucky = (tie_breaks * present).argmax(dim=-1, keepdim=True)
    spared = torch.zeros_like(present).scatter_(-1, lucky, ~kept.any(dim=-1, keepdim=True))
    return kept | spared


def add_noise(tokens: Sequence[Tensor], valid: Tensor, config: Config, draws: Tensor) -> None:
    """Gaussian noise and random feature dropout on all that is not padding (equation "GNRD"), in place.

    Parameters
    ----------
    tokens : per view a tensor of shape (..., list length, columns)
    valid : boolean tensor of shape (..., views, list length)
    draws : uniform numbers of shape (..., list length, columns of all views). A number decides whether a value is
        dropped and, if it is not, also its noise: above the dropout rate the number is uniform again.
    """
    rate = config.feature_dropout
    kept = draws >= rate
    noise = (draws * (2 / (1 - rate)) - (1 + rate) / (1 - rate)).clamp_(-_ALMOST_ONE, _ALMOST_ONE).erfinv_()
    ends = list(accumulate(view.shape[-1] for view in tokens))

    def spoil(v: int) -> None:
        columns = slice(ends[v] - tokens[v].shape[-1], ends[v])
        tokens[v].add_(noise[..., columns], alpha=config.noise * 2**0.5)
        tokens[v].mul_(kept[..., columns] & valid[..., v, :, None])

    map_views(spoil, len(tokens))


def draws_per_sample(stored: Samples, config: Config) -> tuple[int, int]:
    """How many random numbers `two_branches` needs for a sample: for dropping views, and for noise."""
    return 2 * len(stored.values), config.list_length * sum(view.shape[1] for view in stored.values)


def two_branches(
    stored: Samples, rows: Tensor, config: Config, rate: float | Tensor, draws: Tensor
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
    for_views, for_noise = torch.split(draws, list(draws_per_sample(stored, config)), dim=-1)
    present = torch.unflatten(samples.present, 0, twice.shape)[:, 0]
    available = torch.stack([present, drop_views(present, rate, for_views)], dim=1)
    batch = gather_neighbors(samples, available.flatten(0, 2), stored, config)
    augmented = [torch.unflatten(view, 0, twice.shape)[:, 1] for view in batch.tokens]
    valid = torch.unflatten(batch.valid, 0, twice.shape)[:, 1]
    add_noise(augmented, valid, config, torch.unflatten(for_noise, -1, (config.list_length, -1)))
    return samples, batch
