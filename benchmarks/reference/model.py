"""The plain reference: the method as one would write it first, from torch's and scikit-learn's own parts.

It is a yardstick: it computes what the package computes (`tests/test_bench.py`), with nothing done to make it slow and
nothing done to make it fast. It has the paper's modules and outputs only, no ablations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.reference.data import Item, NeighborSearch, PlainSamples, ScaledTable
from viewfuse.engine.replicates import generator_for_start
from viewfuse.methods.urrl import losses_and_augmentation as losses
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import view_dropout_rate
from viewfuse.methods.urrl.network import Network, TransformerBlock, adaptive_mask, build_network, cosine_distances
from viewfuse.selection.kmeans import initial_centers

_HIDDEN = -1e30
"""Finite: minus infinity makes torch's encoder give NaN for a list in which nothing is filled."""
_ROWS_PER_PASS = 256


class PlainNetwork(nn.Module):
    """The network, with torch's own Transformer encoders.

    It stays in training mode, which without dropout changes no number: in evaluation mode torch's encoder takes a mask
    as yes or no, so that the bias of imputed views would be lost.

    Parameters
    ----------
    widths : columns per view
    """

    def __init__(self, widths: Sequence[int], settings: Config) -> None:
        super().__init__()
        hidden, size, ratio = settings.hidden_width, settings.embedding_width, settings.feedforward_ratio
        coded = [width + settings.list_length for width in widths]
        self.settings = settings
        self.neighbor_encoders = nn.ModuleList(_encoder(width, 1, ratio) for width in coded)
        self.embed = nn.ModuleList(_fully_connected([width, hidden, hidden, size]) for width in coded)
        self.view_encoder = _encoder(size, settings.n_heads, ratio)
        self.decoders = nn.ModuleList(_fully_connected([size, hidden, hidden, hidden, width]) for width in widths)
        self.centers = nn.Parameter(torch.zeros(settings.n_clusters, size))

    def encode(self, branch: Item) -> Tensor:
        """Embeddings of shape (batch, embedding) of one branch of a batch."""
        padded = torch.zeros(branch["filled"].shape, device=self.centers.device).masked_fill(~branch["filled"], _HIDDEN)
        views = []
        for v, tokens in enumerate(branch["tokens"]):
            coded = torch.cat([tokens, cosine_distances(tokens)], dim=-1)
            fused = self.neighbor_encoders[v](coded, src_key_padding_mask=padded[:, v])
            views.append(self.embed[v](fused[:, 0]))
        bias = adaptive_mask(branch["filled"], branch["have"], self.settings).clamp(min=_HIDDEN)
        return self.view_encoder(torch.stack(views, dim=1), src_key_padding_mask=bias).mean(dim=1)

    def decode(self, embedding: Tensor) -> list[Tensor]:
        """Per view a reconstruction of shape (batch, columns)."""
        return [decoder(embedding) for decoder in self.decoders]


def _encoder(width: int, n_heads: int, ratio: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, n_heads, ratio * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def _fully_connected(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.PReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def copy_weights(network: Network, plain: PlainNetwork) -> None:
    """Give the plain network the weights of one of the package's."""
    encoders: Iterable[Any] = zip(network.neighbor_encoders, plain.neighbor_encoders, strict=True)
    for ours, theirs in encoders:
        _copy_block(ours.block, theirs.layers[0])
    _copy_block(network.view_encoder.block, plain.view_encoder.layers[0])
    plain.embed.load_state_dict(network.view_encoder.embed.state_dict())
    plain.decoders.load_state_dict(network.decoders.state_dict())
    plain.centers.copy_(network.centers)


def _copy_block(block: TransformerBlock, layer: Any) -> None:
    attention = layer.self_attn
    attention.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
    attention.in_proj_bias.copy_(torch.cat([block.query.bias, block.key_value.bias]))
    attention.out_proj.load_state_dict(block.merge.state_dict())
    layer.norm1.load_state_dict(block.norm_attention.state_dict())
    layer.norm2.load_state_dict(block.norm_feedforward.state_dict())
    layer.linear1.load_state_dict(block.feedforward[0].state_dict())
    layer.linear2.load_state_dict(block.feedforward[2].state_dict())


def batch_losses(network: PlainNetwork, batch: Item, *, joint: bool) -> tuple[Tensor, Tensor, Tensor]:
    """L_rec, L_aug and L_clu of a batch, from a pass per branch."""
    plain, augmented = network.encode(batch["plain"]), network.encode(batch["augmented"])
    errors = map(losses.squared_error, network.decode(augmented), batch["values"])
    rebuilding = losses.reconstruction(list(errors), batch["present"])
    clustering = losses.clustering(augmented, network.centers) if joint else torch.zeros_like(rebuilding)
    return rebuilding, losses.robustness(plain, augmented), clustering


def _start(widths: Sequence[int], settings: Config, seed: int) -> PlainNetwork:
    """A network with the weights that the package starts with: how soon training gets anywhere depends on them."""
    with torch.random.fork_rng(devices=[]):  # torch's layers draw weights from the global generator first
        plain = PlainNetwork(widths, settings)
    copy_weights(build_network(widths, settings, generator_for_start(seed)), plain)
    return plain


class PlainTraining:
    """Training on scaled samples, with a DataLoader and torch's Adam."""

    def __init__(self, stored: ScaledTable, settings: Config, seed: int, device: torch.device) -> None:
        settings = settings.sized(len(stored))
        self.settings, self._seed, self._device, self.stored = settings, seed, device, stored
        self.search = NeighborSearch(stored, settings.search_depth)
        neighbor_ids = self.search.of_stored(len(stored))
        rate = view_dropout_rate(torch.tensor(stored.present))
        shuffle = torch.Generator().manual_seed(seed)
        self.samples = PlainSamples(stored, stored, neighbor_ids, settings, rate, seed)
        self.loader = DataLoader(
            self.samples, min(settings.batch_size, len(stored)), shuffle=True, drop_last=True, generator=shuffle
        )
        self._as_they_are = PlainSamples(stored, stored, neighbor_ids, settings, None)
        self.network = _start([view.shape[1] for view in stored.values], settings, seed).to(device)
        self._adam = self._adam_of([w for w in self.network.parameters() if w is not self.network.centers])
        self._joint = False

    def _adam_of(self, weights: Iterable[nn.Parameter], factor: float = 1.0) -> torch.optim.Adam:
        rate = self.settings.rate * factor
        return torch.optim.Adam(weights, rate, weight_decay=self.settings.weight_decay)

    def run_epoch(self, epoch: int) -> Tensor:
        """One pass over the shuffled samples; returns loss terms of shape (steps, terms), on the CPU."""
        return torch.stack([self.step(to_device(batch, self._device)) for batch in self.loader]).cpu()

    def step(self, batch: Item) -> Tensor:
        """One update; returns the loss terms of shape (terms,)."""
        terms = batch_losses(self.network, batch, joint=self._joint)
        self._adam.zero_grad()
        weight = torch.tensor(float(self.settings.clustering_weight))
        named = dict(zip(losses.TERMS, terms, strict=True))
        torch.autograd.backward(losses.total(named, self.settings.robustness_weight, weight))
        self._adam.step()
        return torch.stack(terms).detach()

    def begin_joint_stage(self) -> None:
        """Set the cluster centres, and train them as well."""
        found = initial_centers(self.embed(), self.settings.n_clusters, self._seed)
        self.network.centers.data.copy_(torch.from_numpy(found))
        factor = self.settings.joint_factor(len(self.stored))
        self._adam = self._adam_of(self.network.parameters(), factor)  # each stage has its own
        self._joint = True

    def embed(self) -> Tensor:
        """Embeddings of the training samples as they are, of shape (samples, embedding)."""
        return embed(self.network, self._as_they_are, self._device)

    def labels(self) -> NDArray[np.int64]:
        """The cluster of each training sample."""
        return assign(self.network, self.embed())


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch as a DataLoader gives it, on `device`."""
    if isinstance(batch, dict):
        return {name: to_device(part, device) for name, part in batch.items()}
    return [part.to(device) for part in batch] if isinstance(batch, list) else batch.to(device)


@torch.no_grad()
def embed(network: PlainNetwork, samples: PlainSamples, device: torch.device) -> Tensor:
    """Embeddings of shape (samples, embedding)."""
    loader = DataLoader(samples, _ROWS_PER_PASS)
    return torch.cat([network.encode(to_device(batch["plain"], device)) for batch in loader])


@torch.no_grad()
def assign(network: PlainNetwork, embedding: Tensor) -> NDArray[np.int64]:
    """The cluster of each embedding."""
    parts = [losses.soft_assignment(rows, network.centers).argmax(dim=1) for rows in torch.split(embedding, 1024)]
    return torch.cat(parts).cpu().numpy()


class PlainModel:
    """From arrays with rows of NaN to labels.

    Parameters
    ----------
    arrays : per view an array of shape (samples, columns)
    """

    def __init__(
        self, arrays: Sequence[NDArray[np.float32]], settings: Config, seed: int, device: torch.device
    ) -> None:
        self._device = device
        self._scalers = [MinMaxScaler().fit(array) for array in arrays]
        self.training = PlainTraining(self._scaled(arrays), settings, seed, device)
        first, second = settings.epochs(len(arrays[0]))
        for epoch in range(first):
            self.training.run_epoch(epoch)
        self.training.begin_joint_stage()
        for epoch in range(first, first + second):
            self.training.run_epoch(epoch)
        self.labels = self.training.labels()

    def _scaled(self, arrays: Sequence[NDArray[np.float32]]) -> ScaledTable:
        present = np.stack([~np.isnan(array).all(axis=1) for array in arrays], axis=1)
        scaled = [np.nan_to_num(s.transform(array)) for s, array in zip(self._scalers, arrays, strict=True)]
        return ScaledTable([view.astype(np.float32) for view in scaled], present)

    def predict(self, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.int64]:
        """The cluster of each new sample."""
        new, training = self._scaled(arrays), self.training
        samples = PlainSamples(new, training.stored, training.search.of_new(new), training.settings, None)
        return assign(training.network, embed(training.network, samples, self._device))
