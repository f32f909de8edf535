"""URRL-IMVC: what a step learns from, its losses, and how samples are placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor

from viewfuse.engine.training import Training
from viewfuse.methods.urrl import losses
from viewfuse.methods.urrl.augment import draws_per_sample, empty_batch, members_of, plain_batch, two_branches
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.network import Input, Mask, Network, adaptive_mask, build_network, empty_network
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.layers import in_parallel
from viewfuse.selection.scores import AGREEMENT_DEPTH

TERMS = ("reconstruction", "robustness", "clustering")
HINTS, PAIRS = "hints", "pairs"
_PAIRS_PER_STEP = 16
"""Drawn for each step beside its batch of 64 samples: half as many samples, of which nothing is rebuilt."""
Number = TypeVar("Number", Tensor, float)


class StepBatch(NamedTuple):
    """What is learned from in a step.

    Attributes
    ----------
    given : the samples as they are and, where there is augmentation, augmented
    values : per view what is to be rebuilt, of shape (replicates, samples of each, columns)
    present : boolean tensor of shape (replicates, samples of each, views)
    known : int64 tensor of shape (replicates, samples of each): known classes, else -1; None where there are no hints
    weights : float32 tensor of shape (replicates, samples of each); None where all count the same
    """

    given: Input
    values: list[Tensor]
    present: Tensor
    known: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class URRLMethod:
    """URRL-IMVC under one configuration.

    Networks may be stacked: then their weights have a leading axis for the replicates, and so have rows, random numbers
    and losses.

    Attributes
    ----------
    sizes : the soft sizes of the clusters in a batch; others than those of the batch itself where it is only a part
    hint_weight : of the hints, and of the pairs, times the weight of the clustering loss
    """

    config: Config
    sizes: losses.Sizes = field(default=losses.soft_sizes, compare=False, repr=False)
    hint_weight: float = field(default=losses.HINT_WEIGHT, compare=False, repr=False)
    terms = TERMS
    name = "urrl"
    shows_rounding = True  # neighbours are found before

    @classmethod
    def from_saved(cls, config: Mapping[str, Any]) -> URRLMethod:
        """The method whose configuration a saved model names."""
        return cls(Config(**config))

    def saved(self) -> dict[str, Any]:
        """The configuration, in a form that JSON can hold."""
        return asdict(self.config)

    @property
    def n_clusters(self) -> int:
        """How many clusters are looked for."""
        return self.config.n_clusters

    @property
    def neighbor_depth(self) -> int:
        """Neighbours that are kept of each sample and view: for the lists, and for the choice of clusters."""
        return max(self.config.search_depth, AGREEMENT_DEPTH)

    def build(self, widths: Sequence[int], generator: Generator) -> Network:
        """A network for views of these widths, on the CPU, its weights drawn from `generator` alone."""
        return build_network(widths, self.config, generator)

    def empty(self, widths: Sequence[int]) -> Network:
        """A network without memory for its weights."""
        return empty_network(widths, self.config)

    def draws_per_sample(self, stored: Samples) -> int:
        """How many random numbers the augmentation of a sample needs."""
        return sum(draws_per_sample(stored, self.config))

    def prepare(self, stored: Samples, rows: Tensor, view_dropout: float | Tensor, draws: Tensor) -> StepBatch:
        """The samples as they are and, where there is augmentation, augmented.

        Parameters
        ----------
        rows : int64 tensor of shape (replicates, samples of each)
        view_dropout : a number, or a tensor of shape (replicates, 1, 1)
        draws : uniform numbers of shape (replicates, samples of each, `draws_per_sample`)
        """
        if self.config.augmentation:
            samples, batch = two_branches(stored, rows, self.config, view_dropout, draws)
        else:
            samples = stored.take(rows.flatten())
            batch = plain_batch(samples, stored, self.config)
        shape = (len(rows), -1, rows.shape[1])
        values = [torch.unflatten(view, 0, shape)[:, 0].contiguous() for view in samples.values]
        return StepBatch(Input.of(batch, self.config), values, torch.unflatten(samples.present, 0, shape)[:, 0])

    def losses(self, network: Network, batch: StepBatch, *, joint: bool) -> tuple[Tensor, ...]:
        """L_rec, L_aug and L_clu of each replicate, of shape (replicates,); a term that is switched off is zero.

        With hints a fourth term follows.
        """
        plain, last = self._branches(network, batch)
        zero, weights = plain.new_zeros(len(plain)), batch.weights

        def error(v: int) -> Tensor:
            return losses.squared_error(network.decoders[v](last), batch.values[v])

        def robustness() -> Tensor:
            return losses.robustness(plain, last, weights) if self.config.augmentation else zero

        def clustering() -> Tensor:
            return losses.clustering(last, network.centers, self.sizes, weights) if joint else zero

        works: list[Callable[[], Tensor]] = [partial(error, v) for v in range(len(batch.values))]
        *errors, robust, clustered = in_parallel([*works, robustness, clustering])
        terms = losses.reconstruction(errors, batch.present, weights), robust, clustered
        return terms if batch.known is None else (*terms, losses.hints(last, network.centers, batch.known, weights))

    def pair_loss(self, network: Network, batch: StepBatch, together: Tensor) -> Tensor:
        """Whether pairs are together or apart, as they should be, of shape (replicates,).

        Parameters
        ----------
        batch : the first samples of all pairs, then the second ones
        together : boolean tensor of shape (replicates, pairs)
        """
        last = self._branches(network, batch)[1]
        return losses.pairs(torch.unflatten(last, 1, (2, -1)), network.centers, together)

    @staticmethod
    def _branches(network: Network, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Embeddings as the samples are, and augmented: one and the same without augmentation."""
        count, n = batch.present.shape[:2]
        branches = torch.unflatten(network(batch.given), 0, (count, -1, n)).unbind(dim=1)
        return branches[0], branches[-1]

    def total(self, terms: Sequence[Number], clustering_weight: Number) -> Number:
        """L in the paper."""
        return losses.total(terms, self.config.robustness_weight, clustering_weight, self.hint_weight)

    def embed(self, network: Network, samples: Samples, stored: Samples) -> Tensor:
        """Z in the paper: embeddings of samples as they are."""
        return network.encode(plain_batch(samples, stored, self.config))

    def assign(self, network: Network, embedding: Tensor) -> Tensor:
        """Q in the paper."""
        return losses.soft_assignment(embedding, network.centers)

    def decode(self, network: Network, embedding: Tensor) -> list[Tensor]:
        """x-hat in the paper: per view what is expected there, of shape (samples, columns)."""
        return network.decode(embedding)

    def members(self, samples: Samples, stored: Samples) -> Tensor:
        """Training samples in the neighbour lists, of shape (samples, views, list length): donors of missing views."""
        return members_of(samples, samples.present, stored, self.config)[0]

    def view_influence(self, network: Network, samples: Samples, stored: Samples) -> Tensor:
        """How far the embedding would move if nothing stood in a view, of shape (samples, views).

        Each view is emptied in turn, as the network knows empty views. Attention would not tell: on Handwritten it was
        nearly even among the views that a sample has, whatever was in them, and most of an embedding went past it.
        Negative infinity marks a view in which nothing stands.
        """
        batch = plain_batch(samples, stored, self.config)
        given, nothing = (Input.of(one, self.config) for one in (batch, empty_batch(batch)))
        # What is in one view does not change the tokens of the others, so these are computed once.
        tokens, empty = network.tokens(given), network.tokens(nothing)
        bias = adaptive_mask(batch.valid, batch.available, self.config).to(tokens.dtype)

        def without(v: int) -> Tensor:
            emptied = tokens.clone()
            emptied[:, v] = empty[:, v]
            hidden = torch.tensor(v, device=bias.device)
            return network.fuse(emptied, Mask.of(bias.index_fill(1, hidden, -torch.inf)))

        whole = network.fuse(tokens, given.view_mask)
        moved = torch.stack([(whole - without(v)).norm(dim=1) for v in range(len(batch.tokens))], dim=1)
        return moved.masked_fill(~batch.valid.any(dim=2), -torch.inf)


def known_of(training: Training) -> list[Tensor | None]:
    """The classes and weights of the samples of each network, of shape (replicates, samples); None where unknown."""
    both = zip(*((run.known.followed, run.known.weights) for run in training.runs), strict=True)
    return [torch.stack(one) if all(own is not None for own in one) else None for one in both]


def pair_loss_of(training: Training) -> Callable[[], Tensor] | None:
    """From nothing to the loss of pairs that are drawn anew for each step; None without pairs, which all runs share.

    A batch of the step would seldom hold both samples of a pair.
    """
    method, known = training.runs[0].method, training.runs[0].known
    if known.pairs is None or known.together is None:
        return None
    all_pairs, together, count = known.pairs, known.together, min(_PAIRS_PER_STEP, len(known.pairs))
    per_sample, view_dropout = method.draws_per_sample(training.pooled), training.number("view_dropout").view(-1, 1, 1)

    def loss() -> Tensor:
        drawn = (training.random.uniform(count) * len(all_pairs)).long().clamp(max=len(all_pairs) - 1)
        rows = all_pairs[drawn].mT.flatten(1)
        draws = torch.unflatten(training.random.uniform(rows.shape[1] * per_sample), 1, (rows.shape[1], -1))
        batch = method.prepare(training.pooled, rows + training.first_rows, view_dropout, draws)
        return method.pair_loss(training.network, batch, together[drawn])

    return loss
