"""The manifest of a model folder: what it says, whether it is whole, and the names of older formats."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from os import fstat
from pathlib import Path
from typing import Any

from viewfuse import __version__
from viewfuse.errors import BadModelFile
from viewfuse.utils.atomic import parsed

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
LONGEST_MANIFEST = 2**30


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a model folder, checked."""
    path = folder / MANIFEST
    try:
        manifest = parsed(read_file(path, LONGEST_MANIFEST))
        found, known = manifest["format"], manifest.pop("checksum")
    except (FileNotFoundError, NotADirectoryError):
        inside = " (there is one in its folder 'model')" if (folder / "model" / MANIFEST).is_file() else ""
        raise BadModelFile(
            f"{folder} holds no {MANIFEST}, so it is not a viewfuse model{inside}; check the path"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelFile(f"{path} is damaged ({error}); use another copy of the model") from None
    if found not in range(1, FORMAT + 1):
        raise BadModelFile(
            f"{path} has format {found!r}, but this viewfuse reads format {FORMAT} and older ones ({__version__}); "
            f"use {_writer(manifest)}"
        )
    if known != checksum(manifest) or not _names_one_file(manifest.get("files")):
        raise BadModelFile(f"{path} is damaged (its checksum does not match); use another copy of the model")
    if _release(_writer(manifest)) > _release(__version__):
        raise BadModelFile(
            f"{path} was written by {_writer(manifest)}, and this is viewfuse {__version__}; use that one, or a newer"
        )
    manifest = _upgraded(manifest) if found == 1 else manifest
    if not _is_complete(manifest):
        raise BadModelFile(f"{path} does not say what the model is; use another copy of the model")
    return manifest


def _writer(manifest: Mapping[str, Any]) -> str:
    """The viewfuse that wrote a manifest, as far as it says so."""
    versions = manifest.get("versions")
    found = versions.get("viewfuse") if isinstance(versions, dict) else None
    return f"viewfuse {found}" if isinstance(found, str) and len(found) < 40 else "the viewfuse that wrote it"


def _release(version: str) -> list[int]:
    """The numbers of a version, of which the first differing one decides which is newer."""
    return [int(number) for number in re.findall(r"[0-9]{1,9}", version)[:3]]


def _is_complete(manifest: Mapping[str, Any]) -> bool:
    """Whether method, views and versions are where readers expect them."""
    method, views, versions = (manifest.get(name) for name in ("method", "views", "versions"))
    if not isinstance(method, dict) or not isinstance(views, list) or not isinstance(versions, dict):
        return False
    known = isinstance(method.get("name"), str) and isinstance(method.get("config"), dict)
    known = known and isinstance(method["config"].get("n_clusters"), int)
    return known and all(isinstance(v, dict) and isinstance(v.get("width"), int) and "name" in v for v in views)


def _upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of format 1 as one of today."""
    manifest["method"] = {"name": "urrl", "config": manifest.pop("settings", {})}
    facts = manifest.get("facts")
    if isinstance(facts, dict) and "decisions" in facts:
        facts["decisions"] = _renamed(facts["decisions"])
    return manifest


def _renamed(decisions: Any) -> Any:
    """Decisions of format 1 under the names of today."""
    if not isinstance(decisions, dict):
        return decisions
    return {_NEW_NAMES.get(name, name): _renamed(value) for name, value in decisions.items()}


def _names_one_file(files: Any) -> bool:
    """Whether the manifest says where the tensors are, in a way that leads nowhere else."""
    if not isinstance(files, dict) or len(files) != 1:
        return False
    ((name, facts),) = files.items()
    is_known = isinstance(facts, dict) and isinstance(facts.get("bytes"), int) and isinstance(facts.get("sha256"), str)
    return is_known and fnmatchcase(name, TENSORS) and Path(name).name == name


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
