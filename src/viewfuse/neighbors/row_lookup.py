"""Recognising stored samples, so that a training sample is placed as it was in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from viewfuse.neighbors.view_index import NO_NEIGHBOR

_ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class RowIndex:
    """Fingerprints of stored samples in ascending order, and the row that each belongs to."""

    keys: Tensor
    rows: Tensor

    def to(self, device: torch.device) -> RowIndex:
        """The same index on `device`."""
        return RowIndex(self.keys.to(device), self.rows.to(device))


def index_rows(values: Sequence[Tensor], present: Tensor) -> RowIndex:
    """Index samples by all their values and by which views they have."""
    keys, rows = fingerprints(values, present).sort(stable=True)
    return RowIndex(keys, rows)


def find_rows(
    index: RowIndex, values: Sequence[Tensor], present: Tensor, new_values: Sequence[Tensor], new_present: Tensor
) -> Tensor:
    """Which stored sample each new one is, to the bit: int64 tensor of shape (new samples,), NO_NEIGHBOR if none."""
    keys = fingerprints(new_values, new_present)
    place = torch.searchsorted(index.keys, keys).clamp(max=len(index.keys) - 1)
    rows = index.rows[place]
    # Two different samples can have one fingerprint, so the values decide.
    equal = (present[rows] == new_present).all(dim=1)
    for view, new_view in zip(values, new_values, strict=True):
        equal &= (view[rows] == new_view).all(dim=1)
    return torch.where(equal, rows, NO_NEIGHBOR)


def fingerprints(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample, from the bits of the values in float32; int64 tensor of shape (samples,)."""
    generator = np.random.default_rng(20240825)
    total = _weighted(present, generator)
    for view in values:
        total = total + _weighted(view, generator)
    return total


def _weighted(numbers: Tensor, generator: np.random.Generator) -> Tensor:
    """Products of the bits and fixed weights, added up; they wrap around, which is what a fingerprint wants."""
    drawn = generator.integers(-(2**63), 2**63, size=numbers.shape[1], dtype=np.int64) | 1
    weights = torch.from_numpy(drawn).to(numbers.device)
    return torch.cat([(_bits(chunk) * weights).sum(dim=1) for chunk in torch.split(numbers, _ROWS_AT_A_TIME)])


def _bits(numbers: Tensor) -> Tensor:
    if numbers.dtype == torch.bool:
        return numbers.long()
    return (numbers.float() + 0.0).view(torch.int32).long()  # + 0.0 makes the two zeros one
