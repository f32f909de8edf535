"""Copies of many tensors at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ALL_AT_ONCE = getattr(torch, "_foreach_copy_", None)
"""One kernel for all on a GPU; not part of torch's public face, so it may go."""


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, which is of the same shape and kind."""
    if _ALL_AT_ONCE is not None:
        _ALL_AT_ONCE(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
