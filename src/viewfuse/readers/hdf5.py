"""HDF5 files, opened so that nothing outside them is touched and nothing far larger than them is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.readers.limits import bytes_of, needed, refuse_growth

_FAULTS = (OSError, KeyError, ValueError, TypeError, RuntimeError, IndexError, AttributeError)


@contextmanager
def opened(path: Path, kind: str) -> Iterator[Any]:
    """The file, in which no link and no data set leads to another file; what goes wrong inside is said in one line."""
    h5py = needed("h5py", "io", path)
    try:
        with h5py.File(path, "r") as file:
            _refuse_other_files(path, file, h5py)
            yield file
    except DataError:
        raise
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].strip("'\"")
        raise DataError(f"{path} is no readable {kind} file ({reason}); write it again") from None


def _refuse_other_files(path: Path, group: Any, h5py: Any) -> None:
    """Look at every link below `group` without following it out of the file."""
    waiting, seen = [group], set()
    while waiting:
        here = waiting.pop()
        address = h5py.h5o.get_info(here.id).addr
        if address in seen:  # links may lead in a circle
            continue
        seen.add(address)
        for name in here:
            where = f"{here.name.rstrip('/')}/{name}"
            link = here.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise DataError(f"{path}: {where!r} leads to another file; store the data in the file itself")
            item = None if isinstance(link, h5py.SoftLink) else here[name]
            if isinstance(item, h5py.Group):
                waiting.append(item)
            elif isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
                raise DataError(f"{path}: {where!r} has its data in another file; store them in the file itself")


def checked(path: Path, data: Any) -> Any:
    """A data set of numbers that is not far larger than the file."""
    if data.dtype.kind not in "fiub":
        raise DataError(f"{path}: {data.name!r} holds {data.dtype} values, not numbers; store numbers")
    refuse_growth(path, bytes_of(data.shape, data.dtype), "store it without compression")
    return data


def numbers(path: Path, data: Any) -> NDArray[Any]:
    """A data set of numbers, in memory."""
    return np.asarray(checked(path, data)[()])
