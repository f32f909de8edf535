"""One Transformer block with an explicit additive mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from viewfuse.nn.layers import LayerNorm, Linear, linear, times

_HIDDEN = -1e30
"""Stands for minus infinity: it hides a key as well, and a row in which every key is hidden stays finite."""


class Mask(NamedTuple):
    """M_A in the paper: what a key's bias adds to every score.

    Attributes
    ----------
    bias : finite float tensor of shape (..., keys)
    sees : tensor of shape (..., 1), 1 where a row has a key that is not hidden, else 0
    """

    bias: Tensor
    sees: Tensor

    @classmethod
    def of(cls, bias: Tensor) -> Mask:
        """From a bias in which minus infinity hides a key."""
        return cls(bias.clamp(min=_HIDDEN), (bias > -torch.inf).any(dim=-1, keepdim=True).to(bias.dtype))

    def view(self, v: int) -> Mask:
        """That of one view, of a mask of shape (batch, views, keys)."""
        return Mask(self.bias[:, v], self.sees[:, v])


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Attention(Q, K, V, M_A) in the paper, section 3.1.2.

    A row in which every key is masked attends to nothing and gives zero, with finite gradients.

    Parameters
    ----------
    query, key, value : tensors of shape (batch, heads, tokens, width)
    mask : of shape (batch, keys)

    Returns
    -------
    tensor of shape (batch, heads, query tokens, width)
    """
    # Torch's own attention goes back on a GPU in an order that changes from run to run.
    scores = query @ key.mT * query.shape[-1] ** -0.5 + mask.bias[:, None, None, :]
    return scores.softmax(dim=-1) @ value * mask.sees[:, None, None]


def attend_one_head(query: Tensor, tokens: Tensor, mask: Mask) -> Tensor:
    """The same for one head whose keys and values are the tokens themselves; a row without keys gives anything.

    Shapes (batch, queries, width) and (batch, tokens, width) to (batch, queries, width).
    """
    bias = mask.bias[:, None, :].expand(-1, query.shape[1], -1)
    return torch.baddbmm(bias, query, tokens.mT, alpha=query.shape[-1] ** -0.5).softmax(dim=-1) @ tokens


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

        Parameters
        ----------
        tokens : tensor of shape (batch, tokens, width)
        mask : of shape (batch, tokens)
        """
        asked = tokens[:, outputs]
        mix = self._mix_one_head if self.n_heads == 1 else self._mix_heads
        asked = self.norm_attention(asked + self.merge(mix(self.query(asked), tokens, mask)))
        return self.norm_feedforward(asked + self.feedforward(asked))

    def _mix_heads(self, query: Tensor, tokens: Tensor, mask: Mask) -> Tensor:
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        mixed = attend(self._heads(query), self._heads(key), self._heads(value), mask)
        return mixed.transpose(1, 2).flatten(2)

    def _mix_one_head(self, query: Tensor, tokens: Tensor, mask: Mask) -> Tensor:
        """Applies the matrices of keys and values to the queries and the mixtures, of which there are fewer.

        q (K x) = (q K) x, and a sum of (V x) is V times the sum. The bias of the keys adds the same to every score of a
        query, so it changes nothing.
        """
        key, value = self.key_value.weight.chunk(2, dim=-2)
        mixed = attend_one_head(times(query, key), tokens, mask)
        return linear(mixed, value, self.key_value.bias.chunk(2, dim=-1)[1]) * mask.sees[:, None]

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to (batch, heads, tokens, width per head)."""
        return x.view(*x.shape[:-1], self.n_heads, -1).transpose(1, 2)
