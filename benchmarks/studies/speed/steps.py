"""Fewer steps at a higher rate: accuracy and steps of whole default fits, paired with the usual schedule.

python -m benchmarks.studies.speed.steps DATA OUT.csv --device cuda --masks 8 --jobs 14
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import URRL
from viewfuse.engine.training import Epoch
from viewfuse.methods.urrl import config
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import paper_mask
from viewfuse.utils.jobs import run_jobs


class Schedule(NamedTuple):
    """Epochs of trial, pre-training and joint stage of a large set; other limits shrink by the same factor."""

    epochs: tuple[int, int, int]
    rate: float
    joint_factor: float


SCHEDULES = {
    "usual": Schedule((11, 22, 30), 3e-4, 3.0),
    "B": Schedule((6, 12, 16), 6e-4, 1.5),
    "J": Schedule((6, 12, 16), 6e-4, 2.0),
    "D": Schedule((4, 8, 12), 9e-4, 2.0),
    "K": Schedule((4, 8, 16), 9e-4, 2.0),
}
SETS = (
    "bdgp", "caltech7x200_reextracted", "citeseq_inhouse1182", "handwritten",
    "landuse21", "mnist4", "reuters1200", "scene15",
)  # fmt: skip


def main() -> None:
    """Write a row for each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--masks", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    cells = [
        (asked.data, name, mask, schedule, asked.device)
        for mask in range(asked.masks)
        for name in asked.sets
        for schedule in asked.schedules
    ]
    with asked.out.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["dataset", "mask", "schedule", "accuracy", "steps"])
        run_jobs(fitted, cells, asked.jobs, done=lambda place, row: (out.writerow(row), file.flush()))


def fitted(data: Path, name: str, mask: int, schedule: str, device: str) -> tuple[Any, ...]:
    """Half of the samples incomplete: the accuracy in percent, and the steps that were made."""
    warnings.simplefilter("ignore")
    own, entry = load(data, CATALOGUE[name]), CATALOGUE[name]
    present = paper_mask(entry.n, len(own.views), 0.5, entry.missing_number, random_state=mask)
    views = [np.where(present[:, [v]], view, np.nan).astype(np.float32) for v, view in enumerate(own.views)]
    steps, run = [], Epoch.run

    def counted(self: Epoch, epoch: int) -> Any:
        found = run(self, epoch)
        steps.extend(found["total"])
        return found

    with patch.multiple(config, **constants(SCHEDULES[schedule])), patch.object(Epoch, "run", counted):
        labels = URRL(entry.classes, device=device, random_state=mask).fit_predict(views)
    return name, mask, schedule, round(100 * clustering_accuracy(own.labels, labels), 3), len(steps)


def constants(schedule: Schedule) -> Mapping[str, Any]:
    """Constants of `viewfuse.methods.urrl.config` with this schedule."""
    stages = [
        (asked, *(round(most * asked / usual[0]) for most in usual[1:]))
        for asked, usual in zip(schedule.epochs, config._STAGES["auto"], strict=True)
    ]
    return {
        "_STAGES": {**config._STAGES, "auto": tuple(stages)},
        "_RATE": schedule.rate,
        "_JOINT_FACTORS": {**config._JOINT_FACTORS, "auto": schedule.joint_factor},
    }


if __name__ == "__main__":
    main()
