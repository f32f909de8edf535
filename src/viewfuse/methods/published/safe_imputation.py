"""The two levels of DSIMVC: a clustering that learns from filled samples, and weights that keep this safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from viewfuse.engine.batches import generator_for_start, stack
from viewfuse.engine.training import Training
from viewfuse.nn.dense import MLP
from viewfuse.nn.layers import Adam, start_weights

DONORS = 3
_HIDDEN = 100
"""Width of the network of the weights."""
_ROWS = 256
"""Samples that are compared with all others at a time."""


class Found(NamedTuple):
    """What a network makes of a batch.

    Attributes
    ----------
    each : losses of samples, of shape (replicates, batch)
    shared : the loss that the batch has as a whole, of shape (replicates,)
    labels : mean probabilities of clusters over the views, of shape (replicates, batch, clusters)
    """

    each: Tensor
    shared: Tensor
    labels: Tensor

    def total(self, weights: Tensor | float = 1.0) -> Tensor:
        """Of shape (replicates,); weights of shape (replicates, batch), which sum to 1, are divided by the batch, too.

        So filled samples together count as much as one complete sample: the published program does that.
        """
        return (self.each * weights).mean(dim=1) + self.shared


class Rates(NamedTuple):
    """Learning rates: of the network, of the step that weights are judged by, of the weights."""

    network: float
    virtual: float
    weights: float


class TwoLevels:
    """Steps of both levels, for several networks side by side.

    Parameters
    ----------
    network : the stacked network
    losses : what is made of its output
    n_clusters : of which the network gives probabilities
    """

    def __init__(
        self, network: nn.Module, losses: Callable[..., Found], n_clusters: int, seeds: Sequence[int], rates: Rates
    ) -> None:
        self._network, self._losses, self._virtual_rate = network, losses, rates.virtual
        weighers = [MLP((n_clusters, _HIDDEN, 1)) for _ in seeds]
        for weigher, seed in zip(weighers, seeds, strict=True):
            start_weights(weigher, generator_for_start(int(np.random.SeedSequence([seed, 8]).generate_state(1)[0])))
        self.weigher: Any = stack(weighers).to(next(network.parameters()))
        self._adam = Adam(network.parameters(), lr=rates.network)
        self._weigher_adam = Adam(self.weigher.parameters(), lr=rates.weights)

    def step(self, complete: Sequence[Tensor], filled: Sequence[Tensor]) -> Tensor:
        """Update the weights of filled samples, then the network; returns losses of shape (replicates,).

        Parameters
        ----------
        complete, filled : per view of shape (replicates, batch, columns); there may be no filled samples
        """
        # Copies: from the gradients of a network's own weights nothing may be computed.
        own = {name: one.clone() for name, one in self._network.named_parameters()}
        safe = self._found(own, complete)
        total = safe.total()
        if filled[0].shape[1]:
            risky = self._found(own, filled)
            self._judge(own, safe.total() + risky.total(self.weights(risky.labels)), complete)
            total = total + risky.total(self.weights(risky.labels).detach())
        self._adam.zero_grad()
        torch.autograd.backward(total.sum())
        self._adam.step()
        return total.detach()

    def _found(self, parameters: Mapping[str, Tensor], values: Sequence[Tensor]) -> Found:
        return self._losses(*functional_call(self._network, dict(parameters), (values,)))

    def _judge(self, own: Mapping[str, Tensor], total: Tensor, complete: Sequence[Tensor]) -> None:
        """Better weights: those by which a plain gradient step on `total` lowers the loss of complete samples."""
        slopes = torch.autograd.grad(total.sum(), list(own.values()), create_graph=True)
        moved = {k: one - self._virtual_rate * slope for (k, one), slope in zip(own.items(), slopes, strict=True)}
        after = self._found(moved, complete).total()
        self._weigher_adam.zero_grad()
        torch.autograd.backward(after.sum(), inputs=list(self.weigher.parameters()), retain_graph=True)
        self._weigher_adam.step()

    def weights(self, labels: Tensor) -> Tensor:
        """Weights of filled samples, of shape (replicates, batch), which sum to 1."""
        found: Tensor = self.weigher(labels)[..., 0].sigmoid()
        return found / found.sum(dim=1, keepdim=True)


@torch.no_grad()
def fill_gaps(training: Training, features: Sequence[Tensor]) -> None:
    """Put the means of donors into the gaps of all samples.

    Each view that a sample has is asked in turn for those who are nearest and have the missing view, until there are
    three; each further view adds its very nearest only. Without any donor what stands there stays.

    Parameters
    ----------
    features : of all samples, by which neighbours are found; per view (replicates, samples, width), of length 1
    """
    for rows in torch.split(torch.arange(training.present.shape[1], device=training.device), _ROWS):
        present = training.present[:, rows]
        near = [_similar(training, own, w, rows) for w, own in enumerate(features)]
        for v, view in enumerate(training.values):
            sums, counts = torch.zeros_like(view[:, rows]), torch.zeros_like(view[:, rows, :1])
            for w in (other for other in range(len(near)) if other != v):
                donors, weights = _donors(training, near[w], v, present[..., w] & ~present[..., v], counts)
                sums += (weights[..., None] * view[training.each[..., None], donors]).sum(dim=2)
                counts += weights.sum(dim=2, keepdim=True)
            view[:, rows] = torch.where(counts > 0, sums / counts.clamp(min=1), view[:, rows])


def _similar(training: Training, features: Tensor, w: int, rows: Tensor) -> Tensor:
    """Inner products with the features of all others that have view w; of shape (replicates, batch, samples)."""
    own = (features[:, rows] @ features.mT).masked_fill(~training.present[:, None, :, w], -torch.inf)
    own[:, torch.arange(len(rows), device=rows.device), rows] = -torch.inf
    return own


def _donors(training: Training, near: Tensor, v: int, asked: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of up to three donors of view v, of shape (replicates, batch, donors), and which of them count."""
    have = training.present[:, None, :, v]
    best = near.masked_fill(~have, -torch.inf).topk(min(DONORS, near.shape[2]), dim=2)
    needed = (DONORS - counts).clamp(min=0)
    taken = torch.arange(best.indices.shape[2], device=near.device) < needed
    # A sample that has three donors already takes the very nearest, if it has the view.
    very = near.amax(dim=2, keepdim=True) == best.values[..., :1]
    first = torch.arange(best.indices.shape[2], device=near.device) == 0
    taken = torch.where(needed > 0, taken, first & very)
    return best.indices, (taken & asked[..., None] & ~best.values.isneginf()).to(counts.dtype)
