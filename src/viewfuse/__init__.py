"""viewfuse clusters samples described by several views when some views of some samples are missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Threads that wait actively for long come to a standstill as soon as another program wants one of their cores: training
# was a hundred times slower beside a busy process. A short wait costs little there and keeps the pace where nothing
# else runs. It must be said before the threads are made, that is, before torch.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

from viewfuse.data.views import Views
from viewfuse.errors import (
    BadModelFile,
    CannotWrite,
    DataError,
    Diverged,
    EmptyClusterWarning,
    EmptySampleWarning,
    JointStageWarning,
    MissingPackage,
    NotEnoughMemory,
    SettingError,
    SuspiciousDataWarning,
    ViewfuseError,
)
from viewfuse.io.readers import read_chunks, read_views

if TYPE_CHECKING:
    from viewfuse.estimator import URRL

__version__ = "0.1.0"
__all__ = [
    "URRL",
    "BadModelFile",
    "CannotWrite",
    "DataError",
    "Diverged",
    "EmptyClusterWarning",
    "EmptySampleWarning",
    "JointStageWarning",
    "MissingPackage",
    "NotEnoughMemory",
    "SettingError",
    "SuspiciousDataWarning",
    "ViewfuseError",
    "Views",
    "read_chunks",
    "read_views",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import the estimator, and torch with it, only when it is asked for."""
    if name == "URRL":
        from viewfuse.estimator import URRL

        return URRL
    raise AttributeError(f"module 'viewfuse' has no attribute {name!r}")
