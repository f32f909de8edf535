"""One update of several networks at once: their weights stacked, each with its own samples and random numbers."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from viewfuse.adam import Adam
from viewfuse.batches import Samples, draws_per_sample, plain_batch
from viewfuse.lessons import StepBatch
from viewfuse.neighbors.view_index import NO_NEIGHBOR
from viewfuse.network import Network
from viewfuse.nn.streams import GraphedStep, join_streams, side_stream
from viewfuse.random_numbers import Draws, epoch_keys, shuffled
from viewfuse.settings import Settings

Number = TypeVar("Number", Tensor, float)
_ROWS_PER_PASS = {"cpu": 64, "cuda": 4096}
_LEAST_ROWS_PER_PASS = 64
TERMS = ("reconstruction", "robustness", "clustering")


def stack(networks: Sequence[Network]) -> Network:
    """The networks as one, whose weights have a leading axis for them; a single network stays as it is."""
    if len(networks) == 1:
        return networks[0]
    together = copy.deepcopy(networks[0])
    for stacked, *own in _matched(together, networks):
        stacked.data = torch.stack([weights.detach() for weights in own])
    return together


def _matched(together: Network, networks: Sequence[Network]) -> Iterator[tuple[Parameter, ...]]:
    """Each weight of the stacked network with those of the networks."""
    return zip(together.parameters(), *(network.parameters() for network in networks), strict=True)


def pool(sets: Sequence[Samples]) -> Samples:
    """Different sets of samples as one, in which each finds its neighbours where they now are."""
    if len(sets) == 1:
        return sets[0]
    shifted = [
        torch.where(s.neighbor_ids == NO_NEIGHBOR, NO_NEIGHBOR, s.neighbor_ids + i * len(s)) for i, s in enumerate(sets)
    ]
    values = [torch.cat(views) for views in zip(*(s.values for s in sets), strict=True)]
    return Samples(values, torch.cat([s.present for s in sets]), torch.cat(shifted))


def total_loss(terms: Sequence[Number], robustness_weight: float, clustering_weight: Number) -> Number:
    """L in the paper: the weighted sum of the terms."""
    return terms[0] + robustness_weight * terms[1] + clustering_weight * terms[2]


@dataclass
class ReplicateSpec:
    """A network with what it is trained on, and how.

    Attributes
    ----------
    network : on the device of `stored`
    stored : the training samples
    seed : root of every random number
    view_dropout : phi_1 in force
    clustering_weight : lambda_2 in force
    """

    network: Network
    stored: Samples
    settings: Settings
    seed: int
    view_dropout: float
    clustering_weight: float


class Replicates:
    """Networks that are trained side by side in one stage, each half of them by an Adam of its own.

    All that changes from step to step lies on the device, at a fixed place, so that a step can be recorded once and
    replayed.

    Parameters
    ----------
    trainees : with samples of equal shapes and equal settings; some may share their samples
    joint : whether it is the joint stage, in which the clustering loss counts and the centres are trained as well
    """

    def __init__(self, trainees: Sequence[ReplicateSpec], *, joint: bool) -> None:
        first, self._networks = trainees[0], [one.network for one in trainees]
        self._seeds, self._joint = [one.seed for one in trainees], joint
        self._settings = settings = first.settings
        different = list({id(one.stored): one.stored for one in trainees}.values())
        self.network, self._stored = stack(self._networks), pool(different)
        self._n, size = len(first.stored), min(settings.batch_size, len(first.stored))
        self._device = self._stored.present.device
        places = [next(i for i, one in enumerate(different) if one is trainee.stored) for trainee in trainees]
        self._first_rows = torch.tensor(places, device=self._device) * self._n
        self._rates = self._numbers([one.view_dropout for one in trainees]).view(-1, 1, 1)
        self._clustering_weights = self._numbers([one.clustering_weight for one in trainees])
        self._prepare_steps(self._n // size, size)
        first_half = {id(one) for one in self.network.first_half()}
        trained = [one for one in self.network.parameters() if joint or one is not self.network.centers]
        halves = [[one for one in trained if (id(one) in first_half) is early] for early in (True, False)]
        self._adams = [Adam(half, settings.learning_rate, settings.weight_decay) for half in halves]
        own = weakref.proxy(self)  # a step that held on to it would keep its memory until a garbage collection
        self._step = GraphedStep(lambda: own._update(), self._device, len(self._stored.values))

    def _numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _prepare_steps(self, steps: int, size: int) -> None:
        """Room for what the steps of an epoch read and write."""
        count, dtype = len(self._seeds), self.network.centers.dtype
        self._draws = Draws(count, size * sum(draws_per_sample(self._stored, self._settings)), self._device)
        self._order = torch.zeros(steps, count, size, dtype=torch.int64, device=self._device)
        self._done = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._made = torch.zeros_like(self._done)
        self._lesson: StepBatch | None = None
        self._terms = torch.zeros(steps, count, len(TERMS), dtype=dtype, device=self._device)

    @torch.no_grad()
    def unstack(self) -> None:
        """Write what was learned into the networks that were given."""
        for learned, *own in _matched(self.network, self._networks):
            for weights, part in zip(own, learned.view(len(own), *own[0].shape), strict=True):
                weights.copy_(part)

    def finish(self) -> None:
        """Write what was learned into the networks that were given, and forget the gradients."""
        self.unstack()
        for adam in self._adams:
            adam.zero_grad()

    @torch.no_grad()
    def embed(self) -> Tensor:
        """Embeddings of the samples as they are, of shape (networks, samples, embedding)."""
        size = max(_LEAST_ROWS_PER_PASS, _ROWS_PER_PASS[self._device.type] // len(self._seeds))
        parts = []
        for start in range(0, self._n, size):
            own = torch.arange(start, start + size, device=self._device).clamp(max=self._n - 1)
            rows = own + self._first_rows[:, None]
            batch = plain_batch(self._stored.take(rows.flatten()), self._stored, self._settings)
            parts.append(torch.unflatten(self.network.encode(batch), 0, rows.shape))
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
        if self._device.type == "cuda" and steps > 1:
            self._make_ready(self._next_lesson())
        for _ in range(steps):
            self._step()
        return self._terms.cpu()

    def _next_lesson(self) -> StepBatch:
        rows = self._order.index_select(0, self._made)[0]
        self._made.add_(1).remainder_(len(self._order))
        draws = torch.unflatten(self._draws.next(), 1, (rows.shape[1], -1))
        return StepBatch.of(self._stored, rows, self._settings, self._rates, draws)

    def _make_ready(self, lesson: StepBatch) -> None:
        """Put it where the recorded step finds it."""
        if self._lesson is None:
            self._lesson = lesson
        else:
            self._lesson.copy_(lesson)

    def _update(self) -> None:
        """One step of every network."""
        if self._lesson is None:
            self._learn(self._next_lesson())
            self._end_step()
            return
        with side_stream("lesson"):  # what comes next is made beside all else
            upcoming = self._next_lesson()
        self._learn(self._lesson)
        with side_stream("lesson"):
            self._lesson.copy_(upcoming)
        self._end_step()

    def _learn(self, lesson: StepBatch) -> None:
        """Note the losses, compute all gradients, and update the second half, whose gradients come first, meanwhile."""
        for adam in self._adams:
            adam.zero_grad()
        tokens = self.network.tokens(lesson.given)
        cut = tokens.detach().requires_grad_()
        terms = lesson.terms(self.network, cut, self._settings, joint=self._joint)
        # The sum over replicates gives each the gradient of its own loss.
        total = total_loss(terms, self._settings.robustness_weight, self._clustering_weights)
        torch.autograd.backward(total.sum())
        with side_stream("second half"):
            join_streams("gradients")
            self._adams[1].step()
        torch.autograd.backward(tokens, cut.grad)
        join_streams("gradients")
        self._terms.index_copy_(0, self._done, torch.stack(terms, dim=1).detach()[None])

    def _end_step(self) -> None:
        """Update the first half, beside all that is still under way."""
        self._adams[0].step()
        self._done += 1
        join_streams()
