"""Uniform, unrelated, and the same alone and in company."""

from __future__ import annotations

import pytest
import torch

from viewfuse.engine.rng import Draws, epoch_keys, generator_for_start, shuffled

CPU = torch.device("cpu")
COUNT = 50_000


def numbers(seeds, epoch=0, count=COUNT, times=1, device=CPU):
    draws = Draws(len(seeds), count, device)
    draws.begin(epoch_keys(seeds, epoch)[:, 0].to(device))
    return torch.stack([draws.next() for _ in range(times)]).cpu()


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_numbers():
    gpu = torch.device("cuda")
    assert torch.equal(numbers([7, 3], times=2), numbers([7, 3], times=2, device=gpu))
    keys = epoch_keys([7, 3], 0)[:, 1]
    assert torch.equal(shuffled(keys, 1000), shuffled(keys.to(gpu), 1000).cpu())
