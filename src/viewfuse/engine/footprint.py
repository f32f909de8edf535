"""How many networks a device has memory for."""

from __future__ import annotations

from typing import Any

import torch

from viewfuse.utils import memory

MAX_STACKED = {"cpu": 1, "cuda": 32}
"""Networks trained side by side at most: a GPU has room for many, while on a CPU little is gained."""
_BYTES_PER_WEIGHT = 40
"""Weight, gradient and Adam's two moments take 16; the rest is what a recorded step keeps beside them."""
_LEAST_BYTES = 256 * 2**20
"""Activations of a step, whatever the weights."""
_SHARE = 0.8
"""Of the free memory; the rest is left for samples, libraries and others."""


def network_bytes(network: Any) -> int:
    """What one network takes while it is trained side by side with others."""
    return _LEAST_BYTES + _BYTES_PER_WEIGHT * sum(weight.numel() for weight in network.parameters())


def max_stacked(network: Any, device: torch.device) -> int:
    """How many networks like this one are trained side by side on a device."""
    most = MAX_STACKED[device.type]
    if device.type != "cuda":
        return most
    return max(1, min(most, int(_SHARE * free_bytes(device) // network_bytes(network))))


def free_bytes(device: torch.device) -> int:
    """Bytes of a device that nobody uses; on a GPU those that torch keeps for later included."""
    if device.type != "cuda":
        return memory.available()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
