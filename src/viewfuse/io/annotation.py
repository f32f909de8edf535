"""Results go back into AnnData and MuData, objects and files: to each cell by its name, never by its place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.annotated import is_annotated, is_mudata
from viewfuse.errors import DataError, SettingError
from viewfuse.io.isolated import client
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.safety.guard import guarded
from viewfuse.utils.atomic import writing
from viewfuse.utils.optional import needed

KEY = "viewfuse"


class Results(NamedTuple):
    """What is known of some samples.

    Attributes
    ----------
    ids : array of shape (samples,)
    probabilities : float32 array of shape (samples, clusters)
    embedding : float32 array of shape (samples, embedding)
    """

    ids: NDArray[Any]
    probabilities: NDArray[np.float32]
    embedding: NDArray[np.float32]


def annotate(data: Any, results: Results, key: str = KEY) -> None:
    """Set obs[key], obs[f"{key}_confidence"] and obsm[f"X_{key}"] of an AnnData or MuData object.

    The clusters are categories "0", "1", ...; cells without a result get none of these, and NaN.
    """
    if not is_annotated(data):
        raise DataError(f"results are written into AnnData and MuData objects; a {type(data).__name__} is none")
    if not isinstance(key, str) or not key or "/" in key:
        raise SettingError(f"key must be a name without '/', such as {KEY!r}; got {key!r}")
    if is_mudata(data) and not all(part.obs_names.isin(data.obs_names).all() for part in data.mod.values()):
        raise DataError("a modality has cells that the MuData does not know of; call its update() first")
    rows = _rows(data.obs_names.tolist(), results.ids)
    for name, values in _columns(rows, results, key).items():
        data.obs[name] = values
    data.obsm[f"X_{key}"] = _placed(results.embedding, rows)


def write_annotated(source: Path, target: Path, results: Results, *, trusted: bool = False) -> None:
    """A copy of the .h5mu or .h5ad file `source` at `target` with the results in it, as `annotate` sets them.

    Another process opens it, as it does when files are read, unless it is `trusted`.
    """
    with writing(target) as temporary, TemporaryDirectory() as folder:
        shutil.copyfile(source, temporary)
        names = np.array([str(name) for name in results.ids.tolist()])
        np.savez(Path(folder) / "results.npz", **results._replace(ids=names)._asdict())
        job = ReadJob(source, copy=str(temporary.absolute()), results=str(Path(folder) / "results.npz"))
        if trusted or not client.POSSIBLE:
            annotate_copy(job)
        else:
            client.read_isolated(job)


def annotate_copy(job: ReadJob) -> None:
    """Write results, which lie in a .npz file, into the copy of an .h5mu or .h5ad file."""
    anndata, h5py = needed("anndata.io", "omics", job.path), needed("h5py", "omics", job.path)
    with guarded(job.path), np.load(str(job.results)) as arrays, h5py.File(job.copy, "r+") as file:
        results = Results(**arrays)
        rows = _rows(anndata.read_elem(file["obs"]).index.tolist(), results.ids)
        if "mod" in file and (rows >= 0).sum() < len(results.ids):
            raise DataError(f"{job.path}: 'obs' lacks a cell that a modality has; update it with mudata's update()")
        new = _columns(rows, results, KEY)
        for name, values in new.items():
            anndata.write_elem(file["obs"], name, values)
        before = [str(name) for name in file["obs"].attrs.get("column-order", ())]
        file["obs"].attrs["column-order"] = list(dict.fromkeys([*before, *new]))
        anndata.write_elem(file.require_group("obsm"), f"X_{KEY}", _placed(results.embedding, rows))


def _rows(cells: Sequence[str], ids: NDArray[Any]) -> NDArray[np.int64]:
    """Per cell the row of its result, or -1."""
    names = [str(name) for name in ids.tolist()]
    row = {name: place for place, name in enumerate(names)}
    if len(row) < len(names):
        raise DataError("two samples have ids that are written alike, such as 1 and '1'; cells are known by name only")
    rows = np.array([row.get(cell, -1) for cell in cells], dtype=np.int64)
    if (rows < 0).all():
        raise DataError(
            f"none of the cells, such as {cells[:1]}, is among the samples with results, such as {names[:1]}; "
            "samples that the model was not fitted on are predicted by annotate(data, data)"
        )
    return rows


def _columns(rows: NDArray[np.int64], results: Results, key: str) -> dict[str, Any]:
    from pandas import Categorical

    labels = np.where(rows < 0, -1, results.probabilities.argmax(axis=1)[rows])
    clusters = [str(cluster) for cluster in range(results.probabilities.shape[1])]
    confidence = _placed(results.probabilities.max(axis=1), rows)
    return {key: Categorical.from_codes(labels, categories=clusters), f"{key}_confidence": confidence}


def _placed(values: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The values at `rows`, NaN for row -1."""
    found = values[rows]
    found[rows < 0] = np.nan
    return found
