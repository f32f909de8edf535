"""One update of several networks at once: their weights stacked, each with its own samples and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
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


class Replicates:
    """Networks that are trained side by side.

    All that changes from step to step lies on the device, at a fixed place, so that a step can be recorded once and
    replayed.

    Parameters
    ----------
    sets : the samples of each network, of equal shapes; networks may share a set
    rates : phi_1 of each network, the view dropout in force
    seeds : of each network
    """

    def __init__(
        self,
        networks: Sequence[Network],
        sets: Sequence[Samples],
        settings: Settings,
        rates: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        self._networks, self._seeds, self._settings = networks, seeds, settings
        different = list({id(samples): samples for samples in sets}.values())
        self.network, self._stored = stack(networks), pool(different)
        self._n, size = len(sets[0]), min(settings.batch_size, len(sets[0]))
        steps, device = self._n // size, self._stored.present.device
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device).view(-1, 1, 1)
        places = [next(i for i, one in enumerate(different) if one is samples) for samples in sets]
        self._first_rows = torch.tensor(places, device=device) * self._n
        self._clustering_weights = torch.zeros(len(seeds), device=device)
        self._draws = Draws(len(seeds), size * sum(draws_per_sample(self._stored, settings)), device)
        self._order = torch.zeros(steps, len(seeds), size, dtype=torch.int64, device=device)
        self._done = torch.zeros(1, dtype=torch.int64, device=device)
        self._terms = torch.zeros(steps, len(seeds), len(TERMS), dtype=self.network.centers.dtype, device=device)
        self._optimizers: list[Adam] = []
        self._train([weights for weights in self.network.parameters() if weights is not self.network.centers])
        self._step = self._recorded(joint=False)

    def begin_joint_stage(self, centers: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> None:
        """Give every network its cluster centres, of shape (clusters, embedding), and train these as well.

        Parameters
        ----------
        weights : of the clustering loss, one per network
        """
        with torch.no_grad():
            self.network.centers.copy_(torch.from_numpy(np.stack(centers)).view_as(self.network.centers))
            self._clustering_weights.copy_(torch.tensor(weights))
        self._train([self.network.centers])
        self._step = self._recorded(joint=True)

    def _train(self, weights: Sequence[Parameter]) -> None:
        self._optimizers.append(Adam(weights, self._settings.learning_rate, self._settings.weight_decay))

    def _recorded(self, *, joint: bool) -> Replayed:
        return Replayed(partial(self._update, joint=joint), self._done.device, len(self._stored.values))

    @torch.no_grad()
    def unstack(self) -> None:
        """Write what was learned into the networks that were given."""
        for learned, *own in _matched(self.network, self._networks):
            for weights, part in zip(own, learned.view(len(own), *own[0].shape), strict=True):
                weights.copy_(part)

    def run_epoch(self, epoch: int) -> Tensor:
        """One pass over the shuffled samples; returns loss terms of shape (steps, replicates, terms), on the CPU."""
        keys = epoch_keys(self._seeds, epoch).to(self._done.device)
        rows = shuffled(keys[:, 1], self._n) + self._first_rows[:, None]
        steps, _, size = self._order.shape
        # What is left over waits for the next epoch's order.
        self._order.copy_(torch.unflatten(rows[:, : steps * size], 1, (steps, size)).transpose(0, 1))
        self._draws.begin(keys[:, 0])
        self._done.zero_()
        for _ in range(steps):
            self._step()
        return self._terms.cpu()

    def _update(self, *, joint: bool) -> None:
        """One step of every network, on the next rows."""
        rows = self._order.index_select(0, self._done)[0]
        draws = torch.unflatten(self._draws.next(), 1, (rows.shape[1], -1))
        terms = batch_losses(self.network, self._stored, rows, self._settings, self._rates, draws, joint=joint)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        # The sum over replicates gives each the gradient of its own loss.
        total = total_loss(terms, self._settings.robustness_weight, self._clustering_weights)
        torch.autograd.backward(total.sum())
        for optimizer in self._optimizers:
            optimizer.step()
        self._terms.index_copy_(0, self._done, torch.stack(terms, dim=1).detach()[None])
        self._done += 1
