"""Passes of a fixed number of rows: bounded memory, and the same numbers for a sample in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from viewfuse.neighbors.samples import Samples

_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_MOST_ROWS_AT_ONCE = 256
_ROWS_FOR_FEW = (16, 32)
"""Tried for a few samples on a CPU, before whole passes."""
_found: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
"""Per network what each number of threads allows for a few samples: true of this machine only, so no model keeps it."""
_ROWS_TO_ASSIGN = 1024
"""Rows, clusters and columns at once would be far larger than the embedding."""


class Placing(Protocol):
    """A way to place samples: all that is asked of a method once its network is trained."""

    @property
    def n_clusters(self) -> int:
        """How many clusters are looked for."""

    def embed(self, network: Any, samples: Samples, stored: Samples) -> Tensor:
        """Embeddings of samples as they are, of shape (samples, embedding)."""

    def assign(self, network: Any, embedding: Tensor) -> Tensor:
        """Probabilities of the clusters, of shape (samples, clusters)."""


def fixed_rows(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Row numbers, `size` at a time; the last pass is filled up with the last row.

    Matrix products of one shape round alike, so what is computed of a row is the same to the bit in any batch.
    """
    for start in range(0, n, size):
        yield torch.arange(start, start + size, device=device).clamp(max=n - 1)


def rows_for_all(n: int, device: torch.device) -> int | None:
    """Rows per pass over a whole training set, for what is never compared with what is computed of a few samples.

    On a CPU large passes take a quarter less time. They are of one size, which fills up the last one least; None is the
    usual number.
    """
    if device.type != "cpu":
        return None
    usual = _ROWS_PER_PASS["cpu"]
    count = -(-n // _MOST_ROWS_AT_ONCE)
    return -(-n // (count * usual)) * usual


def passes(samples: Samples, size: int | None = None) -> Iterator[Samples]:
    """The samples in passes of a fixed number of rows; `size` is one that `rows_per_pass` or `rows_for_all` gave."""
    device = samples.present.device
    for rows in fixed_rows(len(samples), size or _ROWS_PER_PASS[device.type], device):
        yield samples.take(rows)


@torch.no_grad()
def rows_per_pass(n: int, network: Any, stored: Samples, work: Callable[[Samples], Tensor] | None) -> int:
    """How many rows a pass over `n` samples has: fewer for a few, if this machine then computes the same numbers.

    Products of different shapes may round alike, and no library says when. So it is tried, once per network: on
    samples with the views and neighbours of stored ones, and with random values, which hide no rounding.

    Parameters
    ----------
    work : gives all that is computed of samples, of shape (samples, numbers); None where that would hide rounding
    """
    device, threads = stored.present.device, torch.get_num_threads()
    whole = _ROWS_PER_PASS[device.type]
    if work is None or device.type != "cpu" or n > max(_ROWS_FOR_FEW):
        return whole
    sizes = _found.setdefault(network, {})
    if threads not in sizes:  # which decide how products are split
        tried = _random_samples(stored, whole)
        sizes[threads] = next((size for size in _ROWS_FOR_FEW if _is_the_same(work, tried, size)), whole)
    return sizes[threads]


def _random_samples(stored: Samples, n: int) -> Samples:
    like = stored.take(torch.arange(n) % len(stored))
    draws = torch.Generator().manual_seed(0)
    return replace(like, values=[torch.rand(view.shape, generator=draws).to(view) for view in like.values])


def _is_the_same(work: Callable[[Samples], Tensor], samples: Samples, size: int) -> bool:
    """Whether passes of `size` rows give, to the bit, what one pass over all samples gives."""
    parts = (work(samples.take(slice(start, start + size))) for start in range(0, len(samples), size))
    return all(map(torch.equal, parts, torch.split(work(samples), size)))


@torch.no_grad()
def embed(method: Placing, network: Any, samples: Samples, stored: Samples, rows_per_pass: int | None = None) -> Tensor:
    """Embeddings of the samples as they are, of shape (samples, embedding)."""
    with torch.inference_mode():
        parts = [method.embed(network, part, stored) for part in passes(samples, rows_per_pass)]
    return torch.cat(parts)[: len(samples)]


@torch.no_grad()
def assign(method: Placing, network: Any, embedding: Tensor) -> Tensor:
    """Probabilities of the clusters, of shape (samples, clusters), given embeddings."""
    return torch.cat([method.assign(network, rows) for rows in torch.split(embedding, _ROWS_TO_ASSIGN)])


def clusters(method: Placing, network: Any, embedding: Tensor) -> Tensor:
    """The cluster of every sample, of shape (samples,), given embeddings."""
    return assign(method, network, embedding).argmax(dim=1)
