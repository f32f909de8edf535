"""TAM in the paper: the three-level adaptive attention mask over views."""

from __future__ import annotations

import torch
from torch import Tensor

from viewfuse.methods.urrl.config import Config


def adaptive_mask(valid: Tensor, available: Tensor, config: Config) -> Tensor:
    """TAM in the paper, section 3.1.2: bias per view of 0 (own), gamma (from donors) or minus infinity (nothing).

    Without `three_level_mask` a view counts as there when anything fills it: 0 or minus infinity.

    Parameters
    ----------
    valid : boolean tensor of shape (batch, views, list length)
    available : boolean tensor of shape (batch, views)

    Returns
    -------
    float tensor of shape (batch, views)
    """
    imputed = config.imputed_bias if config.three_level_mask else 0.0
    bias = torch.where(valid.any(dim=2), imputed, -torch.inf)
    return torch.where(available, 0.0, bias)
