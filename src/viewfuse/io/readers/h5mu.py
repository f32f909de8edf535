"""MuData files (.h5mu): one view per modality, cells matched by their names."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from viewfuse.errors import DataError
from viewfuse.io.readers.hdf5 import opened, take_all
from viewfuse.io.safety.limits import Allowance
from viewfuse.io.safety.sparse import check_sparse
from viewfuse.io.source import FileView, Source
from viewfuse.utils import memory
from viewfuse.utils.optional import needed

Use = Mapping[str, str]
"""Per modality what of it is the view: "X", "layers/NAME" or "obsm/NAME"."""


def read_h5mu(path: Path, use: Use | None) -> Source:
    """The modalities of a .h5mu file; sparse matrices stay sparse."""
    read = needed("anndata.io", "omics", path).read_elem
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata, about old files; what cannot be read is an error
        if "mod" not in file or "obs" not in file:
            raise DataError(f"{path} has no 'mod' and 'obs', so it is no .h5mu file; write it with mudata")
        names = [str(name) for name in file["mod"].attrs.get("mod-order", list(file["mod"]))]
        places = {name: (use or {}).get(name, "X") for name in names}
        _check_known(path, names, use or {})
        _check_size(path, file, places)
        views = [_read_modality(path, file["mod"][name], name, place, read) for name, place in places.items()]
        return Source(views, order=read(file["obs"]).index.tolist())


def _check_known(path: Path, names: Sequence[str], use: Use) -> None:
    unknown = [name for name in use if name not in names]
    if unknown or not names:
        raise DataError(f"{path} has the modalities {names}, not {unknown}; name one of these")


def _check_size(path: Path, file: Any, places: Mapping[str, str]) -> None:
    """Decide from the headers whether the parts that are read can be what they claim, and fit into memory."""
    allowance = Allowance(path, "store it without compression")
    take_all(file["obs"], allowance)
    for name, place in places.items():
        group = file["mod"][name]
        if place not in group:
            there = ["X", *(f"{kind}/{key}" for kind in ("layers", "obsm") for key in group.get(kind, ()))]
            raise DataError(f"{path}: modality {name!r} has no {place!r}; it has {', '.join(there)}; choose one")
        for part in (place, "obs", "var"):
            if part in group:
                take_all(group[part], allowance)
    memory.require(allowance.taken, str(path), "choose fewer features, or reduced matrices such as obsm/X_pca")


def _read_modality(path: Path, group: Any, name: str, place: str, read: Any) -> FileView:
    values = read(group[place])
    columns: Sequence[Hashable] = range(values.shape[1])
    if hasattr(values, "to_numpy"):  # a data frame in obsm
        columns, values = [str(column) for column in values.columns], values.to_numpy()
    elif not place.startswith("obsm"):
        columns = read(group["var"]).index.tolist()
    if hasattr(values, "tocsr"):
        check_sparse(f"{path}: modality {name!r}, {place!r}", values)
        values = values.tocsr()
    return FileView(path, name, values, columns, read(group["obs"]).index.tolist())
