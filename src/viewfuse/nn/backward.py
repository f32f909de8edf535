"""A backward pass from given gradients that starts at once.

Before its own, torch compares two shapes with symbols and imports sympy for that, which takes longer than a small fit;
every worker pays for it. From a single number it goes on at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def backward(output: Tensor, gradient: Tensor) -> None:
    """`torch.autograd.backward(output, gradient)` of tensors of one shape."""
    torch.autograd.backward(_WithGradient.apply(output, gradient))  # type: ignore[no-untyped-call]


class _WithGradient(torch.autograd.Function):
    """A number whose derivative by the output is the given gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None
