"""Methods: URRL in a package of its own, those of others in `published`; all are scikit-learn estimators."""

from __future__ import annotations

from typing import Any

from viewfuse.methods.registry import ESTIMATORS, estimator_of

__all__ = [
    "COMPLETER",
    "CPSPAN",
    "DCP",
    "DSIMVC",
    "NEMO",
    "PIMVC",
    "SURE",
    "URRL",
    "KNNKMeans",
    "MeanKMeans",
    "RecFormer",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    for key, (_, estimator) in ESTIMATORS.items():
        if estimator == name:
            return estimator_of(key)
    raise AttributeError(f"module 'viewfuse.methods' has no attribute {name!r}")
