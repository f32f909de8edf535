"""Adam, one call for all weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

_BETAS = 0.9, 0.999
_EPSILON = 1e-8


class Adam:
    """torch.optim.Adam(fused=True) for weights that are always updated together.

    Torch's counts the updates of every weight on its own, which on a CPU takes as long as the updates themselves.

    Parameters
    ----------
    weights : every one of them has a gradient at every step
    """

    def __init__(self, weights: Sequence[Parameter], learning_rate: float, weight_decay: float) -> None:
        self._weights: list[Tensor] = list(weights)
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._means = [torch.zeros_like(w, requires_grad=False) for w in self._weights]
        self._squares = [torch.zeros_like(w, requires_grad=False) for w in self._weights]
        self._done = torch.zeros((), dtype=torch.float32, device=self._weights[0].device)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self._weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights."""
        self._done += 1
        torch._fused_adam_(
            self._weights,
            [_gradient(w) for w in self._weights],
            self._means,
            self._squares,
            [],
            [self._done] * len(self._weights),
            lr=self._learning_rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=self._weight_decay,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )


def _gradient(weight: Tensor) -> Tensor:
    if weight.grad is None:
        raise RuntimeError("a weight took no part in the loss")
    return weight.grad
