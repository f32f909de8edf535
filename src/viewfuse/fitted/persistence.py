"""A fitted model on disk: manifest.json and one safetensors file. Nothing in it can run code.

The tensors file is named by its content and written first; the manifest names it and is replaced last, in one step.
So a kill at any moment leaves the old model or the new one. Of two writers one waits for the other; a reader that comes
between two writes reads again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from viewfuse.data.digits import Offset
from viewfuse.data.filling import FILLS, Filler, NearestRows
from viewfuse.data.scaling import Scaler
from viewfuse.engine.checkpoint import below
from viewfuse.errors import BadModelFile, CannotWrite
from viewfuse.fitted.batches import Batches
from viewfuse.fitted.manifest import (
    FORMAT,
    LONGEST_MANIFEST,
    MANIFEST,
    TENSORS,
    checksum,
    decode,
    encode,
    read_file,
    read_manifest,
)
from viewfuse.fitted.model import FittedMethod, Model
from viewfuse.neighbors.samples import MultiViewIndex, Samples
from viewfuse.reduction.frontend import FrontEnd, Reduction, no_front_end
from viewfuse.selection.confidence import Calibration
from viewfuse.utils import memory
from viewfuse.utils.atomic import A_DAY, TEMPORARY, exclusive, is_younger, parsed, sweep, write_file
from viewfuse.utils.version import __version__

_OUR_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
"""Names that `save` gives; what else matches `TENSORS` belongs to the user."""
_SINGLE = np.dtype(np.float32)
_OUR_KEYS = {"format", "versions", "views", "files", "checksum"}


@dataclass(frozen=True)
class Saved:
    """What stands in a model folder.

    Attributes
    ----------
    arrays : what fitting gave, by name: arrays of numbers
    facts : all else that the estimator wants to find again; anything that JSON can hold
    """

    model: Model
    arrays: dict[str, NDArray[Any]]
    facts: dict[str, Any]


BuildMethod = Callable[[Mapping[str, Any]], FittedMethod]


def save(folder: Path, saved: Saved) -> None:
    """Write the model into `folder`, which is new, empty, or holds a model that is then replaced."""
    check_model_folder(folder)
    with exclusive(folder) as alone:
        _write(folder, saved, alone=alone)


def _write(folder: Path, saved: Saved, *, alone: bool) -> None:
    """Tensors, manifest, and away with what the new manifest does not name."""
    content = safetensors.save({name: x.detach().cpu().contiguous() for name, x in _tensors(saved).items()})
    digest = hashlib.sha256(content).hexdigest()
    path = folder / TENSORS.replace("*", digest[:16])
    write_file(path, content)
    manifest = _manifest(saved, {path.name: {"sha256": digest, "bytes": len(content)}})
    write_file(folder / MANIFEST, manifest)
    sweep(folder)
    for old in folder.glob(TENSORS):
        # Without a lock another writer may be about to name young tensors.
        if old != path and _OUR_TENSORS.fullmatch(old.name) and (alone or not is_younger(old, A_DAY)):
            old.unlink(missing_ok=True)


def load(folder: Path, methods: Mapping[str, BuildMethod]) -> Saved:
    """Read a model; everything is checked before it is used.

    Parameters
    ----------
    methods : by name, what makes a method from its saved configuration
    """
    manifest, tensors = _read_both(folder)
    name = manifest["method"]["name"]
    if name not in methods:
        raise BadModelFile(f"{folder} is a model of {name!r}, not of {', '.join(methods)}; read it with viewfuse.load")
    try:
        return _assemble(manifest, tensors, methods)
    except Exception as error:  # whatever a forged manifest leads to
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadModelFile(
            f"{folder}: {MANIFEST} and {', '.join(manifest['files'])} do not belong together ({reason}); save it again"
        ) from None


def check(folder: Path) -> dict[str, Any]:
    """The manifest of a model folder, after everything in the folder was checked."""
    return _read_both(folder)[0]


def _read_both(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors; where a writer replaces them in the meantime, the new ones."""
    failed: dict[str, Any] = {}
    while True:
        manifest = read_manifest(folder)
        ((name, facts),) = manifest["files"].items()
        try:
            return manifest, _read_tensors(folder / Path(name).name, facts)
        except BadModelFile:
            if manifest == failed:
                raise
            failed = manifest


def _manifest(saved: Saved, files: Mapping[str, Any]) -> bytes:
    model = saved.model
    manifest = {
        "format": FORMAT,
        "versions": {"viewfuse": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "views": [
            {
                "name": name,
                "width": len(columns),
                "columns": None if isinstance(columns, range) else encode(columns),
                "front_end": front_end.facts(),
            }
            for name, columns, front_end in zip(model.names, model.columns, model.reduction.front_ends, strict=True)
        ],
        "n_samples": len(model.stored),
        "fill": model.filler.how,
        "scaling": model.scaler.kind,
        "sharpness": model.sharpness,
        "batches": model.batches and list(model.batches.names),
        "method": {"name": model.method.name, "config": model.method.saved()},
        "facts": saved.facts,
        "arrays": sorted(saved.arrays),
        "files": files,
    }
    manifest = json.loads(json.dumps(manifest, default=np.generic.item))
    return json.dumps({**manifest, "checksum": checksum(manifest)}, indent=1).encode()


def _tensors(saved: Saved) -> dict[str, Tensor]:
    model = saved.model
    found = {f"network.{name}": x for name, x in model.network.state_dict().items()}
    for v, view in enumerate(model.stored.values):
        found[f"stored.{v}"] = view
        if np.any(model.offsets[v]):
            found[f"offset.{v}"] = torch.from_numpy(np.asarray(model.offsets[v]))
        found[f"shift.{v}"] = torch.from_numpy(model.scaler.shifts[v])
        found[f"factor.{v}"] = torch.from_numpy(model.scaler.factors[v])
        for name, array in model.reduction.front_ends[v].arrays().items():
            found[f"front_end.{v}.{name}"] = torch.from_numpy(array)
    for v, (medians, donors) in enumerate(zip(model.filler.medians, model.filler.donors, strict=True)):
        found[f"medians.{v}"], found[f"donors.{v}"] = torch.from_numpy(medians), torch.from_numpy(donors.values)
    found |= {"unseen": torch.from_numpy(model.unseen)} if model.unseen.shape[1] else {}
    found |= {} if model.batches is None else model.batches.tensors()
    found["present"], found["neighbor_ids"] = model.stored.present, model.stored.neighbor_ids
    if (known := model.calibration) is not None:
        found["calibration.labels"] = known.labels
        found |= {f"calibration.{name}": torch.from_numpy(getattr(known, name)) for name in ("again", "shifts")}
    return {**found, **{f"array.{name}": torch.from_numpy(x) for name, x in saved.arrays.items()}}


def _read_tensors(path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise BadModelFile(
                f"{path} has {size:,} bytes instead of {facts['bytes']:,}; use another copy of the model"
            )
        cure = "use a machine with more, or save the model with fewer training samples (keep)"
        memory.require(2 * size, f"loading {path}", cure)
        content = read_file(path, size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, BadModelFile):
            raise
        raise BadModelFile(f"{path} cannot be read ({reason}); use another copy of the model") from None
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise BadModelFile(f"{path} is damaged (its checksum does not match); use another copy of the model")
    try:
        return safetensors.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # a KeyError names a kind that torch lacks
        raise BadModelFile(f"{path} is no safetensors file ({error}); use another copy of the model") from None


def _assemble(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], methods: Mapping[str, BuildMethod]) -> Saved:
    method = methods[manifest["method"]["name"]](manifest["method"]["config"])
    views = manifest["views"]
    reduction = Reduction(tuple(_front_end(v, view, tensors) for v, view in enumerate(views)))
    widths, n = [one.columns for one in reduction.front_ends], int(manifest["n_samples"])
    neighbor_ids = tensors["neighbor_ids"] if "neighbor_ids" in tensors else tensors["near"]  # so called in format 1
    _check_tensors(tensors, neighbor_ids, widths, n)
    network = method.empty(widths)
    network.load_state_dict(below("network", tensors), assign=True)
    values, present = [tensors[f"stored.{v}"] for v in range(len(views))], tensors["present"]
    stored = Samples(values, present, neighbor_ids, MultiViewIndex(values, present))
    shifts, factors = ([tensors[f"{one}.{v}"].numpy() for v in range(len(views))] for one in ("shift", "factor"))
    scaler = Scaler(manifest["scaling"], tuple(shifts), tuple(factors))
    names = tuple(str(view["name"]) for view in views)
    columns: tuple[Sequence[Hashable], ...] = tuple(
        range(view["width"]) if view["columns"] is None else decode(view["columns"]) for view in views
    )
    if [len(own) for own in columns] != [view["width"] for view in views]:
        raise ValueError("the names of the columns are not as many as the columns")
    filler = _filler(manifest.get("fill", "error"), [len(own) for own in columns], tensors)
    offsets = tuple(_offset(tensors.get(f"offset.{v}"), len(own)) for v, own in enumerate(columns))
    before = (names, columns, offsets, method, filler, reduction)
    sharpness = float(manifest.get("sharpness", 1.0))  # older models had none
    if not 0.0 < sharpness < inf:
        raise ValueError(f"sharpness is {sharpness}")
    known = _calibration(tensors, n, int(method.n_clusters)), Batches.of(manifest.get("batches"), widths, tensors)
    unseen = tensors.get("unseen", torch.empty(n, 0, dtype=torch.float64)).numpy()  # earlier versions had none
    model = Model(*before, scaler, stored, network, unseen, sharpness, *known)
    return Saved(model, {name: tensors[f"array.{name}"].numpy() for name in manifest["arrays"]}, manifest["facts"])


def _offset(found: Tensor | None, width: int) -> Offset:
    """What the columns of a view are measured from; models before format 3 had no such thing."""
    if found is None:
        return 0.0
    if found.dtype != torch.float64 or tuple(found.shape) != (width,) or not torch.isfinite(found).all():
        raise ValueError("what columns are measured from does not fit them")
    return found.numpy()


def _filler(how: str, widths: Sequence[int], tensors: Mapping[str, Tensor]) -> Filler:
    """What fills empty cells; the first models of format 2 kept nothing for it."""
    if how not in FILLS:
        raise ValueError(f"fill is {how!r}")
    if how == "error":
        return Filler(how)
    medians = tuple(tensors[f"medians.{v}"].numpy() for v in range(len(widths)))
    donors = tuple(tensors[f"donors.{v}"].numpy() for v in range(len(widths)))
    for width, own, rows in zip(widths, medians, donors, strict=True):
        if own.shape != (width,) or rows.shape != (len(rows), width) or {own.dtype, rows.dtype} != {_SINGLE}:
            raise ValueError("what fills empty cells does not fit the columns")
        if not np.isfinite(own).all() or np.isinf(rows).any():
            raise ValueError("what fills empty cells is not finite")
    return Filler(how, medians, tuple(map(NearestRows, donors)))


def _calibration(tensors: Mapping[str, Tensor], n: int, n_clusters: int) -> Calibration | None:
    """What makes soft assignments chances; models of earlier versions had none."""
    own = below("calibration", tensors)
    if not own:
        return None
    labels, numbers = own["labels"], [own[name] for name in ("again", "shifts")]
    if labels.dtype != torch.int32 or tuple(labels.shape) != (n,) or labels.min() < 0 or labels.max() >= n_clusters:
        raise ValueError("the clusters of the training samples are not those of the model")
    if any(x.dtype != torch.float64 or tuple(x.shape) != (n_clusters,) or not x.isfinite().all() for x in numbers):
        raise ValueError("the calibration does not fit the clusters")
    return Calibration(labels, *(x.numpy() for x in numbers))


def _front_end(v: int, view: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FrontEnd:
    """That of a view; models of format 1 had none."""
    if "front_end" not in view:
        return no_front_end(int(view["width"]))
    found = FrontEnd.from_saved(view["front_end"], {k: x.numpy() for k, x in below(f"front_end.{v}", tensors).items()})
    found.check(int(view["width"]))
    return found


def _check_tensors(tensors: Mapping[str, Tensor], neighbor_ids: Tensor, widths: Sequence[int], n: int) -> None:
    """Kinds and shapes of what prediction relies on, and neighbours that exist."""
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"present": (torch.bool, (n, len(widths)))}
    for v, width in enumerate(widths):
        wanted[f"stored.{v}"] = torch.float32, (n, width)
        wanted[f"shift.{v}"] = wanted[f"factor.{v}"] = torch.float64, (width,)
    wanted |= {"unseen": (torch.float64, (n, len(widths)))} if "unseen" in tensors else {}
    for name, (dtype, shape) in wanted.items():
        found = tensors[name]
        if found.dtype != dtype or tuple(found.shape) != shape:
            raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)} instead of {dtype} {shape}")
    if neighbor_ids.dtype != torch.int64 or neighbor_ids.dim() != 3 or neighbor_ids.shape[:2] != (n, len(widths)):
        raise ValueError(f"the neighbours are {neighbor_ids.dtype} {tuple(neighbor_ids.shape)}")
    if n < 1 or (neighbor_ids.numel() and (neighbor_ids.min() < -1 or neighbor_ids.max() >= n)):
        raise ValueError("the neighbours are not among the samples")


def check_model_folder(folder: Path) -> None:
    """Refuse a place where something else is than a model."""
    files = [path for path in (folder, *folder.parents) if os.path.isfile(path)]  # a name may be too long for pathlib
    if files:
        raise CannotWrite(f"{files[0]} is a file, so nothing can be written into it; choose a new or empty folder")
    if os.path.isdir(folder) and any(folder.iterdir()) and not _is_ours(folder):
        raise CannotWrite(f"{folder} exists and is no viewfuse model; choose a new or empty folder")


def _is_ours(folder: Path) -> bool:
    """A model, or what a killed first save left of one."""
    names = [path.name for path in folder.iterdir()]
    if MANIFEST in names:
        return _is_our_manifest(folder / MANIFEST)
    return all(name.startswith(TEMPORARY) or _OUR_TENSORS.fullmatch(name) for name in names)


def _is_our_manifest(path: Path) -> bool:
    """Whether a manifest was written by `save`; other programs have files of that name, too."""
    try:
        manifest = parsed(read_file(path, LONGEST_MANIFEST))
    except (OSError, ValueError):
        return False
    is_like_ours = isinstance(manifest, dict) and manifest.keys() >= _OUR_KEYS
    return is_like_ours and isinstance(manifest["versions"], dict) and "viewfuse" in manifest["versions"]
