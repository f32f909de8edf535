"""Several networks as one: their weights stacked along a leading axis, and their samples pooled."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from viewfuse.neighbors.samples import Samples
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.utils import memory

MAX_STACKED = {"cpu": 1, "cuda": 32}
"""Networks trained at once at most: a GPU has room for many, while on a CPU little is gained."""
_BYTES_PER_WEIGHT = 40
"""Weight, gradient and Adam's two moments take 16; the rest is what a recorded step keeps beside them."""
_LEAST_BYTES = 256 * 2**20
"""Activations of a step, whatever the weights."""
_SHARE = 0.8
"""Of the free memory; the rest is left for samples, libraries and others."""


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
