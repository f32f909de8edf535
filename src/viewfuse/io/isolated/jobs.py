"""A job for the process that reads files: which file, how, and what that may cost."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from viewfuse.io.safety import most_bytes
from viewfuse.utils import memory

ENDINGS = (".npz", ".mat", ".parquet", ".h5ad", ".h5mu")
"""Files that native libraries read. Text is read by Python itself, and folders of arrays are memory-mapped."""

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


@dataclass(frozen=True)
class ReadJob:
    """One file, and how it is read; options that its format does not have are None.

    Attributes
    ----------
    blocks : as `read_views` takes them
    use : for .h5mu what `read_views` takes; for .h5ad per view its place
    copy, results : where nothing is to be read, but results in an .npz file are to be written into this copy of an
        .h5mu or .h5ad file
    """

    path: Path
    id_column: str | None = None
    blocks: Mapping[str, str | Sequence[str]] | None = None
    use: str | Mapping[str, str] | None = None
    header: bool | None = None
    copy: str | None = None
    results: str | None = None

    @property
    def ending(self) -> str:
        """The ending of the file, in small letters."""
        return self.path.suffix.lower()

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

    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_proc() else 0
    _lower(resource.RLIMIT_AS, here + limits.n_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.n_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, limits.cpu)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.wall)


def _has_proc() -> bool:
    return Path("/proc/self/statm").exists()


def _lower(kind: int, most: int) -> None:
    """Set a soft limit, where it is not lower already; the hard one stays."""
    import resource

    soft, hard = resource.getrlimit(kind)
    known = [most] + [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(known), hard))
