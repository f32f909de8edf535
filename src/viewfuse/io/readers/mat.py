"""MATLAB files as multi-view data sets are published: a cell array of views, or X1, X2, ...; and their labels.

Version 5 is read by SciPy, which trusts files, so it is walked through part by part before; version 7.3 is HDF5. Views
may lie either way, (samples, columns) or (columns, samples): the labels, or what all views have in common, tell which.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from viewfuse.data.sparse_tables import check_sparse
from viewfuse.errors import DataError
from viewfuse.io.readers.hdf5 import check_links, numbers, opened
from viewfuse.io.readers.npz import LABELS, in_order, warn_left_out
from viewfuse.io.safety import Allowance
from viewfuse.io.source import Contents, FileView

CELLS = ("X", "data", "fea", "views")
_NUMBERED = [re.compile(rf"{stem}\d{{1,6}}") for stem in ("X", "x", "view_?", "data", "fea")]
_MOST_CELLS = 1_000

Variables = dict[str, Any]
"""Per name an array, a sparse matrix, or a list of such, which was a cell array."""
_DEEPEST, _MOST_SIDES = 5, 32
_ELEMENTS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14, 16, 17, 18}
"""Kinds of parts that the format has."""
_MATRIX, _COMPRESSED = 14, 15
_CELL, _SPARSE = 1, 5
_CLASSES = {*range(1, 16)}
_NOT_READ = {2: "struct", 3: "object"}


def read_mat(path: Path) -> Contents:
    """The views in a MATLAB file."""
    with path.open("rb") as file:
        start = file.read(128)
    if start.startswith((b"MATLAB 7.3", b"\x89HDF")):
        variables = _read_hdf5(path)
    elif len(start) == 128 and start[126:] in (b"IM", b"MI"):
        _walk(path, "<" if start[126:] == b"IM" else ">")
        wanted = [name for name, _, kind in io.whosmat(path) if kind not in ("struct", "object", "function", "opaque")]
        read = io.loadmat(path, variable_names=wanted, mat_dtype=False)
        variables = {name: value for name, value in read.items() if not name.startswith("__")}
        for name, value in variables.items():
            if isinstance(value, np.ndarray) and value.dtype == object:
                variables[name] = list(value.ravel(order="F"))
    else:
        raise DataError(f"{path} is no MATLAB file of version 5 or 7.3; save it again with save -v7")
    found = _pick_views(path, variables)
    labels = _labels(variables)
    n = _count_samples(path, found, labels)
    views = [FileView(path, name, x, range(x.shape[1])) for name, x in _upright(path, found, n).items()]
    warn_left_out(path, _left_out(variables, [id(value) for value in found.values()]))
    return Contents(views, labels=labels)


def _left_out(variables: Variables, used: Sequence[int]) -> dict[str, str]:
    """Why variables are no views that may have been meant as such: text and single numbers are settings."""
    labels = next((name for name in LABELS if _labels({name: variables.get(name)}) is not None), None)
    reasons = {}
    for name, value in variables.items():
        parts = value if isinstance(value, list) else [value]
        sides = [side for one in parts if getattr(one, "dtype", np.dtype("U1")).kind in "fiubc" for side in one.shape]
        if name != labels and max(sides, default=0) > 1 and not any(id(one) in used for one in parts):
            cells = "a cell array beside the views"
            reasons[name] = cells if parts is value else f"of shape {value.shape}, not called like the views"
    return reasons


def _read_hdf5(path: Path) -> Variables:
    """The variables; cells are a list, and arrays of other names than those of views and labels hold zeros."""
    import h5py

    found: Variables = {}
    with opened(path) as file:
        allowance = Allowance(path, "save it without compression")
        for name, item in file.items():
            if item is None:
                raise DataError(f"{path}: {name!r} is a link to nothing; store the data in the file itself")
            if h5py.check_ref_dtype(getattr(item, "dtype", None)) is h5py.Reference:
                if item.size > _MOST_CELLS:
                    fault = f"{path}: {item.name!r} has {item.size:,} cells; at most {_MOST_CELLS:,} can be views"
                    raise DataError(fault)
                cells = [file[reference] for reference in item[()].ravel()]
                for cell in cells:  # it may lie where no link leads, so that it was not checked yet
                    check_links(path, cell)
                found[name] = [_matrix(cell, allowance) for cell in cells]
            elif name in (*CELLS, *LABELS) or any(one.fullmatch(name) for one in _NUMBERED):
                found[name] = _matrix(item, allowance)
            elif not hasattr(item, "keys") and not _is_text(item) and item.dtype.kind in "fiub":
                found[name] = np.broadcast_to(np.zeros((), item.dtype), item.shape[::-1])  # only its shape is known
    return found


def _is_text(item: Any) -> bool:
    return bytes(item.attrs.get("MATLAB_class", b"")) == b"char"


def _matrix(item: Any, allowance: Allowance) -> Any:
    """An array, turned, since MATLAB stores columns first; or a sparse matrix; None for anything else."""
    import h5py

    if not hasattr(item, "keys"):
        return None if _is_text(item) or item.dtype.kind not in "fiub" else numbers(item, allowance).T
    if "MATLAB_sparse" not in item.attrs:
        return None
    for name in ("data", "ir", "jc"):
        if not isinstance(item.get(name, getlink=True), h5py.HardLink | None):  # what a link leads to was not checked
            fault = f"{allowance.path}: {name!r} is a link to another place; store the data in the file itself"
            raise DataError(fault)
    height = int(item.attrs["MATLAB_sparse"])
    allowance.take(8 * height)
    starts = numbers(item["jc"], allowance).astype(np.int64)
    if "data" not in item:
        return sparse.csc_matrix((height, len(starts) - 1))
    parts = (numbers(item["data"], allowance), numbers(item["ir"], allowance).astype(np.int64), starts)
    return sparse.csc_matrix(parts, shape=(height, len(starts) - 1))


def _is_matrix(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray | sparse.spmatrix | sparse.sparray) and value.dtype.kind in "fiub"
    return is_array and value.ndim == 2 and min(value.shape) > 0


def _pick_views(path: Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The views by name: the cells of X, or X1, X2, ..., or the cells of another array, or the only matrix X."""
    cells = [
        name for name, value in variables.items() if isinstance(value, list) and value and all(map(_is_matrix, value))
    ]
    alike = ([name for name in variables if pattern.fullmatch(name)] for pattern in _NUMBERED)
    numbered = in_order(next((names for names in alike if any(_is_matrix(variables[name]) for name in names)), []))
    named = [name for name in CELLS if name in cells]
    others = [] if numbered else [name for name in cells if name not in LABELS]
    if named or others:
        return {f"view_{v}": cell for v, cell in enumerate(variables[(named or others)[0]])}
    for name in numbered:
        if not _is_matrix(variables[name]):
            raise DataError(f"{path}: {name!r} is no matrix of real numbers, unlike {numbered[0]!r}; call it otherwise")
    views = numbered or [name for name in CELLS if _is_matrix(variables.get(name))][:1]
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
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and 1 < value.size == max(value.shape):
            return value.ravel()
    return None


def _count_samples(path: Path, views: Mapping[str, Any], labels: NDArray[Any] | None) -> int:
    """The number that is a side of every view: that of the labels, of all rows, of all columns, or the only one."""
    shapes = [view.shape for view in views.values()]
    common = set.intersection(*map(set, shapes))
    if labels is not None and len(labels) in common:
        return len(labels)
    for found in ({shape[0] for shape in shapes}, {shape[1] for shape in shapes}, common):
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
        lies = squares_lie if view.shape[0] == view.shape[1] else view.shape[0] != n
        if sparse.issparse(view):
            check_sparse(f"{path}: {name!r}", view)
            upright[name] = (view.T if lies else view).tocsr()
        else:
            upright[name] = view.T if lies else view
    return upright


def _walk(path: Path, order: str) -> None:
    """Refuse a file whose parts are not what the format allows, or unpack to far more than the file."""
    allowance = Allowance(path, "save it with -v7.3 or without compression")
    content, place = np.memmap(path, np.uint8, "r").data, 128
    while place + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, place)
        place += 8
        if place + size > len(content):
            raise DataError(f"{path}, byte {place}: a part of {size:,} bytes goes beyond the end; save it again")
        part = content[place : place + size]
        if kind == _COMPRESSED:
            start = zlib.decompressobj().decompress(part[:1_000], 8)
            kind, inside = struct.unpack(f"{order}II", start.ljust(8, b"\0"))
            allowance.take(inside)
            part = memoryview(zlib.decompressobj().decompress(part, inside + 8))[8:]
        if kind != _MATRIX:
            raise DataError(f"{path}, byte {place}: a part of an unknown kind ({kind}); save it again")
        _walk_matrix(path, part, order, depth=0)
        place += size


def _walk_matrix(path: Path, content: memoryview, order: str, depth: int) -> None:
    """A matrix: its flags, its shape, and then parts that fit into it."""
    parts = _parts(path, content, order)
    flags, shape = (bytes(next(parts, (0, b""))[1]) for _ in range(2))
    kind = struct.unpack(f"{order}I", flags[:4].ljust(4, b"\0"))[0] & 0xFF
    if depth and kind in _NOT_READ:
        raise DataError(f"{path}: a cell holds a {_NOT_READ[kind]}, which is not read; keep numbers in cells")
    if depth > _DEEPEST or (depth and content and kind not in _CLASSES):
        raise DataError(f"{path}: cells are nested more than {_DEEPEST} deep, or hold what is not known; save it again")
    _check_shape(path, struct.unpack_from(f"{order}{len(shape) // 4}i", shape), kind, len(content))
    for part_kind, part in parts:
        if part_kind == _MATRIX:
            _walk_matrix(path, part, order, depth + 1)


def _check_shape(path: Path, shape: tuple[int, ...], kind: int, size: int) -> None:
    """A cell takes 8 bytes at least, a number 1; a sparse matrix 4 per column, and not absurdly many rows."""
    if kind == _SPARSE:
        fits = len(shape) == 2 and 4 * shape[1] <= size and 0 <= shape[0] <= max(1_000_000, size)
    else:
        fits = kind not in _CLASSES or math.prod(shape[:_MOST_SIDES]) * (8 if kind == _CELL else 1) <= size
    if min(shape, default=0) < 0 or len(shape) > _MOST_SIDES or not fits:
        raise DataError(f"{path}: a matrix claims the shape {shape[:9]}, but has {size:,} bytes; save it again")


def _parts(path: Path, content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Kind and content of each part; one of four bytes or fewer stands in its tag, the others end on whole words."""
    place = 0
    while place < len(content):
        tag = bytes(content[place : place + 8])
        if len(tag) < 8:
            raise DataError(f"{path} ends in the middle of a matrix; save it again")
        kind, length = struct.unpack(f"{order}II", tag)
        begin, end = place + 8, place + 8 + length
        if kind >> 16:
            kind, length = kind & 0xFFFF, kind >> 16
            begin, end = place + 4, place + 4 + min(length, 4)
        if kind not in _ELEMENTS or length > len(content) - place or end > len(content):
            raise DataError(f"{path}: a part of kind {kind} with {length:,} bytes does not fit there; save it again")
        yield kind, content[begin:end]
        place = end if kind == _MATRIX else place + 8 + -(-(end - place - 8) // 8) * 8
