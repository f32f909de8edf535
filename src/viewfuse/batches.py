"""Row numbers to network input: neighbour lists gathered, views dropped, noise added (KIDA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from viewfuse.neighbors import NOBODY, neighbor_lists, neighbor_table
from viewfuse.recognition import find_rows, index_rows
from viewfuse.settings import Settings

LEAST_VIEW_DROPOUT = 0.15
"""Epsilon of the paper's equation "aug ratio"."""


@dataclass(frozen=True)
class Samples:
    """Scaled samples with their neighbours among stored samples.

    Attributes
    ----------
    values : per view a tensor of shape (samples, columns); missing rows are zero
    present : boolean tensor of shape (samples, views)
    near : int64 tensor of shape (samples, views, depth)
    """

    values: Sequence[Tensor]
    present: Tensor
    near: Tensor

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Tensor | slice) -> Samples:
        """The samples at `rows`."""
        return Samples([view[rows] for view in self.values], self.present[rows], self.near[rows])

    def to(self, device: torch.device) -> Samples:
        """The same samples on `device`."""
        return Samples([view.to(device) for view in self.values], self.present.to(device), self.near.to(device))


@dataclass(frozen=True)
class Batch:
    """Input of the network.

    Attributes
    ----------
    tokens : per view a tensor of shape (batch, list length, columns); zero where padded (x-bar)
    filled : boolean tensor of shape (batch, views, list length) (m-bar)
    have : boolean tensor of shape (batch, views): views that are the sample's own (m)
    """

    tokens: Sequence[Tensor]
    filled: Tensor
    have: Tensor


def store(values: Sequence[Tensor], present: Tensor, settings: Settings) -> Samples:
    """Samples that are each other's neighbours: the training set. Equal samples have one list of neighbours."""
    near = neighbor_table(values, present, settings.search_depth)
    first = find_rows(index_rows(values, present), values, present, values, present)
    return Samples(values, present, near[first])


def newcomers(values: Sequence[Tensor], present: Tensor, stored: Samples, known: Tensor) -> Samples:
    """Samples whose neighbours are stored ones.

    Parameters
    ----------
    known : int64 tensor of shape (samples,): the stored sample that this is, whose neighbours it has; else NOBODY
    """
    near = stored.near[known.clamp(min=0)]
    new = (known == NOBODY).nonzero().squeeze(1)
    new_values = [view[new] for view in values]
    near[new] = neighbor_table(stored.values, stored.present, near.shape[2], new_values, present[new])
    return Samples(values, present, near)


def impute(samples: Samples, have: Tensor, stored: Samples, settings: Settings) -> Batch:
    """Gather every sample's neighbour lists, given the views that it may use (KNNI)."""
    members, filled = neighbor_lists(samples.near, have, stored.present, settings)
    tokens = []
    for v, (own, pool) in enumerate(zip(samples.values, stored.values, strict=True)):
        gathered = pool[members[:, v].clamp(min=0)]  # (batch, list length, columns)
        gathered[:, 0] = torch.where(have[:, v, None], own, gathered[:, 0])
        tokens.append(gathered * filled[:, v, :, None])
    return Batch(tokens, filled, have)


def view_dropout_rate(present: Tensor) -> float:
    """phi_1 from the share of missing views (equation "aug ratio")."""
    missing = 1.0 - float(present.double().mean())
    return LEAST_VIEW_DROPOUT + (1.0 - LEAST_VIEW_DROPOUT) * missing**2


def drop_views(present: Tensor, rate: float, generator: Generator) -> Tensor:
    """Drop each view with chance `rate` (equation "VD"); a sample that would lose all keeps one at random."""
    draws = torch.rand(present.shape, generator=generator, device=present.device)
    kept = present & (draws >= rate)
    order = torch.rand(present.shape, generator=generator, device=present.device)
    lucky = order.masked_fill(~present, -1).argmax(dim=1, keepdim=True)
    spared = torch.zeros_like(present).scatter_(1, lucky, True)
    return kept | (spared & ~kept.any(dim=1, keepdim=True))


def add_noise(batch: Batch, settings: Settings, generator: Generator) -> Batch:
    """Gaussian noise and random feature dropout on all that is not padding (equation "GNRD")."""
    tokens = []
    for v, clean in enumerate(batch.tokens):
        noise = torch.randn(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        draws = torch.rand(clean.shape, generator=generator, device=clean.device)
        kept = (draws >= settings.feature_dropout) & batch.filled[:, v, :, None]
        tokens.append((clean + settings.noise * noise) * kept)
    return Batch(tokens, batch.filled, batch.have)


def plain_batch(samples: Samples, stored: Samples, settings: Settings) -> Batch:
    """The samples as they are."""
    return impute(samples, samples.present, stored, settings)


def hide_view(batch: Batch, view: int) -> Batch:
    """The batch with nothing in one view: neither the samples' own values nor donors."""
    tokens = [torch.zeros_like(clean) if v == view else clean for v, clean in enumerate(batch.tokens)]
    kept = torch.arange(batch.have.shape[1], device=batch.have.device) != view
    return Batch(tokens, batch.filled & kept[:, None], batch.have & kept)


def two_branches(samples: Samples, stored: Samples, settings: Settings, rate: float, generator: Generator) -> Batch:
    """KIDA in the paper: the samples as they are, followed by the same samples augmented, as one batch."""
    plain = plain_batch(samples, stored, settings)
    dropped = drop_views(samples.present, rate, generator)
    augmented = add_noise(impute(samples, dropped, stored, settings), settings, generator)
    return Batch(
        [torch.cat(pair) for pair in zip(plain.tokens, augmented.tokens, strict=True)],
        torch.cat([plain.filled, augmented.filled]),
        torch.cat([plain.have, augmented.have]),
    )
