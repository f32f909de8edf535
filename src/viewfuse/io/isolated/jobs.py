"""A job for the process that reads files: which file, how, and what that may cost; and what was read, on its way back.

That is one file without a name, arrays in NumPy's own format first, then JSON about them. The receiver maps it into
memory, and copies nothing. Tables that are kept on disk travel as they are.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from viewfuse.data.alignment import Use
from viewfuse.data.input_types import is_sparse
from viewfuse.errors import DataError
from viewfuse.io.safety import OnDisk, most_bytes, npy_header
from viewfuse.io.source import Contents, FileView, ending_of
from viewfuse.utils import memory
from viewfuse.utils.settings import Setting

START, ENDED = struct.Struct("<Q"), struct.Struct("<i")
"""What comes back: where in a file the facts begin, from the reader; how that has ended, from the server."""
_MEMORY = 2**30
_COPIES = 3
"""What a file becomes, in the hands of a library, in ours, and on its way."""
_SECONDS, _SECONDS_PER_MEGABYTE = 2, 2
_WAITING = 25
"""Seconds that a file may come late from a slow disk or while others compute; ten times as many for large files."""
_MOST_TABLES = 200
"""Tables on disk that travel with one file; the system passes no more than 253."""
_KIND = "\0kind"
"""The key of a JSON object that stands for an array, a range or a setting."""
Blocks = Mapping[str, str | Sequence[str]]
"""Per view the names of its columns, or a name or a pattern such as "rna_*"."""


@dataclass(frozen=True)
class Reading:
    """How files are read: the options of `read_views`.

    With `new_samples` a fitted model places the samples, so tables need no id in common.
    """

    id_column: str | None = None
    blocks: Blocks | None = None
    use: Use | None = None
    header: bool | None = None
    transpose: Sequence[str] = ()
    only: Sequence[str] = ()
    drop: Sequence[str] = ()
    id_pattern: str | None = None
    allow_disjoint: bool = False
    trusted: bool = False
    new_samples: bool = False

    def chosen(self, path: Path, columns: list[str]) -> tuple[list[str], list[str]]:
        """The columns of a table that are read: those of `only`, or all, without those of `drop`; and the others."""
        only, drop = (
            {column for name in names for column in called(columns, name)} for names in (self.only, self.drop)
        )
        kept = [one for one in columns if (one in only or not only) and one not in drop]
        if not kept:
            raise DataError(f"{path}: no column is left; leave the file out, or ", Setting("drop"), " fewer columns")
        known = set(kept)
        return kept, [one for one in columns if one not in known]


AS_USUAL = Reading()


@dataclass(frozen=True)
class ReadJob:
    """One file, and how it is read; for .h5ad the `use` of its reading has a place per view.

    With `copy` nothing is read: `results` in an .npz file are written into this copy of an .h5mu or .h5ad file.
    """

    path: Path
    reading: Reading = AS_USUAL
    copy: str | None = None
    results: str | None = None

    @property
    def ending(self) -> str:
        """The ending of the file, in small letters."""
        return ending_of(self.path)

    def as_json(self, limits: ReadingLimits) -> bytes:
        """The job for another process, with its limits and the folder that its path starts from."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # it was removed under our feet; whole paths still lead somewhere
            folder = None
        facts = {**asdict(self), "path": os.fspath(self.path), "folder": folder, "limits": limits}
        return json.dumps(facts, default=list).encode()

    @classmethod
    def from_json(cls, text: bytes) -> tuple[ReadJob, ReadingLimits]:
        """The job again, and its limits; this process goes to the folder that its path starts from."""
        facts: dict[str, Any] = json.loads(text)
        folder, limits = facts.pop("folder"), ReadingLimits(*facts.pop("limits"))
        if folder is not None:
            os.chdir(folder)
        return cls(**facts | {"path": Path(facts["path"]), "reading": Reading(**facts["reading"])}), limits


def called(columns: Collection[str], name: str) -> list[str]:
    """The column of that name; where there is none, those that match it as a pattern."""
    return [name] if name in columns else [one for one in columns if fnmatchcase(one, name)]


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
    more = _SECONDS_PER_MEGABYTE * size // 1_000_000
    room = min(_MEMORY + _COPIES * most_bytes(size), memory.available())
    return ReadingLimits(room, _SECONDS + more, _WAITING + 10 * more)


def impose(limits: ReadingLimits) -> None:
    """Hold this process to its limits; the kernel ends it where it goes beyond its time. Lower ones stay."""
    import resource  # there is none where nothing can be imposed

    pages = Path("/proc/self/statm")
    here = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    for kind, most in (
        (resource.RLIMIT_AS, here + limits.n_bytes),
        (resource.RLIMIT_FSIZE, limits.n_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.cpu),
    ):
        soft, hard = resource.getrlimit(kind)
        known = [most] + [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(known), hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.wall)


def new_file() -> IO[bytes]:
    """A file without a name, in memory where the system can; it is there as long as any process has it open."""
    return os.fdopen(os.memfd_create("viewfuse"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def pack(file: IO[bytes], facts: Any) -> tuple[int, list[int]]:
    """Append facts with all their arrays; where their JSON begins, and this file with those of tables on disk."""
    files = [file.fileno()]

    def plain(value: Any) -> Any:
        """What JSON holds for a value that it does not know; names of columns are text."""
        if isinstance(value, Contents):
            return vars(value)
        if isinstance(value, FileView):
            return {**vars(value), "path": None}
        if isinstance(value, Setting):
            return {_KIND: "setting", **vars(value)}
        if isinstance(value, range):
            return {_KIND: "range", "length": len(value)}
        if is_sparse(value):
            return {_KIND: "sparse", "parts": [value.data, value.indices, value.indptr], "shape": value.shape}
        if not isinstance(value, np.ndarray):
            return str(value)
        if isinstance(value, OnDisk) and value.handle is not None and len(files) <= _MOST_TABLES:
            files.append(os.dup(value.handle))  # its own is closed as soon as the table is forgotten
            return {_KIND: "table", "file": len(files) - 1, "shape": value.shape}
        start = file.seek(-(-file.tell() // npy.ARRAY_ALIGN) * npy.ARRAY_ALIGN)
        npy.write_array(file, value if value.flags.forc else np.ascontiguousarray(value), allow_pickle=False)
        return {_KIND: "array", "start": start}

    text = json.dumps(facts, default=plain).encode()
    start = file.seek(0, os.SEEK_END)
    file.write(text)
    file.flush()
    return start, files


def unpack(files: Sequence[int], start: int) -> dict[str, Any]:
    """Facts that another process packed into the first of these files, which is mapped into memory."""
    content = mmap.mmap(files[0], 0, access=mmap.ACCESS_COPY)

    def value(facts: dict[str, Any]) -> Any:
        """What an object of JSON stands for."""
        kind = facts.pop(_KIND, None)
        if kind == "array":
            return _array(content, facts["start"])
        if kind == "table":
            return OnDisk.of(files[facts["file"]], tuple(facts["shape"]))
        if kind == "sparse":
            from scipy.sparse import csr_array

            return csr_array(tuple(facts["parts"]), shape=tuple(facts["shape"]))
        if kind == "range":
            return range(facts["length"])
        return Setting(**facts) if kind == "setting" else facts

    found: dict[str, Any] = json.loads(content[start:], object_hook=value)
    return found


def _array(content: mmap.mmap, start: int) -> NDArray[Any]:
    """An array that lies in a file; what its header claims is checked."""
    content.seek(start)
    shape, turned, dtype = npy_header(content)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise DataError(f"what came back is no array of numbers or text, but {dtype} {shape}; write the file again")
    count = math.prod(shape)
    if not count * dtype.itemsize:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(content, dtype, count, content.tell())
    return flat.reshape(shape, order="F" if turned else "C")
