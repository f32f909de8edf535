"""Layers with one set of weights, or with one set per replicate along a leading axis.

What goes into a layer with the weights of several replicates holds their rows one replicate after another, equally many
of each, along its first axis. A single set of weights is treated as that of one replicate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional


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
    return _chain(x, weight, bias)


def _chain(x: Tensor, *weights: Tensor) -> Tensor:
    result: Tensor = _Chain.apply(x, *weights)  # type: ignore[no-untyped-call]
    return result


class _Chain(Function):
    """Linear layers with PReLU between them; the weights are weight, bias, slope, weight, bias, slope, ..., bias.

    Its gradient is written out: torch's linear layer gives that of stacked weights transposed and copies it to turn it
    round, and its PReLU goes back number by number on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        matrices, biases, slopes = weights[0::3], weights[1::3], weights[2::3]
        n_replicates = len(weights[0]) if weights[0].dim() == 3 else 1
        inputs, outputs = [_by_replicate(x, n_replicates)], []
        for i, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
            bias = bias.view(n_replicates, 1, -1)
            outputs.append(torch.baddbmm(bias, inputs[i], matrix.view(n_replicates, *matrix.shape[-2:]).mT))
            if i < len(slopes):
                by_channel = functional.prelu(outputs[i].view(1, n_replicates, -1), slopes[i].flatten())
                inputs.append(by_channel.view_as(outputs[i]))
        ctx.save_for_backward(*weights, *inputs, *outputs[:-1])
        ctx.n_layers, ctx.shape = len(matrices), x.shape
        return outputs[-1].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        n_weights = 3 * ctx.n_layers - 1
        weights, inputs = ctx.saved_tensors[:n_weights], ctx.saved_tensors[n_weights:][: ctx.n_layers]
        outputs = ctx.saved_tensors[n_weights + ctx.n_layers :]
        gradient, found = _by_replicate(gradient, len(inputs[0])), []
        for i in reversed(range(ctx.n_layers)):
            matrix = weights[3 * i].view(len(gradient), *weights[3 * i].shape[-2:])
            found += [gradient.sum(dim=1), torch.bmm(gradient.mT, inputs[i])]
            if i or ctx.needs_input_grad[0]:
                gradient = torch.bmm(gradient, matrix)
            if i:
                gradient, of_slope = _prelu_backward(gradient, outputs[i - 1], weights[3 * i - 1])
                found.append(of_slope)
        of_input = gradient.view(ctx.shape) if ctx.needs_input_grad[0] else None
        return of_input, *(g.view_as(w) for g, w in zip(reversed(found), weights, strict=True))


def _prelu_backward(gradient: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of PReLU at `x`, of shape (replicates, rows, width), and of its slopes."""
    above = torch.ops.aten.threshold_backward(gradient, x, 0)
    below = gradient - above
    of_slope = torch.bmm(below.view(len(x), 1, -1), x.view(len(x), -1, 1))
    return torch.addcmul(above, below, slope.view(-1, 1, 1)), of_slope


def _by_replicate(x: Tensor, n_replicates: int) -> Tensor:
    """(rows, ..., columns) to (replicates, rows of each, columns)."""
    return x.reshape(n_replicates, -1, x.shape[-1])


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., in) to (rows, ..., out)."""
        return linear(x, self.weight, self.bias)


class FullyConnected(nn.Sequential):
    """Linear layers and PReLU in turns, a linear one first and last; no norm, no dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to (rows, ..., last width)."""
        return _chain(x, *self.parameters())


class LayerNorm(nn.LayerNorm):
    """Each row shifted and scaled to mean 0 and variance 1, then scaled and shifted by the weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to the same shape."""
        if self.weight.dim() == 1:
            return super().forward(x)
        normed = _by_replicate(functional.layer_norm(x, self.normalized_shape, eps=self.eps), len(self.weight))
        return torch.addcmul(self.bias[:, None], normed, self.weight[:, None]).view_as(x)
