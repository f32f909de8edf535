"""The network: neighbour encoder per view, view encoder, decoder per view, cluster centres; and what training costs.

Costs are parameters, memory and steps, counted from the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import Parameter, functional

from viewfuse.errors import SettingError
from viewfuse.methods.urrl.config import ORDINALS, Config
from viewfuse.nn.layers import LayerNorm, Linear, PReLU, linear, map_views, start_weights, times
from viewfuse.selection.scores import AGREEMENT_DEPTH


class Batch(NamedTuple):
    """Input of the network."""

    tokens: Sequence[Tensor]  # x-bar, per view of shape (batch, list length, columns); zero where padded
    valid: Tensor  # m-bar, boolean, of shape (batch, views, list length)
    available: Tensor  # m, boolean, of shape (batch, views): views that are the sample's own


_HIDDEN = -1e30
"""Stands for minus infinity: it hides a key as well, and a row in which every key is hidden stays finite."""


class Mask(NamedTuple):
    """M_A in the paper: what a key's bias, of shape (..., keys), adds to every score.

    `sees`, of shape (..., 1), is 1 where a row has a key that is not hidden, else 0.
    """

    bias: Tensor
    sees: Tensor

    @classmethod
    def of(cls, bias: Tensor) -> Mask:
        """From a bias in which minus infinity hides a key."""
        return cls(bias.clamp(min=_HIDDEN), (bias > -torch.inf).any(dim=-1, keepdim=True).to(bias.dtype))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Attention(Q, K, V, M_A) in the paper, section 3.1.2, of tensors of shape (batch, heads, tokens, width).

    A row in which every key is masked attends to nothing and gives zero, with finite gradients.
    """
    # Torch's own attention goes back on a GPU in an order that changes from run to run.
    scores = query @ key.mT * query.shape[-1] ** -0.5 + mask.bias[:, None, None, :]
    return scores.softmax(dim=-1) @ value * mask.sees[:, None, None]


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward part, each with a residual and a norm after it; no dropout."""

    def __init__(self, width: int, n_heads: int, feedforward: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = Linear(width, width)
        self.key_value = Linear(width, 2 * width)
        self.merge = Linear(width, width)
        self.norm_attention = LayerNorm(width)
        self.feedforward = nn.Sequential(Linear(width, feedforward), nn.ReLU(), Linear(feedforward, width))
        self.norm_feedforward = LayerNorm(width)

    def forward(self, tokens: Tensor, mask: Mask, outputs: slice = slice(None)) -> Tensor:
        """Outputs of the block for the tokens in `outputs`; only those are computed.

        Tokens have shape (batch, tokens, width), and the mask (batch, tokens).
        """
        asked = tokens[:, outputs]
        mix = self._mix_one_head if self.n_heads == 1 else self._mix_heads
        asked = self.norm_attention(asked + self.merge(mix(self.query(asked), tokens, mask)))
        return self.norm_feedforward(asked + self.feedforward(asked))

    def _mix_heads(self, query: Tensor, tokens: Tensor, mask: Mask) -> Tensor:
        each = query, *self.key_value(tokens).chunk(2, dim=-1)
        asked, keys, values = (x.view(*x.shape[:-1], self.n_heads, -1).transpose(1, 2) for x in each)
        return attend(asked, keys, values, mask).transpose(1, 2).flatten(2)

    def _mix_one_head(self, query: Tensor, tokens: Tensor, mask: Mask) -> Tensor:
        """Applies the matrices of keys and values to the queries and the mixtures, of which there are fewer.

        q (K x) = (q K) x, and a sum of (V x) is V times the sum: 1.2 times as fast as `_mix_heads` on a CPU. The bias
        of the keys adds the same to every score of a query, so it changes nothing.
        """
        key, value = self.key_value.weight.chunk(2, dim=-2)
        asked, bias = times(query, key), mask.bias[:, None, :].expand(-1, query.shape[1], -1)
        scores = torch.baddbmm(bias, asked, tokens.mT, alpha=query.shape[-1] ** -0.5)
        mixed = scores.softmax(dim=-1) @ tokens
        return linear(mixed, value, self.key_value.bias.chunk(2, dim=-1)[1]) * mask.sees[:, None]


def cosine_distances(tokens: Tensor) -> Tensor:
    """d(x) in the paper, section 3.1.1: cosine distances between the tokens of each list.

    A zero vector has distance 1 to everything. Shape (batch, tokens, columns) to (batch, tokens, tokens).
    """
    directions = functional.normalize(tokens, dim=-1)
    return 1.0 - directions @ directions.transpose(-1, -2)


def adaptive_mask(valid: Tensor, available: Tensor, config: Config) -> Tensor:
    """TAM in the paper, section 3.1.2: bias per view of 0 (own), gamma (from donors) or minus infinity (nothing).

    Without `three_level_mask` a view counts as there when anything fills it: 0 or minus infinity. Shapes (batch, views,
    list length) and (batch, views) to (batch, views).
    """
    imputed = config.imputed_bias if config.three_level_mask else 0.0
    bias = torch.where(valid.any(dim=2), imputed, -torch.inf)
    return torch.where(available, 0.0, bias)


class Input(NamedTuple):
    """What a network makes of a batch before any weight comes into play."""

    lists: list[Tensor]  # per view of shape (batch, list length, columns and, where it is used, distance code)
    list_mask: Mask  # of shape (batch, views, list length)
    view_mask: Mask  # of shape (batch, views)

    @classmethod
    def of(cls, batch: Batch, config: Config) -> Input:
        """With the distance code (CDPE in the paper, section 3.1.1) and the adaptive mask."""

        def coded(v: int) -> Tensor:
            tokens = batch.tokens[v]
            return torch.cat([tokens, cosine_distances(tokens)], dim=-1) if config.distance_code else tokens

        dtype = batch.tokens[0].dtype
        return cls(
            map_views(coded, len(batch.tokens)),
            Mask.of(batch.valid.to(dtype).log()),  # 0 where filled, minus infinity where padded
            Mask.of(adaptive_mask(batch.valid, batch.available, config).to(dtype)),
        )


class OutputChoice(nn.Module):
    """Which of a Transformer's output tokens are handed on: one, their mean, or all through a linear layer."""

    def __init__(self, choice: str, n_tokens: int, width: int) -> None:
        super().__init__()
        self.choice = choice
        self.tokens = slice(None)
        if choice in ORDINALS:
            place = ORDINALS.index(choice)
            if place >= n_tokens:
                raise SettingError(f"there is no {choice} output: the Transformer has {n_tokens} token(s)")
            self.tokens = slice(place, place + 1)
        self.linear = Linear(n_tokens * width, width) if choice == "concat" else None

    def forward(self, outputs: Tensor) -> Tensor:
        """(batch, tokens in `self.tokens`, width) to (batch, width)."""
        if self.linear is not None:
            return self.linear(outputs.flatten(1))
        return outputs.squeeze(1) if outputs.shape[1] == 1 else outputs.mean(dim=1)


class Encoder(nn.Module):
    """NDE and VDE-T in the paper, sections 3.1.1 and 3.1.2: fuses the tokens of a list, or of all views, into one.

    `widths` are those of the layers that map each view to its token, where there are any.
    """

    def __init__(
        self, width: int, n_heads: int, n_tokens: int, choice: str, config: Config, widths: Sequence[list[int]] = ()
    ) -> None:
        super().__init__()
        if widths:
            self.embed = nn.ModuleList(fully_connected(own) for own in widths)
        self.block = TransformerBlock(width, n_heads, config.feedforward_ratio * width)
        self.output = OutputChoice(choice, n_tokens, width)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """(batch, tokens, width), with a mask of shape (batch, tokens), to (batch, width)."""
        return self.output(self.block(tokens, mask, self.output.tokens))


class Network(nn.Module):
    """f, g and h in the paper, section 3.1: encoder, decoder and clustering module; `widths` are columns per view."""

    stackable = True

    def __init__(self, widths: Sequence[int], config: Config) -> None:
        super().__init__()
        self.config = config
        coded, out = [coded_width(width, config) for width in widths], config.embedding_width
        lists = config.list_length, config.neighbor_output, config
        self.neighbor_encoders = nn.ModuleList(Encoder(width, 1, *lists) for width in coded)
        embedded = [embed_widths(width, config) for width in coded]
        self.view_encoder = Encoder(out, config.n_heads, len(widths), config.view_output, config, embedded)
        self.decoders = nn.ModuleList(fully_connected(decode_widths(width, config)) for width in widths)
        self.centers = Parameter(torch.zeros(config.n_clusters, config.embedding_width))

    def forward(self, given: Input) -> Tensor:
        """Z = f(x-bar, m-bar): embeddings of shape (batch, embedding)."""
        return self.fuse(self.tokens(given), given.view_mask)

    def encode(self, batch: Batch) -> Tensor:
        """The same of a batch."""
        return self(Input.of(batch, self.config))

    def tokens(self, given: Input) -> Tensor:
        """The views, each on its own, as tokens of shape (batch, views, embedding)."""

        def token(v: int) -> Tensor:
            mask = Mask(given.list_mask.bias[:, v], given.list_mask.sees[:, v])
            return self.view_encoder.embed[v](self.neighbor_encoders[v](given.lists[v], mask))

        return torch.stack(map_views(token, len(given.lists)), dim=1)

    def fuse(self, tokens: Tensor, mask: Mask) -> Tensor:
        """The tokens, with a mask of shape (batch, views), as embeddings of shape (batch, embedding)."""
        return self.view_encoder(tokens, mask)

    def decode(self, embedding: Tensor) -> list[Tensor]:
        """x-hat = g(z): embeddings to one (batch, columns) reconstruction per view."""
        return map_views(lambda v: self.decoders[v](embedding), len(self.decoders))


def fully_connected(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers between the widths, PReLU between them; no norm, no dropout."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [Linear(wide, narrow), PReLU()]
    return nn.Sequential(*layers[:-1])


def build_network(widths: Sequence[int], config: Config, generator: Generator) -> Network:
    """A network on the CPU, its weights drawn from `generator` alone."""
    with torch.device("cpu"):
        network = Network(widths, config)
    network.float()  # whatever the global kind of numbers is
    start_weights(network, generator)
    network.centers.data.zero_()  # until they are placed in the embedding
    return network


def empty_network(widths: Sequence[int], config: Config) -> Network:
    """A network without memory for its weights, which draws nothing from the global generator."""
    with torch.device("meta"):
        network = Network(widths, config)
    return network.float()


_PASSES = 3  # forward, and backward for the inputs and for the weights: three products of the same size
_OPERATIONS_PER_SECOND = 1e11  # of the search for neighbours, roughly: a processor of two cores, set by hand
_EVALUATIONS = 10  # passes over all samples besides the steps: after each stage, and while the joint stage is watched
_EXACT_ROWS = 30_000  # rows up to which a sample is compared with all others
_PER_PARAMETER = 16  # bytes of a weight, its gradient and its two moments
_PER_DISTANCE, _DISTANCES_AT_A_TIME = 24, 4_000_000
"""Of the search for neighbours, which is over before training begins: three float64 numbers of each pair."""
_LIBRARIES, _PER_SAMPLE, _SAMPLES_AT_A_TIME = 64 * 2**20, 6_000, 65_536
"""Of libraries that are loaded during the first fit; and of samples while clusters are found and compared, a part at a
time: freed, but in pieces too small to be used again. Measured on eleven shapes (tests/test_memory_limits.py)."""
_COPIES_OF_INPUTS, _COPIES_OF_OUTPUTS = 6, 2
"""Neighbour lists as they are, with noise and coded, and their draws; outputs of layers with their gradients."""


def fit_seconds(n_samples: int, widths: Sequence[int], config: Config, n_scalings: int, step: float) -> float:
    """Seconds that a fit takes at most on a CPU, roughly, given those of a step and how many scalings are tried."""
    config, size = config.sized(n_samples), min(n_samples, config.batch_size)
    steps, passes = n_steps(n_samples, config, n_scalings), n_samples / size * (n_scalings + _EVALUATIONS) / _PASSES
    search = 2 * n_samples * min(n_samples, _EXACT_ROWS) * sum(widths) * n_scalings / _OPERATIONS_PER_SECOND
    return (steps + passes) * step + search


def n_steps(n_samples: int, config: Config, n_scalings: int = 3) -> int:
    """Steps of all trainings of a fit that is not ended early."""
    trial, epochs = config.trial_epochs(n_samples), config.epochs(n_samples)
    per_epoch = max(1, n_samples // config.batch_size)
    return per_epoch * (n_scalings * trial + epochs.pretraining - trial + epochs.joint)


def fit_bytes(n_samples: int, widths: Sequence[int], config: Config, n_waiting: int = 0) -> int:
    """Bytes that a fit takes, besides the data as they were given; on a CPU within a factor of about two.

    `widths` are columns per view, after reduction. `n_waiting` trainings hold samples and weights until their turn.
    """
    config = config.sized(n_samples)
    depth, parameters = max(config.search_depth, AGREEMENT_DEPTH), n_parameters(widths, config)
    per_sample = 4 * sum(widths) + len(widths) * (8 * depth + 1) + 4 * config.embedding_width
    held = n_samples * per_sample * (1 + n_waiting) + 4 * parameters * n_waiting
    own = replace(config, batch_size=min(config.batch_size, n_samples))
    inputs = 2 * own.batch_size * own.list_length * sum(widths)
    step = 4 * (_COPIES_OF_INPUTS * inputs + _COPIES_OF_OUTPUTS * layer_outputs(widths, own))
    training = _PER_PARAMETER * parameters + step
    passing = _LIBRARIES + _PER_SAMPLE * min(n_samples, _SAMPLES_AT_A_TIME)
    return held + passing + max(training, _PER_DISTANCE * min(n_samples**2, _DISTANCES_AT_A_TIME))


def n_parameters(widths: Sequence[int], config: Config) -> int:
    """Numbers that are learned, all of them: those of a network without memory for its weights."""
    return sum(weight.numel() for weight in empty_network(widths, config).parameters())


def coded_width(width: int, config: Config) -> int:
    """Columns of a view with its distance code, where it has one."""
    return width + config.list_length if config.distance_code else width


def layer_outputs(widths: Sequence[int], config: Config) -> int:
    """Numbers that the layers hand on in one forward pass over both branches."""
    coded = [coded_width(width, config) for width in widths]
    per_token = 5 + config.feedforward_ratio  # query, key, mixture, merged, output, and inside the feed-forward part
    outputs = per_token * (sum(coded) + len(widths) * config.embedding_width)
    outputs += sum(sum(embed_widths(width, config)[1:]) for width in coded)
    decoded = sum(sum(decode_widths(width, config)[1:]) for width in widths)
    return 2 * config.batch_size * outputs + config.batch_size * decoded


def embed_widths(width: int, config: Config) -> list[int]:
    """Widths of the layers that map a view to a token of the view encoder."""
    return [width, config.hidden_width, config.hidden_width, config.embedding_width]


def decode_widths(width: int, config: Config) -> list[int]:
    """Widths of the layers that map an embedding to a view."""
    return [config.embedding_width, *[config.hidden_width] * 3, width]
