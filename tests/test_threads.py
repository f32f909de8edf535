"""Shards side by side: on a CPU every thread has a core of its own, and a GPU is shared."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError

import joblib
import pytest
import torch

from viewfuse.utils.jobs import ahead, side_by_side, turns


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 4)
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


def test_what_is_asked_for_inside_of_an_item_is_done_in_turn(four_threads):
    def work(item):
        return list(side_by_side(lambda inner: (item, inner, torch.get_num_threads()), range(2)))

    assert list(side_by_side(work, range(3))) == [[(item, inner, 1) for inner in range(2)] for item in range(3)]
    assert torch.get_num_threads() == 4


def test_a_container_gets_no_more_threads_than_it_may_use(four_threads, monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    together = Barrier(3)

    def work(item):
        together.wait(timeout=0.2)  # never three at once

    with pytest.raises(BrokenBarrierError):
        list(side_by_side(work, range(3)))


def test_threads_wait_for_a_gpu_and_not_for_a_cpu():
    with turns(torch.device("cpu")) as free, turns(torch.device("cpu")):
        assert free is None
    shared = turns(torch.device("cuda"))
    with shared:
        assert not shared.acquire(blocking=False)


def test_items_come_in_order():
    assert list(ahead(range(5))) == list(range(5))
