"""Networks are stacked as far as the memory of a device goes."""

from __future__ import annotations

import pytest
import torch

from viewfuse.engine import replicates as passes

NETWORK = torch.nn.Linear(1000, 1000)
NETWORK.stackable = True
WEIGHTS = 1000 * 1001
GPU = torch.device("cuda:0")


@pytest.fixture
def free(monkeypatch):
    """Say how much is free on a GPU, of which torch keeps a part."""

    def log(n_bytes, kept=0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (n_bytes - kept, 2 * n_bytes))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: kept + 10**9)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10**9)

    return log


def test_a_network_takes_forty_bytes_per_weight_and_its_activations():
    assert passes.network_bytes(NETWORK) == 40 * WEIGHTS + 2**28


@pytest.mark.parametrize(("networks", "expected"), [(100, 32), (10, 8), (1, 1), (0.1, 1)])
def test_four_fifths_of_the_free_memory_are_used(free, networks, expected):
    free(int(networks * passes.network_bytes(NETWORK)) + 100)
    assert passes.max_stacked(NETWORK, GPU) == expected


def test_what_torch_keeps_for_later_is_free(free):
    size = passes.network_bytes(NETWORK)
    free(10 * size + 100, kept=9 * size)
    assert passes.max_stacked(NETWORK, GPU) == 8


def test_networks_of_layers_without_a_leading_axis_are_trained_one_after_another(free):
    free(100 * passes.network_bytes(NETWORK))
    assert passes.max_stacked(torch.nn.Linear(1000, 1000), GPU) == 1


def test_on_a_cpu_networks_are_trained_one_after_another():
    assert passes.max_stacked(NETWORK, torch.device("cpu")) == 1
