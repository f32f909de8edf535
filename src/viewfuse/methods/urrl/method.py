"""URRL-IMVC as the engine sees it: what a step learns from, its losses, embeddings and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import Parameter

from viewfuse.engine.method import Number, Optimization
from viewfuse.methods.urrl.augment import draws_per_sample
from viewfuse.methods.urrl.batches import empty_batch, members_of, plain_batch
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses import Sizes, soft_assignment, soft_sizes, total
from viewfuse.methods.urrl.network import Input, Network, adaptive_mask, build_network, empty_network
from viewfuse.methods.urrl.step import StepBatch
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.attention import Mask
from viewfuse.selection.scores import AGREEMENT_DEPTH

TERMS = ("reconstruction", "robustness", "clustering")


@dataclass(frozen=True)
class URRLMethod:
    """URRL-IMVC under one configuration; see `viewfuse.engine.method.Method` and `viewfuse.fitted.model`.

    Attributes
    ----------
    sizes : the soft sizes of the clusters in a batch; others than those of the batch itself where it is only a part
    """

    config: Config
    sizes: Sizes = field(default=soft_sizes, compare=False, repr=False)
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
    def optimization(self) -> Optimization:
        """How steps are made."""
        config = self.config
        return Optimization(config.batch_size, config.learning_rate, config.weight_decay, config.joint_factor)

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

    def trained_weights(self, network: Network, *, joint: bool) -> list[Parameter]:
        """All weights; the centres in the joint stage only."""
        return [one for one in network.parameters() if joint or one is not network.centers]

    def view_weights(self, network: Network) -> list[Parameter]:
        """The weights of the neighbour encoders and of each view's fully connected layers."""
        return network.view_weights()

    def draws_per_sample(self, stored: Samples) -> int:
        """How many random numbers the augmentation of a sample needs."""
        return sum(draws_per_sample(stored, self.config))

    def prepare(self, stored: Samples, rows: Tensor, numbers: Mapping[str, Tensor], draws: Tensor) -> StepBatch:
        """The samples as they are and, where there is augmentation, augmented."""
        return StepBatch.of(stored, rows, self.config, numbers["view_dropout"].view(-1, 1, 1), draws)

    def encode_views(self, network: Network, batch: StepBatch) -> Tensor:
        """The views, each on its own, as tokens."""
        return network.tokens(batch.given)

    def losses(
        self, network: Network, encoded: Tensor, batch: StepBatch, *, joint: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """L_rec, L_aug and L_clu of each replicate."""
        return batch.losses(network, encoded, self.config, joint=joint, sizes=self.sizes)

    def total(self, terms: Sequence[Number], numbers: Mapping[str, Number]) -> Number:
        """L in the paper."""
        return total(terms, self.config.robustness_weight, numbers["clustering_weight"])

    def embed(self, network: Network, samples: Samples, stored: Samples) -> Tensor:
        """Z in the paper: embeddings of samples as they are."""
        return network.encode(plain_batch(samples, stored, self.config))

    def assign(self, network: Network, embedding: Tensor) -> Tensor:
        """Q in the paper."""
        return soft_assignment(embedding, network.centers)

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
