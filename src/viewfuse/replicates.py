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

from viewfuse import losses
from viewfuse.adam import Adam
from viewfuse.batches import Samples, draws_per_sample, plain_batch, two_branches
from viewfuse.graphs import Replayed
from viewfuse.network import Network
from viewfuse.random_numbers import Draws, epoch_keys, shuffled
from viewfuse.search import NOBODY
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
    shifted = [torch.where(s.near == NOBODY, NOBODY, s.near + i * len(s)) for i, s in enumerate(sets)]
    values = [torch.cat(views) for views in zip(*(s.values for s in sets), strict=True)]
    return Samples(values, torch.cat([s.present for s in sets]), torch.cat(shifted))


def batch_losses(
    network: Network,
    stored: Samples,
    rows: Tensor,
    settings: Settings,
    rate: float | Tensor,
    draws: Tensor,
    *,
    joint: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """L_rec, L_aug and L_clu of each replicate, of shape (replicates,); a term that is switched off is zero.

    Parameters
    ----------
    rows, rate, draws : see `two_branches`
    """
    if settings.augmentation:
        samples, batch = two_branches(stored, rows, settings, rate, draws)
    else:
        samples = stored.take(rows.flatten())
        batch = plain_batch(samples, stored, settings)
    branches = torch.unflatten(network.encode(batch), 0, (len(rows), -1, rows.shape[1]))
    plain, last = branches[:, 0], branches[:, -1]  # one and the same without augmentation
    values = [torch.unflatten(view, 0, branches.shape[:3])[:, 0] for view in samples.values]
    present = torch.unflatten(samples.present, 0, branches.shape[:3])[:, 0]
    rebuilding = losses.reconstruction(network.decode(last), values, present)
    zero = torch.zeros_like(rebuilding)
    return (
        rebuilding,
        losses.robustness(plain, last) if settings.augmentation else zero,
        losses.clustering(last, network.centers) if joint else zero,
    )


def total_loss(terms: Sequence[Number], robustness_weight: float, clustering_weight: Number) -> Number:
    """L in the paper: the weighted sum of the terms."""
    return terms[0] + robustness_weight * terms[1] + clustering_weight * terms[2]


@dataclass
class Trainee:
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
    """Networks that are trained side by side in one stage, by an Adam of their own.

    All that changes from step to step lies on the device, at a fixed place, so that a step can be recorded once and
    replayed.

    Parameters
    ----------
    trainees : with samples of equal shapes and equal settings; some may share their samples
    joint : whether it is the joint stage, in which the clustering loss counts and the centres are trained as well
    """

    def __init__(self, trainees: Sequence[Trainee], *, joint: bool) -> None:
        first, self._networks = trainees[0], [one.network for one in trainees]
        self._seeds, self._settings, self._joint = [one.seed for one in trainees], first.settings, joint
        different = list({id(one.stored): one.stored for one in trainees}.values())
        self.network, self._stored = stack(self._networks), pool(different)
        self._n, size = len(first.stored), min(first.settings.batch_size, len(first.stored))
        self._device = self._stored.present.device
        places = [next(i for i, one in enumerate(different) if one is trainee.stored) for trainee in trainees]
        self._first_rows = torch.tensor(places, device=self._device) * self._n
        self._rates = self._numbers([one.view_dropout for one in trainees]).view(-1, 1, 1)
        self._clustering_weights = self._numbers([one.clustering_weight for one in trainees])
        self._prepare_steps(self._n // size, size)
        weights = [one for one in self.network.parameters() if joint or one is not self.network.centers]
        self._adam = Adam(weights, first.settings.learning_rate, first.settings.weight_decay)
        own = weakref.proxy(self)  # a step that held on to it would keep its memory until a garbage collection
        self._step = Replayed(lambda: own._update(), self._device, len(self._stored.values))

    def _numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _prepare_steps(self, steps: int, size: int) -> None:
        """Room for what the steps of an epoch read and write."""
        count, dtype = len(self._seeds), self.network.centers.dtype
        self._draws = Draws(count, size * sum(draws_per_sample(self._stored, self._settings)), self._device)
        self._order = torch.zeros(steps, count, size, dtype=torch.int64, device=self._device)
        self._done = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._terms = torch.zeros(steps, count, len(TERMS), dtype=dtype, device=self._device)

    @torch.no_grad()
    def unstack(self) -> None:
        """Write what was learned into the networks that were given."""
        for learned, *own in _matched(self.network, self._networks):
            for weights, part in zip(own, learned.view(len(own), *own[0].shape), strict=True):
                weights.copy_(part)

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
        for _ in range(steps):
            self._step()
        return self._terms.cpu()

    def _update(self) -> None:
        """One step of every network, on the next rows."""
        rows = self._order.index_select(0, self._done)[0]
        draws = torch.unflatten(self._draws.next(), 1, (rows.shape[1], -1))
        terms = batch_losses(self.network, self._stored, rows, self._settings, self._rates, draws, joint=self._joint)
        self._adam.zero_grad()
        # The sum over replicates gives each the gradient of its own loss.
        total = total_loss(terms, self._settings.robustness_weight, self._clustering_weights)
        torch.autograd.backward(total.sum())
        self._adam.step()
        self._terms.index_copy_(0, self._done, torch.stack(terms, dim=1).detach()[None])
        self._done += 1
