"""MATLAB files as multi-view data sets are published: a cell array of views, or X1, X2, ...; and their labels.

Version 5 is read by SciPy, version 7.3 is HDF5. Views may lie either way, (samples, columns) or (columns, samples):
the labels, or what all views have in common, tell which.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from viewfuse.errors import DataError
from viewfuse.readers.hdf5 import checked, numbers, opened
from viewfuse.readers.limits import refuse_growth
from viewfuse.readers.npz import in_order
from viewfuse.readers.source import FileView, Source

CELLS = ("X", "data", "fea", "views")
LABELS = ("Y", "gt", "truelabel", "truth", "labels", "label", "gnd", "y")
_NUMBERED = re.compile(r"(X|x|view_?|data|fea)\d+")
_HDF5_START = b"MATLAB 7.3"
_COMPRESSED = 15
_CURE = "save it with -v7.3 or without compression"

Variables = dict[str, Any]
"""Per name an array, a sparse matrix, or a list of such, which was a cell array."""


def read_mat(path: Path) -> Source:
    """The views in a MATLAB file."""
    with path.open("rb") as file:
        start = file.read(128)
    variables = _read_hdf5(path) if start.startswith((_HDF5_START, b"\x89HDF")) else _read_version_5(path, start)
    found = _pick_views(path, variables)
    labels = _labels(variables)
    n = _count_samples(path, found, labels)
    views = [FileView(path, name, x, range(x.shape[1])) for name, x in _upright(found, n).items()]
    return Source(views, labels=labels if labels is not None and len(labels) == n else None)


def _read_version_5(path: Path, start: bytes) -> Variables:
    if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
        raise DataError(f"{path} is no MATLAB file of version 5 or 7.3; save it again with save -v7")
    order = "<" if start[126:128] == b"IM" else ">"
    refuse_growth(path, _unpacked_size(path, order), _CURE)
    try:
        wanted = [name for name, _, kind in io.whosmat(path) if kind not in ("struct", "object", "function", "opaque")]
        found = io.loadmat(path, variable_names=wanted, mat_dtype=False)
    except (OSError, ValueError, TypeError, KeyError, IndexError, zlib.error, RecursionError, MemoryError,
            NotImplementedError, struct.error, AttributeError, OverflowError) as error:  # fmt: skip
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is no readable MATLAB file ({reason}); save it again") from None
    return {name: _unwrapped(value) for name, value in found.items() if not name.startswith("__")}


def _unpacked_size(path: Path, order: str) -> int:
    """Bytes that the parts of the file claim, from their tags alone."""
    total, end = 0, path.stat().st_size
    with path.open("rb") as file:
        file.seek(128)
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            place = file.tell()
            if place + size > end:
                raise DataError(f"{path}, byte {place}: a part of {size:,} bytes goes beyond the end; save it again")
            total += _claimed(file.read(min(size, 512)), order) if kind == _COMPRESSED else size
            file.seek(place + size)
    return total


def _claimed(packed: bytes, order: str) -> int:
    """What the first compressed bytes say about the size of what is packed."""
    try:
        head = zlib.decompressobj().decompress(packed, 8)
    except zlib.error:
        return 0  # SciPy says what is wrong with it
    return int(struct.unpack(f"{order}II", head)[1]) if len(head) == 8 else 0


def _unwrapped(value: Any) -> Any:
    """A cell array as the list of its cells; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(value.ravel(order="F"))
    return value


def _read_hdf5(path: Path) -> Variables:
    with opened(path, "MATLAB") as file:
        names = [name for name in file if not name.startswith("#")]
        return {name: _variable(path, file, file[name]) for name in names}


def _variable(path: Path, file: Any, item: Any) -> Any:
    """One variable of a version 7.3 file; MATLAB stores columns first, so arrays come back turned."""
    if hasattr(item, "keys"):
        return _sparse(path, item) if "MATLAB_sparse" in item.attrs else None
    if item.dtype.kind == "O":
        cells = item[()].ravel() if item.size <= 10_000 else []
        return [_variable(path, file, file[reference]) for reference in cells]
    return numbers(path, item).T if item.dtype.kind in "fiub" else None


def _sparse(path: Path, group: Any) -> Any:
    height = int(group.attrs["MATLAB_sparse"])
    starts = numbers(path, group["jc"]).astype(np.int64)
    if "data" not in group:
        return sparse.csc_matrix((height, len(starts) - 1))
    parts = (numbers(path, group["data"]), checked(path, group["ir"])[()].astype(np.int64), starts)
    matrix = sparse.csc_matrix(parts, shape=(height, len(starts) - 1))
    matrix.check_format()
    return matrix


def _is_matrix(value: Any) -> bool:
    return isinstance(value, np.ndarray | sparse.spmatrix | sparse.sparray) and value.ndim == 2 and min(value.shape) > 0


def _pick_views(path: Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The views by name: the cells of one array, or X1, X2, ..., or the only matrix."""
    cells = [name for name in (*CELLS, *variables) if isinstance(variables.get(name), list)]
    for name in cells:
        if variables[name] and all(_is_matrix(cell) for cell in variables[name]):
            return {f"view_{v}": cell for v, cell in enumerate(variables[name])}
    numbered = [name for name in variables if _NUMBERED.fullmatch(name) and _is_matrix(variables[name])]
    views = in_order(numbered) or [name for name in CELLS if _is_matrix(variables.get(name))][:1]
    if not views:
        raise DataError(
            f"{path} holds no views; it needs a cell array X of matrices, or matrices X1, X2, ...; "
            f"it has {', '.join(variables) or 'nothing'}"
        )
    return {name: variables[name] for name in views}


def _labels(variables: Mapping[str, Any]) -> NDArray[Any] | None:
    """The first variable that is called like labels and is a vector of numbers."""
    for name in LABELS:
        value = variables.get(name)
        if isinstance(value, list) and value:
            value = value[0]  # some files wrap the labels in a cell
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.size == max(value.shape, default=0):
            return value.ravel()
    return None


def _count_samples(path: Path, views: Mapping[str, Any], labels: NDArray[Any] | None) -> int:
    """The number that is a side of every view; that of the labels where they say one, else that of rows."""
    common = set.intersection(*(set(view.shape) for view in views.values()))
    if not common:
        shapes = ", ".join(f"{name} {view.shape}" for name, view in views.items())
        raise DataError(f"{path}: the views have no number of samples in common ({shapes}); store one row per sample")
    if labels is not None and len(labels) in common:
        return len(labels)
    rows = {view.shape[0] for view in views.values()}
    return next(iter(rows)) if len(rows) == 1 else max(common)


def _upright(views: Mapping[str, Any], n: int) -> Variables:
    """The views with one row per sample, sparse ones so that rows can be taken; square ones lie like the others."""
    others = [view for view in views.values() if view.shape[0] != view.shape[1]]
    squares_lie = bool(others) and all(view.shape[0] != n for view in others)
    upright = {}
    for name, view in views.items():
        lies = squares_lie if view.shape[0] == view.shape[1] else view.shape[0] != n
        turned = view.T if lies else view
        upright[name] = turned.tocsr() if sparse.issparse(turned) else turned
    return upright
