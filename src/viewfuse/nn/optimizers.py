"""torch's Adam, which starts at once and waits for gradients that are computed in side streams.

The first optimizer of torch in a process imports its compiler: 2.5 to 5 s on two cores, more than a small fit needs,
and nothing here is compiled. `inspect.unwrap` gives the same methods without that import.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import optim

from viewfuse.nn.cuda import join_streams

_step = torch.no_grad()(unwrap(optim.Adam.step))


class Adam(optim.Adam):
    """torch's Adam."""

    add_param_group = unwrap(optim.Optimizer.add_param_group)
    zero_grad = unwrap(optim.Optimizer.zero_grad)
    state_dict = unwrap(optim.Optimizer.state_dict)
    load_state_dict = unwrap(optim.Optimizer.load_state_dict)

    def step(self, closure: Any = None) -> Any:
        """One update of all weights."""
        join_streams()
        return _step(self, closure)
