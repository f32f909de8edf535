"""A backward pass from given gradients that starts at once.

Before its own, torch compares two shapes with symbols and imports sympy for that, which takes longer than a small fit;
every worker pays for it. What is computed is torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def backward(output: Tensor, gradient: Tensor) -> None:
    """`torch.autograd.backward(output, gradient)` of tensors of one shape."""
    run = torch.autograd.Variable._execution_engine.run_backward
    run((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
