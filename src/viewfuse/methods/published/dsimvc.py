"""DSIMVC (Tang and Liu, ICML 2022): samples whose gaps were filled are learned from as far as it is safe.

The weights of filled samples come from a small network. They are good if a step with them lowers the loss of complete
samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from viewfuse.engine.replicates import epoch_keys, generator_for_start, shuffled, stack
from viewfuse.engine.training import History, Stage, Training, TrainState, check_diverged
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork, rows_to_learn_from, view_errors
from viewfuse.neighbors.index import Samples
from viewfuse.nn.dense import MLP
from viewfuse.nn.layers import Adam, start_weights

DONORS = 3
_HIDDEN = 100
"""Width of the network of the weights."""
_ROWS = 256
"""Samples that are compared with all others at a time."""


class Found(NamedTuple):
    """What a network makes of a batch."""

    each: Tensor  # losses of samples, of shape (replicates, batch)
    shared: Tensor  # the loss that the batch has as a whole, of shape (replicates,)
    labels: Tensor  # mean probabilities of clusters over the views, of shape (replicates, batch, clusters)

    def total(self, weights: Tensor | float = 1.0) -> Tensor:
        """Of shape (replicates,); weights that sum to 1 are divided by the batch, too, as in the published program."""
        return (self.each * weights).mean(dim=1) + self.shared


class TwoLevels:
    """Steps of both levels, for several networks side by side.

    `rates` are those of the network, of the step that weights are judged by, and of the weights.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Callable[..., Found],
        n_clusters: int,
        seeds: Sequence[int],
        rates: tuple[float, float, float],
    ) -> None:
        self._network, self._losses, self._virtual_rate = network, losses, rates[1]
        weighers = [MLP((n_clusters, _HIDDEN, 1)) for _ in seeds]
        for weigher, seed in zip(weighers, seeds, strict=True):
            start_weights(weigher, _generator(seed, 8))
        self.weigher: Any = stack(weighers).to(next(network.parameters()))
        self._adam = Adam(network.parameters(), lr=rates[0])
        self._weigher_adam = Adam(self.weigher.parameters(), lr=rates[2])

    def step(self, complete: Sequence[Tensor], filled: Sequence[Tensor]) -> Tensor:
        """Update the weights of filled samples, of which there may be none, then the network; returns losses."""
        # Copies: from the gradients of a network's own weights nothing may be computed.
        own = {name: one.clone() for name, one in self._network.named_parameters()}
        safe = self._found(own, complete)
        total = safe.total()
        if filled[0].shape[1]:
            risky = self._found(own, filled)
            self._judge(own, safe.total() + risky.total(self.weights(risky.labels)), complete)
            total = total + risky.total(self.weights(risky.labels).detach())
        self._adam.zero_grad()
        torch.autograd.backward(total.sum())
        self._adam.step()
        return total.detach()

    def _found(self, parameters: Mapping[str, Tensor], values: Sequence[Tensor]) -> Found:
        return self._losses(*functional_call(self._network, dict(parameters), (values,)))

    def _judge(self, own: Mapping[str, Tensor], total: Tensor, complete: Sequence[Tensor]) -> None:
        """Better weights: those by which a plain gradient step on `total` lowers the loss of complete samples."""
        slopes = torch.autograd.grad(total.sum(), list(own.values()), create_graph=True)
        moved = {k: one - self._virtual_rate * slope for (k, one), slope in zip(own.items(), slopes, strict=True)}
        after = self._found(moved, complete).total()
        self._weigher_adam.zero_grad()
        torch.autograd.backward(after.sum(), inputs=list(self.weigher.parameters()), retain_graph=True)
        self._weigher_adam.step()

    def weights(self, labels: Tensor) -> Tensor:
        """Weights of filled samples, of shape (replicates, batch), which sum to 1."""
        found: Tensor = self.weigher(labels)[..., 0].sigmoid()
        return found / found.sum(dim=1, keepdim=True)


def _generator(seed: int, stream: int) -> torch.Generator:
    return generator_for_start(int(np.random.SeedSequence([seed, stream]).generate_state(1)[0]))


@torch.no_grad()
def fill_gaps(training: Training, features: Sequence[Tensor]) -> None:
    """Put the means of donors into the gaps of all samples; without any donor what stands there stays.

    Each view that a sample has is asked in turn for those who are nearest in features of length 1 and have the missing
    view, until there are three; each further view adds its very nearest only.
    """
    for rows in torch.split(torch.arange(training.present.shape[1], device=training.device), _ROWS):
        present, near = training.present[:, rows], []
        for w, own in enumerate(features):  # inner products with all others that have view w
            inner = (own[:, rows] @ own.mT).masked_fill(~training.present[:, None, :, w], -torch.inf)
            inner[:, torch.arange(len(rows), device=rows.device), rows] = -torch.inf
            near.append(inner)
        for v, view in enumerate(training.values):
            sums, counts = torch.zeros_like(view[:, rows]), torch.zeros_like(view[:, rows, :1])
            for w in (other for other in range(len(near)) if other != v):
                donors, weights = _donors(training, near[w], v, present[..., w] & ~present[..., v], counts)
                sums += (weights[..., None] * view[training.each[..., None], donors]).sum(dim=2)
                counts += weights.sum(dim=2, keepdim=True)
            view[:, rows] = torch.where(counts > 0, sums / counts.clamp(min=1), view[:, rows])


def _donors(training: Training, near: Tensor, v: int, asked: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of up to three donors of view v, of shape (replicates, batch, donors), and which of them count."""
    have = training.present[:, None, :, v]
    best = near.masked_fill(~have, -torch.inf).topk(min(DONORS, near.shape[2]), dim=2)
    needed, places = (DONORS - counts).clamp(min=0), torch.arange(best.indices.shape[2], device=near.device)
    # A sample that has three donors already takes the very nearest, if it has the view.
    very = near.amax(dim=2, keepdim=True) == best.values[..., :1]
    taken = torch.where(needed > 0, places < needed, (places == 0) & very)
    return best.indices, (taken & asked[..., None] & ~best.values.isneginf()).to(counts.dtype)


_LONGEST = 3**0.5
"""Of a feature."""


def feature_terms(first: Tensor, second: Tensor) -> Tensor:
    """Per sample the spectral contrast of two views, of shape (..., batch); L_f is the mean."""
    inner = first @ second.mT
    own = inner.diagonal(dim1=-2, dim2=-1)
    return -2 * own + (inner.square().sum(dim=-1) - own.square()) / max(1, inner.shape[-1] - 1)


def label_loss(first: Tensor, second: Tensor) -> Tensor:
    """L_label of probabilities of shape (..., batch, clusters): clusters agree in two views, differ, and all occur."""
    columns = [functional.normalize(q, dim=-2) for q in (first, second)]
    partner = (columns[0] * columns[1]).sum(dim=-2)  # cosine of a cluster with itself in the other view
    total = torch.zeros_like(partner[..., 0])
    for q, own in zip((first, second), columns, strict=True):
        same = torch.eye(q.shape[-1], dtype=torch.bool, device=q.device)
        logits = torch.where(same, partner[..., None], own.mT @ own)
        total = total + (logits.logsumexp(dim=-1) - partner).mean(dim=-1) / 2
        total = total + log(q.shape[-1]) - torch.special.entr(q.mean(dim=-2)).sum(dim=-1)
    return total


def shortened(features: Tensor) -> Tensor:
    """Features of shape (replicates, batch, width), none longer than sqrt(3)."""
    length = features.norm(dim=2, keepdim=True)
    return features * (_LONGEST / length.clamp(min=_LONGEST))


class Encoders(ClusterNetwork):
    """An encoder per view, and a head for features and one for clusters that all views share."""

    stackable = True

    def __init__(self, widths: Sequence[int], method: DSIMVC) -> None:
        super().__init__(method.n_clusters, method.n_clusters)
        hidden, latent = tuple(method.hidden_dims), method.latent_dim
        self.encoders = nn.ModuleList(MLP((width, *hidden, latent)) for width in widths)
        self.feature_head = MLP((latent, latent, method.feature_dim))
        self.label_head = MLP((latent, latent, method.n_clusters))

    def forward(self, values: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Features and probabilities of clusters, per view of shape (replicates, batch, ...)."""
        codes = torch.cat([encode(x) for encode, x in zip(self.encoders, values, strict=True)], dim=1)
        features, labels = self.feature_head(codes), self.label_head(codes).softmax(dim=2)
        return features.chunk(len(values), dim=1), labels.chunk(len(values), dim=1)

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """The mean of the probabilities in the views that a sample has, of shape (samples, clusters)."""
        found = torch.stack([q[0] for q in self([view[None] for view in samples.values])[1]], dim=1)
        weights = samples.present[..., None].to(found.dtype)
        return (found * weights).sum(dim=1) / weights.sum(dim=1)

    def assign(self, embedding: Tensor) -> Tensor:
        """The probabilities are the embedding."""
        return embedding

    @torch.no_grad()
    def find_centers(self, samples: Samples, seed: int) -> None:
        """Samples that are sure of a cluster lie at the corners."""
        self.centers.copy_(torch.eye(len(self.centers)))


class _Pretrained(nn.Module):
    """The encoders with decoders, which are not kept."""

    stackable = True

    def __init__(self, encoders: Encoders, widths: Sequence[int], method: DSIMVC) -> None:
        super().__init__()
        shape = (method.latent_dim, *tuple(method.hidden_dims)[::-1])
        self.model = encoders
        self.decoders = nn.ModuleList(MLP((*shape, width)) for width in widths)


@dataclass(eq=False, repr=False, kw_only=True)
class DSIMVC(PublishedMethod):
    """Clusters that views agree on, learned from complete samples and, as far as it is safe, from filled ones.

    As in the published program, gaps are filled once, from samples that are near in the features of a second network.
    Only samples that have a view are near in it: the program also ranks by the hidden rows of a view. No number of
    samples is required, neither of all nor of complete ones; where fewer than two are complete, all count as complete,
    with means of columns in their gaps until these are filled. An epoch of reconstruction has batches of one size
    instead of a short last one. There is no `impute`: no decoders are kept.

    Parameters
    ----------
    latent_dim, feature_dim : int, default 512 and 128
        Widths of a code and of a feature.
    hidden_dims : sequence of int, default (500, 500, 2000)
        Widths of the hidden layers of the encoders.
    pretrain_epochs : int, default 100
        Of reconstruction, on complete samples.
    neighbor_pretrain_epochs, neighbor_epochs : int, default 200 and 100
        Of reconstruction and of contrast of a second network, which finds the first neighbours.
    iterations : int, default 200
        Steps of the two levels.
    batch_size, learning_rate : default 256, 3e-4
        Of Adam.
    virtual_rate, weight_rate : float, default 1e-3 and 4e-4
        Of the step that weights are judged by, and of Adam for the weights.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    latent_dim: int = 512
    feature_dim: int = 128
    hidden_dims: Sequence[int] = (500, 500, 2000)
    pretrain_epochs: int = 100
    neighbor_pretrain_epochs: int = 200
    neighbor_epochs: int = 100
    iterations: int = 200
    batch_size: int = 256
    learning_rate: float = 3e-4
    virtual_rate: float = 1e-3
    weight_rate: float = 4e-4

    name: ClassVar[str] = "dsimvc"
    former: ClassVar[tuple[str, ...]] = ("renew",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bdgp": {"neighbor_epochs": 30, "iterations": 100},
        "mnist-usps": {"neighbor_epochs": 80},
        "ccv": {"neighbor_epochs": 30, "iterations": 300, "scaling": "none"},
        "multi-fashion": {"neighbor_pretrain_epochs": 200, "pretrain_epochs": 200, "iterations": 300},
    }

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """Encoders and heads."""
        return Encoders(widths, self)

    def stack_key(self, samples: Samples) -> tuple[int, ...]:
        """As many complete samples."""
        return (len(rows_to_learn_from(samples.present.all(dim=1))),)

    def train(self, networks: Sequence[Any], sets: Sequence[Samples], seeds: Sequence[int]) -> list[History]:
        """Reconstruction, a second network for neighbours, and the two levels."""
        sets = [_filled_by_means(own) for own in sets]
        rows = torch.stack([rows_to_learn_from(samples.present.all(dim=1)) for samples in sets])
        main = self._reconstructed(networks, sets, seeds, rows, self.pretrain_epochs)
        others = [self.empty([view.shape[1] for view in own.values]).to_empty(device="cpu") for own in sets]
        for other, seed in zip(others, seeds, strict=True):  # networks like the first that begin elsewhere
            start_weights(other, _generator(seed, 7))
        second = self._reconstructed(others, sets, seeds, rows, self.neighbor_pretrain_epochs)
        steps = (self.neighbor_epochs, self.batch_size, self.learning_rate, partial(self._contrast, second), rows)
        self.go_through(second, [Stage("neighbours", *steps, last="drop short", same_adam=True)])
        with torch.no_grad():
            features = [functional.normalize(own, dim=2) for own in second.network.model(second.values)[0]]
        fill_gaps(main, features)
        every_row = torch.arange(main.n_samples, device=rows.device)
        incomplete = torch.stack([every_row[~torch.isin(every_row, own)] for own in rows])
        rates = self.learning_rate, self.virtual_rate, self.weight_rate
        levels = TwoLevels(main.network.model, _measured, self.n_clusters, main.seeds, rates)
        for _ in range(self.iterations):
            began = time.perf_counter()
            keys = epoch_keys(main.seeds, main.runs[0].n_epochs).to(main.device)
            drawn = [_drawn(own, keys[:, i], self.batch_size) for i, own in enumerate((rows, incomplete))]
            total = levels.step(*([main.view(v, own) for v in range(len(main.values))] for own in drawn))
            main.record("safe imputation", {"safe contrast": total[None].cpu()}, time.perf_counter() - began)
            check_diverged(main.runs)
        main.unstack()
        return [run.history for run in main.runs]

    def _reconstructed(
        self, networks: Sequence[Any], sets: Sequence[Samples], seeds: Sequence[int], rows: Tensor, epochs: int
    ) -> Training:
        """The networks with decoders, after reconstruction."""
        runs = []
        for network, samples, seed in zip(networks, sets, seeds, strict=True):
            decoded = _Pretrained(network, [view.shape[1] for view in samples.values], self)
            start_weights(decoded.decoders, generator_for_start(seed + 1))
            runs.append(TrainState(decoded.to(samples.present.device), samples, seed))
        training = Training(runs)
        parts = training.network.model.encoders, training.network.decoders
        steps = (epochs, self.batch_size, self.learning_rate, partial(view_errors, training, *parts), rows)
        self.go_through(training, [Stage("reconstruction", *steps)])
        return training

    def _contrast(self, training: Training, rows: Tensor) -> dict[str, Tensor]:
        """L_f + L_label of the second network, whose features have length 1."""
        features, labels = training.network.model([training.view(v, rows) for v in range(len(training.values))])
        each, clusters = pair_losses([functional.normalize(own, dim=2) for own in features], labels)
        return {"features": each.mean(dim=1), "clusters": clusters}


def _filled_by_means(samples: Samples) -> Samples:
    """The means of the columns stand in the gaps."""
    pairs = zip(samples.values, samples.present.T[..., None], strict=True)
    views = [torch.where(there, view, view.sum(dim=0) / there.sum()) for view, there in pairs]
    return replace(samples, values=views)


def _measured(features: Sequence[Tensor], labels: Sequence[Tensor]) -> Found:
    """The losses of a batch; features have a length of sqrt(3) at most."""
    return Found(*pair_losses([shortened(own) for own in features], labels), torch.stack(list(labels)).mean(dim=0))


def pair_losses(features: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Summed over pairs of views: terms of samples, of shape (replicates, batch), and L_label, (replicates,)."""
    pairs = list(combinations(range(len(features)), 2)) or [(0, 0)]
    each, clusters = (
        loss(*(torch.stack([views[one] for one in side]) for side in zip(*pairs, strict=True))).sum(dim=0)
        for loss, views in ((feature_terms, features), (label_loss, labels))
    )  # all pairs at once: twelve views have 66
    return each, clusters


def _drawn(rows: Tensor, keys: Tensor, batch_size: int) -> Tensor:
    """A batch of rows, of shape (replicates, batch), in random order."""
    return rows.gather(1, shuffled(keys, rows.shape[1])[:, :batch_size])
