"""A job for the process that reads files: which file, and how."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ENDINGS = (".npz", ".mat", ".parquet", ".h5ad", ".h5mu")
"""Files that native libraries read. Text is read by Python itself, and folders of arrays are memory-mapped."""

LENGTH = struct.Struct("<Q")
"""Before the text of a job."""
RESULT, ENDED = struct.Struct("<cQQ"), struct.Struct("<ci")
"""What comes back: where in a file the facts are and how long, from the reader; how that has ended, from the server."""


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
