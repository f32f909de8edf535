"""AnnData and MuData objects become tables: each modality a view, its cells known by name.

Neither package is imported here: without an import elsewhere there are no objects of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import is_anndata, is_annotated, is_mudata, is_sparse
from viewfuse.data.sparse_tables import canonical, check_sparse, placed_rows
from viewfuse.errors import DataError
from viewfuse.utils import memory

Use = str | Mapping[str, str]
"""What of an object is the view: "X", "layers/NAME" or "obsm/NAME"; for all, or by the name of the view."""


@dataclass(frozen=True)
class AnnotatedTable:
    """One view of an AnnData object.

    Attributes
    ----------
    matrix : array or sparse matrix of shape (cells, columns)
    index : pandas Index of the names of the cells
    columns : names of the columns, or their numbers
    """

    matrix: Any
    index: Any
    columns: Sequence[Hashable]

    @property
    def is_numbered(self) -> bool:
        """Whether the cells have no names of their own, so that AnnData called them "0", "1", "2", ..."""
        return self.index.tolist() == [str(cell) for cell in range(len(self.index))]

    def in_order(self, names: Any) -> AnnotatedTable:
        """One row per name; those that it lacks are missing."""
        if self.index.equals(names):
            return self
        rows = self.index.get_indexer(names)
        place = placed_rows if is_sparse(self.matrix) else placed_dense_rows
        return replace(self, matrix=place(self.matrix, rows), index=names)


def opened(data: Any, use: Use | None = None) -> Any:
    """What was given as views, with tables by name instead of AnnData and MuData objects; the rest is left as it is."""
    _check_places(use)
    if is_mudata(data):
        return _modalities(data, use)
    if is_anndata(data):
        places = use if isinstance(use, Mapping) else {"view_0": use or "X"}
        return {str(name): _table(str(name), data, place) for name, place in places.items()}
    views = _by_name(data)
    objects = [name for name, view in views.items() if is_annotated(view)]
    if use is not None:
        _check_use(use, [str(name) for name in objects])
    tables = {name: _table(str(name), views[name], place_of(use, str(name))) for name in objects}
    return data if not objects else views | tables


def _by_name(data: Any) -> dict[Hashable, Any]:
    if isinstance(data, Mapping) and not hasattr(data, "shape"):  # one kind of sparse matrix is a dict, too
        return dict(data)
    return {f"view_{v}": view for v, view in enumerate(data if isinstance(data, (list, tuple)) else ())}


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


def _modalities(data: Any, use: Use | None) -> dict[str, AnnotatedTable]:
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


def _table(name: str, data: Any, place: str) -> AnnotatedTable:
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
        return AnnotatedTable(found.to_numpy(), data.obs_names, [str(column) for column in found.columns])
    matrix = _in_memory(f"view {name!r}, {place!r}", found)
    columns = range(matrix.shape[1]) if place.startswith("obsm/") else data.var_names.tolist()
    return AnnotatedTable(matrix, data.obs_names, columns)


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
        return np.asarray(found)
    if hasattr(found, "backend"):  # a sparse matrix on disk
        return _in_memory(where, found.to_memory())
    if type(found).__module__.startswith("h5py."):
        memory.require(found.dtype.itemsize * int(np.prod(found.shape)), where, "choose fewer features")
        return found[()]
    raise DataError(f"{where} is a {type(found).__name__}; make it a NumPy array or a sparse matrix of SciPy first")


def placed_dense_rows(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """The rows of an array, NaN for row -1."""
    placed = np.full((len(rows), *matrix.shape[1:]), np.nan, dtype=np.result_type(matrix.dtype, np.float32))
    placed[rows >= 0] = matrix[rows[rows >= 0]]
    return placed
