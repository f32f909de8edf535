"""MATLAB files as multi-view data sets are published: a cell array of views, or X1, X2, ...; and their labels.

Version 5 is read by SciPy, which trusts files, so it is walked through tag by tag before; version 7.3 is HDF5. Views
may lie either way, (samples, columns) or (columns, samples): the labels, or what all views have in common, tell which.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from viewfuse.data.sparse_tables import check_sparse
from viewfuse.errors import DataError
from viewfuse.io.readers.hdf5 import check_links, is_reference, member, numbers, opened
from viewfuse.io.readers.npz import in_order
from viewfuse.io.safety import Allowance
from viewfuse.io.source import Contents, FileView

CELLS = ("X", "data", "fea", "views")
LABELS = ("Y", "gt", "truelabel", "truth", "labels", "label", "gnd", "y")
_NUMBERED = [re.compile(rf"{stem}\d{{1,6}}") for stem in ("X", "x", "view_?", "data", "fea")]
_HDF5_START = b"MATLAB 7.3"
_MOST_CELLS = 1_000

Variables = dict[str, Any]
"""Per name an array, a sparse matrix, or a list of such, which was a cell array."""
_PORTION = 1_000_000
_DEEPEST = 5
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
        others = [name for name in file if name in (*CELLS, *LABELS) or any(one.fullmatch(name) for one in _NUMBERED)]
        found = {name: _matrix(file[name], allowance) for name in others if name not in cells}
        return {**found, **{name: _cells(file, item, allowance) for name, item in cells.items()}}


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
    cells = [
        name for name, value in variables.items() if isinstance(value, list) and value and all(map(_is_matrix, value))
    ]
    for name in CELLS:
        if name in cells:
            return {f"view_{v}": cell for v, cell in enumerate(variables[name])}
    alike = ([name for name in variables if pattern.fullmatch(name)] for pattern in _NUMBERED)
    numbered = in_order(next((names for names in alike if any(_is_matrix(variables[name]) for name in names)), []))
    for name in numbered:
        if not _is_matrix(variables[name]):
            raise DataError(f"{path}: {name!r} is no matrix of real numbers, unlike {numbered[0]!r}; call it otherwise")
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


def read_version_5(path: Path, start: bytes) -> dict[str, Any]:
    """Variables by name; cell arrays as lists."""
    if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
        raise DataError(f"{path} is no MATLAB file of version 5 or 7.3; save it again with save -v7")
    _walk(path, "<" if start[126:128] == b"IM" else ">")
    wanted = [name for name, _, kind in io.whosmat(path) if kind not in ("struct", "object", "function", "opaque")]
    found = io.loadmat(path, variable_names=wanted, mat_dtype=False)
    return {
        name: list(value.ravel(order="F")) if isinstance(value, np.ndarray) and value.dtype == object else value
        for name, value in found.items()
        if not name.startswith("__")
    }


@dataclass
class _Stream:
    """A part of the file, unpacked a little at a time where it is packed; what is read is counted."""

    file: IO[bytes]
    left: int
    packed: bool
    allowance: Allowance

    def __post_init__(self) -> None:
        self._unpacker = zlib.decompressobj()
        self._waiting = b""

    def read(self, n: int) -> bytes:
        """Exactly `n` bytes, or fewer at the end."""
        if not self.packed:
            found = self.file.read(min(n, self.left))
            self.left -= len(found)
            self.allowance.take(len(found))
            return found
        found = b""
        while len(found) < n and not self._unpacker.eof:
            if not self._waiting:
                self._waiting = self.file.read(min(_PORTION, self.left))
                self.left -= len(self._waiting)
            more = self._unpacker.decompress(self._waiting, n - len(found))
            if not more and not self._unpacker.unconsumed_tail and not self.left:
                break
            self._waiting = self._unpacker.unconsumed_tail
            found += more
        self.allowance.take(len(found))
        return found

    def skip(self, n: int) -> None:
        """Pass over `n` bytes, keeping none."""
        while n > 0:
            passed = len(self.read(min(n, _PORTION)))
            if not passed:
                raise DataError(f"{self.allowance.path} ends in the middle of a matrix; save it again")
            n -= passed


def _walk(path: Path, order: str) -> None:
    """Refuse a file whose parts are not what the format allows, or unpack to far more than the file."""
    allowance, end = Allowance(path, "save it with -v7.3 or without compression"), path.stat().st_size
    with path.open("rb") as file:
        file.seek(128)
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            place = file.tell()
            if place + size > end:
                raise DataError(f"{path}, byte {place}: a part of {size:,} bytes goes beyond the end; save it again")
            stream = _Stream(file, size, kind == _COMPRESSED, allowance)
            if kind == _COMPRESSED:
                kind, size = struct.unpack(f"{order}II", stream.read(8).ljust(8, b"\0"))
            if kind != _MATRIX:
                raise DataError(f"{path}, byte {place}: a part of an unknown kind ({kind}); save it again")
            _walk_matrix(stream, size, order, depth=0)
            file.seek(place + struct.unpack(f"{order}II", tag)[1])


def _walk_matrix(stream: _Stream, size: int, order: str, depth: int) -> None:
    """A matrix of `size` bytes: its flags, its shape, and then parts that fit into it."""
    path = stream.allowance.path
    if not size:
        return
    flags, size = _small_part(stream, size, order)
    shape, size = _small_part(stream, size, order)
    kind = struct.unpack(f"{order}I", flags[:4].ljust(4, b"\0"))[0] & 0xFF
    if depth and kind in _NOT_READ:
        raise DataError(f"{path}: a cell holds a {_NOT_READ[kind]}, which is not read; keep numbers in cells")
    if depth > _DEEPEST or (depth and kind not in _CLASSES):
        raise DataError(f"{path}: cells are nested more than {_DEEPEST} deep, or hold what is not known; save it again")
    _check_shape(path, struct.unpack(f"{order}{len(shape) // 4}i", shape[: len(shape) // 4 * 4]), kind, size)
    while size > 0:
        size = _walk_part(stream, size, order, depth)


def _check_shape(path: Path, shape: tuple[int, ...], kind: int, size: int) -> None:
    """A cell takes 8 bytes at least, a number 1; a sparse matrix 4 per column, and not absurdly many rows."""
    cells = math.prod(shape)
    if kind == _SPARSE:
        fits = len(shape) == 2 and 4 * shape[1] <= size and 0 <= shape[0] <= max(1_000_000, size)
    else:
        fits = cells * (8 if kind == _CELL else 1) <= size or kind not in _CLASSES
    if min(shape, default=0) < 0 or not fits:
        raise DataError(f"{path}: a matrix claims the shape {shape}, but has {size:,} bytes; save it again")


def _tag(stream: _Stream, order: str) -> tuple[int, int, bytes | None]:
    """Kind and size of the next part; its content, too, where it is so short that it stands in the tag."""
    tag = stream.read(8)
    if len(tag) < 8:
        raise DataError(f"{stream.allowance.path} ends in the middle of a matrix; save it again")
    first, second = struct.unpack(f"{order}II", tag)
    if first >> 16:
        return first & 0xFFFF, first >> 16, tag[4:]
    return first, second, None


def _check_part(stream: _Stream, kind: int, length: int, size: int) -> None:
    if kind not in _ELEMENTS or length > size:
        raise DataError(
            f"{stream.allowance.path}: a part of kind {kind} with {length:,} bytes does not fit there; save it again"
        )


def _small_part(stream: _Stream, size: int, order: str) -> tuple[bytes, int]:
    """The content of a short part, and what is left of `size` after it."""
    kind, length, content = _tag(stream, order)
    _check_part(stream, kind, length, min(size, 1_000))
    if content is not None:
        return content[:length], size - 8
    padded = -(-length // 8) * 8
    return stream.read(padded)[:length], size - 8 - padded


def _walk_part(stream: _Stream, size: int, order: str, depth: int) -> int:
    """Pass over the next part; what is left of `size` after it."""
    kind, length, content = _tag(stream, order)
    _check_part(stream, kind, length, size)
    if content is not None:
        return size - 8
    if kind == _MATRIX:
        _walk_matrix(stream, length, order, depth + 1)
        return size - 8 - length
    padded = -(-length // 8) * 8
    stream.skip(min(padded, size - 8))
    return size - 8 - padded
