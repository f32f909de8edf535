"""AnnData and MuData objects become tables: each modality a view, its cells known by name.

Neither package is imported here: without an import elsewhere there are no objects of it.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import encoded_frame
from viewfuse.data.digits import exact_frame, filled
from viewfuse.data.sparse_tables import NamedMatrix, canonical, check_sparse
from viewfuse.data.tables import is_sparse
from viewfuse.errors import DataError
from viewfuse.utils import memory

Use = str | Mapping[str, str]
"""What of an object is the view: "X", "layers/NAME" or "obsm/NAME"; for all, or by the name of the view."""


def is_anndata(data: Any) -> bool:
    """Whether `data` is an AnnData object; without an import of anndata there is none."""
    return _is_a(data, "anndata", "AnnData")


def is_mudata(data: Any) -> bool:
    """Whether `data` is a MuData object."""
    return _is_a(data, "mudata", "MuData")


def _is_a(data: Any, package: str, name: str) -> bool:
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(data, kind)


def is_annotated(data: Any) -> bool:
    """Whether `data` is an object of either kind."""
    return is_anndata(data) or is_mudata(data)


def opened(data: Any, use: Use | None = None) -> Any:
    """What was given as views, with tables by name instead of AnnData and MuData objects; the rest is left as it is."""
    _check_places(use)
    if is_mudata(data):
        return _modalities(data, use)
    if is_anndata(data):
        places = use if isinstance(use, Mapping) else {"view_0": use or "X"}
        return {str(name): _table(str(name), data, place) for name, place in places.items()}
    views: dict[Hashable, Any] = {}
    if isinstance(data, Mapping) and not hasattr(data, "shape"):  # one kind of sparse matrix is a dict, too
        views = dict(data)
    elif isinstance(data, (list, tuple)):
        views = {f"view_{v}": view for v, view in enumerate(data)}
    objects = [name for name, view in views.items() if is_annotated(view)]
    if use is not None:
        _check_use(use, [str(name) for name in objects])
    tables = {name: _table(str(name), views[name], place_of(use, str(name))) for name in objects}
    return data if not objects else views | tables


def place_of(use: Use | None, name: str) -> str:
    """What of an object is the view of that name."""
    return use if isinstance(use, str) else (use or {}).get(name, "X")


def _check_places(use: Use | None) -> None:
    places = use.values() if isinstance(use, Mapping) else [use or "X"]
    if not all(isinstance(place, str) for place in places):
        raise DataError(f"use={use!r}: give 'X', 'layers/NAME' or 'obsm/NAME', for all views or by view in a dict")


def _check_use(use: Use, names: Sequence[str]) -> None:
    unknown = [] if isinstance(use, str) else [name for name in use if name not in names]
    if unknown or not names:
        raise DataError(
            f"use={use!r} chooses parts of AnnData and MuData objects, of which there are {list(names)}; "
            "name these, or leave it out"
        )


def _modalities(data: Any, use: Use | None) -> dict[str, NamedMatrix]:
    """The modalities in the joint order of the cells; cells that no modality has are left out."""
    if data.axis == 1:
        raise DataError(
            "the modalities of this MuData share features, not cells (axis=1), so none is a view of the others' cells; "
            "pass one of them"
        )
    if use is not None:
        _check_use(use, list(data.mod))
    tables = {name: _table(name, part, place_of(use, name)) for name, part in data.mod.items()}
    if not tables:
        raise DataError("this MuData has no modality; give it at least one")
    known = next(iter(tables.values())).index
    for table in tables.values():
        known = known.union(table.index, sort=False)
    joint = data.obs_names.intersection(known, sort=False)
    joint = joint.append(known.difference(joint, sort=False))  # cells that update() does not know of
    return {name: table.in_order(joint) for name, table in tables.items()}


def _table(name: str, data: Any, place: str) -> NamedMatrix:
    """One matrix of an AnnData object."""
    if not is_anndata(data):
        raise DataError(f"view {name!r} is a whole {type(data).__name__}; pass it alone, its modalities are the views")
    if data.obs_names.has_duplicates:
        twice = data.obs_names[data.obs_names.duplicated()][0]
        raise DataError(f"view {name!r}: cell {twice!r} appears twice; keep one, or call obs_names_make_unique()")
    found = _at(data, place)
    if found is None:
        raise DataError(f"view {name!r} has no {place!r}; it has {', '.join(_places(data)) or 'nothing'}; choose one")
    if hasattr(found, "iloc"):  # a data frame in obsm
        return NamedMatrix(*frame_cells(found), data.obs_names)
    matrix = _in_memory(f"view {name!r}, {place!r}", found)
    columns = range(matrix.shape[1]) if place.startswith("obsm/") else data.var_names.tolist()
    return NamedMatrix(matrix, columns, data.obs_names)


def frame_cells(frame: Any) -> tuple[NDArray[Any], list[str]]:
    """The cells of a data frame in obsm, its text as categories, and the names of its columns."""
    encoded = exact_frame(encoded_frame(frame))
    return encoded.to_numpy(), [str(column) for column in encoded.columns]


def _at(data: Any, place: str) -> Any:
    kind, _, key = place.partition("/")
    if kind in ("layers", "obsm"):
        return getattr(data, kind).get(key)
    return data.X if place == "X" else None


def _places(data: Any) -> list[str]:
    own = [f"{kind}/{key}" for kind in ("layers", "obsm") for key in getattr(data, kind)]
    return own if data.X is None else ["X", *own]


def _in_memory(where: str, found: Any) -> Any:
    """An array or a sparse matrix of SciPy; what a backed object holds is read."""
    if is_sparse(found):
        check_sparse(where, found)
        return canonical(found)
    if isinstance(found, np.ndarray):
        return filled(found) if isinstance(found, np.ma.MaskedArray) else np.asarray(found)
    if hasattr(found, "backend"):  # a sparse matrix on disk
        return _in_memory(where, found.to_memory())
    if type(found).__module__.startswith("h5py."):
        memory.require(found.dtype.itemsize * int(np.prod(found.shape)), where, "choose fewer features")
        return found[()]
    raise DataError(f"{where} is a {type(found).__name__}; make it a NumPy array or a sparse matrix of SciPy first")
