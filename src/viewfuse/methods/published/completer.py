"""COMPLETER (Lin et al., CVPR 2021) and DCP (Lin et al., TPAMI 2022): views predict each other's codes.

Every view has an auto-encoder whose code is a distribution over L "clusters". Codes of two views of a sample share as
much information as they can, and a code is predicted from that of another view, also where that view is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from viewfuse.engine.training import Stage, Training
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork, CodeNetwork, masked_mse, rows_to_learn_from
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP, Dropout

_LEAST = 2.2e-16
"""Below which no probability goes."""
_PREDICTOR = (128, 256, 128, 256, 128)


ViewPair = tuple[int, int, float, float]
"""Two views, and how much their contrast and their predictions of each other count."""


def mutual_information_loss(first: Tensor, second: Tensor, both: Tensor, alpha: float) -> Tensor:
    """L_cl of shape (replicates,): minus the mutual information of codes, minus alpha times their entropies.

    Codes of shape (replicates, batch, L), whose rows sum to 1; 0 where no sample has `both` views.
    """
    joint = (first * both[:, :, None]).mT @ second  # P, of shape (replicates, L, L)
    joint = (joint + joint.mT) / 2
    joint = joint / joint.sum(dim=(1, 2), keepdim=True).clamp(min=_LEAST)
    row, column = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    logs = [one.clamp(min=_LEAST).log() for one in (joint, row, column)]
    terms = joint.clamp(min=_LEAST) * (logs[0] - (alpha + 1) * (logs[1] + logs[2]))
    return -terms.sum(dim=(1, 2)) * both.any(dim=1)


class _PredictingAutoencoders(CodeNetwork):
    """Auto-encoders, and a predictor for each direction of each pair."""

    def __init__(self, widths: Sequence[int], method: COMPLETER, pairs: Sequence[ViewPair]) -> None:
        latent, hidden = method.latent_dim, tuple(method.hidden_dims)
        encoders = (MLP((width, *hidden, latent), norm=True) for width in widths)
        decoders = (MLP((latent, *hidden, width), norm=True, ends=True) for width in widths)
        super().__init__(method.n_clusters, latent * len(widths), encoders, decoders)
        both = [(a, b) for first, second, *_ in pairs for a, b in ((first, second), (second, first))]
        self.predictors = nn.ModuleDict({f"{a} to {b}": MLP((latent, *_PREDICTOR, latent), norm=True) for a, b in both})
        self._core = len(widths) > 2 and not any(first for first, *_ in pairs)

    def encode(
        self, values: Sequence[Tensor], present: Tensor | None = None, dropout: Dropout | None = None
    ) -> list[Tensor]:
        return [code.softmax(dim=2) for code in super().encode(values, present)]

    def predict(self, source: int, target: int, codes: Sequence[Tensor], both: Tensor | None = None) -> Tensor:
        """The code of the view `target` as it follows from that of `source`."""
        return self.predictors[f"{source} to {target}"](codes[source], both).softmax(dim=2)

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """The codes of all views side by side; a missing one is the mean of its predictions."""
        present = samples.present[None]
        codes, there = self.encode([view[None] for view in samples.values], present), present.clone()
        for v in range(len(codes)):
            sources = [u for u in range(len(codes)) if f"{u} to {v}" in self.predictors]
            if sources:
                weights = [there[..., u, None].float() for u in sources]
                found = [w * self.predict(u, v, codes) for u, w in zip(sources, weights, strict=True)]
                mean = torch.stack(found).sum(dim=0) / torch.stack(weights).sum(dim=0).clamp(min=1)
                codes[v] = torch.where(present[..., v, None], codes[v], mean)
            there[..., v] |= self._core and v == 0  # others may follow from a core that was predicted itself
        return torch.cat(codes, dim=2)[0]


@dataclass(eq=False, repr=False, kw_only=True)
class COMPLETER(PublishedMethod):
    """Clusters of codes that views predict for each other.

    Only samples with two views at least are learned from. With more than two views, for which the paper has no formula,
    contrast and prediction are averaged over all pairs of views, each over the samples that have both, and a missing
    code is the mean of its predictions. The same as published with two, but that the batches of an epoch have one size,
    where the last one is short in the published program. Reconstructions are not negative, so data should not be,
    either.

    Parameters
    ----------
    latent_dim : int, default 128
        L, the width of a code.
    hidden_dims : sequence of int, default (1024, 1024, 1024)
        Widths of the hidden layers of encoders and decoders.
    entropy_weight : float, default 9
        alpha, the weight of the entropies in L_cl.
    reconstruction_weight, prediction_weight : float, default 0.1
        Of L_rec and L_pre beside L_cl.
    epochs, prediction_start : int, default 500 and 100
        Epochs, and after how many of them prediction begins.
    batch_size, learning_rate : default 256, 1e-4
        Of Adam.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    scaling: str = "range"
    latent_dim: int = 128
    hidden_dims: Sequence[int] = (1024, 1024, 1024)
    entropy_weight: float = 9.0
    reconstruction_weight: float = 0.1
    prediction_weight: float = 0.1
    epochs: int = 500
    prediction_start: int = field(default=100, metadata={"least": 0})
    batch_size: int = 256
    learning_rate: float = 1e-4

    name: ClassVar[str] = "completer"
    last_batch: ClassVar[Literal["spread", "drop"]] = "spread"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "caltech101-20": {"scaling": "range"},
        "scene15": {"scaling": "none"},
        "landuse21": {"scaling": "none", "latent_dim": 64},
        "noisymnist": {"scaling": "none", "latent_dim": 64},
    }

    def pairs(self, n_views: int) -> list[ViewPair]:
        """All pairs of views, of equal weight."""
        found = list(combinations(range(n_views), 2))
        return [(a, b, 1 / len(found), 1 / len(found)) for a, b in found]

    def reconstruction_share(self, n_views: int) -> float:
        """How much the reconstruction of a view counts in L_rec."""
        return 1.0

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """Auto-encoders and predictors."""
        return _PredictingAutoencoders(widths, self, self.pairs(len(widths)))

    def stack_key(self, samples: Samples) -> tuple[int, ...]:
        """As many samples to learn from."""
        return (len(learnable(samples.present)),)

    def schedule(self, training: Training) -> list[Stage]:
        """L_cl + 0.1 L_rec, and from some epoch on + 0.1 L_pre."""
        rows = torch.stack([learnable(run.stored.present) for run in training.runs])
        loss = partial(self.losses, training, whole=bool(training.has(rows).all()))
        first, steps = min(self.prediction_start, self.epochs), (self.batch_size, self.learning_rate)
        contrast, prediction = partial(loss, predicts=False), partial(loss, predicts=True)
        return [
            Stage("contrast", first, *steps, contrast, rows, self.last_batch),
            Stage("prediction", self.epochs - first, *steps, prediction, rows, self.last_batch, same_adam=True),
        ]

    def losses(self, training: Training, rows: Tensor, *, predicts: bool, whole: bool) -> dict[str, Tensor]:
        """The weighted terms of a batch, each of shape (replicates,); `whole`: all have all views, which saves work."""
        network, present, n_views = training.network, training.has(rows), len(training.values)
        values = [training.view(v, rows) for v in range(n_views)]
        codes = network.encode(values, None if whole else present)
        zero, share = codes[0].new_zeros(len(rows)), self.reconstruction_share(n_views)
        terms = {"contrast": zero, "reconstruction": zero, "prediction": zero}
        for v, (decode, x) in enumerate(zip(network.decoders, values, strict=True)):
            error = masked_mse(decode(codes[v], None if whole else present[..., v]), x, present[..., v])
            terms["reconstruction"] = terms["reconstruction"] + self.reconstruction_weight * share * error
        for a, b, contrast, prediction in self.pairs(n_views):
            both = present[..., a] & present[..., b]
            loss = mutual_information_loss(codes[a], codes[b], both, self.entropy_weight)
            terms["contrast"] = terms["contrast"] + contrast * loss
            for u, v in ((a, b), (b, a)) if predicts else ():
                error = masked_mse(network.predict(u, v, codes, None if whole else both), codes[v], both)
                terms["prediction"] = terms["prediction"] + self.prediction_weight * prediction * error
        return terms


def learnable(present: Tensor) -> Tensor:
    """Rows of samples with two views at least; all rows where these are fewer than two."""
    return rows_to_learn_from(present.sum(dim=1) > 1)


@dataclass(eq=False, repr=False, kw_only=True)
class DCP(COMPLETER):
    """COMPLETER by the same authors, one year on: with two views it differs in its batches only.

    The last batch of an epoch is left out, even if it is full; the published program also leaves out the only one, and
    then trains nothing, while here it is kept. With more than two views the first is the core: it is contrasted with
    and predicts the others, and is predicted from them. The published program does so with complete samples only; here
    a pair learns from the samples that have both.

    Parameters
    ----------
    latent_dim, hidden_dims, entropy_weight, reconstruction_weight, prediction_weight, epochs, prediction_start, \
batch_size, learning_rate :
        See :class:`COMPLETER`.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    name: ClassVar[str] = "dcp"
    last_batch: ClassVar[Literal["spread", "drop"]] = "drop"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "caltech101-20": {"scaling": "range"},
        "scene15": {"scaling": "none"},
        "landuse21": {"scaling": "none", "latent_dim": 40},
        "noisymnist": {"scaling": "none", "latent_dim": 40},
        "caltech101-20, three views": {"learning_rate": 3e-4, "epochs": 150, "prediction_start": 50},
        "scene15, three views": {"scaling": "none", "epochs": 300},
        "landuse21, three views": {"scaling": "none", "latent_dim": 40},
    }

    def pairs(self, n_views: int) -> list[ViewPair]:
        """The first view with each other one; the first of these pairs counts most."""
        if n_views < 3:
            return super().pairs(n_views)
        return [(0, v, (1.0 if v == 1 else 0.1) / (n_views - 1), 1 / (n_views - 1)) for v in range(1, n_views)]

    def reconstruction_share(self, n_views: int) -> float:
        """L_rec of three views and more is the sum over the views, divided by their number less two."""
        return 1.0 / max(1, n_views - 2)
