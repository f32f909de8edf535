"""What is learned from in a step: a batch in both branches, and the losses on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from viewfuse.methods.urrl import losses
from viewfuse.methods.urrl.augment import two_branches
from viewfuse.methods.urrl.batches import plain_batch
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.network import Input, Network
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.attention import Mask
from viewfuse.nn.streams import join_streams, map_parts, side_stream

_COPY_ALL = getattr(torch, "_foreach_copy_", None)
"""One kernel for all on a GPU; not part of torch's public face, so it may go."""


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, which is of the same shape and kind."""
    if _COPY_ALL is not None:
        _COPY_ALL(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


class StepBatch(NamedTuple):
    """What is learned from in a step.

    Attributes
    ----------
    given : the samples as they are and, where there is augmentation, augmented
    values : per view what is to be rebuilt, of shape (replicates, samples of each, columns)
    present : boolean tensor of shape (replicates, samples of each, views)
    """

    given: Input
    values: list[Tensor]
    present: Tensor

    @classmethod
    def of(cls, stored: Samples, rows: Tensor, config: Config, rate: float | Tensor, draws: Tensor) -> StepBatch:
        """From stored samples; for the parameters see `two_branches`."""
        if config.augmentation:
            samples, batch = two_branches(stored, rows, config, rate, draws)
        else:
            samples = stored.take(rows.flatten())
            batch = plain_batch(samples, stored, config)
        shape = (len(rows), -1, rows.shape[1])
        values = [torch.unflatten(view, 0, shape)[:, 0].contiguous() for view in samples.values]
        return cls(Input.of(batch, config), values, torch.unflatten(samples.present, 0, shape)[:, 0])

    def losses(
        self, network: Network, tokens: Tensor, config: Config, *, joint: bool, sizes: losses.Sizes = losses.soft_sizes
    ) -> tuple[Tensor, Tensor, Tensor]:
        """L_rec, L_aug and L_clu of each replicate, of shape (replicates,); a term that is switched off is zero.

        Parameters
        ----------
        tokens : what `Network.tokens` makes of the samples
        sizes : the soft sizes of the clusters, where the batch is only a part of one
        """
        branches = self._branches(network, tokens)
        plain, last = branches[0], branches[-1]  # one and the same without augmentation
        zero = plain.new_zeros(len(plain))
        with side_stream("losses", plain, last):
            robustness = losses.robustness(plain, last) if config.augmentation else zero
            clustering = losses.clustering(last, network.centers, sizes) if joint else zero

        def error(v: int, embedding: Tensor) -> Tensor:
            return losses.squared_error(network.decoders[v](embedding), self.values[v])

        rebuilding = losses.reconstruction(map_parts(error, [(last,)] * len(self.values)), self.present)
        join_streams("losses")
        return rebuilding, robustness, clustering

    def _branches(self, network: Network, tokens: Tensor) -> Sequence[Tensor]:
        """The embeddings of each branch, of shape (replicates, samples of each, embedding)."""
        count, n = self.present.shape[:2]
        if tokens.is_cuda or count > 1:
            return torch.unflatten(network.fuse(tokens, self.given.view_mask), 0, (count, -1, n)).unbind(dim=1)
        masks = [Mask(*parts) for parts in zip(*(torch.split(one, n) for one in self.given.view_mask), strict=True)]
        found = map_parts(lambda b, own: network.fuse(own, masks[b]), [(own,) for own in torch.split(tokens, n)])
        return [one[None] for one in found]

    def copy_(self, other: StepBatch) -> None:
        """Become the other, in the same memory."""
        copy_all_(self._numbers(), other._numbers())
        self.present.copy_(other.present)

    def _numbers(self) -> list[Tensor]:
        """All tensors of numbers: of one kind, they are copied together."""
        return [*self.given.lists, *self.given.list_mask, *self.given.view_mask, *self.values]
