"""MATLAB files of version 5: walked through tag by tag before SciPy, which trusts them, may read them."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import io

from viewfuse.errors import DataError
from viewfuse.io.safety import Allowance

_PORTION = 1_000_000
_DEEPEST = 5
_ELEMENTS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14, 16, 17, 18}
"""Kinds of parts that the format has."""
_MATRIX, _COMPRESSED = 14, 15
_CELL, _SPARSE = 1, 5
_CLASSES = {*range(1, 16)}
_NOT_READ = {2: "struct", 3: "object"}


def read_version_5(path: Path, start: bytes) -> dict[str, Any]:
    """Variables by name; cell arrays as lists."""
    if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
        raise DataError(f"{path} is no MATLAB file of version 5 or 7.3; save it again with save -v7")
    _walk(path, "<" if start[126:128] == b"IM" else ">")
    wanted = [name for name, _, kind in io.whosmat(path) if kind not in ("struct", "object", "function", "opaque")]
    found = io.loadmat(path, variable_names=wanted, mat_dtype=False)
    return {name: _unwrapped(value) for name, value in found.items() if not name.startswith("__")}


def _unwrapped(value: Any) -> Any:
    """A cell array as the list of its cells; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(value.ravel(order="F"))
    return value


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
