"""HDF5 files: MuData (.h5mu), one view per modality, and AnnData (.h5ad), one view each; cells are matched by name.

They are opened so that nothing outside them is touched and nothing far larger than them is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import Use, frame_cells, place_of
from viewfuse.data.precision import is_number, objects_as_numbers
from viewfuse.data.sparse_tables import check_sparse
from viewfuse.data.tables import as_array
from viewfuse.errors import DataError
from viewfuse.io.safety import Allowance, bytes_of
from viewfuse.io.source import Contents, FileView
from viewfuse.utils import memory
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Setting


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, in which no link and no data set leads to another file."""
    h5py = needed("h5py", "io", path)
    with h5py.File(path, "r") as file:
        check_links(path, file)
        yield file


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
        for name in here.attrs:  # categories of old .h5ad files are references
            attribute = h5py.h5a.open(here.id, name.encode())
            is_reference = attribute.shape == () and h5py.check_ref_dtype(attribute.dtype) is h5py.Reference
            if is_reference and here.attrs[name]:
                waiting.append(here.file[here.attrs[name]])
        if isinstance(here, h5py.Dataset):
            check_storage(path, here)
        for name in here if isinstance(here, h5py.Group) else ():
            link = here.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                where = f"{(here.name or 'a group without a name').rstrip('/')}/{name}"
                raise DataError(f"{path}: {where!r} leads to another file; store the data in the file itself")
            if isinstance(link, h5py.HardLink):  # soft links lead to what is looked at where it lies
                waiting.append(here[name])


def check_storage(path: Path, data: Any) -> None:
    """Refuse a data set whose data lie in another file; a reference may lead to one that no link shows."""
    if data.is_virtual or data.external:
        raise DataError(f"{path}: {data.name!r} has its data in another file; store them in the file itself")


def numbers(data: Any, allowance: Allowance) -> NDArray[Any]:
    """A data set of numbers, in memory."""
    if data.dtype.kind not in "fiub":
        raise DataError(f"{allowance.path}: {data.name!r} holds {data.dtype} values, not numbers; store numbers")
    take_all(data, allowance)
    return np.asarray(data[()])


def take_all(item: Any, allowance: Allowance) -> None:
    """Count all that lies in a data set or below a group, before it is read."""
    if hasattr(item, "dtype"):
        check_storage(allowance.path, item)
        allowance.take(bytes_of(item.shape, item.dtype))
    else:
        item.visititems(lambda _, part: take_all(part, allowance) if hasattr(part, "dtype") else None)


def read_annotated(path: Path, use: Use | None) -> Contents:
    """The modalities of a .h5mu file, or views of an .h5ad file, by name what of it they are.

    Sparse matrices stay sparse.
    """
    read = needed("anndata.io", "omics", path).read_elem
    whole = path.suffix.lower() == ".h5ad"
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata, about old files; what cannot be read is an error
        first, second, package = ("obs", "var", "anndata") if whole else ("mod", "obs", "mudata")
        if first not in file or second not in file:
            fault = f"{path} has no {first!r} and {second!r}, so it is no {path.suffix} file; write it with {package}"
            raise DataError(fault)
        if whole:
            parts = {name: (file, place) for name, place in (use if isinstance(use, Mapping) else {}).items()}
        else:
            names = [str(name) for name in file["mod"].attrs.get("mod-order", list(file["mod"]))]
            unknown = [name for name in (use if isinstance(use, Mapping) else ()) if name not in names]
            if unknown or not names:
                raise DataError(f"{path} has the modalities {names}, not {unknown}; name one of these")
            parts = {name: (file["mod"][name], place_of(use, name)) for name in names}
        _check_size(path, file["obs"], parts)
        views = [_read_modality(path, name, *part, read) for name, part in parts.items()]
        return Contents(views, order=() if whole else read(file["obs"]).index.tolist())


def h5ad_places(names: Sequence[str], use: Use | None) -> dict[str, dict[str, str]]:
    """Per .h5ad file, by its name, its views and their places; one file alone can be several views."""
    if len(names) == 1 and isinstance(use, Mapping):
        return {names[0]: dict(use)}
    unknown = [name for name in (use if isinstance(use, Mapping) else ()) if name not in names]
    if unknown:
        fault = f" names the views {unknown}, but the .h5ad files are called {list(names)}; name these"
        raise DataError(Setting("use"), fault)
    return {name: {name: place_of(use, name)} for name in names}


def _check_size(path: Path, obs: Any, parts: Mapping[str, tuple[Any, str]]) -> None:
    """Decide from the headers whether the parts that are read can be what they claim, and fit into memory."""
    allowance = Allowance(path, "store it without compression")
    take_all(obs, allowance)
    for name, (group, place) in parts.items():
        there = ["X"] * ("X" in group) + [f"{kind}/{key}" for kind in ("layers", "obsm") for key in group.get(kind, ())]
        if place not in there:
            listed = ", ".join(there) or "nothing"
            raise DataError(f"{path}: modality {name!r} has no {place!r}; it has {listed}; choose one")
        for part in (place, "obs", "var"):
            if part in group:
                take_all(group[part], allowance)
    memory.require(allowance.taken, str(path), "choose fewer features, or reduced matrices such as obsm/X_pca")


def _read_modality(path: Path, name: str, group: Any, place: str, read: Any) -> FileView:
    values, where = read(group[place]), f"{path}: modality {name!r}, {place!r}"
    columns: Sequence[Hashable] = range(values.shape[1])
    if hasattr(values, "iloc"):  # a data frame in obsm
        values, columns = frame_cells(values)
        if values.dtype == object:
            cells, values = values, objects_as_numbers(as_array(where, values))
            if values is None:
                wrong = next(one for c, one in enumerate(columns) if not all(map(is_number, cells[:, c])))
                fault = f"{where}, column {wrong!r} holds something that is no number; encode it or drop the column"
                raise DataError(fault)
    elif not place.startswith("obsm"):
        columns = read(group["var"]).index.tolist()
    if hasattr(values, "tocsr"):
        check_sparse(where, values)
        values = values.tocsr()
    return FileView(path, name, values, columns, read(group["obs"]).index.tolist())
