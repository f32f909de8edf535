"""Recognising stored samples, so that a training sample is placed as it was in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from viewfuse.neighbors.exact_search import NO_NEIGHBOR
from viewfuse.neighbors.lots import STRIDE

_CELLS_AT_A_TIME = 8_000_000


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
    place = torch.searchsorted(index.keys, keys)
    found, likely = torch.full_like(place, NO_NEIGHBOR), torch.arange(len(keys), device=keys.device)
    while True:
        likely = likely[place[likely] < len(index.keys)]
        likely = likely[index.keys[place[likely]] == keys[likely]]
        if not len(likely):
            return found
        rows = index.rows[place[likely]]
        # Different samples can have one fingerprint, so the values decide; the next row may have it, too.
        equal = (present[rows] == new_present[likely]).all(dim=1)
        for view, new_view in zip(values, new_values, strict=True):
            equal &= (view[rows] == new_view[likely]).all(dim=1)
        found[likely[equal]] = rows[equal]
        likely = likely[~equal]
        place[likely] += 1


def fingerprints(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample, from the bits of the values in float32; int64 tensor of shape (samples,)."""
    numbers = [present, *values]
    weights = _weights(tuple(part.shape[1] for part in numbers)).to(present.device)
    step = max(1, _CELLS_AT_A_TIME // len(weights))
    chunks = zip(*(torch.split(part, step) for part in numbers), strict=True)
    # Products of the bits and the weights wrap around, which is what a fingerprint wants.
    return torch.cat([(torch.cat([_bits(part) for part in chunk], dim=1) * weights).sum(dim=1) for chunk in chunks])


def content_keys(values: Sequence[Tensor], present: Tensor) -> Tensor:
    """One 64-bit number per sample that depends on what it holds, and among equal samples on which copy it is."""
    keys, rows = fingerprints(values, present).sort(stable=True)
    copies = torch.arange(len(rows), device=rows.device) - torch.searchsorted(keys, keys)
    return torch.empty_like(keys).scatter_(0, rows, keys + STRIDE * copies)


@cache
def _weights(widths: tuple[int, ...]) -> Tensor:
    """Fixed odd numbers, one for every column."""
    generator = np.random.default_rng(20240825)
    drawn = [generator.integers(-(2**63), 2**63, size=width, dtype=np.int64) | 1 for width in widths]
    return torch.from_numpy(np.concatenate(drawn))


def _bits(numbers: Tensor) -> Tensor:
    if numbers.dtype == torch.bool:
        return numbers.long()
    return (numbers.float() + 0.0).view(torch.int32).long()  # + 0.0 makes the two zeros one
