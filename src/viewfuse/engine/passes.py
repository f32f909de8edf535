"""Several networks as one, with stacked weights and pooled samples, and passes of a fixed number of rows.

So memory is bounded, and a sample gets the same numbers in any batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.utils import memory

_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_MOST_ROWS_AT_ONCE = 256
_ROWS_FOR_FEW = (16, 32)
"""Tried for a few samples on a CPU, before whole passes."""
_found: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
"""Per network what each number of threads allows for a few samples: true of this machine only, so no model keeps it."""
_ROWS_TO_ASSIGN = 1024
"""Rows, clusters and columns at once would be far larger than the embedding."""
MAX_STACKED = {"cpu": 1, "cuda": 32}
"""Networks trained at once at most: a GPU has room for many, while on a CPU little is gained."""
_BYTES_PER_WEIGHT = 40
"""Weight, gradient and Adam's two moments take 16; the rest is what a recorded step keeps beside them."""
_LEAST_BYTES = 256 * 2**20
"""Activations of a step, whatever the weights."""
_SHARE = 0.8
"""Of the free memory; the rest is left for samples, libraries and others."""


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


def can_stack(network: Any) -> bool:
    """Whether all layers take weights with a leading axis, which a network says by `stackable = True`."""
    return bool(getattr(network, "stackable", False))


def stack(networks: Sequence[nn.Module]) -> nn.Module:
    """The networks as one, whose weights have a leading axis for them; a single network stays as it is."""
    if len(networks) == 1:
        return networks[0]
    together = copy.deepcopy(networks[0])
    for stacked, *own in _matched(together, networks):
        stacked.data = torch.stack([weights.detach() for weights in own])
    return together


def _matched(together: nn.Module, networks: Sequence[nn.Module]) -> Iterator[tuple[Tensor, ...]]:
    """Each weight and buffer of the stacked network with those of the networks."""
    return zip(*((*one.parameters(), *one.buffers()) for one in (together, *networks)), strict=True)


@torch.no_grad()
def unstack(together: nn.Module, networks: Sequence[nn.Module]) -> None:
    """Write what the stacked network holds into the networks; a single one holds it already."""
    if together is networks[0]:
        return
    for learned, *own in _matched(together, networks):
        for weights, part in zip(own, learned.view(len(own), *own[0].shape), strict=True):
            weights.copy_(part)


def pool(sets: Sequence[Samples]) -> Samples:
    """Different sets of samples as one, in which each finds its neighbours where they now are."""
    if len(sets) == 1:
        return sets[0]
    lists = [(s.neighbor_ids, i * len(s)) for i, s in enumerate(sets)]
    shifted = [torch.where(ids == NO_NEIGHBOR, NO_NEIGHBOR, ids + first) for ids, first in lists]
    values = [torch.cat(views) for views in zip(*(s.values for s in sets), strict=True)]
    return Samples(values, torch.cat([s.present for s in sets]), torch.cat(shifted))


def network_bytes(network: Any) -> int:
    """What one network takes while it is trained together with others."""
    return _LEAST_BYTES + _BYTES_PER_WEIGHT * sum(weight.numel() for weight in network.parameters())


def max_stacked(network: Any, device: torch.device) -> int:
    """How many networks like this one are trained at once on a device."""
    if not can_stack(network):
        return 1
    most = MAX_STACKED[device.type]
    if device.type != "cuda":
        return most
    return max(1, min(most, int(_SHARE * free_bytes(device) // network_bytes(network))))


def free_bytes(device: torch.device) -> int:
    """Bytes of a device that are free; on a GPU those that torch keeps for later included."""
    if device.type != "cuda":
        return memory.available()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
