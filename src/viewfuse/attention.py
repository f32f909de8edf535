"""One Transformer block with an explicit additive mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
    hidden = torch.isneginf(bias).all(dim=1)[:, None, None, None]
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    weights = (scores + bias[:, None, None, :].masked_fill(hidden, 0.0)).softmax(dim=-1)
    return weights.masked_fill(hidden, 0.0) @ value


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward part, each with a residual and a norm after it; no dropout."""

    def __init__(self, width: int, n_heads: int, feedforward: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.merge = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.ReLU(), nn.Linear(feedforward, width))
        self.norm_feedforward = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, bias: Tensor, outputs: slice = slice(None)) -> Tensor:
        """Outputs of the block for the tokens in `outputs`; only those are computed.

        Parameters
        ----------
        tokens : tensor of shape (batch, tokens, width)
        bias : tensor of shape (batch, tokens), see `attend`
        """
        asked = tokens[:, outputs]
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        mixed = attend(self._heads(self.query(asked)), self._heads(key), self._heads(value), bias)
        asked = self.norm_attention(asked + self.merge(mixed.transpose(1, 2).flatten(2)))
        return self.norm_feedforward(asked + self.feedforward(asked))

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to (batch, heads, tokens, width per head)."""
        return x.view(*x.shape[:-1], self.n_heads, -1).transpose(1, 2)
