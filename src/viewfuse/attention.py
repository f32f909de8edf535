"""One Transformer block with an explicit additive mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from viewfuse.layers import LayerNorm, Linear, linear, times

_HIDDEN = -1e30
"""Stands for minus infinity: it hides a key as well, and a row in which every key is hidden stays finite."""


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention(Q, K, V, M_A) in the paper, section 3.1.2.

    A row in which every key is masked attends to nothing and gives zero, with finite gradients.

    Parameters
    ----------
    query, key, value : tensors of shape (batch, heads, tokens, width)
    bias : tensor of shape (batch, keys), added to the scores; minus infinity hides a key

    Returns
    -------
    tensor of shape (batch, heads, query tokens, width)
    """
    mask = bias.clamp(min=_HIDDEN)[:, None, None, :].expand(-1, query.shape[1], query.shape[2], -1)
    return functional.scaled_dot_product_attention(query, key, value, mask) * _sees(bias)[:, None]


def attend_one_head(query: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
    """The same for one head whose keys and values are the tokens themselves; a row without keys gives anything.

    Shapes (batch, queries, width), (batch, tokens, width) and (batch, tokens) to (batch, queries, width).
    """
    mask = bias.clamp(min=_HIDDEN)[:, None, :].expand(-1, query.shape[1], -1)
    return torch.baddbmm(mask, query, tokens.mT, alpha=query.shape[-1] ** -0.5).softmax(dim=-1) @ tokens


def _sees(bias: Tensor) -> Tensor:
    """1 where a row has a key that is not hidden, else 0: shape (batch, keys) to (batch, 1, 1)."""
    return (bias > -torch.inf).any(dim=1)[:, None, None].to(bias.dtype)


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

    def forward(self, tokens: Tensor, bias: Tensor, outputs: slice = slice(None)) -> Tensor:
        """Outputs of the block for the tokens in `outputs`; only those are computed.

        Parameters
        ----------
        tokens : tensor of shape (batch, tokens, width)
        bias : tensor of shape (batch, tokens), see `attend`
        """
        asked = tokens[:, outputs]
        mix = self._mix_one_head if self.n_heads == 1 else self._mix_heads
        asked = self.norm_attention(asked + self.merge(mix(self.query(asked), tokens, bias)))
        return self.norm_feedforward(asked + self.feedforward(asked))

    def _mix_heads(self, query: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        mixed = attend(self._heads(query), self._heads(key), self._heads(value), bias)
        return mixed.transpose(1, 2).flatten(2)

    def _mix_one_head(self, query: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
        """Applies the matrices of keys and values to the queries and the mixtures, of which there are fewer.

        q (K x) = (q K) x, and a sum of (V x) is V times the sum. The bias of the keys adds the same to every score of a
        query, so it changes nothing.
        """
        key, value = self.key_value.weight.chunk(2, dim=-2)
        mixed = attend_one_head(times(query, key), tokens, bias)
        return linear(mixed, value, self.key_value.bias.chunk(2, dim=-1)[1]) * _sees(bias)

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to (batch, heads, tokens, width per head)."""
        return x.view(*x.shape[:-1], self.n_heads, -1).transpose(1, 2)
