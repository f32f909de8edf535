"""The folder of a run of `fit-large`: whose it is, and what it says when the run is done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from viewfuse.engine.checkpoint import FACTS
from viewfuse.errors import CannotWrite
from viewfuse.utils.sealed import parsed

CHECKPOINT, MODEL, LABELS, SUMMARY, COLUMNS = NAMES = "checkpoint", "model", "labels", "summary.json", "columns.csv"
"""All that a run writes there."""


def summary_of(out: Path) -> dict[str, Any] | None:
    """What a run wrote when it was done; None where there is none."""
    try:
        found: dict[str, Any] = parsed((out / SUMMARY).read_bytes())
        return {**found, "fit": dict(found["fit"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clear(out: Path) -> None:
    """Remove what a run left; refuses what no run wrote, as others have folders of these names, too."""
    found = [
        path for path in (out / name for name in NAMES) if path.is_file() or (path.is_dir() and any(path.iterdir()))
    ]
    if found and not (summary_of(out) or (out / CHECKPOINT / FACTS).is_file()):
        raise CannotWrite(f"{found[0]} is of no fit-large; move it, or give another --out")
    remove(out, *NAMES)


def remove(out: Path, *names: str) -> None:
    """Remove these files and folders, if they are there."""
    for path in (out / name for name in names):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
