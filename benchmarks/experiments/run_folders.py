"""A run on disk: a folder with its plan, its result, what it ran on, and a mark that it is done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import viewfuse
from benchmarks.experiments.plans import PlannedRun
from viewfuse.errors import DataError
from viewfuse.io.writers import as_json, write_history
from viewfuse.utils.atomic import parsed, write_file, writing

DONE = "DONE"
_RUN, _RESULT, _ENVIRONMENT, _HISTORY, _ARRAYS = (
    "run.json", "result.json", "environment.json", "history.csv", "arrays.npz",
)  # fmt: skip


@dataclass(frozen=True)
class RunOutcome:
    """What a run gave.

    Attributes
    ----------
    scores : accuracy, macro-averaged accuracy, NMI and ARI in percent, and seconds
    history : per epoch the losses; empty where there were none
    arrays : `found` and `known` labels of shape (samples,), and `embedding` where it is kept
    decisions : what was decided without labels, see `viewfuse.fitted.model.Fitted`; empty where nothing was
    """

    scores: Mapping[str, float]
    history: Mapping[str, Sequence[Any]]
    arrays: Mapping[str, NDArray[Any]]
    decisions: Mapping[str, Any]


def fingerprint(run: PlannedRun, group: Sequence[PlannedRun], checksum: str, device: str) -> str:
    """Of all that decides the numbers: the run, those that it is trained with, data, kind of device, code."""
    whole = {
        "run": {name: fact for name, fact in run.facts().items() if name != "place"},
        "company": [other.folder for other in group],
        "data": checksum,
        "device": device,
        "code": code_checksum(),
    }
    return hashlib.sha256(as_json(whole).encode()).hexdigest()


_WITHOUT_INFLUENCE = ("cli", "report", "demo.py", "__main__.py")
"""Packages and modules that show results, and make none."""


@cache
def code_checksum() -> str:
    """Of all modules of the package and its subpackages that can change a result."""
    found, top = hashlib.sha256(), Path(viewfuse.__file__).parent
    for path in sorted(top.rglob("*.py")):
        inside = path.relative_to(top)
        if inside.parts[0] not in _WITHOUT_INFLUENCE:
            found.update(inside.as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def is_done(folder: Path, mark: str, known: NDArray[Any]) -> bool:
    """Whether the folder holds the whole run of that fingerprint, scored with these labels."""
    path = folder / DONE
    return path.is_file() and path.read_text().strip() == mark and _was_scored_with(folder, known)


def _was_scored_with(folder: Path, known: NDArray[Any]) -> bool:
    """The fingerprint knows nothing of labels; a run that was copied without its arrays is believed."""
    if not has_arrays(folder):
        return True
    with np.load(folder / _ARRAYS, allow_pickle=False) as file:
        return np.array_equal(file["known"], known)


def unmark(folder: Path) -> None:
    """Take the mark away before a run is done again."""
    (folder / DONE).unlink(missing_ok=True)


def write_run(folder: Path, facts: Mapping[str, Any], outcome: RunOutcome, environment: Mapping[str, Any]) -> None:
    """Everything but the mark."""
    result = {**outcome.scores, "decisions": outcome.decisions}
    for name, content in ((_RUN, facts), (_RESULT, result), (_ENVIRONMENT, environment)):
        write_file(folder / name, as_json(content, indent=1).encode())
    if outcome.history:
        write_history(folder / _HISTORY, outcome.history)
    arrays: dict[str, Any] = dict(outcome.arrays)
    with writing(folder / _ARRAYS) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def mark_done(folder: Path, mark: str) -> None:
    """The last thing that is written."""
    write_file(folder / DONE, f"{mark}\n".encode())


def done_folders(root: Path) -> Iterator[Path]:
    """Folders of whole runs under `root`."""
    return (mark.parent for mark in sorted(root.rglob(DONE)))


def read_facts(folder: Path) -> dict[str, Any]:
    """The run and its scores, as one dict."""
    try:
        run, result = (parsed((folder / name).read_bytes()) for name in (_RUN, _RESULT))
        return {**run, **result}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder} is no whole run ({error}); remove its {DONE} file and run the bench again") from None


def has_arrays(folder: Path) -> bool:
    """Whether the arrays of a run are there."""
    return (folder / _ARRAYS).is_file()


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """Labels, and the embedding where it was kept."""
    with np.load(folder / _ARRAYS, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_losses(folder: Path) -> NDArray[np.void] | None:
    """The history as an array with a field per column; None where a run has none."""
    path = folder / _HISTORY
    if not path.exists():
        return None
    return np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8", ndmin=1)
