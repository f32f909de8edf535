"""Seeds, and random numbers from nothing but a seed, an epoch and a place: the same in any stack, on a CPU and a GPU.

Every number is the hash of a counter (SplitMix64, Steele et al. 2014) in plain integer arithmetic, so that several
seeds are drawn from at once, and nothing has to be fetched from the host while a GPU works.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from viewfuse.errors import SettingError
from viewfuse.utils.settings import Advice, Setting, wrong

# SplitMix64's increment and multipliers, as the signed 64-bit numbers that torch has.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_BITS = 23
"""Of a uniform number: with a half added, that is as much as float32 holds exactly."""


def replicate_seeds(random_state: Any, n_init: Any, usual: int = 1) -> list[int]:
    """One seed per training: that of the random state itself, and others that have nothing to do with it.

    Parameters
    ----------
    n_init : how many, or "auto"
    usual : what "auto" means
    """
    if isinstance(n_init, str) and n_init == "auto":
        n_init = usual
    if not isinstance(n_init, Integral) or isinstance(n_init, bool) or int(n_init) < 1:
        raise wrong("n_init", "'auto' or an integer of at least 1", n_init)
    seed = _seed(random_state)
    others = np.random.SeedSequence([seed, 2**32]).generate_state(int(n_init))[1:]
    return [seed, *(int(other) for other in others)]


def seed_under_scaling(seed: int, place: int) -> int:
    """The seed of a training with one of several scalings: that of the first is the seed itself.

    With equal seeds networks that see nearly the same data agree, however little they find.
    """
    return seed if place == 0 else int(np.random.SeedSequence([seed, 2**33, place]).generate_state(1)[0])


def _seed(random_state: Any) -> int:
    """A seed, without touching the global generator."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, (np.random.RandomState, np.random.Generator)):
        draw = random_state.randint if isinstance(random_state, np.random.RandomState) else random_state.integers
        return int(draw(2**31 - 1))
    if not isinstance(random_state, Integral) or not 0 <= int(random_state) < 2**64:
        in_python = Advice((", None or a ", Setting("RandomState")))
        wanted = " must be an integer from 0 to 2**64 - 1", in_python
        raise SettingError(Setting("random_state"), *wanted, f"; got {random_state!r}")
    return int(random_state)


def generator_for_start(seed: int) -> Generator:
    """Draws the weights that a network starts with, on the CPU whatever the device."""
    return Generator().manual_seed(int(_states(seed, -1)[0]))


def epoch_keys(seeds: Sequence[int], epoch: int) -> Tensor:
    """Where an epoch's random numbers begin: int64 tensor of shape (seeds, 2), for its draws and for its order."""
    return torch.from_numpy(np.stack([_states(seed, epoch) for seed in seeds]).view(np.int64))


def shuffled(keys: Tensor, n: int) -> Tensor:
    """Row numbers in random order: for keys of shape (seeds,), of shape (seeds, n)."""
    return _scramble(keys[:, None] + _counters(n, keys.device)).argsort(dim=1)


def segments(key: Tensor, places: Tensor, count: int) -> Tensor:
    """Keys for several places, of their shape, such that none draws what another draws with its first `count`."""
    return key + places * _stride(count)


class RandomNumbers:
    """What is random in training, for several seeds at once: each number follows from a key and its place.

    Parameters
    ----------
    seeds : one per network
    """

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
        found = _uniform(self._keys + self._counters[count])
        self._keys += _stride(count)
        return found

    def dropout(self, shape: tuple[int, ...], rate: float) -> Tensor:
        """Factors of a shape whose first axis is the seeds: 0 for a share of `rate`, else 1 / (1 - rate).

        A number is kept or not by 16 bits, so a hash decides on four of them: hashes for all were 28 % of the kernel
        time of SURE on a GPU.
        """
        count = prod(shape[1:])
        hashes = -(-count // 4)
        states = _scramble(self._keys + _counters(hashes, self._keys.device))
        self._keys += _stride(hashes)
        # All bits are used here, so SplitMix64's last shift is needed, and without copies of the sign.
        pieces = states.bitwise_xor_((states >> 31).bitwise_and_(2**33 - 1)).view(torch.int16)[:, :count]
        dropped = min(round(rate * 2**16), 2**16 - 1)
        return ((pieces >= dropped - 2**15) * (1.0 / (1.0 - rate))).view(shape)


def _uniform(states: Tensor) -> Tensor:
    """Numbers between 0 and 1 of the upper bits of hashed states."""
    bits = _scramble(states).bitwise_right_shift_(64 - _BITS)
    return bits.float().mul_(2.0**-_BITS).add_(0.5 + 2.0 ** (-_BITS - 1))


def _scramble(states: Tensor) -> Tensor:
    """SplitMix64's hash, in place.

    Only its upper bits are used, so its last shift, which changes the lower ones, is left out. Torch shifts in copies
    of the sign where SplitMix64 shifts in zeros; that costs one of 64 bits.
    """
    states.bitwise_xor_(states >> 30).mul_(_FIRST)
    return states.bitwise_xor_(states >> 27).mul_(_SECOND)


def _counters(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * _INCREMENT


def _stride(count: int) -> int:
    """How far keys go where `count` numbers are drawn."""
    return _signed(count * _INCREMENT)


def _signed(number: int) -> int:
    """The number modulo 2**64, as torch's signed numbers wrap."""
    return (number + 2**63) % 2**64 - 2**63


def _states(seed: int, epoch: int) -> NDArray[np.uint64]:
    """Two numbers of an epoch (-1: of the start) that have nothing to do with each other."""
    return np.random.SeedSequence([seed, epoch + 1]).generate_state(2, np.uint64).astype(np.uint64)
