"""A folder of results is one thing: it is written beside its place and takes it as a whole, or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from viewfuse.errors import CannotWrite
from viewfuse.utils.atomic import TEMPORARY, exclusive, sweep, sync_folder, temporary_name

_ASIDE = ".viewfuse-old-"
"""How the name of a folder begins that is moved out of the way, on systems that cannot exchange two."""
VERSIONS = "versions"
"""Of a run or a model: the folder of what it was before it was updated."""
_HERE, _EXCHANGE = -100, 2
"""Of Linux: paths start from the working folder; two names change places."""


@contextmanager
def replacing(folder: Path, is_stale: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """A new folder to write to; when that is done it takes the place of `folder` in one step.

    What else was in `folder` stays there, but for names of files that `is_stale` knows as results of an earlier run.
    Of two processes that write to one folder the second is refused at once. A folder that cannot be renamed, such as
    a folder in use gets its files one by one.
    """
    place = folder.resolve()
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        with exclusive(*_lock_of(place), patience=0):
            sweep(place.parent)
            _recover(place)
            with _beside(place) as new:
                yield new
                _take_along(place, new, is_stale)
                _put_in_place(new, place)
    except CannotWrite:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:  # the disk is not at fault
            raise
        raise CannotWrite(
            f"{folder} cannot be written: {error.strerror or error}; free some space or choose another folder; "
            "what was there before is intact"
        ) from error
    finally:
        for parent in missing:
            with suppress(OSError):  # it is not empty, as it should be
                parent.rmdir()


def _lock_of(place: Path) -> tuple[Path, Path]:
    """What is locked, and the folder that is spoken of: a name beside it, since the folder itself is replaced."""
    beside = place.parent / f"{TEMPORARY}lock-{place.name[:200]}"
    return (beside if _can_move(place) else place), place


def _can_move(place: Path) -> bool:
    """Whether a folder, or the one that it will be in, can be exchanged."""
    parent = next(one for one in place.parents if one.exists())
    is_used = place.exists() and (os.path.ismount(place) or os.path.samefile(place, os.curdir))
    return os.access(parent, os.W_OK) and not is_used


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    where = place.parent if _can_move(place) else place
    where.mkdir(parents=True, exist_ok=True)
    new = where / temporary_name()
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _take_along(place: Path, new: Path, is_stale: Callable[[str], bool]) -> None:
    """Link the user's own files into the new folder."""
    if not place.is_dir() or place in new.parents:
        return
    with suppress(OSError):  # without the right to set it, the default stays
        shutil.copymode(place, new)
    for path in place.iterdir():
        if not (new / path.name).exists() and not is_stale(path.name) and not path.name.startswith(TEMPORARY):
            _link(path, new / path.name)


def keep_version(folder: Path, new: Path) -> Path:
    """Link what is in `folder` into `versions/` of the folder that will take its place; where it will be there.

    Versions are called like the folder, and counted from 1 on.
    """
    versions = folder / VERSIONS
    if versions.is_dir():
        _link(versions, new / VERSIONS)
    place = folder.resolve()
    number = 1 + sum(path.is_dir() for path in versions.iterdir()) if versions.is_dir() else 1
    kept = new / VERSIONS / f"{place.name}-{number}"
    kept.mkdir(parents=True)
    for path in place.iterdir():
        if path.name != VERSIONS and not path.name.startswith(TEMPORARY):
            _link(path, kept / path.name)
    return folder / VERSIONS / kept.name


def _link(path: Path, target: Path) -> None:
    """The same file or folder under another name; a copy where the system has no links."""
    if path.is_symlink():
        target.symlink_to(os.readlink(path))
    elif path.is_dir():
        shutil.copytree(path, target, symlinks=True, copy_function=_link_file)
    else:
        _link_file(path, target)


def _link_file(path: str | Path, target: str | Path) -> str:
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)
    return str(target)


def _put_in_place(new: Path, place: Path) -> None:
    for folder, _, _ in os.walk(new):
        sync_folder(Path(folder))
    if place in new.parents:
        for path in new.iterdir():
            _replace(path, place / path.name)
        return
    _replace(new, place)
    sync_folder(place.parent)


def _replace(new: Path, place: Path) -> None:
    """Give `new` the name `place`; a folder that has it gets the name of `new`."""
    if not place.is_dir():
        os.replace(new, place)
    elif not _exchange(new, place):
        aside = place.parent / f"{_ASIDE}{place.name}"
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


def _recover(place: Path) -> None:
    """Bring back a folder whose writer was killed between two renames, or remove it where the new one is there."""
    aside = place.parent / f"{_ASIDE}{place.name}"
    if aside.is_dir():
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, place)
