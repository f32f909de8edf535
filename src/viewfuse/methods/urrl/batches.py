"""Row numbers to network input: neighbour lists are looked up and gathered (KNNI)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from viewfuse.methods.urrl.config import Config
from viewfuse.neighbors.samples import Samples, neighbor_lists
from viewfuse.nn.streams import map_views


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
