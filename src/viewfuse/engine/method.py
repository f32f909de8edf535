"""The protocol between engine and method: all that the engine knows of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Generator, Tensor, nn
from torch.nn import Parameter

from viewfuse.neighbors.samples import Samples

Number = TypeVar("Number", Tensor, float)


class Optimization(NamedTuple):
    """How steps are made: the batch size, and learning rate and weight decay of Adam.

    The joint stage may have a larger learning rate, by a factor.
    """

    batch_size: int
    learning_rate: float
    weight_decay: float
    joint_factor: float = 1.0


class PreparedBatch(Protocol):
    """What one step learns from, on the device."""

    def copy_(self, other: Any) -> None:
        """Become the other batch, in the same memory."""


class Placing(Protocol):
    """A way to place samples: all that is asked of a method once its network is trained."""

    @property
    def n_clusters(self) -> int:
        """How many clusters are looked for."""

    def embed(self, network: Any, samples: Samples, stored: Samples) -> Tensor:
        """Embeddings of samples as they are, of shape (samples, embedding)."""

    def assign(self, network: Any, embedding: Tensor) -> Tensor:
        """Probabilities of the clusters, of shape (samples, clusters)."""


class Method(Placing, Protocol):
    """A way to learn embeddings and clusters.

    Networks may be stacked: then their weights have a leading axis for the replicates, and so have the rows, the
    random numbers and the losses below. `numbers` are what differs between replicates besides weights and samples:
    per name a tensor of shape (replicates,).
    """

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms of the loss."""

    @property
    def optimization(self) -> Optimization:
        """How steps are made."""

    def build(self, widths: Sequence[int], generator: Generator) -> nn.Module:
        """A network for views of these widths, on the CPU, its weights drawn from `generator` alone."""

    def trained_weights(self, network: Any, *, joint: bool) -> list[Parameter]:
        """The weights that are trained in a stage."""

    def view_weights(self, network: Any) -> list[Parameter]:
        """The weights that `encode_views` uses; they get their gradients last."""

    def draws_per_sample(self, stored: Samples) -> int:
        """How many random numbers `prepare` needs for a sample."""

    def prepare(self, stored: Samples, rows: Tensor, numbers: Mapping[str, Tensor], draws: Tensor) -> PreparedBatch:
        """What a step learns from.

        Parameters
        ----------
        rows : int64 tensor of shape (replicates, samples of each)
        draws : uniform numbers of shape (replicates, samples of each, `draws_per_sample`)
        """

    def encode_views(self, network: Any, batch: Any) -> Tensor:
        """The first half of the forward pass: every view on its own."""

    def losses(self, network: Any, encoded: Tensor, batch: Any, *, joint: bool) -> tuple[Tensor, ...]:
        """The terms, each of shape (replicates,), given what `encode_views` made; a term that is off is zero."""

    def total(self, terms: Sequence[Number], numbers: Mapping[str, Number]) -> Number:
        """The weighted sum of the terms."""
