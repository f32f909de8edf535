"""HDF5 files, opened so that nothing outside them is touched and nothing far larger than them is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.io.safety.limits import Allowance, bytes_of
from viewfuse.utils.optional import needed


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, in which no link and no data set leads to another file."""
    h5py = needed("h5py", "io", path)
    with h5py.File(path, "r") as file:
        check_links(path, file)
        yield file


def is_reference(item: Any) -> bool:
    """Whether a data set holds references to others, as a cell array does."""
    import h5py

    return h5py.check_ref_dtype(getattr(item, "dtype", None)) is h5py.Reference


def check_links(path: Path, item: Any) -> None:
    """Refuse an item that leads out of the file, directly or anywhere below it; no link is followed to find out.

    References lead to items that no link shows, so what they lead to has to be looked at as well.
    """
    import h5py

    waiting, seen = [item], set()
    while waiting:
        here = waiting.pop()
        address = h5py.h5o.get_info(here.id).addr
        if address in seen:  # links may lead in a circle
            continue
        seen.add(address)
        waiting += _referenced(here, h5py)
        if isinstance(here, h5py.Dataset):
            check_storage(path, here)
        elif isinstance(here, h5py.Group):
            waiting += _linked(path, here, h5py)


def _linked(path: Path, group: Any, h5py: Any) -> Iterator[Any]:
    """What lies in a group; soft links lead to what is looked at where it lies."""
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            where = f"{(group.name or 'a group without a name').rstrip('/')}/{name}"
            raise DataError(f"{path}: {where!r} leads to another file; store the data in the file itself")
        if isinstance(link, h5py.HardLink):
            yield group[name]


def _referenced(item: Any, h5py: Any) -> Iterator[Any]:
    """What an attribute refers to, as categories of old .h5ad files do."""
    for name in item.attrs:
        attribute = h5py.h5a.open(item.id, name.encode())
        if attribute.shape == () and h5py.check_ref_dtype(attribute.dtype) is h5py.Reference:
            reference = item.attrs[name]
            if reference:
                yield item.file[reference]


def member(group: Any, name: str, path: Path) -> Any:
    """An item of a group that must lie there itself, and not behind a link, which was not checked."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: {name!r} is a link to another place; store the data in the file itself")
    return group[name]


def check_storage(path: Path, data: Any) -> None:
    """Refuse a data set whose data lie in another file; a reference may lead to one that no link shows."""
    if data.is_virtual or data.external:
        raise DataError(f"{path}: {data.name!r} has its data in another file; store them in the file itself")


def numbers(data: Any, allowance: Allowance) -> NDArray[Any]:
    """A data set of numbers, in memory."""
    if data.dtype.kind not in "fiub":
        raise DataError(f"{allowance.path}: {data.name!r} holds {data.dtype} values, not numbers; store numbers")
    check_storage(allowance.path, data)
    allowance.take(bytes_of(data.shape, data.dtype))
    return np.asarray(data[()])


def take_all(item: Any, allowance: Allowance) -> None:
    """Count all that lies in a data set or below a group, before it is read."""
    if hasattr(item, "dtype"):
        check_storage(allowance.path, item)
        allowance.take(bytes_of(item.shape, item.dtype))
    else:
        item.visititems(lambda _, part: take_all(part, allowance) if hasattr(part, "dtype") else None)
