"""RecFormer (Liu et al., TNNLS 2023): a Transformer over views first recovers what is missing, then refines it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from viewfuse.engine.replicates import generator_for_start
from viewfuse.engine.training import Stage, Training
from viewfuse.errors import SettingError
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork
from viewfuse.neighbors.index import Samples
from viewfuse.nn.layers import Linear, start_weights

_HIDDEN_LOGIT = -1e9
_EPSILON = 1e-6
_ROWS = 1024
"""Samples that are passed through the network, or compared with all others, at a time."""


def reconstruction_loss(found: Sequence[Tensor], wanted: Sequence[Tensor], shown: Tensor) -> Tensor:
    """L_mse of shape (replicates,): the mean over views of the mean over all entries, those not `shown` as 0."""
    pairs = enumerate(zip(found, wanted, strict=True))
    errors = [((x - y).square() * shown[..., v, None]).mean(dim=(1, 2)) for v, (x, y) in pairs]
    return torch.stack(errors).mean(dim=0)


def graph_loss(tokens: Tensor, memory: Tensor, neighbors: Tensor) -> Tensor:
    """L_graph of shape (replicates,): squared distances of tokens from those of neighbours, over all pairs of samples.

    Tokens e are of shape (replicates, batch, views, width), `memory`, E, has those of all samples from an earlier pass,
    and `neighbors` numbers of samples, of shape (replicates, batch, views, count).
    """
    each = torch.arange(len(tokens), device=tokens.device)[:, None, None, None]
    views = torch.arange(tokens.shape[2], device=tokens.device)[:, None]
    near = memory[each, neighbors, views]  # of shape (replicates, batch, views, count, width)
    # sum_j ||e - E_j||^2, without making the differences.
    squares = neighbors.shape[3] * tokens.square() - 2 * tokens * near.sum(dim=3) + near.square().sum(dim=3)
    return squares.sum(dim=(1, 2, 3)) / (tokens.shape[1] * tokens.shape[2] * memory.shape[1])


class _Norm(nn.Module):
    """Each token shifted and scaled to mean 0 and deviation 1, then by the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        normed = (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + _EPSILON)
        shape = -1, 1, 1, x.shape[-1]
        return normed * self.weight.view(shape) + self.bias.view(shape)


class _Layer(nn.Module):
    """A pre-norm Transformer layer and a norm, on tokens of shape (replicates, batch, tokens, width)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_Norm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (Linear(width, width) for _ in range(4))
        self.first, self.second = Linear(width, hidden), Linear(hidden, width)
        self._heads = heads

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        """`present` of shape (replicates, batch, tokens): tokens that look at, and are looked at by, others."""
        tokens = tokens + self._attend(self.norms[0](tokens), present)
        tokens = tokens + self.second(functional.relu(self.first(self.norms[1](tokens))))
        return self.norms[2](tokens)

    def _attend(self, tokens: Tensor, present: Tensor) -> Tensor:
        parts = (own(tokens).unflatten(-1, (self._heads, -1)) for own in (self.query, self.key, self.value))
        query, key, value = (own.transpose(2, 3) for own in parts)  # replicates, batch, heads, tokens, width of a head
        logits = query @ key.mT / query.shape[-1] ** 0.5
        seen = (present[..., :, None] & present[..., None, :])[:, :, None]
        weights = torch.where(seen, logits, _HIDDEN_LOGIT).softmax(dim=-1)
        return self.out((weights @ value).transpose(2, 3).flatten(3))


class Transformer(nn.Module):
    """Views to tokens, tokens to an embedding, and back to views."""

    def __init__(self, widths: Sequence[int], width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(Linear(own, width) for own in widths)
        self.encoder, self.decoder = _Layer(width, heads, hidden), _Layer(width, heads, hidden)
        self.outputs = nn.ModuleList(Linear(width, own) for own in widths)

    def tokens(self, values: Sequence[Tensor], present: Tensor) -> Tensor:
        """Of shape (replicates, batch, views, width)."""
        pairs = zip(self.inputs, values, strict=True)
        return self.encoder(torch.stack([embed(x) for embed, x in pairs], dim=2), present)

    def decode(self, mean: Tensor) -> list[Tensor]:
        """Per view of shape (replicates, batch, columns), from embeddings of shape (replicates, batch, width).

        The paper repeats the embedding for every view; without codes of views these tokens are equal, and one will do.
        """
        token = self.decoder(mean[:, :, None], torch.ones_like(mean[..., :1], dtype=torch.bool))[:, :, 0]
        return [output(token) for output in self.outputs]


def mean_token(tokens: Tensor, present: Tensor) -> Tensor:
    """H of shape (replicates, batch, width): the mean of the tokens of views that are there."""
    weights = present[..., None].to(tokens.dtype)
    return (tokens * weights).sum(dim=2) / weights.sum(dim=2).clamp(min=1)


class _RecoverAndRefine(ClusterNetwork):
    """The Transformer as it was after recovery, which completes samples, and as it is after refinement."""

    stackable = True

    def __init__(self, widths: Sequence[int], method: RecFormer) -> None:
        super().__init__(method.n_clusters, method.token_dim)
        shape = widths, method.token_dim, method.n_heads, method.feedforward_dim
        self.recover, self.refine = Transformer(*shape), Transformer(*shape)

    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """The mean token of completed samples."""
        values, present = [view[None] for view in samples.values], samples.present[None]
        with torch.no_grad():
            found = self.recover.decode(mean_token(self.recover.tokens(values, present), present))
        everything = torch.ones_like(present)
        return mean_token(self.refine.tokens(fill(values, found, present), everything), everything)[0]

    def decode(self, embedding: Tensor) -> list[Tensor]:
        return [view[0] for view in self.refine.decode(embedding[None])]


def fill(values: Sequence[Tensor], found: Sequence[Tensor], present: Tensor) -> list[Tensor]:
    """Per view the values, of shape (replicates, batch, columns), with what was found where they are missing."""
    views = enumerate(zip(values, found, strict=True))
    return [torch.where(present[..., v, None], x, y) for v, (x, y) in views]


@dataclass(eq=False, repr=False, kw_only=True)
class RecFormer(PublishedMethod):
    """k-means of the mean token of a Transformer over views, which fills in missing views on the way.

    Batches are drawn anew in every epoch, where the published program keeps them. Embeddings are computed after
    training, of samples that the network completes as it was after recovery, so that new samples have them, too; the
    published program collects them during its last epoch.

    Parameters
    ----------
    token_dim, feedforward_dim, n_heads : int, default 512, 2048, 4
        Of the Transformer.
    n_neighbors : int, default 15
        Of a sample in the graph of a view.
    graph_weight : float, default 1
        Of L_graph beside L_mse.
    recover_epochs, refine_epochs : int, default 50 and 51
        With gaps, which are filled after every epoch; and with all gaps filled.
    batch_size, learning_rate : default 128, 1e-3
        Of Adam.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    scaling: str = "standard"
    token_dim: int = 512
    feedforward_dim: int = 2048
    n_heads: int = 4
    n_neighbors: int = 15
    graph_weight: float = 1.0
    recover_epochs: int = 50
    refine_epochs: int = 51
    batch_size: int = 128
    learning_rate: float = 1e-3

    name: ClassVar[str] = "recformer"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"handwritten-5view": {}, "aloi-deep": {}}

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """Two Transformers of one shape."""
        if self.token_dim % self.n_heads:
            raise SettingError(f"n_heads must divide token_dim={self.token_dim}; got {self.n_heads}")
        return _RecoverAndRefine(widths, self)

    @torch.no_grad()
    def start(self, network: ClusterNetwork, seed: int) -> None:
        """Matrices begin as Xavier has them."""
        generator = generator_for_start(seed)
        start_weights(network, generator)
        for module in network.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)

    def schedule(self, training: Training) -> Iterator[Stage]:
        """Recover, then refine."""
        graph, steps = _Graph(training, self), (self.batch_size, self.learning_rate)
        yield Stage("recover", self.recover_epochs, *steps, graph.losses, after_epoch=graph.renew_neighbors)
        graph.keep_recovered()
        yield Stage("refine", self.refine_epochs, *steps, graph.losses, same_adam=True, after_epoch=graph.renew_tokens)


class _Graph:
    """The graph of neighbours among completed samples, and tokens of all samples."""

    def __init__(self, training: Training, method: RecFormer) -> None:
        self._training, self._method = training, method
        count = min(method.n_neighbors, training.present.shape[1] - 1)
        self.completed = [view.clone() for view in training.values]  # gaps hold what the last pass expected there
        self.tokens = training.values[0].new_ones(*training.present.shape, method.token_dim)  # those that batches see
        self._passed = self.tokens  # of the last training pass; the same in recovery, which uses them at once
        self.neighbors = torch.zeros(*training.present.shape, count, dtype=torch.int64, device=training.device)
        self._weight = torch.zeros((), device=training.device)  # there is no graph in the first epoch

    def losses(self, rows: Tensor) -> dict[str, Tensor]:
        """The weighted terms of a batch of samples, each of shape (replicates,)."""
        training, place = self._training, (self._training.each, rows)
        values, present = [training.view(v, rows) for v in range(len(training.values))], training.has(rows)
        tokens = training.network.refine.tokens(values, present)
        found = training.network.refine.decode(mean_token(tokens, present))
        graph = graph_loss(tokens, self.tokens, self.neighbors[place])
        self._passed[place] = tokens.detach()
        for v, view in enumerate(fill(values, found, present)):
            self.completed[v][place] = view.detach()
        return {"reconstruction": reconstruction_loss(found, values, present), "graph": self._weight * graph}

    def renew_neighbors(self, epoch: int) -> None:
        """Find the neighbours of samples as the passes of this epoch completed them."""
        for v, view in enumerate(self.completed):
            for r, own in enumerate(view):
                self.neighbors[r, :, v] = nearest(own, self.neighbors.shape[3])
        self._weight.fill_(self._method.graph_weight)

    @torch.no_grad()
    def keep_recovered(self) -> None:
        """Keep a copy of the network, which completes samples from now on, and continue with completed samples."""
        network = self._training.network
        for kept, now in zip(network.recover.parameters(), network.refine.parameters(), strict=True):
            kept.copy_(now)
        self._training.values = self.completed
        self._training.present.fill_(True)
        self._passed = self.tokens.clone()

    def renew_tokens(self, epoch: int) -> None:
        """In refinement all batches of an epoch see the tokens of the epoch before."""
        self.tokens.copy_(self._passed)


def nearest(points: Tensor, count: int) -> Tensor:
    """Numbers of the nearest other points, of shape (points, count)."""
    squares, found = points.square().sum(dim=1), []
    for rows in torch.split(torch.arange(len(points), device=points.device), _ROWS):
        apart = torch.addmm(squares, points[rows], points.T, alpha=-2)
        apart[torch.arange(len(rows), device=points.device), rows] = torch.inf
        found.append(apart.topk(count, largest=False).indices)
    return torch.cat(found)
