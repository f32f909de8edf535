"""One update of several networks at once: their weights stacked, each with its own samples and random numbers."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from viewfuse.engine.graphed_step import GraphedStep
from viewfuse.engine.method import Method, PreparedBatch
from viewfuse.engine.passes import fixed_rows, rows_for_all
from viewfuse.engine.rng import Draws, epoch_keys, shuffled
from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.nn.backward import backward
from viewfuse.nn.lanes import two_lanes
from viewfuse.nn.optimizers import Adam
from viewfuse.nn.streams import join_streams, put_aside

_MOST_ROWS, _LEAST_ROWS = 4096, 64
"""Of a pass on a GPU, of all networks and of each."""


def stack(networks: Sequence[nn.Module]) -> nn.Module:
    """The networks as one, whose weights have a leading axis for them; a single network stays as it is."""
    if len(networks) == 1:
        return networks[0]
    together = copy.deepcopy(networks[0])
    for stacked, *own in _matched(together, networks):
        stacked.data = torch.stack([weights.detach() for weights in own])
    return together


def _matched(together: nn.Module, networks: Sequence[nn.Module]) -> Iterator[tuple[Tensor, ...]]:
    """Each weight and buffer of the stacked network with those of the networks."""
    return zip(*((*one.parameters(), *one.buffers()) for one in (together, *networks)), strict=True)


@torch.no_grad()
def unstack(together: nn.Module, networks: Sequence[nn.Module]) -> None:
    """Write what the stacked network holds into the networks; a single one holds it already."""
    if together is networks[0]:
        return
    for learned, *own in _matched(together, networks):
        for weights, part in zip(own, learned.view(len(own), *own[0].shape), strict=True):
            weights.copy_(part)


def pool(sets: Sequence[Samples]) -> Samples:
    """Different sets of samples as one, in which each finds its neighbours where they now are."""
    if len(sets) == 1:
        return sets[0]
    lists = [(s.neighbor_ids, i * len(s)) for i, s in enumerate(sets)]
    shifted = [torch.where(ids == NO_NEIGHBOR, NO_NEIGHBOR, ids + first) for ids, first in lists]
    values = [torch.cat(views) for views in zip(*(s.values for s in sets), strict=True)]
    return Samples(values, torch.cat([s.present for s in sets]), torch.cat(shifted))


@dataclass
class ReplicateSpec:
    """A network with what it is trained on, and how.

    Attributes
    ----------
    network : on the device of `stored`
    stored : the training samples
    seed : root of every random number
    numbers : hyperparameters that may differ between replicates, by name
    """

    network: Any
    stored: Samples
    method: Method
    seed: int
    numbers: dict[str, float]


class Replicates:
    """Networks that are trained side by side in one stage, each half of them by an Adam of its own.

    All that changes from step to step lies on the device, at a fixed place, so that a step can be recorded once and
    replayed.

    Parameters
    ----------
    specs : with samples of equal shapes and equal methods; some may share their samples
    joint : whether it is the joint stage, in which the clustering loss counts and the centres are trained as well
    prefetch : whether the next batch is made while this one is learned from; by default on a GPU, and with two threads
    """

    def __init__(self, specs: Sequence[ReplicateSpec], *, joint: bool, prefetch: bool | None = None) -> None:
        first, self._networks = specs[0], [one.network for one in specs]
        self._seeds, self._joint, self._method = [one.seed for one in specs], joint, first.method
        different = list({id(one.stored): one.stored for one in specs}.values())
        self.network: Any = stack(self._networks)
        self._stored = pool(different)
        self._n, size = len(first.stored), min(first.method.optimization.batch_size, len(first.stored))
        self._device = self._stored.present.device
        places = [next(i for i, one in enumerate(different) if one is spec.stored) for spec in specs]
        self._first_rows = torch.tensor(places, device=self._device) * self._n
        self._numbers = {name: self._tensor([one.numbers[name] for one in specs]) for name in first.numbers}
        self._prepare_steps(self._n // size, size)
        on_gpu = self._device.type == "cuda"
        self._prefetch = (on_gpu or torch.get_num_threads() > 1) if prefetch is None else prefetch
        self.adams = self._optimizers()
        own = weakref.proxy(self)  # a step that held on to it would keep its memory until a garbage collection
        self._step = GraphedStep(lambda: own._update(), self._device, len(self._stored.values))

    def _tensor(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _optimizers(self) -> list[Adam]:
        """One for the weights that get their gradients first, one for those that `encode_views` uses."""
        _, rate, decay, factor = self._method.optimization
        rate *= factor if self._joint else 1.0
        late = {id(one) for one in self._method.view_weights(self.network)}
        trained = self._method.trained_weights(self.network, joint=self._joint)
        halves = [[one for one in trained if (id(one) in late) is is_late] for is_late in (False, True)]
        on_gpu = self._device.type == "cuda"
        return [Adam(half, lr=rate, weight_decay=decay, fused=True, capturable=on_gpu) for half in halves]

    def _prepare_steps(self, steps: int, size: int) -> None:
        """Memory for what the steps of an epoch read and write."""
        count, dtype = len(self._seeds), next(self.network.parameters()).dtype
        self._draws = Draws(count, size * self._method.draws_per_sample(self._stored), self._device)
        self._order = torch.zeros(steps, count, size, dtype=torch.int64, device=self._device)
        self._done = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._made = torch.zeros_like(self._done)
        self._next: PreparedBatch | None = None
        self._terms = torch.zeros(steps, count, len(self._method.terms), dtype=dtype, device=self._device)

    def unstack(self) -> None:
        """Write what was learned into the networks that were given."""
        unstack(self.network, self._networks)

    def finish(self) -> None:
        """Write what was learned into the networks that were given, and forget the gradients."""
        self.unstack()
        for adam in self.adams:
            adam.zero_grad()

    @torch.no_grad()
    def embed(self) -> Tensor:
        """Embeddings of the samples as they are, of shape (networks, samples, embedding)."""
        size = rows_for_all(self._n, self._device) or max(_LEAST_ROWS, _MOST_ROWS // len(self._seeds))
        parts = []
        for own in fixed_rows(self._n, size, self._device):
            rows = own + self._first_rows[:, None]
            found = self._method.embed(self.network, self._stored.take(rows.flatten()), self._stored)
            parts.append(torch.unflatten(found, 0, rows.shape))
        return torch.cat(parts, dim=1)[:, : self._n]

    def run_epoch(self, epoch: int) -> Tensor:
        """One pass over the shuffled samples; returns loss terms of shape (steps, replicates, terms), on the CPU."""
        keys = epoch_keys(self._seeds, epoch).to(self._device)
        rows = shuffled(keys[:, 1], self._n) + self._first_rows[:, None]
        steps, _, size = self._order.shape
        # What is left over waits for the next epoch's order.
        self._order.copy_(torch.unflatten(rows[:, : steps * size], 1, (steps, size)).transpose(0, 1))
        self._draws.begin(keys[:, 0])
        self._done.zero_()
        self._made.zero_()
        if self._prefetch and steps > 1:
            self._keep(self._next_batch())
        with two_lanes() if self._device.type == "cpu" else nullcontext():
            for _ in range(steps):
                self._step()
        return self._terms.cpu()

    def _next_batch(self) -> PreparedBatch:
        rows = self._order.index_select(0, self._made)[0]
        self._made.add_(1).remainder_(len(self._order))
        draws = torch.unflatten(self._draws.next(), 1, (rows.shape[1], -1))
        return self._method.prepare(self._stored, rows, self._numbers, draws)

    def _keep(self, batch: PreparedBatch) -> None:
        """Put it where the recorded step finds it."""
        if self._next is None:
            self._next = batch
        else:
            self._next.copy_(batch)

    def _update(self) -> None:
        """One step of every network."""
        if self._next is None:
            self._learn(self._next_batch())
            self._end_step()
            return
        current, upcoming = self._next, put_aside("next batch", self._next_batch)
        self._learn(current)
        put_aside("next batch", lambda: current.copy_(upcoming()))
        self._end_step()

    def _learn(self, batch: PreparedBatch) -> None:
        """Note the losses, compute all gradients, and update the second half, whose gradients come first, meanwhile."""
        for adam in self.adams:
            adam.zero_grad()
        encoded = self._method.encode_views(self.network, batch)
        cut = encoded.detach().requires_grad_()
        terms = self._method.losses(self.network, cut, batch, joint=self._joint)
        # The sum over replicates gives each the gradient of its own loss.
        torch.autograd.backward(self._method.total(terms, self._numbers).sum())
        put_aside("second half", self._update_second_half)
        assert cut.grad is not None
        backward(encoded, cut.grad)
        join_streams("gradients")
        self._terms.index_copy_(0, self._done, torch.stack(terms, dim=1).detach()[None])

    def _update_second_half(self) -> None:
        join_streams("gradients")
        self.adams[0].step()

    def _end_step(self) -> None:
        """Update the first half, beside all that is still under way."""
        self.adams[1].step()
        self._done += 1
        join_streams()
