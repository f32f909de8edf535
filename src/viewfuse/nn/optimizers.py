"""Optimizers of torch that start at once.

Those of torch import its compiler when the first of a process is made. That takes longer than a small fit, every worker
pays for it, and nothing here is compiled. What they compute is torch's own.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch import optim


class _WithoutCompiler(optim.Optimizer):
    """What every optimizer inherits, as it is inside the wrappers that import the compiler."""

    add_param_group = unwrap(optim.Optimizer.add_param_group)
    zero_grad = unwrap(optim.Optimizer.zero_grad)
    state_dict = unwrap(optim.Optimizer.state_dict)
    load_state_dict = unwrap(optim.Optimizer.load_state_dict)


class Adam(_WithoutCompiler, optim.Adam):
    """torch's Adam."""

    step = torch.no_grad()(unwrap(optim.Adam.step))
