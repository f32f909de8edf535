"""Training wherever it is called from."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def with_gradients(train: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a function train, also inside the caller's `torch.no_grad` or `torch.inference_mode`."""
    return torch.inference_mode(False)(torch.enable_grad()(train))
