"""Methods: URRL in a package of its own, those of others in `published`; all are scikit-learn estimators.

They are known by the names that saved models and the command line have; other packages may add theirs.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from os import PathLike
from pathlib import Path
from typing import Any

from viewfuse.errors import BadModelFile, SettingError
from viewfuse.fitted.manifest import read_manifest

ENTRY_POINTS = "viewfuse.methods"
"""The group under which installed packages name their estimators, see docs/add-your-method.md."""
ESTIMATORS = {
    "urrl": ("viewfuse.methods.urrl.estimator", "URRL"),
    "completer": ("viewfuse.methods.published.completer", "COMPLETER"),
    "dcp": ("viewfuse.methods.published.completer", "DCP"),
    "sure": ("viewfuse.methods.published.sure", "SURE"),
    "dsimvc": ("viewfuse.methods.published.dsimvc", "DSIMVC"),
    "cpspan": ("viewfuse.methods.published.cpspan", "CPSPAN"),
    "recformer": ("viewfuse.methods.published.recformer", "RecFormer"),
    "nemo": ("viewfuse.methods.published.nemo", "NEMO"),
    "pimvc": ("viewfuse.methods.published.pimvc", "PIMVC"),
    "kmeans-mean": ("viewfuse.methods.published.filled_kmeans", "MeanKMeans"),
    "kmeans-knn": ("viewfuse.methods.published.filled_kmeans", "KNNKMeans"),
}
"""Per name of a method the module and the class of its estimator."""


@cache
def _others() -> dict[str, EntryPoint]:
    """Estimators of other packages by name; the names of our own cannot be taken."""
    return {one.name: one for one in entry_points(group=ENTRY_POINTS) if one.name not in ESTIMATORS}


def method_names() -> list[str]:
    """All methods, our own first."""
    return [*ESTIMATORS, *_others()]


def estimator_of(name: str) -> Any:
    """The class of an estimator."""
    if name in ESTIMATORS:
        module, estimator = ESTIMATORS[name]
        return getattr(importlib.import_module(module), estimator)
    if name not in _others():
        raise SettingError(f"method {name!r} is unknown; choose from {', '.join(method_names())}")
    try:
        return _others()[name].load()
    except Exception as error:  # third-party code
        raise SettingError(f"method {name!r} of another package cannot be imported ({error}); reinstall it") from None


def load(path: str | PathLike[str], *, device: str = "auto") -> Any:
    """Read a fitted model of any method; a damaged one is refused with the file and the reason.

    Parameters
    ----------
    device : where it will predict: "cpu", "cuda", ...; "auto" takes a GPU where there is one
    """
    name = read_manifest(Path(path))["method"]["name"]
    if name not in method_names() or not hasattr(estimator_of(name), "load"):
        cure = "use the viewfuse that wrote it, install its package, or call `load` of its class"
        raise BadModelFile(f"{path}: its method {name!r} is unknown to this viewfuse; {cure}")
    return estimator_of(name).load(path, device=device)


__all__ = sorted(estimator for _, estimator in ESTIMATORS.values())


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    for key, (_, estimator) in ESTIMATORS.items():
        if estimator == name:
            return estimator_of(key)
    raise AttributeError(f"module 'viewfuse.methods' has no attribute {name!r}")
