"""Writing files so that a kill at any moment leaves the old file or the new one, never a broken one.

The name of an unfinished file says which process writes it, so that files of killed writers are recognised among those
that are still being written. JSON files that are read back end with a checksum, so that a changed bit is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from viewfuse.errors import CannotWrite

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".viewfuse-tmp-"
"""How the names of unfinished files begin."""
_OWNED = re.compile(re.escape(TEMPORARY) + r"([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")
A_DAY = 86_400.0
"""Seconds after which a writer that cannot be asked is taken for dead."""
_PATIENCE = 60.0
"""Seconds to wait for another process that writes into the same folder."""


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
        sweep(path.parent)
        temporary = path.parent / temporary_name()
        temporary.touch(exist_ok=False)  # with the permissions that the user's files have
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except CannotWrite:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:  # the disk is not at fault
            raise
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


def temporary_name() -> str:
    """A name for what is unfinished, which says who writes it."""
    return f"{TEMPORARY}{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


@contextmanager
def exclusive(folder: Path, called: Path | None = None, patience: float | None = None) -> Iterator[bool]:
    """Inside, no other process or thread is exclusive in `folder`, which is made if it is not there.

    Yields False where the file system has no locks, so that others may write as well. `called` is what errors speak
    of; `patience` are the seconds to wait for others.
    """
    is_new = called is not None or not os.path.exists(folder)  # unlike Path.exists it takes names that nothing can have
    handle = _lock(folder, called or folder, _PATIENCE if patience is None else patience)
    try:
        yield handle is not None
    finally:
        if is_new and folder.exists() and not any(folder.iterdir()):
            with suppress(OSError):  # another process was faster
                folder.rmdir()
        if handle is not None:
            os.close(handle)


def _lock(folder: Path, called: Path, patience: float) -> int | None:
    """A handle that holds the lock of a folder until it is closed; None where there are no locks."""
    ends = time.monotonic() + patience
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY) if fcntl is not None else None
        except (OSError, ValueError) as error:  # a ValueError is about a name that nothing can have
            reason = getattr(error, "strerror", None) or error
            name = str(called).replace("\0", "?")[:400]
            raise CannotWrite(f"{name} cannot be written: {reason}; choose another folder") from error
        if handle is None:
            return None
        state = _try_lock(handle, folder)
        if state == "held":
            return handle
        os.close(handle)
        if state == "impossible":
            return None
        if time.monotonic() > ends:
            raise CannotWrite(
                f"{called} is being written by another process; try again later, or choose another folder"
            )
        time.sleep(0.01)


def _try_lock(handle: int, folder: Path) -> str:
    """Whether the lock is now "held", "taken" by another process, or "impossible" on this file system."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "taken"
    except OSError:
        return "impossible"
    try:  # while we waited, a failed first writer may have removed the folder, and another one made it again
        return "held" if os.path.samestat(os.fstat(handle), folder.stat()) else "taken"
    except FileNotFoundError:
        return "taken"


def sweep(folder: Path) -> None:
    """Remove unfinished files and folders whose writers are gone."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if _is_alive(path):
            continue
        with suppress(OSError):  # what is written is written, tidy or not
            if path.is_file():
                path.unlink(missing_ok=True)
            elif _OWNED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(path: Path) -> bool:
    """Whether a process may still write an unfinished file."""
    owner = _OWNED.fullmatch(path.name)
    if owner is None:
        return False
    if owner[1] != _machine():  # its processes cannot be checked from here
        return is_younger(path, A_DAY)
    try:
        os.kill(int(owner[2]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it runs, but belongs to another user
        return True
    return True


def is_younger(path: Path, seconds: float) -> bool:
    """Whether a file was changed less than so many seconds ago; False if it is gone."""
    try:
        return time.time() - path.stat().st_mtime < seconds
    except FileNotFoundError:
        return False


def _machine() -> str:
    """Eight digits for the machine and, within it, the container that numbers its processes."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def _sync(path: Path, flags: int = os.O_RDWR) -> None:
    """Make what was written durable."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make a rename durable; some systems cannot, and need not."""
    if os.name == "posix":
        _sync(folder, os.O_RDONLY)


def sealed(facts: Mapping[str, Any]) -> bytes:
    """A JSON object whose last entry is a checksum of all before it."""
    return _with_checksum(json.dumps(facts).encode()[:-1])


def unsealed(content: bytes) -> dict[str, Any]:
    """What was sealed; a ValueError where a byte has changed since."""
    body = content[: -len(_with_checksum(b""))]
    if content != _with_checksum(body):
        raise ValueError("its checksum does not match")
    return dict(parsed(body + b"}"))


def _with_checksum(body: bytes) -> bytes:
    return body + b', "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def parsed(content: bytes) -> Any:
    """What JSON says; a ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
