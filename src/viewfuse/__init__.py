"""viewfuse clusters samples described by several views when some views of some samples are missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from viewfuse.errors import (
    BadModelFile,
    CannotWrite,
    DataError,
    Diverged,
    EmptyCellsWarning,
    EmptyClusterWarning,
    EmptySampleWarning,
    IgnoredColumnsWarning,
    JointStageWarning,
    MissingPackage,
    NotEnoughMemory,
    OutOfRangeWarning,
    SettingError,
    SuspiciousDataWarning,
    ViewfuseError,
)
from viewfuse.utils.version import __version__ as __version__

if TYPE_CHECKING:
    from viewfuse.comparison.run import compare
    from viewfuse.data.side_information.batch_labels import with_batch
    from viewfuse.data.views import Views
    from viewfuse.io.readers import read_chunks, read_views
    from viewfuse.methods import load
    from viewfuse.methods.urrl.config import Config
    from viewfuse.methods.urrl.estimator import URRL

__all__ = [
    "URRL",
    "BadModelFile",
    "CannotWrite",
    "Config",
    "DataError",
    "Diverged",
    "EmptyCellsWarning",
    "EmptyClusterWarning",
    "EmptySampleWarning",
    "IgnoredColumnsWarning",
    "JointStageWarning",
    "MissingPackage",
    "NotEnoughMemory",
    "OutOfRangeWarning",
    "SettingError",
    "SuspiciousDataWarning",
    "ViewfuseError",
    "Views",
    "compare",
    "load",
    "read_chunks",
    "read_views",
    "with_batch",
]


def __dir__() -> list[str]:
    return __all__


_LAZY = {
    "Config": "viewfuse.methods.urrl.config",
    "URRL": "viewfuse.methods.urrl.estimator",
    "Views": "viewfuse.data.views",
    "compare": "viewfuse.comparison.run",
    "load": "viewfuse.methods",
    "read_chunks": "viewfuse.io.readers",
    "read_views": "viewfuse.io.readers",
    "with_batch": "viewfuse.data.side_information.batch_labels",
}
"""Where names are that need torch or NumPy, which are only imported when one of them is asked for."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'viewfuse' has no attribute {name!r}")
