"""Two threads for one step: results, gradients, errors and numbers of threads are those of one thread."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from viewfuse.nn.lanes import current_lanes, two_lanes
from viewfuse.nn.streams import join_streams, map_parts, put_aside


@pytest.fixture
def lanes(set_threads):
    set_threads(4)
    with two_lanes():
        yield current_lanes()


def test_results_stand_in_order_and_both_threads_work(lanes):
    both = threading.Barrier(2, timeout=20)

    def slow(i):
        if i < 2:
            both.wait()
            time.sleep(0.05 * (1 - i))
        return i, threading.get_ident()

    found = lanes.map(slow, 7)
    assert [i for i, _ in found] == list(range(7))
    assert len({who for _, who in found}) == 2


def test_each_lane_has_half_of_the_threads_and_what_runs_in_it_opens_no_others(lanes):
    both = threading.Barrier(2, timeout=20)

    def seen(_):
        both.wait()
        return torch.get_num_threads(), current_lanes()

    assert lanes.map(seen, 2) == [(2, None)] * 2
    assert current_lanes() is lanes
    with two_lanes():
        assert current_lanes() is lanes


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_afterwards_all_is_as_before(threads, set_threads):
    set_threads(threads)
    before = threading.active_count()
    for error in (None, ZeroDivisionError):
        try:
            with two_lanes():
                assert (current_lanes() is None) == (threads == 1)
                put_aside("later", lambda: 1)
                if error:
                    raise error
        except ZeroDivisionError:
            pass
        assert (torch.get_num_threads(), current_lanes(), threading.active_count()) == (threads, None, before)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_in_either_lane_is_raised(lanes, place):
    both = threading.Barrier(2, timeout=20)

    def work(i):
        if i < 2:
            both.wait()
        if i == place:
            raise ZeroDivisionError(i)
        return i

    with pytest.raises(ZeroDivisionError):
        lanes.map(work, 3)
    assert lanes.map(abs, 3) == [0, 1, 2]


def test_an_error_in_what_was_put_aside_is_raised_where_it_is_waited_for(lanes):
    put_aside("later", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        join_streams()
    join_streams()


def test_what_is_put_aside_is_done_in_turn_and_nobody_waits_for_a_busy_helper(lanes):
    go, done = threading.Event(), []
    first = put_aside("first", lambda: go.wait(20))
    put_aside("second", lambda: done.append(first()))
    assert lanes.map(lambda _: threading.get_ident(), 3) == [threading.get_ident()] * 3
    assert done == []
    go.set()
    join_streams()
    assert done == [True]


def parts_and_gradients():
    """A network of three parts that share an input, and two of which share a weight."""
    draws = torch.Generator().manual_seed(0)
    weights = [torch.randn(5, 5, generator=draws, requires_grad=True) for _ in range(2)]
    given, other = (torch.randn(4, 5, generator=draws, requires_grad=True) for _ in range(2))

    def part(i, *inputs):
        return (inputs[0] @ weights[min(i, 1)] + sum(inputs[1:])).tanh()

    found = map_parts(part, [(given,), (given, other), (other.detach(),)])
    loss = torch.stack(found).square().sum()
    loss.backward()
    return [*found, *(one.grad for one in (*weights, given, other))]


def test_parts_have_the_outputs_and_gradients_that_they_have_in_turn(lanes):
    beside = parts_and_gradients()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.nn.streams.current_lanes", lambda: None)
        in_turn = parts_and_gradients()
    for own, one in zip(beside, in_turn, strict=True):
        torch.testing.assert_close(own, one)
    assert all(torch.equal(*pair) for pair in zip(beside, parts_and_gradients(), strict=True))


def test_where_nothing_is_learned_there_are_no_gradients(lanes):
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.no_grad():
        (found,) = map_parts(lambda i, given: given @ weight, [(torch.ones(1, 2),)])
    assert not found.requires_grad


def test_with_another_precision_there_is_one_thread(set_threads):
    """The precision belongs to a thread: a part in the helper would have that of the weights."""
    set_threads(2)
    with torch.autocast("cpu", torch.bfloat16), two_lanes():
        found = map_parts(lambda i, given: given @ given, [(torch.ones(2, 2),)] * 2)
    assert [one.dtype for one in found] == [torch.bfloat16] * 2
