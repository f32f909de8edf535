"""What published methods fit: a network that embeds samples, and centres of clusters; how a fitted model sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from viewfuse.engine.replicates import passes
from viewfuse.errors import Diverged
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP, Dropout
from viewfuse.selection.kmeans import kmeans_centers
from viewfuse.selection.scores import AGREEMENT_DEPTH
from viewfuse.utils.settings import Setting


class ClusterNetwork(nn.Module, ABC):
    """What a method fits: weights, and centres of clusters of shape (clusters, embedding).

    Attributes
    ----------
    stackable : whether all layers are those of `viewfuse.nn`, whose weights may have a leading axis for replicates;
        then several networks are trained at once, and what goes in has that axis, too
    """

    stackable = False
    centers: Tensor

    def __init__(self, n_clusters: int, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("centers", torch.empty(n_clusters, embedding_dim))
        self._memory: tuple[Samples, Any] | None = None

    @abstractmethod
    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """Embeddings of samples with any of the views, of shape (samples, embedding)."""

    def assign(self, embedding: Tensor) -> Tensor:
        """Probabilities of shape (samples, clusters), the larger the nearer a centre (Student's t)."""
        squares = torch.cdist(embedding, self.centers, compute_mode="donot_use_mm_for_euclid_dist").square()
        return torch.softmax(-torch.log1p(squares), dim=1)

    def remember(self, stored: Samples) -> Any:
        """What placing needs to know of all training samples, such as their codes."""

    def memory(self, stored: Samples) -> Any:
        """What `remember` makes of the training samples, made once."""
        if self._memory is None or self._memory[0] is not stored:
            self._memory = stored, self.remember(stored)
        return self._memory[1]

    def decode(self, embedding: Tensor) -> list[Tensor]:
        """Per view what is expected there, of shape (samples, columns); nothing where the method cannot tell."""
        return []

    @torch.no_grad()
    def find_centers(self, samples: Samples, seed: int) -> None:
        """k-means of the embeddings of the training samples."""
        self.centers.copy_(kmeans_centers(embeddings(self, samples), len(self.centers), seed))


class CodeNetwork(ClusterNetwork):
    """An encoder and a decoder per view; codes of missing views follow from those of the training samples."""

    stackable = True

    def __init__(self, n_clusters: int, embedding_dim: int, encoders: Iterable[MLP], decoders: Iterable[MLP]) -> None:
        super().__init__(n_clusters, embedding_dim)
        self.encoders, self.decoders = nn.ModuleList(encoders), nn.ModuleList(decoders)

    def encode(
        self, values: Sequence[Tensor], present: Tensor | None = None, dropout: Dropout | None = None
    ) -> list[Tensor]:
        """Codes of shape (replicates, batch, width); `present` are rows that norms look at, None all."""
        shown = [None] * len(values) if present is None else present.unbind(dim=2)
        return [encode(x, own, dropout) for encode, x, own in zip(self.encoders, values, shown, strict=True)]

    def codes(self, samples: Samples) -> Tensor:
        """Of shape (samples, views, width), zero where a view is missing."""
        found = self.encode([view[None] for view in samples.values], samples.present[None])
        return torch.stack([code[0] for code in found], dim=1) * samples.present[..., None]

    @torch.no_grad()
    def remember(self, stored: Samples) -> Tensor:
        """The codes of the training samples."""
        return torch.cat([self.codes(part) for part in passes(stored)])[: len(stored)]

    def decode(self, embedding: Tensor) -> list[Tensor]:
        """What the decoders make of the codes."""
        codes = embedding[None].chunk(len(self.decoders), dim=2)
        return [decode(code)[0] for decode, code in zip(self.decoders, codes, strict=True)]


@torch.no_grad()
def embeddings(network: ClusterNetwork, samples: Samples) -> Tensor:
    """Those of the training samples, of shape (samples, embedding); refused where distances would not be finite."""
    found = torch.cat([network.embed(part, samples) for part in passes(samples)])[: len(samples)]
    if not torch.isfinite(found.square().sum()):
        scaling, rate = Setting("scaling", "minmax"), Setting("learning_rate")
        raise Diverged("the embedding is not finite, or too large; use ", scaling, ", or a lower ", rate)
    return found


def masked_mse(found: Tensor, wanted: Tensor, shown: Tensor) -> Tensor:
    """Mean squared error over the columns of the rows that count, of shape (replicates,); 0 without any.

    Parameters
    ----------
    found, wanted : of shape (replicates, batch, columns)
    shown : which rows count, of shape (replicates, batch)
    """
    errors = (found - wanted).square().mean(dim=2) * shown
    return errors.sum(dim=1) / shown.sum(dim=1).clamp(min=1)


def rows_to_learn_from(chosen: Tensor) -> Tensor:
    """Rows that are chosen, of a boolean tensor of shape (samples,); all rows where these are fewer than two."""
    rows = chosen.nonzero().flatten()
    return rows if len(rows) > 1 else torch.arange(len(chosen), device=chosen.device)


def view_errors(training: Any, encoders: Iterable[Any], decoders: Iterable[Any], rows: Tensor) -> dict[str, Tensor]:
    """sum_v MSE of auto-encoders, of shape (replicates,); a third axis of `rows` has rows for each view."""
    errors = []
    for v, (encode, decode) in enumerate(zip(encoders, decoders, strict=True)):
        x = training.view(v, rows if rows.dim() == 2 else rows[..., v])
        errors.append((decode(encode(x)) - x).square().mean(dim=(1, 2)))
    return {"reconstruction": torch.stack(errors).sum(dim=0)}


class PlacingNetwork:
    """A published method as a fitted model sees it: all that is asked of one, URRL's as well."""

    neighbor_depth = AGREEMENT_DEPTH
    """Neighbours that are kept of each training sample and view."""
    shows_rounding = False
    """Whether embeddings are smooth; some methods pick donors when they embed, and few samples hide rounding."""

    def __init__(self, estimator: Any) -> None:
        self.estimator, self.name, self.n_clusters = estimator, estimator.name, estimator.n_clusters

    def saved(self) -> dict[str, Any]:
        """The settings, in a form that JSON can hold."""
        return self.estimator.settings()

    def empty(self, widths: Sequence[int]) -> ClusterNetwork:
        """A network without memory for its weights."""
        return self.estimator.empty(widths)

    def embed(self, network: ClusterNetwork, samples: Samples, stored: Samples) -> Tensor:
        """Embeddings of samples as they are, of shape (samples, embedding)."""
        return network.embed(samples, stored)

    def assign(self, network: ClusterNetwork, embedding: Tensor) -> Tensor:
        """Probabilities of the clusters, of shape (samples, clusters)."""
        return network.assign(embedding)

    def members(self, samples: Samples, stored: Samples) -> Tensor:
        """Training samples that stand beside or for each sample, (samples, views, list length): here there are none."""
        return samples.neighbor_ids[:, :, :0]

    def view_influence(self, network: ClusterNetwork, samples: Samples, stored: Samples) -> Tensor:
        """How far the embedding would move without a view, of shape (samples, views); -inf where it is missing.

        A sample's only view cannot be taken away; it is said to move the embedding by 1.
        """
        whole, moved = network.embed(samples, stored), []
        for v in range(len(samples.values)):
            left = samples.present.clone()
            left[:, v] &= left.sum(dim=1) == 1
            values = [view * left[:, w, None] for w, view in enumerate(samples.values)]
            moved.append((whole - network.embed(Samples(values, left, samples.neighbor_ids), stored)).norm(dim=1))
        only = samples.present.sum(dim=1, keepdim=True) == 1
        return torch.where(samples.present, torch.where(only, 1.0, torch.stack(moved, dim=1)), -torch.inf)
