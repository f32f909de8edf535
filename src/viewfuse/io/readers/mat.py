"""MATLAB files as multi-view data sets are published: a cell array of views, or X1, X2, ...; and their labels.

Version 5 is read by SciPy, version 7.3 is HDF5. Views may lie either way, (samples, columns) or (columns, samples):
the labels, or what all views have in common, tell which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from viewfuse.data.sparse_tables import check_sparse
from viewfuse.errors import DataError
from viewfuse.io.readers.hdf5 import check_links, is_reference, member, numbers, opened
from viewfuse.io.readers.mat5 import read_version_5
from viewfuse.io.readers.npz import in_order
from viewfuse.io.safety.limits import Allowance
from viewfuse.io.source import Contents, FileView

CELLS = ("X", "data", "fea", "views")
LABELS = ("Y", "gt", "truelabel", "truth", "labels", "label", "gnd", "y")
_NUMBERED = [re.compile(rf"{stem}\d{{1,6}}") for stem in ("X", "x", "view_?", "data", "fea")]
_HDF5_START = b"MATLAB 7.3"
_MOST_CELLS = 1_000

Variables = dict[str, Any]
"""Per name an array, a sparse matrix, or a list of such, which was a cell array."""


def read_mat(path: Path) -> Contents:
    """The views in a MATLAB file."""
    with path.open("rb") as file:
        start = file.read(128)
    variables = _read_hdf5(path) if start.startswith((_HDF5_START, b"\x89HDF")) else read_version_5(path, start)
    found = _pick_views(path, variables)
    labels = _labels(variables)
    n = _count_samples(path, found, labels)
    views = [FileView(path, name, x, range(x.shape[1])) for name, x in _upright(path, found, n).items()]
    return Contents(views, labels=labels)


def _read_hdf5(path: Path) -> Variables:
    """Variables that may be views or labels; cells are a list."""
    with opened(path) as file:
        allowance = Allowance(path, "save it without compression")
        cells = {name: item for name, item in file.items() if is_reference(item)}
        others = [name for name in file if name in (*CELLS, *LABELS) or _is_numbered(name)]
        found = {name: _matrix(file[name], allowance) for name in others if name not in cells}
        return {**found, **{name: _cells(file, item, allowance) for name, item in cells.items()}}


def _is_numbered(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in _NUMBERED)


def _cells(file: Any, item: Any, allowance: Allowance) -> list[Any]:
    if item.size > _MOST_CELLS:
        where = f"{allowance.path}: {item.name!r}"
        raise DataError(f"{where} has {item.size:,} cells; at most {_MOST_CELLS:,} can be views")
    return [_referenced(file[reference], allowance) for reference in item[()].ravel()]


def _referenced(item: Any, allowance: Allowance) -> Any:
    """A cell, which may lie where no link leads, so that it was not checked yet."""
    check_links(allowance.path, item)
    return _matrix(item, allowance)


def _matrix(item: Any, allowance: Allowance) -> Any:
    """An array, turned, since MATLAB stores columns first; or a sparse matrix; None for anything else."""
    if hasattr(item, "keys"):
        return _sparse(item, allowance) if "MATLAB_sparse" in item.attrs else None
    is_text = bytes(item.attrs.get("MATLAB_class", b"")) == b"char"
    return None if is_text or item.dtype.kind not in "fiub" else numbers(item, allowance).T


def _sparse(group: Any, allowance: Allowance) -> Any:
    height = int(group.attrs["MATLAB_sparse"])
    allowance.take(8 * height)
    starts = _part(group, "jc", allowance).astype(np.int64)
    if "data" not in group:
        return sparse.csc_matrix((height, len(starts) - 1))
    parts = (_part(group, "data", allowance), _part(group, "ir", allowance).astype(np.int64), starts)
    return sparse.csc_matrix(parts, shape=(height, len(starts) - 1))


def _part(group: Any, name: str, allowance: Allowance) -> NDArray[Any]:
    return numbers(member(group, name, allowance.path), allowance)


def _is_matrix(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray | sparse.spmatrix | sparse.sparray) and value.dtype.kind in "fiub"
    return is_array and value.ndim == 2 and min(value.shape) > 0


def _pick_views(path: Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The views by name: the cells of X, or X1, X2, ..., or the cells of another array, or the only matrix X."""
    cells = [name for name, value in variables.items() if isinstance(value, list) and _are_views(value)]
    for name in CELLS:
        if name in cells:
            return {f"view_{v}": cell for v, cell in enumerate(variables[name])}
    alike = ([name for name in variables if pattern.fullmatch(name)] for pattern in _NUMBERED)
    matrices = ([name for name in names if _is_matrix(variables[name])] for names in alike)
    numbered = in_order(next((names for names in matrices if names), []))
    others = [name for name in cells if name not in LABELS]
    if not numbered and others:
        return {f"view_{v}": cell for v, cell in enumerate(variables[others[0]])}
    views = numbered or [name for name in CELLS if _is_matrix(variables.get(name))][:1]
    if not views:
        raise DataError(
            f"{path} holds no views; it needs a cell array X of matrices, or matrices X1, X2, ...; "
            f"it has {', '.join(variables) or 'nothing'}"
        )
    return {name: variables[name] for name in views}


def _are_views(cells: list[Any]) -> bool:
    return bool(cells) and all(_is_matrix(cell) for cell in cells)


def _labels(variables: Mapping[str, Any]) -> NDArray[Any] | None:
    """The first variable that is called like labels and is a vector of numbers."""
    for name in LABELS:
        value = variables.get(name)
        if isinstance(value, list) and value:
            value = value[0]  # some files wrap the labels in a cell
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and 1 < value.size == max(value.shape):
            return value.ravel()
    return None


def _count_samples(path: Path, views: Mapping[str, Any], labels: NDArray[Any] | None) -> int:
    """The number that is a side of every view: that of the labels, of all rows, of all columns, or the only one."""
    shapes = [view.shape for view in views.values()]
    common = set.intersection(*map(set, shapes))
    rows, columns = {shape[0] for shape in shapes}, {shape[1] for shape in shapes}
    if labels is not None and len(labels) in common:
        return len(labels)
    for found in (rows, columns, common):
        if len(found) == 1:
            return int(next(iter(found)))
    listed = ", ".join(f"{name} {view.shape}" for name, view in views.items())
    raise DataError(
        f"{path}: the shapes do not tell how many samples there are ({listed}); store one row per sample, or labels Y"
    )


def _upright(path: Path, views: Mapping[str, Any], n: int) -> Variables:
    """The views with one row per sample, sparse ones so that rows can be taken; square ones lie like the others."""
    others = [view for view in views.values() if view.shape[0] != view.shape[1]]
    squares_lie = bool(others) and all(view.shape[0] != n for view in others)
    upright = {}
    for name, view in views.items():
        if sparse.issparse(view):
            check_sparse(f"{path}: {name!r}", view)
        lies = squares_lie if view.shape[0] == view.shape[1] else view.shape[0] != n
        turned = view.T if lies else view
        upright[name] = turned.tocsr() if sparse.issparse(turned) else turned
    return upright
