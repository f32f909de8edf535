"""CPSPAN (Jin et al., CVPR 2023): views are aligned by samples and by prototypes, gaps filled from another sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from viewfuse.engine.training import Stage, Training
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork, CodeNetwork, masked_mse, view_errors
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP

_SMALL = 1e-8


def instance_loss(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """L_ins of shape (replicates,): the mean of (1 - cosine)^2 of the codes of samples that have `both` views."""
    apart = (1 - functional.cosine_similarity(first, second, dim=2, eps=_SMALL)).square() * both
    return apart.sum(dim=1) / both.sum(dim=1).clamp(min=1)


def prototype_loss(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """L_pro of shape (replicates,): the mean of (1 - cosine)^2 of all columns of codes with all of another view's.

    The paper matches columns first; its code, like this, does not.
    """
    columns = [functional.normalize(code * both[:, :, None], dim=1, eps=_SMALL) for code in (first, second)]
    return (1 - columns[0].mT @ columns[1]).square().mean(dim=(1, 2)) * both.any(dim=1)


class _ViewAutoencoders(CodeNetwork):
    """An auto-encoder per view."""

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """The codes of all views side by side; a missing one is that of the nearest sample in the views that are there.

        The search looks at the sample's own views only: the published code searches with the code of the hidden row.
        """
        codes, known, has = self.codes(samples), self.memory(stored), stored.present
        nearest = similarity_in_common_views(codes, samples.present, known, has)
        filled = []
        for v in range(codes.shape[1]):
            donors = nearest.masked_fill(~has[:, v], -torch.inf)
            found = known[donors.argmax(dim=1), v]
            alone = known[:, v].sum(dim=0) / has[:, v].sum().clamp(min=1)
            found = torch.where(donors.isneginf().all(dim=1, keepdim=True), alone, found)
            filled.append(torch.where(samples.present[:, v, None], codes[:, v], found))
        return torch.cat(filled, dim=1)


def similarity_in_common_views(codes: Tensor, present: Tensor, others: Tensor, others_present: Tensor) -> Tensor:
    """Cosine of the mean codes of the views that a sample has, of shape (samples, others).

    Codes of shape (samples, views, width), zero where missing; -inf marks others that lack one of these views.
    """
    weights = present.to(codes.dtype)
    query = functional.normalize(codes.sum(dim=1), dim=1, eps=_SMALL)
    # The other's mean code over the views of this sample, without making it: its product with the query, its length.
    product = (query[:, None] * weights[..., None]).flatten(1) @ others.flatten(1).T
    grams = (others @ others.mT).flatten(1)
    length = ((weights[:, :, None] * weights[:, None]).flatten(1) @ grams.T).clamp(min=_SMALL**2).sqrt()
    lacks = weights @ (~others_present).to(codes.dtype).T > 0
    return (product / length).masked_fill(lacks, -torch.inf)


@dataclass(eq=False, repr=False, kw_only=True)
class CPSPAN(PublishedMethod):
    """k-means of aligned codes of all views, a missing code taken from the sample that is nearest in the other views.

    The published program looks for that sample with the code of the hidden row itself. In its first stage the lists of
    a view's samples are as long as the longest; here they are filled up to whole batches, by the same samples again.

    Parameters
    ----------
    latent_dim : int, default 10
        Width of a code.
    hidden_dims : sequence of int, default (500, 500, 2000)
        Widths of the hidden layers of the encoders; the decoders have them in reverse.
    pretrain_epochs, epochs : int, default 200 and 50
        Of reconstruction alone, each view on its own samples; and of alignment.
    prototype_weight, instance_weight : float, default 1e-3
        Of L_pro and L_ins beside the reconstruction.
    batch_size, pretrain_rate, learning_rate : default 256, 5e-4, 1e-4
        Of Adam, in both stages.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    latent_dim: int = 10
    hidden_dims: Sequence[int] = (500, 500, 2000)
    pretrain_epochs: int = 200
    epochs: int = 50
    prototype_weight: float = 1e-3
    instance_weight: float = 1e-3
    batch_size: int = 256
    pretrain_rate: float = 5e-4
    learning_rate: float = 1e-4

    name: ClassVar[str] = "cpspan"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"caltech101-7": {}, "handwritten": {}, "aloi-100": {}}

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """Auto-encoders."""
        latent, hidden = self.latent_dim, tuple(self.hidden_dims)
        encoders = (MLP((width, *hidden, latent)) for width in widths)
        decoders = (MLP((latent, *hidden[::-1], width)) for width in widths)
        return _ViewAutoencoders(self.n_clusters, latent * len(widths), encoders, decoders)

    def stack_key(self, samples: Samples) -> tuple[int, ...]:
        """The samples of the view that most have, rounded up to whole batches: rows of an epoch of the first stage."""
        size = min(self.batch_size, len(samples))
        return (size * -(-int(samples.present.sum(dim=0).max()) // size),)

    def schedule(self, training: Training) -> list[Stage]:
        """Reconstruction of each view, then with alignment."""
        runs, size, network = training.runs, self.batch_size, training.network
        (length,) = self.stack_key(runs[0].stored)
        lists = torch.stack([_lists(run.stored.present, length, run.seed) for run in runs])
        errors = partial(view_errors, training, network.encoders, network.decoders)
        losses = partial(self.losses, training)
        return [
            Stage("reconstruction", self.pretrain_epochs, size, self.pretrain_rate, errors, lists),
            Stage("alignment", self.epochs, size, self.learning_rate, losses, last="drop short"),
        ]

    def losses(self, training: Training, rows: Tensor) -> dict[str, Tensor]:
        """The weighted terms of a batch of samples, each of shape (replicates,)."""
        network, present = training.network, training.has(rows)
        values = [training.view(v, rows) for v in range(len(training.values))]
        codes = network.encode(values)
        errors = [masked_mse(decode(codes[v]), values[v], present[..., v]) for v, decode in enumerate(network.decoders)]
        terms = {"reconstruction": torch.stack(errors).sum(dim=0)}
        terms |= {name: torch.zeros_like(errors[0]) for name in ("prototypes", "instances")}
        for a, b in combinations(range(len(codes)), 2):
            pair = codes[a], codes[b], present[..., a] & present[..., b]
            terms["prototypes"] = terms["prototypes"] + self.prototype_weight * prototype_loss(*pair)
            terms["instances"] = terms["instances"] + self.instance_weight * instance_loss(*pair)
        return terms


def _lists(present: Tensor, length: int, seed: int) -> Tensor:
    """Per view its samples in random order, repeated until there are `length`; of shape (length, views)."""
    rng, found = np.random.default_rng([seed, 5]), []
    for v in range(present.shape[1]):
        rows = rng.permutation(np.flatnonzero(present[:, v].cpu().numpy()))
        found.append(torch.from_numpy(np.resize(rows, length)))
    return torch.stack(found, dim=1).to(present.device)
