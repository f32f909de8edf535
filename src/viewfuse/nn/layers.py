"""Layers with one set of weights, or with one set per replicate along a leading axis; torch's Adam for them.

What goes into a layer with the weights of several replicates holds their rows one replicate after another, equally many
of each, along its first axis. A single set of weights is treated as that of one replicate.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import unwrap
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn, optim
from torch.autograd import Function
from torch.nn import functional

from viewfuse.nn.cuda import join_streams, side_stream

_HIDDEN = -1e30
"""Stands for minus infinity: it hides a key as well, and a row in which every key is hidden stays finite."""
_step = torch.no_grad()(unwrap(optim.Adam.step))
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


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


class Adam(optim.Adam):
    """torch's Adam, which starts at once and waits for gradients that are computed in side streams.

    The first optimizer of torch in a process imports its compiler: 2.5 to 5 s on two cores, more than a small fit,
    and nothing here is compiled. `inspect.unwrap` gives the same methods without that import.
    """

    add_param_group = unwrap(optim.Optimizer.add_param_group)
    zero_grad = unwrap(optim.Optimizer.zero_grad)
    state_dict = unwrap(optim.Optimizer.state_dict)
    load_state_dict = unwrap(optim.Optimizer.load_state_dict)

    def step(self, closure: Any = None) -> Any:
        """One update of all weights."""
        join_streams()
        return _step(self, closure)


def with_gradients(train: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a function train, also inside the caller's `torch.no_grad` or `torch.inference_mode`."""
    return torch.inference_mode(False)(torch.enable_grad()(train))
