"""SURE (Yang et al., TPAMI 2022): a contrast of pairs that bears with false negatives.

Pairs are made by chance, so some "negative" ones belong together. Once negative pairs are far apart on average, those
that still are near are no longer pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from viewfuse.engine.training import Stage, Training
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork, CodeNetwork, masked_mse
from viewfuse.methods.published.completer import learnable
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP
from viewfuse.utils import memory

_EPSILON = 1e-6
_NEAREST = 3
"""Codes that stand in for a missing one."""


def pair_distance(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean, of shape (replicates, pairs), for codes of shape (replicates, pairs, width)."""
    return (first - second + _EPSILON).norm(dim=2)


def contrastive_loss(distance: Tensor, positive: Tensor, both: Tensor, margin: Tensor, robust: Tensor) -> Tensor:
    """Half the mean of y d^2 + (1 - y) (m - d)_+^2, or of the robust (1/m) (sqrt(d) (m - d))_+^2; (replicates,).

    `distance` d and `positive` y of shape (replicates, pairs); `both` says which pairs count.
    """
    margin = margin[:, None]
    left = (margin - distance).clamp(min=0)
    pushed = torch.where(robust[:, None], distance * left.square() / margin, left.square())
    terms = torch.where(positive, distance.square(), pushed) * both
    return terms.sum(dim=1) / (2 * both.sum(dim=1).clamp(min=1))


class _JointAutoencoders(CodeNetwork):
    """An encoder per view; each view is decoded from the codes of all."""

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """The codes of all views side by side; a missing one is the mean of the three that others are nearest to."""
        codes, known = self.codes(samples), self.memory(stored)
        filled = []
        for v in range(codes.shape[1]):
            there = known[stored.present[:, v], v]
            found = torch.zeros_like(codes[:, v])  # which it stays where no kept sample has the view
            for u in range(codes.shape[1] if len(there) else 0):
                near = torch.cdist(codes[:, u], there).topk(min(_NEAREST, len(there)), largest=False).indices
                found += there[near].mean(dim=1) * samples.present[:, u, None]
            found /= samples.present.sum(dim=1, keepdim=True)
            filled.append(torch.where(samples.present[:, v, None], codes[:, v], found))
        return torch.cat(filled, dim=1)

    def decode(self, embedding: Tensor) -> list[Tensor]:
        return [decode(embedding[None])[0] for decode in self.decoders]


@dataclass(eq=False, repr=False, kw_only=True)
class SURE(PublishedMethod):
    """k-means of codes in which views of a sample are near, and those of other samples mostly are not.

    Only samples with two views at least are learned from. With more than two views, for which the paper has no formula,
    the contrast is averaged over all pairs of views, each over the samples that have both, and a missing code is the
    mean of what the views that are there say. With two it is as published, but that the nearest codes are looked for
    among all samples, not within batches, and that fewer than three are averaged, not divided by three.

    Parameters
    ----------
    latent_dim : int, default 10
        Width of a code, whatever the number of clusters.
    hidden_dims : sequence of int, default (1024, 1024, 1024)
        Widths of the hidden layers.
    dropout : float, default 0.2
        In hidden layers.
    n_negatives : int, default 30
        Negative pairs of a sample, drawn once: its first view with other views of so many samples, itself perhaps among
        them; of all where there are fewer.
    reconstruction_weight : float, default 0.5
        Of the reconstruction beside the contrast.
    epochs, batch_size, learning_rate : default 80, 1024, 1e-3
        Of Adam.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    latent_dim: int = 10
    hidden_dims: Sequence[int] = (1024, 1024, 1024)
    dropout: float = field(default=0.2, metadata={"below": 1})
    n_negatives: int = 30
    reconstruction_weight: float = 0.5
    epochs: int = 80
    batch_size: int = 1024
    learning_rate: float = 1e-3

    name: ClassVar[str] = "sure"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "scene15": {"scaling": "none"},
        "caltech101": {"scaling": "none"},
        "reuters": {"scaling": "minmax"},
    }

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """Encoders, and decoders of all codes."""
        hidden, drop, together = tuple(self.hidden_dims), self.dropout, self.latent_dim * len(widths)
        encoders = (MLP((width, *hidden, self.latent_dim), norm=True, ends=True, dropout=drop) for width in widths)
        decoders = (MLP((together, *hidden, width), dropout=drop) for width in widths)
        return _JointAutoencoders(self.n_clusters, together, encoders, decoders)

    def stack_key(self, samples: Samples) -> tuple[int, ...]:
        """As many samples to learn from."""
        return (len(learnable(samples.present)),)

    def schedule(self, training: Training) -> list[Stage]:
        """Contrast, robust from the epoch on in which negative pairs are a margin apart, and reconstruction."""
        pairs = torch.stack([self._pairs(run.stored.present, run.seed) for run in training.runs])
        contrast = _Contrast(training, pairs, self.batch_size)
        loss, steps = partial(self.losses, training, contrast), (self.epochs, self.batch_size, self.learning_rate)
        return [Stage("contrast", *steps, loss, pairs, last="drop short", after_epoch=contrast.after_epoch)]

    def _pairs(self, present: Tensor, seed: int) -> Tensor:
        """A row for each view, and whether all are the same sample; of shape (pairs, views + 1)."""
        rows, n_views = learnable(present).cpu().numpy(), present.shape[1]
        count = min(self.n_negatives, len(rows))
        n_bytes = 4 * 8 * len(rows) * count * n_views
        memory.require(n_bytes, f"{count:,} negative pairs of each sample", "choose a smaller n_negatives")
        rng, shape = np.random.default_rng([seed, 6]), (len(rows), n_views - 1, count)
        drawn = [rng.choice(rows, count, replace=False) for _ in range(len(rows) * (n_views - 1))]
        others = np.array(drawn, dtype=rows.dtype).reshape(shape).swapaxes(1, 2).reshape(len(rows) * count, n_views - 1)
        other = np.column_stack([np.repeat(rows, count), others, np.zeros(len(others), dtype=rows.dtype)])
        same = np.column_stack([*[rows] * n_views, np.ones_like(rows)])
        return torch.from_numpy(np.concatenate([same, other])).to(present.device)

    def losses(self, training: Training, contrast: _Contrast, picked: Tensor) -> dict[str, Tensor]:
        """The weighted terms of a batch of pairs, each of shape (replicates,)."""
        values, present, positive, codes = contrast.encoded(picked)
        together, errors = torch.cat(codes, dim=2), []
        for v, decode in enumerate(training.network.decoders):
            found = decode(together, None, training.random.dropout)
            errors.append(masked_mse(found, values[v], present[..., v]))
        reconstruction = self.reconstruction_weight * torch.stack(errors).sum(dim=0)
        return {"contrast": contrast.loss(codes, present, positive), "reconstruction": reconstruction}


class _Contrast:
    """The contrast of all pairs of views, with its margin and what it knows of the distances of an epoch."""

    def __init__(self, training: Training, pairs: Tensor, batch_size: int) -> None:
        self._training, self._views = training, list(combinations(range(len(training.values)), 2))
        n = len(training.present)
        self.robust = torch.zeros(n, dtype=torch.bool, device=training.device)
        self._whole = bool(training.has(pairs[..., 0]).all())  # no view is missing, which saves work
        self._sums = training.values[0].new_zeros(n, 2)  # of the distances of negative pairs, and their number
        self.margin = self._measured_margin(pairs, batch_size)

    def encoded(self, picked: Tensor) -> tuple[list[Tensor], Tensor, Tensor, list[Tensor]]:
        """Values of each view, who has which, which pairs are positive, and codes, zero where a view is missing."""
        rows, training = picked[..., :-1].unbind(dim=-1), self._training
        values = [training.view(v, own) for v, own in enumerate(rows)]
        present = torch.stack([training.has(own)[..., v] for v, own in enumerate(rows)], dim=2)
        codes = training.network.encode(values, None if self._whole else present, training.random.dropout)
        if not self._whole:
            codes = [code * present[..., v, None] for v, code in enumerate(codes)]
        return values, present, picked[..., -1] > 0, codes

    @torch.no_grad()
    def _measured_margin(self, pairs: Tensor, batch_size: int) -> Tensor:
        """max(1, round(mean distance of positive + of negative pairs)) before training, of shape (replicates,)."""
        self._training.network.train()
        sums = self._training.values[0].new_zeros(len(pairs), 2, 2)
        order = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(0)).to(self._training.device)
        for part in torch.split(order, batch_size):
            _, present, positive, codes = self.encoded(pairs[:, part])
            for distance, both in self._distances(codes, present):
                for i, kind in enumerate((both & positive, both & ~positive)):
                    sums[:, i] += torch.stack([(distance * kind).sum(dim=1), kind.sum(dim=1)], dim=1)
        means = sums[:, :, 0] / sums[:, :, 1].clamp(min=1)
        return means.sum(dim=1).round().clamp(min=1)

    def _distances(self, codes: Sequence[Tensor], present: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per pair of views the distances of pairs, and which count."""
        return [(pair_distance(codes[a], codes[b]), present[..., a] & present[..., b]) for a, b in self._views]

    def loss(self, codes: Sequence[Tensor], present: Tensor, positive: Tensor) -> Tensor:
        """Averaged over pairs of views, of shape (replicates,)."""
        terms = []
        for distance, both in self._distances(codes, present):
            terms.append(contrastive_loss(distance, positive, both, self.margin, self.robust))
            negative = both & ~positive
            self._sums += torch.stack([(distance.detach() * negative).sum(dim=1), negative.sum(dim=1)], dim=1)
        return torch.stack(terms).mean(dim=0) if terms else codes[0].new_zeros(len(present))

    def after_epoch(self, epoch: int) -> None:
        """Spare near negative pairs once the mean distance of negative pairs is the margin."""
        self.robust |= self._sums[:, 0] >= self.margin * self._sums[:, 1].clamp(min=1)
        self._sums.zero_()
