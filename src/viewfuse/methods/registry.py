"""Which estimators there are, by the names that saved models carry."""

from __future__ import annotations

import importlib
from os import PathLike
from pathlib import Path
from typing import Any

from viewfuse.errors import BadModelFile
from viewfuse.fitted.manifest import read_manifest

ESTIMATORS = {"urrl": ("viewfuse.methods.urrl.estimator", "URRL")}
"""Per name of a method the module and the class of its estimator."""


def load(path: str | PathLike[str], *, device: str = "auto") -> Any:
    """Read a fitted model of any method; a damaged one is refused with the file and the reason.

    Parameters
    ----------
    device : where it will predict: "cpu", "cuda", ...; "auto" takes a GPU where there is one
    """
    method = read_manifest(Path(path)).get("method")
    name = method.get("name") if isinstance(method, dict) else None
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise BadModelFile(f"{path}: its method {name!r} is unknown to this viewfuse; use the viewfuse that wrote it")
    module, estimator = ESTIMATORS[name]
    return getattr(importlib.import_module(module), estimator).load(path, device=device)
