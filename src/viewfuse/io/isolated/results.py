"""What was read, on its way between processes: one file without a name, arrays first, then JSON about them.

The receiver maps the file into memory and copies nothing. Tables that are kept on disk travel as they are.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.sparse_tables import is_sparse
from viewfuse.errors import DataError
from viewfuse.io.source import Contents, FileView
from viewfuse.io.spool import OnDisk

_ALIGNED = 64
_KINDS = "fiubcSUMmV"
"""Kinds of numbers and text; Python objects never travel."""
_MOST_TABLES = 200
"""Tables on disk that travel with one file; the system passes no more than 253."""


class Packed:
    """A file without a name, as it is filled; `files` travel, this one first."""

    def __init__(self) -> None:
        in_memory = hasattr(os, "memfd_create")
        self._file: Any = os.fdopen(os.memfd_create("viewfuse"), "wb", 0) if in_memory else TemporaryFile(buffering=0)  # noqa: SIM115
        self.files = [self._file.fileno()]
        self._tables: list[OnDisk] = []  # their files are open as long as they are there
        self._end = 0

    def close(self) -> None:
        """Close the file; the receiver keeps it."""
        self._file.close()

    def add(self, content: Any) -> int:
        """Append bytes; where they begin."""
        start = self._end + -self._end % _ALIGNED
        self._file.seek(start)
        left = memoryview(content).cast("B")
        while left:
            left = left[self._file.write(left[: 2**30]) :]
        self._end = self._file.tell()
        return start

    def close_with(self, facts: Any) -> tuple[int, int]:
        """Append facts as JSON, where they begin and how long they are."""
        text = json.dumps(facts).encode()
        return self.add(text), len(text)

    def array(self, array: NDArray[Any]) -> dict[str, Any]:
        """Append an array; what has to be known of it."""
        facts: dict[str, Any] = {"dtype": array.dtype.str, "shape": array.shape}
        if isinstance(array, OnDisk) and len(self.files) <= _MOST_TABLES:
            self.files.append(array.handle)
            self._tables.append(array)
            return facts | {"file": len(self.files) - 1}
        turned = array.flags.f_contiguous and not array.flags.c_contiguous
        plain = np.ascontiguousarray(array.T if turned else array)
        return facts | {"turned": turned, "start": self.add(plain.reshape(-1).view(np.uint8)) if plain.nbytes else 0}

    def contents(self, contents: Contents) -> dict[str, Any]:
        """Append all arrays of a file's views; what has to be known of them."""
        return {
            "views": [self._view(view) for view in contents.views],
            "ids": None if contents.ids is None else self.array(contents.ids),
            "mask": None if contents.mask is None else self.array(contents.mask),
            "labels": None if contents.labels is None else self.array(contents.labels),
            "order": _names(contents.order),
        }

    def _view(self, view: FileView) -> dict[str, Any]:
        columns = len(view.columns) if isinstance(view.columns, range) else _names(view.columns)
        facts = {"name": view.name, "columns": columns, "ids": None if view.ids is None else _names(view.ids)}
        if not is_sparse(view.values):
            return facts | {"values": self.array(np.asanyarray(view.values))}
        parts = {name: self.array(getattr(view.values, name)) for name in ("data", "indices", "indptr")}
        return facts | {"sparse": parts, "shape": [int(side) for side in view.values.shape]}


def _names(names: Sequence[Hashable]) -> list[Any]:
    """Ids or names of columns that JSON knows."""
    return [name if name is None or isinstance(name, (str, int, float)) else str(name) for name in names]


class Unpacked:
    """A file that was packed by another process, mapped into memory; what it claims is checked."""

    def __init__(self, files: Sequence[int], start: int, length: int) -> None:
        self._files = files
        self._map = mmap.mmap(files[0], 0, access=mmap.ACCESS_COPY)
        self.facts: Mapping[str, Any] = json.loads(self._map[start : start + length])

    def array(self, facts: Mapping[str, Any]) -> NDArray[Any]:
        """An array that lies in the file."""
        dtype, shape = np.dtype(facts["dtype"]), tuple(int(side) for side in facts["shape"])
        if dtype.kind not in _KINDS or min(shape, default=0) < 0:
            raise DataError(f"what came back is no array of numbers or text, but {dtype} {shape}; write the file again")
        if "file" in facts:
            return OnDisk.of(self._files[facts["file"]], shape)
        count = int(np.prod(shape, dtype=np.int64))
        if not count * dtype.itemsize:
            return np.zeros(shape, dtype)
        flat = np.frombuffer(self._map, dtype, count, offset=facts["start"])
        return flat.reshape(shape[::-1]).T if facts["turned"] else flat.reshape(shape)

    def contents(self, path: Path) -> Contents:
        """The views of the file `path`."""
        facts = self.facts["contents"]
        rest = {name: self.array(facts[name]) for name in ("ids", "mask", "labels") if facts[name] is not None}
        return Contents([self._view(path, view) for view in facts["views"]], order=facts["order"], **rest)

    def _view(self, path: Path, facts: Mapping[str, Any]) -> FileView:
        columns = range(facts["columns"]) if isinstance(facts["columns"], int) else facts["columns"]
        values = self._matrix(facts) if "sparse" in facts else self.array(facts["values"])
        return FileView(path, facts["name"], values, columns, facts["ids"])

    def _matrix(self, facts: Mapping[str, Any]) -> Any:
        from scipy.sparse import csr_array

        parts = tuple(self.array(facts["sparse"][name]) for name in ("data", "indices", "indptr"))
        return csr_array(parts, shape=tuple(facts["shape"]))
