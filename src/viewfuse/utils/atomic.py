"""Writing files and folders so that a kill at any moment leaves the old ones or the new ones, never broken ones.

The name of an unfinished file says which process writes it, so that files of killed writers are recognised among those
that are still being written. JSON files that are read back end with a checksum, so that a changed bit is noticed.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
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
_A_DAY = 86_400.0
"""Seconds after which a writer that cannot be asked is taken for dead."""
_PATIENCE = 60.0
"""Seconds to wait for another process that writes into the same folder."""
_ASIDE = ".viewfuse-old-"
"""How the name of a folder begins that is moved out of the way, on systems that cannot exchange two."""
VERSIONS = "versions"
"""Of a run or a model: the folder of what it was before it was updated."""
_HERE, _EXCHANGE = -100, 2
"""Of Linux: paths start from the working folder; two names change places."""


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`."""
    with writing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder to write to; when that is done it is made durable and takes its place."""
    temporary, is_new = path.parent / temporary_name(), not path.parent.exists()

    def what() -> str:
        return f"{path} ({temporary.stat().st_size if temporary.exists() else 0:,} bytes)"

    try:
        with _all_or_nothing(what):
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent)
            temporary.touch(exist_ok=False)  # with the permissions that the user's files have
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if is_new and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()  # a failure leaves nothing behind


@contextmanager
def _all_or_nothing(what: Callable[[], object]) -> Iterator[None]:
    """Say of errors of the system that nothing was written."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:  # the disk is not at fault
            raise
        reason = f"{what()} cannot be written: {error.strerror or error}"
        cure = "free some space or choose another folder; what was there before is intact"
        raise CannotWrite(f"{reason}; {cure}") from error


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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # while we waited, a failed first writer may have removed the folder, and another one made it again
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:  # this file system has no locks
            os.close(handle)
            return None
        os.close(handle)
        if time.monotonic() > ends:
            fault = f"{called} is being written by another process"
            raise CannotWrite(f"{fault}; try again later, or choose another folder")
        time.sleep(0.01)


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
        return is_young(path)
    try:
        os.kill(int(owner[2]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it runs, but belongs to another user
        pass
    return True


def is_young(path: Path) -> bool:
    """Whether a file was changed less than a day ago; False if it is gone."""
    try:
        return time.time() - path.stat().st_mtime < _A_DAY
    except FileNotFoundError:
        return False


def _machine() -> str:
    """Eight digits for the machine and, within it, the container that numbers its processes."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def _sync(path: Path) -> None:
    """Make durable what was written, or a rename within a folder, where the system can."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


@contextmanager
def replacing(folder: Path, is_stale: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """A new folder to write to; when that is done it takes the place of `folder` in one step.

    What else was in `folder` stays there, but for names of files that `is_stale` knows as results of an earlier run.
    Of two processes that write to one folder the second is refused at once. A folder that cannot be renamed, such as
    one in use, gets its files one by one.
    """
    place = folder.resolve()
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        with _all_or_nothing(lambda: folder):
            # a name beside it is locked, since the folder itself is replaced
            beside = place.parent / f"{TEMPORARY}lock-{place.name[:200]}"
            with exclusive(beside if _can_move(place) else place, place, patience=0):
                sweep(place.parent)
                aside = _aside(place)
                if aside.is_dir() and place.exists():
                    shutil.rmtree(aside, ignore_errors=True)
                elif aside.is_dir():  # a writer was killed between two renames
                    os.rename(aside, place)
                where = place.parent if _can_move(place) else place
                where.mkdir(parents=True, exist_ok=True)
                new = where / temporary_name()
                new.mkdir()
                try:
                    yield new
                    _put_in_place(new, place, is_stale)
                finally:
                    shutil.rmtree(new, ignore_errors=True)
    finally:
        for parent in missing:
            with suppress(OSError):  # it is not empty, as it should be
                parent.rmdir()


def _can_move(place: Path) -> bool:
    """Whether a folder, or the one that it will be in, can be exchanged."""
    parent = next(one for one in place.parents if one.exists())
    is_used = place.exists() and (os.path.ismount(place) or os.path.samefile(place, os.curdir))
    return os.access(parent, os.W_OK) and not is_used


def _put_in_place(new: Path, place: Path, is_stale: Callable[[str], bool]) -> None:
    """Let a new folder, with the user's own files, take the place of the old one; or its files, one by one."""
    if place.is_dir() and place not in new.parents:
        with suppress(OSError):  # without the right to set it, the default stays
            shutil.copymode(place, new)
        for path in place.iterdir():
            if not (new / path.name).exists() and not is_stale(path.name) and not path.name.startswith(TEMPORARY):
                _link(path, new / path.name)
    for inner, _, _ in os.walk(new):
        _sync(Path(inner))
    if place in new.parents:
        for path in new.iterdir():
            _replace(path, place / path.name)
    else:
        _replace(new, place)
        _sync(place.parent)


def keep_version(folder: Path, new: Path) -> Path:
    """Link what is in `folder` into `versions/` of the folder that will take its place; where it will be there."""
    place, versions, number = folder.resolve(), folder / VERSIONS, 1
    if versions.is_dir():
        _link(versions, new / VERSIONS)
        number += sum(path.is_dir() for path in versions.iterdir())
    kept = new / VERSIONS / f"{place.name}-{number}"
    kept.mkdir(parents=True)
    for path in place.iterdir():
        if path.name != VERSIONS and not path.name.startswith(TEMPORARY):
            _link(path, kept / path.name)
    return versions / kept.name


def _link(path: Path, target: Path) -> None:
    """The same file, symbolic link or folder under another name; a copy where the system has no links."""
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target, symlinks=True, copy_function=_link_file)
    else:
        _link_file(path, target)


def _link_file(path: str | Path, target: str | Path) -> str:
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)
    return str(target)


def _replace(new: Path, place: Path) -> None:
    """Give `new` the name `place`; a folder that has it gets the name of `new`."""
    if not place.is_dir():
        os.replace(new, place)
    elif not _exchange(new, place):
        aside = _aside(place)
        os.rename(place, aside)
        os.rename(new, place)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.ENOTSUP):
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _aside(place: Path) -> Path:
    return place.parent / f"{_ASIDE}{place.name}"
