"""Packages that only some formats need."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from viewfuse.errors import MissingPackage


def needed(package: str, extra: str, path: Path | str) -> Any:
    """The package, which a file or a setting needs, or an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise MissingPackage(
            f"{path} needs the package {name}, which is not installed; {how_to_install(name, extra)}"
        ) from None


def how_to_install(package: str, extra: str) -> str:
    """A command that works wherever viewfuse came from, and one for those who have its source."""
    return f"pip install {package}, or in a checkout of viewfuse pip install -e '.[{extra}]'"
