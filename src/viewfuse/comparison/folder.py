"""A comparison on disk: what is compared, and one file per run, so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isnan
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.comparison.results import COSTS, HELD_OUT, Run
from viewfuse.errors import CannotWrite
from viewfuse.io.writers import as_json
from viewfuse.utils.atomic import sealed, unsealed, write_file

_RUNS = "runs"
_PLAN = "plan.json"
_OURS = {"data", "clusters", "missing_number", "device", "version"}
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError)


def holds_comparison(folder: Path) -> bool:
    """Whether a folder was written by a comparison."""
    return _known_plan(folder).keys() >= _OURS


def holds_comparisons(folder: Path) -> bool:
    """Whether a folder was written by a comparison on several data sets, also by one that was stopped."""
    return any(holds_comparison(one) for one in sorted((folder / "sets").glob("*")))


def _known_plan(folder: Path) -> dict[str, Any]:
    try:
        return unsealed((folder / _PLAN).read_bytes())
    except _BROKEN:
        return {}


def take_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Keep what is compared in the folder, by name; refuse one of another comparison, and one of something else.

    Methods that come in addition are kept as well.
    """
    own: dict[str, Any] = json.loads(as_json(plan))
    known = _known_plan(folder)
    if not holds_comparison(folder) and any(folder.iterdir()):
        raise CannotWrite(f"{folder} holds something else than a comparison; give a new folder, or an empty one")
    differs = [name for name in own if name in known and known[name] != own[name]]
    if differs:
        listed = ", ".join(f"{name} was {known[name]}, is {own[name]}" for name in differs[:3])
        raise CannotWrite(f"{folder} holds another comparison ({listed}); give another folder for this one")
    if known | own != known:
        write_file(folder / _PLAN, sealed(known | own))


@dataclass(frozen=True)
class RunFile:
    """Where a run is kept.

    Attributes
    ----------
    mark : of what it is a run; a file with another mark counts as none
    n_samples : that it has labels of
    """

    folder: Path
    method: str
    missing_rate: float
    seed: int
    mark: str
    n_samples: int

    @property
    def path(self) -> Path:
        """One file for each method, missing rate and seed."""
        short = f"{self.missing_rate:g}"
        rate = short if float(short) == self.missing_rate else repr(self.missing_rate)
        return self.folder / _RUNS / self.method / f"rate-{rate}-seed-{self.seed}.json"

    def write(self, run: Run) -> None:
        """Keep a run."""
        numbers = {name: None if isnan(value := getattr(run, name)) else value for name in (HELD_OUT, *COSTS)}
        labels = None if run.labels is None else run.labels.tolist()
        write_file(self.path, sealed({**asdict(run), **numbers, "labels": labels, "mark": self.mark}))

    def read(self) -> Run | None:
        """The run that was kept; None where there is none, or a bit of it has changed."""
        try:
            facts = unsealed(self.path.read_bytes())
            if facts["mark"] != self.mark or facts["failed"]:
                return None
            held_out, seconds, memory = (_number(facts[name]) for name in (HELD_OUT, *COSTS))
            labels = self._labels(facts["labels"])
            return Run(self.method, self.missing_rate, self.seed, labels, held_out, seconds, memory)
        except _BROKEN:
            return None

    def _labels(self, given: Any) -> NDArray[np.int64]:
        found = np.array(given)
        if found.shape != (self.n_samples,) or found.dtype.kind != "i" or not 0 <= found.min() <= found.max() < 2**31:
            raise ValueError("labels of something else")
        return found.astype(np.int64)


def _number(given: Any) -> float:
    if given is None:
        return np.nan
    if not isinstance(given, Real):
        raise TypeError("no number")
    return float(given)
