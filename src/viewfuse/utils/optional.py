"""Packages that only some formats need."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from viewfuse.errors import MissingPackage
from viewfuse.utils.settings import Setting


def needed(package: str, extra: str, what: Path | str | Setting) -> Any:
    """The package that `what` needs, or an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        fault = f" needs the package {name}, which is not installed; {how_to_install(name, extra)}"
        raise MissingPackage(what, fault) from None


def how_to_install(package: str, extra: str) -> str:
    """A command that works wherever viewfuse came from, and one for those who have its source."""
    return f"pip install {package}, or in a checkout of viewfuse pip install -e '.[{extra}]'"
