"""Passes of a fixed number of rows: bounded memory, and the same numbers for a sample in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from viewfuse.engine.method import Placing
from viewfuse.neighbors.samples import Samples

_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_ROWS_TO_ASSIGN = 1024
"""Rows, clusters and columns at once would be far larger than the embedding."""


def fixed_rows(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Row numbers, `size` at a time; the last pass is filled up with the last row.

    Matrix products of one shape round alike, so what is computed of a row is the same to the bit in any batch.
    """
    for start in range(0, n, size):
        yield torch.arange(start, start + size, device=device).clamp(max=n - 1)


def passes(samples: Samples) -> Iterator[Samples]:
    """The samples in passes of a fixed number of rows."""
    device = samples.present.device
    for rows in fixed_rows(len(samples), _ROWS_PER_PASS[device.type], device):
        yield samples.take(rows)


@torch.no_grad()
def embed(method: Placing, network: Any, samples: Samples, stored: Samples) -> Tensor:
    """Embeddings of the samples as they are, of shape (samples, embedding)."""
    return torch.cat([method.embed(network, part, stored) for part in passes(samples)])[: len(samples)]


@torch.no_grad()
def assign(method: Placing, network: Any, embedding: Tensor) -> Tensor:
    """Probabilities of the clusters, of shape (samples, clusters), given embeddings."""
    return torch.cat([method.assign(network, rows) for rows in torch.split(embedding, _ROWS_TO_ASSIGN)])


def clusters(method: Placing, network: Any, embedding: Tensor) -> Tensor:
    """The cluster of every sample, of shape (samples,), given embeddings."""
    return assign(method, network, embedding).argmax(dim=1)
