"""Settings of a fit in one dict, as tests share and change them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from viewfuse import Config
from viewfuse.methods.urrl.config import OLD_NAMES


def flat(**settings: Any) -> dict[str, Any]:
    """Parameters of `URRL`: fields of its `Config` become one."""
    own = {name: settings.pop(name) for name in OLD_NAMES.intersection(settings)}
    return {**settings, "config": replace(settings.get("config") or Config(), **own)}
