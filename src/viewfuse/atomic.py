"""Writing files so that a kill at any moment leaves the old file or the new one, never a broken one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from viewfuse.errors import CannotWrite

TEMPORARY = ".viewfuse-tmp-"
"""How the names of unfinished files begin; what a kill leaves behind is swept by the next `sweep`."""


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`: a temporary file in the same folder, made durable, then renamed."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise CannotWrite(
            f"{path} ({len(content):,} bytes) cannot be written: {error.strerror or error}; "
            "free some space or choose another folder; what was there before is intact"
        ) from error


def sweep(folder: Path, pattern: str, keep: Path) -> None:
    """Remove files left behind by killed writers, and those that match `pattern`, except `keep`."""
    for stale in [*folder.glob(f"{TEMPORARY}*"), *folder.glob(pattern)]:
        if stale != keep:
            stale.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some systems cannot, and need not."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
