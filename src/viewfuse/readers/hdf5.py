"""HDF5 files, opened so that nothing outside them is touched and nothing far larger than them is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.readers.limits import Allowance, bytes_of
from viewfuse.readers.optional import needed


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, in which no link and no data set leads to another file."""
    h5py = needed("h5py", "io", path)
    with h5py.File(path, "r") as file:
        _refuse_other_files(path, file, h5py)
        yield file


def is_reference(item: Any) -> bool:
    """Whether a data set holds references to others, as a cell array does."""
    import h5py

    return h5py.check_ref_dtype(getattr(item, "dtype", None)) is h5py.Reference


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
            elif isinstance(item, h5py.Dataset):
                refuse_elsewhere(path, item)


def refuse_elsewhere(path: Path, data: Any) -> None:
    """Refuse a data set whose data lie in another file; a reference may lead to one that no link shows."""
    if data.is_virtual or data.external:
        raise DataError(f"{path}: {data.name!r} has its data in another file; store them in the file itself")


def numbers(data: Any, allowance: Allowance) -> NDArray[Any]:
    """A data set of numbers, in memory."""
    if data.dtype.kind not in "fiub":
        raise DataError(f"{allowance.path}: {data.name!r} holds {data.dtype} values, not numbers; store numbers")
    refuse_elsewhere(allowance.path, data)
    allowance.take(bytes_of(data.shape, data.dtype))
    return np.asarray(data[()])


def take_all(item: Any, allowance: Allowance) -> None:
    """Count all that lies in a data set or below a group, before it is read."""
    if hasattr(item, "dtype"):
        refuse_elsewhere(allowance.path, item)
        allowance.take(bytes_of(item.shape, item.dtype))
    else:
        item.visititems(lambda _, part: take_all(part, allowance) if hasattr(part, "dtype") else None)
