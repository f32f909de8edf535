"""Fully connected networks with batch normalisation and dropout, for one set of weights or one per replicate.

What goes in has shape (replicates, rows, columns), also where there is one replicate only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from viewfuse.nn.layers import Linear

Dropout = Callable[[tuple[int, ...], float], Tensor]
"""From a shape, whose first axis is that of the replicates, and a rate to what numbers are multiplied with."""


class BatchNorm(nn.Module):
    """Columns shifted and scaled to mean 0 and variance 1 over the rows that count, then by the weights."""

    _EPSILON, _MOMENTUM = 1e-5, 0.1
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.register_buffer("mean", torch.empty(width))
        self.register_buffer("variance", torch.empty(width))

    def forward(self, x: Tensor, shown: Tensor | None = None) -> Tensor:
        """(replicates, rows, width) to the same shape; `shown` of shape (replicates, rows) says which rows count."""
        width = x.shape[2]
        if self.training and shown is None and x.shape[1] > 1:
            # By torch's own normalisation, to which columns of other replicates are other columns: far fewer kernels.
            weight, bias, mean, variance = (one.view(-1) for one in (self.weight, self.bias, self.mean, self.variance))
            rows = x.transpose(0, 1).flatten(1)
            # Not by cuDNN, which does not promise the same bits in every run.
            done = torch.batch_norm(rows, weight, bias, mean, variance, True, self._MOMENTUM, self._EPSILON, False)
            return torch.unflatten(done, 1, (x.shape[0], width)).transpose(0, 1)
        if self.training:
            mean, variance = self._moments(x, torch.ones_like(x[:, :, 0]) if shown is None else shown)
        else:
            mean, variance = self.mean.view(-1, 1, width), self.variance.view(-1, 1, width)
        factor = self.weight.view(-1, 1, width) * (variance + self._EPSILON).rsqrt()
        return (x - mean) * factor + self.bias.view(-1, 1, width)

    def _moments(self, x: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the batch, of shape (replicates, 1, width); those for later move a little."""
        weights = shown.to(x.dtype)[:, :, None]
        count = weights.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (x * weights).sum(dim=1, keepdim=True) / count
        variance = ((x - mean).square() * weights).sum(dim=1, keepdim=True) / count
        unbiased = variance.detach() * count / (count - 1).clamp(min=1)
        # Batches without a row that counts say nothing.
        momentum = self._MOMENTUM * shown.any(dim=1)[:, None, None]
        for kept, new in ((self.mean, mean.detach()), (self.variance, unbiased)):
            own = kept.view(-1, 1, x.shape[2])
            own.add_(momentum * (new - own))
        return mean, variance


class MLP(nn.Module):
    """Linear layers, each but the last followed by ReLU, and by batch normalisation before it if asked for.

    Parameters
    ----------
    widths : of the input, of the hidden layers, of the output
    norm : whether layers are normalised
    ends : whether the last layer is normalised and cut off at zero like the others
    dropout : share of the hidden numbers that are set to zero in training
    """

    def __init__(self, widths: Sequence[int], *, norm: bool = False, ends: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))
        ended = list(widths[1:] if ends else widths[1:-1])
        self.norms = nn.ModuleList(BatchNorm(width) for width in ended) if norm else None
        self.n_ended, self.n_hidden, self.dropout = len(ended), len(widths) - 2, dropout

    def forward(self, x: Tensor, shown: Tensor | None = None, dropout: Dropout | None = None) -> Tensor:
        """(replicates, rows, in) to (replicates, rows, out); `dropout` draws what is dropped in training."""
        for i, linear in enumerate(self.linears):
            x = linear(x)
            if i < self.n_ended:
                x = functional.relu(self.norms[i](x, shown) if self.norms is not None else x)
            if self.training and self.dropout and i < self.n_hidden and dropout is not None:
                x = x * dropout(tuple(x.shape), self.dropout)
        return x
