"""MuData files (.h5mu), one view per modality, and AnnData files (.h5ad), one view each; cells are matched by name."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from viewfuse.data.annotated import Use, place_of
from viewfuse.data.sparse_tables import check_sparse
from viewfuse.errors import DataError
from viewfuse.io.readers.hdf5 import opened, take_all
from viewfuse.io.safety.limits import Allowance
from viewfuse.io.source import Contents, FileView
from viewfuse.utils import memory
from viewfuse.utils.optional import needed
from viewfuse.utils.settings import Setting


def read_h5mu(path: Path, use: Use | None) -> Contents:
    """The modalities of a .h5mu file; sparse matrices stay sparse."""
    read = needed("anndata.io", "omics", path).read_elem
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata, about old files; what cannot be read is an error
        if "mod" not in file or "obs" not in file:
            raise DataError(f"{path} has no 'mod' and 'obs', so it is no .h5mu file; write it with mudata")
        names = [str(name) for name in file["mod"].attrs.get("mod-order", list(file["mod"]))]
        _check_known(path, names, use)
        parts = {name: (file["mod"][name], place_of(use, name)) for name in names}
        _check_size(path, file["obs"], parts)
        return Contents(_views(path, parts, read), order=read(file["obs"]).index.tolist())


def read_h5ad(path: Path, places: Mapping[str, str]) -> list[FileView]:
    """Views of an .h5ad file, by name what of it they are; sparse matrices stay sparse."""
    read = needed("anndata.io", "omics", path).read_elem
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "obs" not in file or "var" not in file:
            raise DataError(f"{path} has no 'obs' and 'var', so it is no .h5ad file; write it with anndata")
        parts = {name: (file, place) for name, place in places.items()}
        _check_size(path, file["obs"], parts)
        return _views(path, parts, read)


def h5ad_places(names: Sequence[str], use: Use | None) -> dict[str, dict[str, str]]:
    """Per .h5ad file, by its name, its views and their places; one file alone can be several views."""
    if len(names) == 1 and isinstance(use, Mapping):
        return {names[0]: dict(use)}
    unknown = [name for name in (use if isinstance(use, Mapping) else ()) if name not in names]
    if unknown:
        fault = f" names the views {unknown}, but the .h5ad files are called {list(names)}; name these"
        raise DataError(Setting("use"), fault)
    return {name: {name: place_of(use, name)} for name in names}


def _check_known(path: Path, names: Sequence[str], use: Use | None) -> None:
    unknown = [name for name in (use if isinstance(use, Mapping) else ()) if name not in names]
    if unknown or not names:
        raise DataError(f"{path} has the modalities {names}, not {unknown}; name one of these")


def _check_size(path: Path, obs: Any, parts: Mapping[str, tuple[Any, str]]) -> None:
    """Decide from the headers whether the parts that are read can be what they claim, and fit into memory."""
    allowance = Allowance(path, "store it without compression")
    take_all(obs, allowance)
    for name, (group, place) in parts.items():
        there = _places(group)
        if place not in there:
            listed = ", ".join(there) or "nothing"
            raise DataError(f"{path}: modality {name!r} has no {place!r}; it has {listed}; choose one")
        for part in (place, "obs", "var"):
            if part in group:
                take_all(group[part], allowance)
    memory.require(allowance.taken, str(path), "choose fewer features, or reduced matrices such as obsm/X_pca")


def _places(group: Any) -> list[str]:
    """What may be a view."""
    own = [f"{kind}/{key}" for kind in ("layers", "obsm") for key in group.get(kind, ())]
    return ["X", *own] if "X" in group else own


def _views(path: Path, parts: Mapping[str, tuple[Any, str]], read: Any) -> list[FileView]:
    return [_read_modality(path, group, name, place, read) for name, (group, place) in parts.items()]


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
