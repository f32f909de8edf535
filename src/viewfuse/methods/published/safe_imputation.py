"""The two levels of DSIMVC: a clustering that learns from filled samples, and weights that keep this safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from viewfuse.engine.rng import epoch_keys, generator_for_start, shuffled
from viewfuse.engine.stacked_replicates import stack
from viewfuse.engine.stages import SideBySide
from viewfuse.nn.dense import MLP, start_weights

DONORS = 3
_HIDDEN = 100
"""Width of the network of the weights."""
_STEP = 1e-2
"""Length of the step in the weights over which the slope of losses is measured."""


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
    losses : what the network makes of views of shape (replicates, batch, columns)
    describe : the features alone, which is much less work where there are many samples
    rows : complete samples and others, each of shape (replicates, samples)
    features : of all samples, by which neighbours are found; per view (replicates, samples, width), of length 1
    """

    def __init__(
        self,
        side: SideBySide,
        network: nn.Module,
        losses: Callable[[Sequence[Tensor]], Found],
        describe: Callable[[Sequence[Tensor]], Sequence[Tensor]],
        rows: tuple[Tensor, Tensor],
        features: Sequence[Tensor],
        seeds: Sequence[int],
        rates: Rates,
    ) -> None:
        self._side, self._losses, self._describe, self._features = side, losses, describe, list(features)
        self._complete, self._filled = rows
        self._seeds, self._rates = list(seeds), rates
        self._parameters = list(network.parameters())
        self._adam = Adam(self._parameters, lr=rates.network)
        self._each = torch.arange(len(side.present), device=side.device)[:, None]
        self._weigher: Any = None
        self._weigher_adam: Adam | None = None

    def run(self, iterations: int, batch_size: int, *, renew: bool) -> None:
        """So many steps; with `renew` the neighbours by which gaps are filled follow the network."""
        for i in range(iterations):
            began = time.perf_counter()
            keys = epoch_keys(self._seeds, len(self._side.histories[0]["epoch"])).to(self._side.device)
            complete = self._values(_drawn(self._complete, keys[:, 0], batch_size))
            if self._filled.shape[1]:
                self._weigh_and_learn(complete, self.imputed(_drawn(self._filled, keys[:, 1], batch_size)))
            else:
                self._learn(self._total(self._losses(complete)))
            self._side.record("safe imputation", {"safe contrast": self._last[None].cpu()}, time.perf_counter() - began)
            if renew and self._filled.shape[1] and i + 1 < iterations:
                self._renew()

    def _values(self, rows: Tensor) -> list[Tensor]:
        return [self._side.view(v, rows) for v in range(len(self._side.values))]

    def _weigh_and_learn(self, complete: Sequence[Tensor], filled: Sequence[Tensor]) -> None:
        """(a) a virtual step, (b) better weights, (c) a real step with these."""
        with torch.no_grad():
            labels = self._losses(filled).labels
        slope = self._slope(complete, filled, self._weights(labels).detach())
        # A weight lowers the loss of complete samples as far as steps along both gradients go the same way.
        weights = self._weights(labels)
        assert self._weigher_adam is not None
        self._weigher_adam.zero_grad()
        torch.autograd.backward((-self._rates.virtual * slope * weights).sum())
        self._weigher_adam.step()
        weights = self._weights(labels).detach()
        self._learn(self._total(self._losses(complete)) + self._total(self._losses(filled), weights))

    def _weights(self, labels: Tensor) -> Tensor:
        """Weights of filled samples, of shape (replicates, batch), which sum to 1."""
        if self._weigher is None:
            networks = [MLP((labels.shape[2], _HIDDEN, 1)) for _ in self._seeds]
            for network, seed in zip(networks, self._seeds, strict=True):
                start_weights(network, generator_for_start(int(np.random.SeedSequence([seed, 8]).generate_state(1)[0])))
            self._weigher = stack(networks).to(labels.device)
            self._weigher_adam = Adam(self._weigher.parameters(), lr=self._rates.weights)
        found = self._weigher(labels)[..., 0].sigmoid()
        return found / found.sum(dim=1, keepdim=True)

    def _total(self, found: Found, weights: Tensor | None = None) -> Tensor:
        """Of shape (replicates,)."""
        each = found.each.mean(dim=1) if weights is None else (found.each * weights).sum(dim=1)
        return each + found.shared

    def _learn(self, total: Tensor) -> None:
        self._adam.zero_grad()
        torch.autograd.backward(total.sum())
        self._adam.step()
        self._last = total.detach()

    def _slope(self, complete: Sequence[Tensor], filled: Sequence[Tensor], weights: Tensor) -> Tensor:
        """How steeply losses of filled samples rise along the gradient of complete ones; of shape (replicates, batch).

        That gradient is taken after a virtual step, and the derivative along it from two points beside the weights:
        the same as a gradient through the step, without its second derivatives.
        """
        before = [one.detach().clone() for one in self._parameters]
        total = self._total(self._losses(complete)) + self._total(self._losses(filled), weights)
        self._move(torch.autograd.grad(total.sum(), self._parameters), -self._rates.virtual)
        direction = torch.autograd.grad(self._total(self._losses(complete)).sum(), self._parameters)
        step = _STEP / self._length(direction).clamp(min=1e-12)
        ends = []
        for sign in (1.0, -1.0):
            self._restore(before)
            self._move(direction, sign * step)
            with torch.no_grad():
                ends.append(self._losses(filled).each)
        self._restore(before)
        return (ends[0] - ends[1]) / (2 * step[:, None])

    @torch.no_grad()
    def _move(self, direction: Sequence[Tensor], far: float | Tensor) -> None:
        """Go along a direction; `far` may be of shape (replicates,)."""
        for one, own in zip(self._parameters, direction, strict=True):
            one.add_(own * (self._spread(far, one) if isinstance(far, Tensor) else far))

    @torch.no_grad()
    def _restore(self, values: Sequence[Tensor]) -> None:
        for one, own in zip(self._parameters, values, strict=True):
            one.copy_(own)

    def _spread(self, numbers: Tensor, parameter: Tensor) -> Tensor:
        """A number per replicate, of a shape that suits a stacked parameter; a single network is not stacked."""
        return numbers[0] if len(numbers) == 1 else numbers.view(-1, *([1] * (parameter.dim() - 1)))

    def _length(self, direction: Sequence[Tensor]) -> Tensor:
        """Of shape (replicates,)."""
        squares = [own.square().reshape(len(self._seeds), -1).sum(dim=1) for own in direction]
        return torch.stack(squares).sum(dim=0).sqrt()

    @torch.no_grad()
    def imputed(self, rows: Tensor) -> list[Tensor]:
        """Samples at `rows`, of shape (replicates, batch), with the means of donors in their gaps.

        Each view that a sample has is asked in turn for those who are nearest and have the missing view, until there
        are three; each further view adds its very nearest only. Without any donor the mean of the columns stays.
        """
        present, values = self._side.has(rows), self._values(rows)
        near = [self._similar(w, rows) for w in range(len(values))]
        for v, view in enumerate(values):
            sums, counts = torch.zeros_like(view), torch.zeros_like(view[..., :1])
            for w in (other for other in range(len(values)) if other != v):
                donors, weights = self._donors(near[w], v, present[..., w] & ~present[..., v], counts)
                sums += (weights[..., None] * self._side.values[v][self._each[..., None], donors]).sum(dim=2)
                counts += weights.sum(dim=2, keepdim=True)
            values[v] = torch.where(counts > 0, sums / counts.clamp(min=1), view)
        return values

    def _similar(self, w: int, rows: Tensor) -> Tensor:
        """Inner products with the features of all others that have a view; of shape (replicates, batch, samples)."""
        own = self._features[w][self._each, rows] @ self._features[w].mT
        own = own.masked_fill(~self._side.present[:, None, :, w], -torch.inf)
        return own.scatter(2, rows[..., None], -torch.inf)

    def _donors(self, near: Tensor, v: int, asked: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of up to three donors of view v, of shape (replicates, batch, donors), and which of them count."""
        have = self._side.present[:, None, :, v]
        best = near.masked_fill(~have, -torch.inf).topk(min(DONORS, near.shape[2]), dim=2)
        needed = (DONORS - counts).clamp(min=0)
        taken = torch.arange(best.indices.shape[2], device=near.device) < needed
        # Whoever has three donors already takes the very nearest, if it has the view.
        very = near.amax(dim=2, keepdim=True) == best.values[..., :1]
        first = torch.arange(best.indices.shape[2], device=near.device) == 0
        taken = torch.where(needed > 0, taken, first & very)
        return best.indices, (taken & asked[..., None] & ~best.values.isneginf()).to(counts.dtype)

    @torch.no_grad()
    def _renew(self) -> None:
        """Features of all samples, half as they were and half as the network has them now."""
        new = self._describe(self._side.values)
        pairs = zip(self._features, new, strict=True)
        self._features = [functional.normalize(old + functional.normalize(own, dim=2), dim=2) for old, own in pairs]


def _drawn(rows: Tensor, keys: Tensor, batch_size: int) -> Tensor:
    """A batch of rows, of shape (replicates, batch), in random order."""
    order = shuffled(keys, rows.shape[1])[:, :batch_size]
    return rows.gather(1, order)
