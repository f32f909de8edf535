"""Adam: the numbers of torch's own, without the import of its compiler."""

from __future__ import annotations

import sys
from inspect import unwrap

import pytest
import torch
from torch import optim

from viewfuse.nn import layers


@pytest.fixture
def no_compiler(monkeypatch):
    """An import of torch's compiler fails, also where a test before this one has imported it."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        monkeypatch.delattr(unwrap(getattr(optim.Optimizer, name)), "__dynamo_disable", raising=False)


def stepped(kind, **settings) -> torch.Tensor:
    """Weights after five steps; after the third another optimizer goes on."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed would import the compiler
    weights, goal = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    optimizer = kind([weights], **settings)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = (weights - goal).pow(4).sum()
        value.backward()
        return value

    for step in range(5):
        optimizer.step(loss)
        if step == 2:
            state = optimizer.state_dict()
            optimizer = kind([weights], **settings)
            optimizer.load_state_dict(state)
    assert weights.requires_grad
    return weights.detach()


SETTINGS = {"Adam": {"lr": 0.1, "weight_decay": 0.01, "fused": True}}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_numbers_are_those_of_torch(name):
    ours, theirs = getattr(layers, name), getattr(optim, name)
    assert torch.equal(stepped(ours, **SETTINGS[name]), stepped(theirs, **SETTINGS[name]))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("no_compiler")
def test_no_compiler_is_imported(name):
    stepped(getattr(layers, name), **SETTINGS[name])


@pytest.mark.usefixtures("no_compiler")
def test_an_import_of_the_compiler_would_be_noticed():
    with pytest.raises(ImportError, match="_dynamo"):
        stepped(optim.Adam)
