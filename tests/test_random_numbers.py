"""Uniform, unrelated, and the same alone and in company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from viewfuse.engine.replicates import RandomNumbers, epoch_keys, generator_for_start, shuffled

CPU = torch.device("cpu")
COUNT = 50_000


def numbers(seeds, epoch=0, count=COUNT, times=1, device=CPU):
    draws = RandomNumbers(seeds, device)
    draws.begin(epoch_keys(seeds, epoch)[:, 0].to(device))
    return torch.stack([draws.uniform(count) for _ in range(times)]).cpu()


def test_numbers_are_uniform_and_reach_no_end():
    found = numbers(range(20)).double()
    assert found.min() > 0
    assert found.max() < 1
    assert [float((found**k).mean()) for k in (1, 2, 3)] == pytest.approx([1 / 2, 1 / 3, 1 / 4], abs=0.001)
    counts = torch.histc(found, 100, 0, 1)
    expected = found.numel() / 100
    assert 60 < float(((counts - expected) ** 2 / expected).sum()) < 150  # chi-squared, 99 degrees of freedom


def test_neighbours_seeds_epochs_and_steps_have_nothing_to_do_with_each_other():
    found = numbers([0, 1], times=2)
    later = numbers([0], epoch=1)
    rows = torch.stack([found[0, 0], found[0, 1], found[1, 0], later[0, 0], found[0, 0].roll(1), found[0, 0].roll(64)])
    off_diagonal = torch.corrcoef(rows.double()) - torch.eye(len(rows))
    assert float(off_diagonal.abs().max()) < 5 * COUNT**-0.5


def test_numbers_are_the_same_alone_and_in_company_and_in_smaller_portions():
    together = numbers([7, 3, 5], times=3)
    assert torch.equal(together[:, 1], numbers([3], times=3)[:, 0])
    portions = numbers([3], count=COUNT // 10, times=30)
    assert torch.equal(together[:, 1].flatten(), portions.flatten())


def test_orders_are_permutations_and_the_same_in_company():
    keys = epoch_keys([4, 9], 2)[:, 1]
    orders = shuffled(keys, 1000)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(1000).expand(2, -1))
    assert torch.equal(orders[1:], shuffled(keys[1:], 1000))
    places = shuffled(epoch_keys(range(300), 0)[:, 1], 10).double()  # every number comes to every place equally often
    assert (places.mean(dim=0) - 4.5).abs().max() < 4 * 2.9 / 300**0.5


def test_start_depends_on_the_seed_alone():
    one, same, other = (torch.rand(3, generator=generator_for_start(seed)).tolist() for seed in (1, 1, 2))
    assert one == same != other


def left(seeds, shape, rate, times=1, device=CPU):
    draws = RandomNumbers(seeds, device)
    draws.begin(epoch_keys(seeds, 0)[:, 0].to(device))
    return torch.stack([draws.dropout((len(seeds), *shape), rate) for _ in range(times)]).cpu()


def splitmix(state):
    """SplitMix64 of one state, whose first two shifts copy the sign."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        signed = state - 2**64 if state >= 2**63 else state
        state = (state ^ (signed >> shift) % 2**64) * factor % 2**64
    return state ^ state >> 31


def test_dropout_takes_four_decisions_from_a_hash():
    """Against SplitMix64 in Python's integers, number by number; the second draw begins where the first ended."""
    key = int(epoch_keys([5], 0)[0, 0]) % 2**64
    hashes = np.array([splitmix((key + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(8)], dtype="<u8")
    pieces = hashes.view("<i2").reshape(2, 16)[:, :15].astype(int) + 2**15
    expected = np.where(pieces >= round(0.3 * 2**16), np.float32(1 / 0.7), 0)
    assert np.array_equal(left([5], (3, 5), 0.3, times=2)[:, 0].reshape(2, 15).numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    found = left(range(20), (50, 1000), rate).double()
    error = (rate / (1 - rate) / found.numel()) ** 0.5
    assert abs(float(found.mean()) - 1) < 4 * error + 2**-15
    assert set(found.unique().tolist()) == {0.0, float(np.float32(1 / (1 - rate)))}
    rows = torch.stack([found[0, 0].flatten().roll(by) for by in (0, 1, 2, 3, 4, 1000)])
    assert float((torch.corrcoef(rows) - torch.eye(len(rows))).abs().max()) < 5 * COUNT**-0.5


def test_dropout_is_the_same_in_company_and_finite_near_one():
    assert torch.equal(left([7, 3], (5, 9), 0.4)[:, 1], left([3], (5, 9), 0.4)[:, 0])
    assert torch.isfinite(left([1], (300, 300), 1 - 1e-9)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_numbers():
    gpu = torch.device("cuda")
    assert torch.equal(numbers([7, 3], times=2), numbers([7, 3], times=2, device=gpu))
    assert torch.equal(left([7, 3], (5, 9), 0.4, times=2), left([7, 3], (5, 9), 0.4, times=2, device=gpu))
    keys = epoch_keys([7, 3], 0)[:, 1]
    assert torch.equal(shuffled(keys, 1000), shuffled(keys.to(gpu), 1000).cpu())
