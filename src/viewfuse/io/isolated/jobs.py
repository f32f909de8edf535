"""A job for the process that reads files: which file, how, and what that may cost; and what was read, on its way back.

That is one file without a name, arrays first, then JSON about them. The receiver maps it into memory, and copies
nothing. Tables that are kept on disk travel as they are.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import is_sparse
from viewfuse.errors import DataError
from viewfuse.io.safety import OnDisk, most_bytes
from viewfuse.io.source import Contents, FileView, ending_of
from viewfuse.utils import memory
from viewfuse.utils.settings import Setting

LENGTH = struct.Struct("<Q")
"""Before the text of a job."""
RESULT, ENDED = struct.Struct("<cQQ"), struct.Struct("<ci")
"""What comes back: where in a file the facts are and how long, from the reader; how that has ended, from the server."""
_MEMORY = 2**30
_COPIES = 3
"""What a file becomes, in the hands of a library, in ours, and on its way."""
_SECONDS, _SECONDS_PER_MEGABYTE = 2, 2
_WAITING = 25
"""Seconds that a file may come late from a slow disk or while others compute; ten times as many for large files."""
_ALIGNED = 64
_KINDS = "fiubcSUMmV"
"""Kinds of numbers and text; Python objects never travel."""
_MOST_TABLES = 200
"""Tables on disk that travel with one file; the system passes no more than 253."""


@dataclass(frozen=True)
class ReadJob:
    """One file, and how it is read; options that its format does not have are None.

    Attributes
    ----------
    blocks : as `read_views` takes them
    use : for .h5mu what `read_views` takes; for .h5ad per view its place
    header : whether the first line of text holds the names of columns; None: it should, and is looked at
    only, drop : columns of tables by name or by a pattern such as "q*": of a file that has one of `only`, no others are
        read; those of `drop` are not read
    copy, results : where nothing is to be read, but results in an .npz file are to be written into this copy of an
        .h5mu or .h5ad file
    """

    path: Path
    id_column: str | None = None
    blocks: Mapping[str, str | Sequence[str]] | None = None
    use: str | Mapping[str, str] | None = None
    header: bool | None = None
    only: Sequence[str] = ()
    drop: Sequence[str] = ()
    copy: str | None = None
    results: str | None = None

    @property
    def ending(self) -> str:
        """The ending of the file, in small letters."""
        return ending_of(self.path)

    def chosen(self, columns: list[str]) -> list[str]:
        """The columns of a table that are read."""
        wanted = [one for one in columns if is_among(one, self.only)] or columns
        kept = [one for one in wanted if not is_among(one, self.drop)]
        if not kept:
            fault = f"{self.path}: no column is left; leave the file out, or "
            raise DataError(fault, Setting("drop"), " fewer columns")
        return kept

    def as_json(self, limits: Sequence[int]) -> bytes:
        """The job for another process, with its limits and the folder that its path starts from."""
        facts = asdict(self) | {"path": os.fspath(self.path), "folder": _folder(), "limits": limits}
        return json.dumps(facts, default=list).encode()

    @classmethod
    def from_json(cls, text: bytes) -> tuple[ReadJob, list[int]]:
        """The job again, and its limits; this process goes to the folder that its path starts from."""
        facts: dict[str, Any] = json.loads(text)
        folder, limits = facts.pop("folder"), facts.pop("limits")
        if folder is not None:
            os.chdir(folder)
        return cls(**facts | {"path": Path(facts["path"])}), limits


def is_among(column: str, patterns: Sequence[str]) -> bool:
    """Whether a column has one of these names, or matches one of these patterns."""
    return any(column == one or fnmatchcase(column, one) for one in patterns)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under our feet; whole paths still lead somewhere
        return None


class ReadingLimits(NamedTuple):
    """Bytes of memory and of every file that is written, seconds of computing, seconds in all."""

    n_bytes: int
    cpu: int
    wall: int


def limits_of(path: Path) -> ReadingLimits:
    """What reading `path` may cost."""
    try:
        size = path.stat().st_size
    except OSError:  # the reader will say it
        size = 0
    room = _MEMORY + _COPIES * most_bytes(size)
    more = _SECONDS_PER_MEGABYTE * size // 1_000_000
    return ReadingLimits(min(room, memory.available()), _SECONDS + more, _WAITING + 10 * more)


def impose(limits: ReadingLimits) -> None:
    """Hold this process to its limits; the kernel ends it where it goes beyond its time."""
    import resource  # there is none where nothing can be imposed

    pages = Path("/proc/self/statm")
    here = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    _lower(resource.RLIMIT_AS, here + limits.n_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.n_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, limits.cpu)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.wall)


def _lower(kind: int, most: int) -> None:
    """Set a soft limit, where it is not lower already; the hard one stays."""
    import resource

    soft, hard = resource.getrlimit(kind)
    known = [most] + [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(known), hard))


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
        if isinstance(array, OnDisk) and array.handle is not None and len(self.files) <= _MOST_TABLES:
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
        facts["unread"] = list(view.unread)
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
        return FileView(path, facts["name"], values, columns, facts["ids"], facts["unread"])

    def _matrix(self, facts: Mapping[str, Any]) -> Any:
        from scipy.sparse import csr_array

        parts = tuple(self.array(facts["sparse"][name]) for name in ("data", "indices", "indptr"))
        return csr_array(parts, shape=tuple(facts["shape"]))
