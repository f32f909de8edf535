"""Which device is worked on."""

from __future__ import annotations

import torch

from viewfuse.errors import SettingError
from viewfuse.utils.settings import Setting


def chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"device {name!r} cannot be used here ({reason}); try ", Setting("device", "auto")) from None
    return torch.device(device.type, device.index or 0) if device.type == "cuda" else device
