"""Writing files so that a kill at any moment leaves the old file or the new one, never a broken one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from viewfuse.errors import CannotWrite

TEMPORARY = ".viewfuse-tmp-"
"""How the names of unfinished files begin; what a kill leaves behind is swept by the next `sweep`."""


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`."""
    with writing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder to write to; when that is done it is made durable and takes its place."""
    temporary, is_new = None, not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        temporary.touch(exist_ok=False)  # with the permissions that the user's files have
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except CannotWrite:
        raise
    except OSError as error:
        size = temporary.stat().st_size if temporary is not None and temporary.exists() else 0
        raise CannotWrite(
            f"{path} ({size:,} bytes) cannot be written: {error.strerror or error}; "
            "free some space or choose another folder; what was there before is intact"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if is_new and path.parent.exists() and not any(path.parent.iterdir()):
            path.parent.rmdir()  # a failure leaves nothing behind


def sweep(folder: Path, pattern: str, keep: Path) -> None:
    """Remove files left behind by killed writers, and those that match `pattern`, except `keep`."""
    for stale in [*folder.glob(f"{TEMPORARY}*"), *folder.glob(pattern)]:
        if stale != keep:
            stale.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Make what was written durable."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some systems cannot, and need not."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
