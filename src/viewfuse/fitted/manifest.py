"""What tells one fit from another; the manifest of a model folder: whether it is whole, names of older formats.

Ids and names of columns come back equal, whatever pandas uses as labels, or are refused in time: text and numbers stand
there as they are, and tuples as lists; all else as an object with one key, its kind.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from fnmatch import fnmatchcase
from os import fstat
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import UUID

import numpy as np

from viewfuse.data.input_types import is_sparse
from viewfuse.data.views import Views
from viewfuse.errors import BadModelFile, DataError
from viewfuse.utils.atomic import parsed
from viewfuse.utils.memory import parts
from viewfuse.utils.version import __version__

FORMAT = 3
"""Format 1 knew one method only, and had no name for it; format 2 had no offsets of columns. Both can be read."""
MANIFEST = "manifest.json"
TENSORS = "tensors-*.safetensors"
_NEW_NAMES = {
    "verdict": "reliability",
    "consistency_after_epoch": "neighbor_agreement_after_epoch",
    "evenness_after_epoch": "size_entropy_after_epoch",
}
"""Of decisions in format 1."""
_SHAPE = {
    "method": {"name": str, "config": {"n_clusters": int}},
    "views": [{"width": int, "name": object}],
    "versions": dict,
}
"""What readers expect of a manifest."""
LONGEST_MANIFEST = 2**30
_PLAIN = (str, bool, int, float, NoneType)
_PLAIN_OF_NUMPY = (np.str_, np.bool_, np.integer, np.float16, np.float32, np.float64)
"""Complex and longer numbers are none that JSON has."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a model folder, checked."""
    path, another = folder / MANIFEST, "use another copy of the model"
    try:
        manifest = parsed(read_file(path, LONGEST_MANIFEST))
        found, known = manifest["format"], manifest.pop("checksum")
    except (FileNotFoundError, NotADirectoryError):
        inside = " (there is one in its folder 'model')" if (folder / "model" / MANIFEST).is_file() else ""
        fault = f"{folder} holds no {MANIFEST}, so it is not a viewfuse model{inside}; check the path"
        raise BadModelFile(fault) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelFile(f"{path} is damaged ({error}); {another}") from None
    version = manifest["versions"]["viewfuse"] if fits(manifest, {"versions": {"viewfuse": str}}) else ""
    writer = f"viewfuse {version}" if 0 < len(version) < 40 else "the viewfuse that wrote it"
    if found not in range(1, FORMAT + 1):
        ours = f"this viewfuse reads format {FORMAT} and older ones ({__version__})"
        raise BadModelFile(f"{path} has format {found!r}, but {ours}; use {writer}")
    if known != checksum(manifest) or not _names_one_file(manifest.get("files")):
        raise BadModelFile(f"{path} is damaged (its checksum does not match); {another}")
    if _release(writer) > _release(__version__):
        raise BadModelFile(f"{path} was written by {writer}, and this is viewfuse {__version__}; use that, or a newer")
    manifest = _upgraded(manifest) if found == 1 else manifest
    if not fits(manifest, _SHAPE):
        raise BadModelFile(f"{path} does not say what the model is; {another}")
    return manifest


def fits(value: Any, wanted: Any) -> bool:
    """Whether parsed JSON is of a type, a list of what the only member says, or a dict with these members at least."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(k in value and fits(value[k], own) for k, own in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and all(fits(one, wanted[0]) for one in value)
    return isinstance(value, wanted)


def _release(version: str) -> list[int]:
    """The numbers of a version, of which the first differing one decides which is newer."""
    return [int(number) for number in re.findall(r"[0-9]{1,9}", version)[:3]]


def _upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of format 1 as one of today."""
    manifest["method"] = {"name": "urrl", "config": manifest.pop("settings", {})}
    if fits(manifest, {"facts": {"decisions": dict}}):
        decisions = json.dumps(manifest["facts"]["decisions"])
        renamed = json.loads(decisions, object_hook=lambda own: {_NEW_NAMES.get(k, k): x for k, x in own.items()})
        manifest["facts"]["decisions"] = renamed
    return manifest


def _names_one_file(files: Any) -> bool:
    """Whether the manifest says where the tensors are, in a way that leads nowhere else."""
    if not isinstance(files, dict) or len(files) != 1:
        return False
    ((name, facts),) = files.items()
    return fits(facts, {"bytes": int, "sha256": str}) and fnmatchcase(name, TENSORS) and Path(name).name == name


def read_file(path: Path, most: int) -> bytes:
    """The content of a plain file, which is no device that never ends."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no plain file")
    with path.open("rb") as file:
        # Python takes memory for as many bytes as are asked for, however short the file is.
        content = file.read(min(most, fstat(file.fileno()).st_size) + 1)
    if len(content) > most:
        raise ValueError("it is too long")
    return content


def checksum(manifest: Mapping[str, Any]) -> str:
    """Of all that a manifest says, but for the checksum itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def encode(names: Iterable[Hashable]) -> list[Any]:
    """Names as JSON can hold them; a TypeError names one that it cannot."""
    if isinstance(names, np.ndarray) and names.dtype.kind not in "mM":
        names = names.tolist()
    return [_encoded(name) for name in names]


def decode(names: Iterable[Any]) -> list[Hashable]:
    """The names again."""
    return [_decoded(name) for name in names]


def check_storable(what: str, names: Iterable[Hashable]) -> None:
    """Refuse names that would not come back equal from a saved model, before hours of training."""
    for name in () if isinstance(names, range) else names:
        if type(name) in _PLAIN or isinstance(name, _PLAIN_OF_NUMPY):
            continue
        try:
            fine = _same(_decoded(_encoded(name)), name)
        except Exception:  # whatever a user's own class does
            fine = False
        if not fine:
            fault = f"{what} such as {name!r} ({type(name).__name__}) cannot be saved with a model"
            raise DataError(f"{fault}; use text instead, in pandas astype(str)")


def _same(one: Any, other: Any) -> bool:
    """Whether names are equal; those of several levels may lack some, and what is missing equals itself."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return (type(one) is type(other) and (bool(one == other) or (one != one and other != other))) or one is other


def _encoded(name: Any) -> Any:
    if isinstance(name, (np.datetime64, np.timedelta64)):
        return {name.dtype.str[1:]: int(name.astype(np.int64))}
    if isinstance(name, np.generic):
        name = name.item()
    if type(name) in _PLAIN:
        return name
    if isinstance(name, tuple):
        return [_encoded(part) for part in name]
    kind = type(name).__name__
    if kind not in _WAYS:
        raise TypeError(f"{name!r} ({kind}) cannot be saved with a model; use text instead")
    return {kind: _WAYS[kind][0](name)}


def _decoded(name: Any) -> Any:
    if isinstance(name, list):
        return tuple(_decoded(part) for part in name)
    if not isinstance(name, dict):
        return name
    ((kind, value),) = name.items()
    if kind in _WAYS:
        return _WAYS[kind][1](value)
    dtype = np.dtype(kind)
    if dtype.kind not in "mM":
        raise ValueError(f"a name of the unknown kind {kind!r}")
    return np.int64(value).view(np.dtype(f"={kind}"))


def _pandas() -> Any:
    return importlib.import_module("pandas")  # which those have who use its labels


def _timestamp(value: Sequence[Any]) -> Any:
    when, unit, zone = value
    found = _pandas().Timestamp(when).as_unit(unit)
    return found if zone is None else found.tz_localize("UTC").tz_convert(zone)


def _timestamp_facts(when: Any) -> list[Any]:
    plain = when if when.tz is None else when.tz_convert("UTC").tz_localize(None)
    return [plain.isoformat(), when.unit, None if when.tz is None else str(when.tz)]


_WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes.hex, bytes.fromhex),
    "Decimal": (str, Decimal),
    "UUID": (str, UUID),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "date": (date.isoformat, date.fromisoformat),
    "time": (time_of_day.isoformat, time_of_day.fromisoformat),
    "timedelta": (lambda d: [d.days, d.seconds, d.microseconds], lambda v: timedelta(*v)),
    "Timestamp": (_timestamp_facts, _timestamp),
    "Timedelta": (lambda d: [d.isoformat(), d.unit], lambda v: _pandas().Timedelta(v[0]).as_unit(v[1])),
    "Interval": (
        lambda i: [_encoded(i.left), _encoded(i.right), i.closed],
        lambda v: _pandas().Interval(_decoded(v[0]), _decoded(v[1]), v[2]),
    ),
    "Period": (lambda p: [str(p), p.freqstr], lambda v: _pandas().Period(v[0], freq=v[1])),
    "NaTType": (lambda _: "NaT", lambda _: _pandas().NaT),
    "NAType": (lambda _: "NA", lambda _: _pandas().NA),
    "frozenset": (lambda s: [_encoded(part) for part in s], lambda v: frozenset(map(_decoded, v))),
}
"""Per kind of name how it is written, and how it is read again."""


def check_names(views: Views) -> None:
    """Refuse ids and names of columns that could not be saved."""
    check_storable("ids", views.ids)
    for name, columns in zip(views.names, views.columns, strict=True):
        check_storable(f"names of columns of view {name!r}", columns)


_RULES = 4
"""Of training; one more whenever the same version and settings would train in another way."""


def fit_facts(views: Views, settings: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """All on which the numbers of a fit depend, by name; `settings` are parameters that change what is learned."""
    import scipy
    import sklearn
    import torch

    modules = {"torch": torch, "numpy": np, "scipy": scipy, "scikit-learn": sklearn}
    versions = {f"version of {name}": module.__version__ for name, module in modules.items()}
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {
        **{name: own if isinstance(own, (int, float, str, NoneType)) else repr(own) for name, own in settings.items()},
        "samples": len(views),
        "views": list(views.names),
        "digest of the data": digest(views),
        "device": device.type,
        "threads": threads,
        "version of viewfuse": __version__,
        "rules of training": _RULES,
        **versions,
    }


def digest(views: Views) -> str:
    """A checksum of all values, which are there, and whose they are."""
    found = hashlib.blake2b(digest_size=16)
    found.update(repr((views.names, views.widths, [str(one) for one in views.ids])).encode())
    found.update(np.packbits(views.mask).tobytes())
    found.update(b"" if views.batch is None else repr(views.batch.tolist()).encode())
    for offset in views.offsets:
        found.update(np.asarray(offset).tobytes() if np.any(offset) else b"")
    for array in views.arrays:
        own = array.tocsr() if is_sparse(array) else None
        pieces = (array[rows] for rows in parts(len(array))) if own is None else (own.data, own.indices, own.indptr)
        for piece in pieces:
            found.update(np.ascontiguousarray(piece).tobytes())
    return found.hexdigest()
