"""Weights: how much each sample and each view counts; a weight of 2 is like the sample there twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import is_number, objects_as_numbers
from viewfuse.data.known.hints import as_objects, has_ids, id_key, listed_by_id
from viewfuse.errors import DataError, SettingError
from viewfuse.utils.settings import Setting

_WHAT = "sample_weight"


def sample_weights(given: Any, ids: NDArray[Any]) -> NDArray[np.float64] | None:
    """Weights of mean 1, of shape (samples,); None where none are given, or all are the same.

    Parameters
    ----------
    given : one number per sample, not negative; by id where it is a mapping, or a pandas Series beside samples with ids
    """
    if given is None:
        return None
    cells = _by_id(given, ids) if isinstance(given, Mapping) or has_ids(given, ids) else as_objects(given)
    if cells.shape != (len(ids),):
        raise DataError(f"{_WHAT} is of shape {cells.shape} for {len(ids):,} samples; give one number each")
    numbers = objects_as_numbers(cells[:, None])
    if numbers is None:
        raise DataError(f"{_WHAT} holds something that is no number; give one number per sample")
    found = numbers[:, 0]
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(bad):
        fault = f"the {_WHAT} of {str(ids[bad[0]])!r} is {found[bad[0]]:g}"
        raise DataError(f"{fault}; give numbers of at least 0, one for every sample")
    if not found.any():
        raise DataError(f"every {_WHAT} is zero, so there is nothing to learn from; give some a weight above 0")
    return None if (found == found[0]).all() else found / found.mean()


def weights_of_views(given: Any, names: Sequence[str]) -> tuple[float, ...] | None:
    """Weights of mean 1 in the order of the views; None where none are given, or all are the same.

    Parameters
    ----------
    given : mapping from names of views to numbers above 0; views that it does not name have the weight 1
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SettingError(Setting("view_weights"), f" is {given!r}; give a dict such as {{{names[0]!r}: 2}}")
    strange = [name for name in given if name not in names]
    if strange:
        raise SettingError(Setting("view_weights"), f" names {strange[0]!r}; the views are {', '.join(names)}")
    found = []
    for name in names:
        one = given.get(name, 1.0)
        weight = float(one) if is_number(one) else nan
        if not 0 < weight < inf:
            cure = "give a number above 0, or leave the view out"
            raise SettingError(Setting("view_weights"), f" of {name!r} is {given[name]!r}; {cure}")
        found.append(weight)
    mean = sum(found) / max(len(found), 1)
    return None if len(set(found)) < 2 else tuple(weight / mean for weight in found)


def _by_id(given: Any, ids: NDArray[Any]) -> NDArray[np.object_]:
    """The weights of the samples, None where there is none."""
    listed = listed_by_id(given, _WHAT)
    return np.array([listed.get(id_key(one)) for one in ids.tolist()], dtype=object)
