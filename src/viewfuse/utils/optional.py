"""Packages that only some formats need."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from viewfuse.errors import MissingPackage


def needed(package: str, extra: str, path: Path) -> Any:
    """The package, or an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise MissingPackage(
            f"{path} needs the package {name}, which is not installed; pip install 'viewfuse[{extra}]'"
        ) from None
