"""MuData files (.h5mu): one view per modality, cells matched by their names, results written back."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse import memory
from viewfuse.atomic import writing
from viewfuse.errors import DataError
from viewfuse.readers.hdf5 import checked, opened
from viewfuse.readers.limits import bytes_of, needed
from viewfuse.readers.source import FileView, Source

Use = Mapping[str, str]
"""Per modality what of it is the view: "X", "layers/NAME" or "obsm/NAME"."""


def read_h5mu(path: Path, use: Use | None) -> Source:
    """The modalities of a .h5mu file; sparse matrices stay sparse until rows are asked for."""
    read = needed("anndata.io", "omics", path).read_elem
    with opened(path, ".h5mu") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata, about old files; what cannot be read is an error
        if "mod" not in file or "obs" not in file:
            raise DataError(f"{path} has no 'mod' and 'obs', so it is no .h5mu file; write it with mudata")
        names = [str(name) for name in file["mod"].attrs.get("mod-order", list(file["mod"]))]
        _refuse_unknown(path, names, use or {})
        views = [_read_modality(path, file["mod"][name], name, (use or {}).get(name, "X"), read) for name in names]
        return Source(views, order=read(file["obs"]).index.tolist())


def _refuse_unknown(path: Path, names: Sequence[str], use: Use) -> None:
    unknown = [name for name in use if name not in names]
    if unknown or not names:
        raise DataError(f"{path} has the modalities {names}, not {unknown}; name one of these")


def _read_modality(path: Path, group: Any, name: str, place: str, read: Any) -> FileView:
    if place not in group:
        there = ["X", *(f"{kind}/{key}" for kind in ("layers", "obsm") for key in group.get(kind, ()))]
        raise DataError(f"{path}: modality {name!r} has no {place!r}; it has {', '.join(there)}")
    _refuse_large(path, name, group[place])
    values = read(group[place])
    columns: Sequence[Hashable] = range(values.shape[1])
    if hasattr(values, "to_numpy"):  # a data frame in obsm
        columns, values = [str(column) for column in values.columns], values.to_numpy()
    elif not place.startswith("obsm"):
        columns = read(group["var"]).index.tolist()
    values = values.tocsr() if hasattr(values, "tocsr") else values
    return FileView(path, name, values, columns, read(group["obs"]).index.tolist())


def _refuse_large(path: Path, name: str, item: Any) -> None:
    """Decide from the headers whether the parts of a matrix can be what they claim, and fit into memory."""
    parts = [item[key] for key in item if hasattr(item[key], "dtype")] if hasattr(item, "keys") else [item]
    for part in parts:
        if part.dtype.kind in "fiub":
            checked(path, part)
    size = sum(bytes_of(part.shape, part.dtype) for part in parts)
    memory.require(size, f"{path}: modality {name!r}", "choose fewer features, or a reduced matrix such as obsm/X_pca")


def write_results(source: Path, target: Path, ids: Sequence[Hashable], columns: Mapping[str, Any],
                  embedding: NDArray[np.float32]) -> None:  # fmt: skip
    """A copy of the file `source` at `target` with `columns` in obs and the embedding in obsm["X_viewfuse"].

    Parameters
    ----------
    ids : names of the cells that the rows of the results belong to
    columns : per name of a column its values, of shape (cells,)
    embedding : array of shape (cells, embedding)
    """
    anndata, h5py = needed("anndata.io", "omics", source), needed("h5py", "omics", source)
    with writing(target) as temporary:
        shutil.copyfile(source, temporary)
        with h5py.File(temporary, "r+") as file:
            cells = anndata.read_elem(file["obs"])
            rows = cells.index.get_indexer([str(name) for name in ids])
            for name, values in columns.items():
                cells[name] = _placed(np.asarray(values), rows, len(cells))
            anndata.write_elem(file, "obs", cells)
            anndata.write_elem(file.require_group("obsm"), "X_viewfuse", _placed(embedding, rows, len(cells)))


def _placed(values: NDArray[Any], rows: NDArray[np.int64], n: int) -> NDArray[Any]:
    """Results in the order of the file's cells."""
    placed = np.zeros((n, *values.shape[1:]), dtype=values.dtype)
    placed[rows] = values
    return placed
