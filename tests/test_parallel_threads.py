"""Shards side by side: on a CPU every thread has a core of its own, and a GPU is shared."""

from __future__ import annotations

from threading import Barrier

import pytest
import torch

from viewfuse.parallel.threads import ahead, side_by_side, turns


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("share", "at_once"), [(1, 4), (2, 2), (8, 1)])
def test_threads_share_the_cores(four_threads, share, at_once):
    together = Barrier(at_once)

    def work(item):
        together.wait(timeout=20)  # all of them are at work
        return item, torch.get_num_threads()

    found = list(side_by_side(work, range(at_once * 2), share=share))
    assert found == [(item, 4 // at_once) for item in range(at_once * 2)]
    assert torch.get_num_threads() == 4


def test_a_failure_is_not_swallowed_and_threads_come_back(four_threads):
    def work(item):
        if item == 3:
            raise ValueError("third")
        return item

    with pytest.raises(ValueError, match="third"):
        list(side_by_side(work, range(100)))
    assert torch.get_num_threads() == 4


def test_threads_wait_for_a_gpu_and_not_for_a_cpu():
    with turns(torch.device("cpu")) as free, turns(torch.device("cpu")):
        assert free is None
    shared = turns(torch.device("cuda"))
    with shared:
        assert not shared.acquire(blocking=False)


def test_items_come_in_order():
    assert list(ahead(range(5))) == list(range(5))
