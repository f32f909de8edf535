"""Batches: their random numbers, passes of a fixed number of rows, and several networks stacked as one.

A sample gets the same numbers in any pass and any stack. Random numbers follow from a seed, an epoch and a place only:
each is the hash of a counter (SplitMix64, Steele et al. 2014), so that several seeds are drawn from at once, and a GPU
never waits for the host.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from viewfuse.errors import SettingError
from viewfuse.neighbors.index import NO_NEIGHBOR, STRIDE, Samples, scramble
from viewfuse.utils import memory
from viewfuse.utils.settings import Advice, Setting, checked_count

_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_MOST_ROWS_AT_ONCE = 256
_ROWS_FOR_FEW = (16, 32)  # tried for a few samples on a CPU, before whole passes
# Per network what each number of threads allows for a few samples: true of this machine only, so no model keeps it.
_found: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
_ROWS_TO_ASSIGN = 1024  # rows, clusters and columns at once would be far larger than the embedding
MAX_STACKED = {"cpu": 1, "cuda": 32}
"""Networks trained at once at most: a GPU has room for many, while on a CPU little is gained."""
_BYTES_PER_WEIGHT = 40
"""Weight, gradient and Adam's two moments take 16; the rest is what a recorded step keeps beside them."""
_LEAST_BYTES = 256 * 2**20  # activations of a step, whatever the weights
_SHARE = 0.8  # of the free memory; the rest is left for samples, libraries and others
_BITS = 23  # of a uniform number: with a half added, that is as much as float32 holds exactly


def fixed_rows(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Row numbers, `size` at a time, the last one repeated: products of one shape round alike, in any batch."""
    for start in range(0, n, size):
        yield torch.arange(start, start + size, device=device).clamp(max=n - 1)


def rows_for_all(n: int, device: torch.device) -> int | None:
    """Rows per pass over a whole training set, where nothing is compared with what is computed of a few samples.

    On a CPU large passes take a quarter less time. None is the usual number.
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
    samples with the views and neighbours of stored ones, and with random values, which hide no rounding. A new sample
    of two views is then placed in 12 ms of one core, else in 17. `work` gives all that is computed of samples, and is
    None where that would hide rounding.
    """
    device, threads = stored.present.device, torch.get_num_threads()
    whole = _ROWS_PER_PASS[device.type]
    if work is None or device.type != "cpu" or n > max(_ROWS_FOR_FEW):
        return whole
    sizes = _found.setdefault(network, {})
    if threads not in sizes:  # which decide how products are split
        like, draws = stored.take(torch.arange(whole) % len(stored)), torch.Generator().manual_seed(0)
        tried = replace(like, values=[torch.rand(view.shape, generator=draws).to(view) for view in like.values])
        at_once = work(tried)
        for size in (*_ROWS_FOR_FEW, whole):
            sizes[threads] = size
            parts = [work(tried.take(slice(start, start + size))) for start in range(0, whole, size)]
            if torch.equal(torch.cat(parts), at_once):
                break
    return sizes[threads]


@torch.no_grad()
def embed(method: Any, network: Any, samples: Samples, stored: Samples, rows_per_pass: int | None = None) -> Tensor:
    """Embeddings of the samples as they are, of shape (samples, embedding)."""
    with torch.inference_mode():
        parts = [method.embed(network, part, stored) for part in passes(samples, rows_per_pass)]
    return torch.cat(parts)[: len(samples)]


@torch.no_grad()
def assign(method: Any, network: Any, embedding: Tensor) -> Tensor:
    """Probabilities of the clusters, of shape (samples, clusters), given embeddings."""
    return torch.cat([method.assign(network, rows) for rows in torch.split(embedding, _ROWS_TO_ASSIGN)])


def clusters(method: Any, network: Any, embedding: Tensor) -> Tensor:
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
    for learned, *own in () if together is networks[0] else _matched(together, networks):
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
    most = MAX_STACKED[device.type] if can_stack(network) else 1
    if most == 1 or device.type != "cuda":
        return most
    return max(1, min(most, int(_SHARE * free_bytes(device) // network_bytes(network))))


def free_bytes(device: torch.device) -> int:
    """Bytes of a device that are free; on a GPU those that torch keeps for later included."""
    if device.type != "cuda":
        return memory.available()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def replicate_seeds(random_state: Any, n_init: Any, usual: int = 1) -> list[int]:
    """One seed per training, of which "auto" means `usual`; the first is that of the random state itself."""
    count = checked_count("n_init", n_init, auto=usual)
    if random_state is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    elif isinstance(random_state, np.random.RandomState):
        seed = int(random_state.randint(2**31 - 1))
    elif isinstance(random_state, np.random.Generator):
        seed = int(random_state.integers(2**31 - 1))
    elif isinstance(random_state, Integral) and 0 <= int(random_state) < 2**64:
        seed = int(random_state)
    else:
        in_python = Advice((", None or a ", Setting("RandomState")))
        wanted = " must be an integer from 0 to 2**64 - 1", in_python
        raise SettingError(Setting("random_state"), *wanted, f"; got {random_state!r}")
    others = np.random.SeedSequence([seed, 2**32]).generate_state(count)[1:]
    return [seed, *(int(other) for other in others)]


def seed_under_scaling(seed: int, place: int) -> int:
    """The seed with one of several scalings: with equal ones networks agree on similar data, whatever they find."""
    return seed if place == 0 else int(np.random.SeedSequence([seed, 2**33, place]).generate_state(1)[0])


def generator_for_start(seed: int) -> Generator:
    """Draws the weights that a network starts with, on the CPU whatever the device."""
    return Generator().manual_seed(int(_states(seed, -1)[0]))


def epoch_keys(seeds: Sequence[int], epoch: int) -> Tensor:
    """Where an epoch's random numbers begin: int64 tensor of shape (seeds, 2), for its draws and for its order."""
    return torch.from_numpy(np.stack([_states(seed, epoch) for seed in seeds]).view(np.int64))


def shuffled(keys: Tensor, n: int) -> Tensor:
    """Row numbers in random order: for keys of shape (seeds,), of shape (seeds, n)."""
    return scramble(keys[:, None] + _counters(n, keys.device)).argsort(dim=1)


def segments(key: Tensor, places: Tensor, count: int) -> Tensor:
    """Keys for several places, of their shape, such that none draws what another draws with its first `count`."""
    return key + places * _stride(count)


class RandomNumbers:
    """What is random in training, for the seeds of several networks: each number follows from a key and its place."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._keys = epoch_keys(seeds, 0)[:, :1].to(device)
        self._counters: dict[int, Tensor] = {}

    def begin(self, keys: Tensor) -> None:
        """Begin anew, at keys of shape (seeds,)."""
        self._keys.copy_(keys[:, None])

    def uniform(self, count: int) -> Tensor:
        """The next numbers between 0 and 1, neither of which is reached; float32 of shape (seeds, count)."""
        if count not in self._counters:
            self._counters[count] = _counters(count, self._keys.device)
        bits = scramble(self._keys + self._counters[count]).bitwise_right_shift_(64 - _BITS)  # the upper ones
        self._keys += _stride(count)
        return bits.float().mul_(2.0**-_BITS).add_(0.5 + 2.0 ** (-_BITS - 1))

    def dropout(self, shape: tuple[int, ...], rate: float) -> Tensor:
        """Factors of a shape whose first axis is the seeds: 0 for a share of `rate`, else 1 / (1 - rate).

        A number is kept or not by 16 bits, so a hash decides on four: hashes for all took long on a GPU.
        """
        count = prod(shape[1:])
        hashes = -(-count // 4)
        states = scramble(self._keys + _counters(hashes, self._keys.device))
        self._keys += _stride(hashes)
        # All bits are used here, so SplitMix64's last shift is needed, and without copies of the sign.
        pieces = states.bitwise_xor_((states >> 31).bitwise_and_(2**33 - 1)).view(torch.int16)[:, :count]
        dropped = min(round(rate * 2**16), 2**16 - 1)
        return ((pieces >= dropped - 2**15) * (1.0 / (1.0 - rate))).view(shape)


def _counters(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * STRIDE


def _stride(count: int) -> int:
    """How far keys go where `count` numbers are drawn: modulo 2**64, as torch's signed numbers wrap."""
    return (count * STRIDE + 2**63) % 2**64 - 2**63


def _states(seed: int, epoch: int) -> NDArray[np.uint64]:
    """Two numbers of an epoch (-1: of the start) that have nothing to do with each other."""
    return np.random.SeedSequence([seed, epoch + 1]).generate_state(2, np.uint64).astype(np.uint64)
