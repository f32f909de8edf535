"""What tells one fit from another: data, settings and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
import sklearn
import torch
from scipy import sparse

from viewfuse.data.views import Views
from viewfuse.utils.memory import parts
from viewfuse.utils.version import __version__

_RULES = 4
"""Of training; one more whenever the same version and settings would train in another way."""


def fit_facts(views: Views, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """All on which the numbers of a fit depend, by name.

    Parameters
    ----------
    settings : parameters of the estimator that change what is learned
    """
    modules = {"torch": torch, "numpy": np, "scipy": scipy, "scikit-learn": sklearn}
    versions = {f"version of {name}": module.__version__ for name, module in modules.items()}
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {
        **{name: _spelled(value) for name, value in settings.items()},
        "samples": len(views),
        "views": list(views.names),
        "digest of the data": digest(views),
        "device": device.type,
        "threads": threads,
        "version of viewfuse": __version__,
        "rules of training": _RULES,
        **versions,
    }


def _spelled(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, type(None))) else repr(value)


def digest(views: Views) -> str:
    """A checksum of all values, which are there, and whose they are."""
    found = hashlib.blake2b(digest_size=16)
    found.update(repr((views.names, views.widths, [str(one) for one in views.ids])).encode())
    found.update(np.packbits(views.mask).tobytes())
    found.update(b"" if views.batch is None else repr(views.batch.tolist()).encode())
    for offset in views.offsets:
        found.update(np.asarray(offset).tobytes() if np.any(offset) else b"")
    for array in views.arrays:
        if sparse.issparse(array):
            own = array.tocsr()
            for part in (own.data, own.indices, own.indptr):
                found.update(np.ascontiguousarray(part).tobytes())
        else:
            for rows in parts(len(array)):
                found.update(np.ascontiguousarray(array[rows]).tobytes())
    return found.hexdigest()
