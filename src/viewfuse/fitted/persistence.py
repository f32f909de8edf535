"""A fitted model on disk: manifest.json and one safetensors file. Nothing in it can run code.

The tensors file is named by its content and written first; the manifest names it and is replaced last, in one step.
So a kill leaves the old model or the new one. Of two writers one waits; a reader between two writes reads again.
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

from viewfuse.data.filling import FILLS, Filler, NearestRows
from viewfuse.data.precision import Offset
from viewfuse.data.scaling import Scaler
from viewfuse.engine.checkpoint import below
from viewfuse.errors import BadModelFile, CannotWrite
from viewfuse.fitted import manifest as manifests
from viewfuse.fitted.batch_effects import Batches
from viewfuse.fitted.manifest import MANIFEST, TENSORS, read_file, read_manifest
from viewfuse.fitted.model import Model
from viewfuse.fitted.novelty import LeftOut
from viewfuse.neighbors.index import MultiViewIndex, Samples
from viewfuse.reduction.reduce import FrontEnd, Reduction, no_front_end
from viewfuse.selection.confidence import Calibration
from viewfuse.utils import memory
from viewfuse.utils.atomic import TEMPORARY, exclusive, is_young, parsed, sweep, write_file
from viewfuse.utils.version import __version__

_OUR_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
"""Names that `save` gives; what else matches `TENSORS` belongs to the user."""
_LEFT_OUT = ("unseen", "left_out")
"""The tensors of a `LeftOut`."""
_OURS = {"format": object, "versions": {"viewfuse": object}, "views": object, "files": object, "checksum": object}
"""What a manifest of ours has; other programs have files of that name, too."""


@dataclass(frozen=True)
class Saved:
    """What stands in a model folder: a model, arrays that fitting gave, and facts that JSON can hold."""

    model: Model
    arrays: dict[str, NDArray[Any]]
    facts: dict[str, Any]


BuildMethod = Callable[[Mapping[str, Any]], Any]


def save(folder: Path, saved: Saved) -> None:
    """Write the model into `folder`, which is new, empty, or holds a model that is then replaced."""
    check_model_folder(folder)
    with exclusive(folder) as alone:
        content = safetensors.save(_tensors(saved))
        digest = hashlib.sha256(content).hexdigest()
        path = folder / TENSORS.replace("*", digest[:16])
        write_file(path, content)
        manifest = _manifest(saved, {path.name: {"sha256": digest, "bytes": len(content)}})
        write_file(folder / MANIFEST, manifest)
        sweep(folder)
        for old in folder.glob(TENSORS):
            # Without a lock another writer may be about to name young tensors.
            if old != path and _OUR_TENSORS.fullmatch(old.name) and (alone or not is_young(old)):
                old.unlink(missing_ok=True)


def load(folder: Path, methods: Mapping[str, BuildMethod]) -> Saved:
    """Read a model; everything is checked before it is used. `methods` make methods from saved configurations."""
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
        "format": manifests.FORMAT,
        "versions": {"viewfuse": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "views": [
            {
                "name": name,
                "width": len(columns),
                "columns": None if isinstance(columns, range) else manifests.encode(columns),
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
    return json.dumps({**manifest, "checksum": manifests.checksum(manifest)}, indent=1).encode()


def _tensors(saved: Saved) -> dict[str, Tensor]:
    model = saved.model
    scaler, filler, batches = model.scaler, model.filler, model.batches
    views = {"stored": model.stored.values, "shift": scaler.shifts, "factor": scaler.factors}
    views |= {"medians": filler.medians, "donors": [one.values for one in filler.donors]}
    views |= {} if batches is None else {"batch_shift": batches.shifts, "batch_factor": batches.factors}
    found: dict[str, Any] = {f"{name}.{v}": x for name, own in views.items() for v, x in enumerate(own)}
    for v, front_end in enumerate(model.reduction.front_ends):
        found |= {f"front_end.{v}.{name}": x for name, x in front_end.arrays().items()}
    found |= {f"offset.{v}": x for v, x in enumerate(model.offsets) if np.any(x)}
    found |= {name: x for name, x in zip(_LEFT_OUT, model.left_out, strict=True) if x.shape[1]}
    found |= {"present": model.stored.present, "neighbor_ids": model.stored.neighbor_ids}
    if model.calibration is not None:
        found |= {f"calibration.{name}": getattr(model.calibration, name) for name in ("labels", "again", "shifts")}
    found |= {f"network.{name}": x for name, x in model.network.state_dict().items()}
    found |= {f"array.{name}": x for name, x in saved.arrays.items()}
    return {name: torch.as_tensor(x).detach().cpu().contiguous() for name, x in found.items()}


def _read_tensors(path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    another = "use another copy of the model"
    try:
        size = path.stat().st_size
        if size == facts["bytes"]:
            cure = "use a machine with more, or save the model with fewer training samples (keep)"
            memory.require(2 * size, f"loading {path}", cure)
            content = read_file(path, size)
    except (OSError, ValueError) as error:
        raise BadModelFile(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); {another}") from None
    if size != facts["bytes"]:
        raise BadModelFile(f"{path} has {size:,} bytes instead of {facts['bytes']:,}; {another}")
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise BadModelFile(f"{path} is damaged (its checksum does not match); {another}")
    try:
        return safetensors.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # a KeyError names a kind that torch lacks
        raise BadModelFile(f"{path} is no safetensors file ({error}); {another}") from None


def _assemble(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], methods: Mapping[str, BuildMethod]) -> Saved:
    """The model; earlier versions had no front ends, fillers, offsets, sharpness, calibration or batches."""
    method = methods[manifest["method"]["name"]](manifest["method"]["config"])
    views, n, each = manifest["views"], int(manifest["n_samples"]), range(len(manifest["views"]))
    front_ends = []
    for v, view in enumerate(views):
        width, arrays = int(view["width"]), {k: x.numpy() for k, x in below(f"front_end.{v}", tensors).items()}
        known = "front_end" in view
        front_ends.append(FrontEnd.from_saved(view["front_end"], arrays) if known else no_front_end(width))
        front_ends[v].check(width)
    widths = [one.columns for one in front_ends]
    neighbor_ids = tensors["neighbor_ids"] if "neighbor_ids" in tensors else tensors["near"]  # so called in format 1
    _check_tensors(tensors, neighbor_ids, widths, n)
    network = method.empty(widths)
    network.load_state_dict(below("network", tensors), assign=True)
    values, present = [tensors[f"stored.{v}"] for v in each], tensors["present"]
    stored = Samples(values, present, neighbor_ids, MultiViewIndex(values, present))
    shifts, factors = (tuple(tensors[f"{one}.{v}"].numpy() for v in each) for one in ("shift", "factor"))
    columns: tuple[Sequence[Hashable], ...] = tuple(
        range(view["width"]) if view["columns"] is None else manifests.decode(view["columns"]) for view in views
    )
    if [len(own) for own in columns] != [view["width"] for view in views]:
        raise ValueError("the names of the columns are not as many as the columns")
    offsets: tuple[Offset, ...] = tuple(
        _finite(tensors, f"offset.{v}", torch.float64, len(columns[v])) if f"offset.{v}" in tensors else 0.0
        for v in each
    )
    filler = _filler(manifest.get("fill", "error"), [len(own) for own in columns], tensors)
    sharpness = float(manifest.get("sharpness", 1.0))
    if not 0.0 < sharpness < inf:
        raise ValueError(f"sharpness is {sharpness}")
    calibration = None
    if below("calibration", tensors):
        k, labels = int(method.n_clusters), tensors["calibration.labels"]
        _check_part(tensors, "calibration.labels", torch.int32, n)
        if labels.min() < 0 or labels.max() >= k:
            raise ValueError("the clusters of the training samples are not those of the model")
        numbers = (_finite(tensors, f"calibration.{name}", torch.float64, k) for name in ("again", "shifts"))
        calibration = Calibration(labels, *numbers)
    batches, batch_names = None, manifest.get("batches")
    if batch_names:
        effects = (
            tuple(_finite(tensors, f"batch_{kind}.{v}", torch.float64, len(batch_names), widths[v]) for v in each)
            for kind in ("shift", "factor")
        )
        batches = Batches(tuple(map(str, batch_names)), *effects)
    names, reduction = tuple(str(view["name"]) for view in views), Reduction(tuple(front_ends))
    before = (names, columns, offsets, method, filler, reduction, Scaler(manifest["scaling"], shifts, factors))
    none = torch.empty(n, 0, dtype=torch.float64)
    left_out = LeftOut(*(tensors.get(name, none).numpy() for name in _LEFT_OUT))
    model = Model(*before, stored, network, left_out, sharpness, calibration, batches)
    return Saved(model, {name: tensors[f"array.{name}"].numpy() for name in manifest["arrays"]}, manifest["facts"])


def _filler(how: str, widths: Sequence[int], tensors: Mapping[str, Tensor]) -> Filler:
    """What fills empty cells."""
    if how not in FILLS:
        raise ValueError(f"fill is {how!r}")
    if how == "error":
        return Filler(how)
    medians = tuple(_finite(tensors, f"medians.{v}", torch.float32, width) for v, width in enumerate(widths))
    donors = [tensors[f"donors.{v}"] for v in range(len(widths))]
    for v, (rows, width) in enumerate(zip(donors, widths, strict=True)):
        _check_part(tensors, f"donors.{v}", torch.float32, len(rows), width)
        if rows.isinf().any():
            raise ValueError(f"donors.{v} is not finite")
    return Filler(how, medians, tuple(NearestRows(rows.numpy()) for rows in donors))


def _check_part(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, *shape: int) -> None:
    """Refuse a tensor of another kind or shape."""
    found = tensors[name]
    if found.dtype != dtype or tuple(found.shape) != shape:
        raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)} instead of {dtype} {shape}")


def _finite(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, *shape: int) -> NDArray[Any]:
    """A tensor of this kind and shape as an array, all of whose numbers are finite."""
    _check_part(tensors, name, dtype, *shape)
    if not tensors[name].isfinite().all():
        raise ValueError(f"{name} is not finite")
    return tensors[name].numpy()


def _check_tensors(tensors: Mapping[str, Tensor], neighbor_ids: Tensor, widths: Sequence[int], n: int) -> None:
    """Kinds and shapes of what prediction relies on, and neighbours that exist."""
    _check_part(tensors, "present", torch.bool, n, len(widths))
    for v, width in enumerate(widths):
        _check_part(tensors, f"stored.{v}", torch.float32, n, width)
        for name in ("shift", "factor"):
            _check_part(tensors, f"{name}.{v}", torch.float64, width)
    for name in _LEFT_OUT:
        if name in tensors:
            _check_part(tensors, name, torch.float64, n, len(widths))
    depth = neighbor_ids.shape[-1] if neighbor_ids.dim() == 3 else 0
    _check_part({"neighbor_ids": neighbor_ids}, "neighbor_ids", torch.int64, n, len(widths), depth)
    if n < 1 or (neighbor_ids.numel() and (neighbor_ids.min() < -1 or neighbor_ids.max() >= n)):
        raise ValueError("the neighbours are not among the samples")


def check_model_folder(folder: Path) -> None:
    """Refuse a place where something else is than a model, or what a killed first save left of one."""
    files = [path for path in (folder, *folder.parents) if os.path.isfile(path)]  # a name may be too long for pathlib
    if files:
        raise CannotWrite(f"{files[0]} is a file, so nothing can be written into it; choose a new or empty folder")
    names = [path.name for path in folder.iterdir()] if os.path.isdir(folder) else []
    if MANIFEST in names:
        try:
            ours = manifests.fits(parsed(read_file(folder / MANIFEST, manifests.LONGEST_MANIFEST)), _OURS)
        except (OSError, ValueError):
            ours = False
    else:
        ours = all(name.startswith(TEMPORARY) or _OUR_TENSORS.fullmatch(name) for name in names)
    if not ours:
        raise CannotWrite(f"{folder} exists and is no viewfuse model; choose a new or empty folder")
