"""Layers with one set of weights, or with one set per replicate along a leading axis.

What goes into a layer with the weights of several replicates holds their rows one replicate after another, equally many
of each, along its first axis. A single set of weights is treated as that of one replicate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from viewfuse.nn.cuda import side_stream


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """`x` @ `matrix`: shapes (rows, ..., in) and (in, out), or (replicates, in, out), to (rows, ..., out)."""
    if matrix.dim() == 2:
        return x @ matrix
    return torch.bmm(_by_replicate(x, len(matrix)), matrix).view(*x.shape[:-1], -1)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer: (rows, ..., in) to (rows, ..., out).

    Parameters
    ----------
    weight, bias : of shape (out, in) and (out,), or with a leading axis for replicates
    """
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    stacked: Tensor = _StackedLinear.apply(_by_replicate(x, len(weight)), weight, bias)  # type: ignore[no-untyped-call]
    return stacked.view(*x.shape[:-1], -1)


class _StackedLinear(Function):
    """Torch's own would give the gradient of the weights transposed, and copy it to turn it round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_whole = weight.is_leaf and bias.is_leaf  # the gradient of a part is computed with before the optimiser
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        with _for_the_optimiser(gradient, x) if ctx.is_whole else nullcontext():
            of_weight, of_bias = torch.bmm(gradient.mT, x), gradient.sum(dim=1)
        return torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None, of_weight, of_bias


class _StackedScale(Function):
    """Normed rows of shape (replicates, rows, width), times the weight, plus the bias."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(normed, weight)
        return torch.addcmul(bias[:, None], normed, weight[:, None])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed, weight = ctx.saved_tensors
        with _for_the_optimiser(gradient, normed):
            of_weight, of_bias = (gradient * normed).sum(dim=1), gradient.sum(dim=1)
        return gradient * weight[:, None], of_weight, of_bias


def _for_the_optimiser(*reads: Tensor) -> AbstractContextManager[None]:
    """Gradients of weights, which only the optimiser waits for; nothing may be computed from them before that.

    So each weight is used once in a step, and has no gradient before it.
    """
    return side_stream(*reads)


def _by_replicate(x: Tensor, n_replicates: int) -> Tensor:
    """(rows, ..., columns) to (replicates, rows of each, columns)."""
    return x.reshape(n_replicates, -1, x.shape[-1])


class Linear(nn.Linear):
    """A linear layer whose weights are drawn when the network is built."""

    def reset_parameters(self) -> None:
        """Nothing: what torch would draw is never used, and to draw it takes as long as all else in a small network."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., in) to (rows, ..., out)."""
        return linear(x, self.weight, self.bias)


class PReLU(nn.PReLU):
    """max(x, 0) + slope * min(x, 0), with one slope."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to the same shape."""
        rows = x.reshape(self.weight.numel(), -1)
        if x.is_cuda:
            return torch.prelu(rows[None], self.weight.view(-1)).view_as(x)
        # On a CPU torch's own PReLU goes back number by number; this was 1.2 times as fast (results/speed).
        return torch.lerp(rows.relu(), rows, self.weight.view(-1, 1)).view_as(x)


class LayerNorm(nn.LayerNorm):
    """Each row shifted and scaled to mean 0 and variance 1, then scaled and shifted by the weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to the same shape."""
        if self.weight.dim() == 1:
            return super().forward(x)
        normed = _by_replicate(functional.layer_norm(x, self.normalized_shape, eps=self.eps), len(self.weight))
        scaled: Tensor = _StackedScale.apply(normed, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return scaled.view_as(x)
