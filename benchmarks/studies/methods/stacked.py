"""What ten trainings side by side cost beside one: `python -m benchmarks.studies.methods.stacked --device cuda`.

Each method is trained as `python -m benchmarks table2 --method NAME` does it, with one seed and with several at once,
on the same data and missing rate; the time is that of the whole run, from masked views to labels. A short training goes
first, so that no time holds what a device does once. Writes stacked.json, with machine, versions, commit and command,
and stacked.md. On a CPU nothing is trained side by side, so there the ratio is the number of seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS, machine
from benchmarks.experiments.catalogue import CATALOGUE, Loaded, load
from benchmarks.experiments.plans import Plan, expand, read_plan
from benchmarks.experiments.runner import environment_of, run_group
from viewfuse.utils.jobs import chosen_device

NETWORKS = ("cpspan", "recformer", "dcp", "sure", "completer", "dsimvc")
LIMIT = 3.0
"""Times one training that several may cost."""


def shortened(plan: Plan, epochs: int) -> Plan:
    """The plan with at most so many epochs in every stage, also for methods that are not ours."""
    return replace(plan, conditions=tuple(replace(one, settings=_short(one.method, epochs)) for one in plan.conditions))


def _short(method: str, epochs: int) -> dict[str, int]:
    names = {
        "completer": ("epochs", "prediction_start"),
        "dcp": ("epochs", "prediction_start"),
        "sure": ("epochs",),
        "dsimvc": ("pretrain_epochs", "neighbor_pretrain_epochs", "neighbor_epochs", "iterations"),
        "cpspan": ("pretrain_epochs", "epochs"),
        "recformer": ("recover_epochs", "refine_epochs"),
    }
    return dict.fromkeys(names.get(method, ()), epochs)


def timed(plan: Plan, data: Loaded, method: str, seeds: int, device: torch.device) -> dict[str, float]:
    """Seconds of a run of so many seeds, their mean accuracy, and the most memory of the device that it took."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    group = expand(plan, data.entry, seeds=seeds, methods=[method])
    outcomes: list[Any] = []
    seconds = machine.seconds(lambda: outcomes.extend(run_group(group, data, device)), device)
    scores = [float(one.scores["acc"]) for one in outcomes]
    found = {"seconds": round(seconds, 2), "accuracy": round(sum(scores) / len(scores), 2)}
    if device.type == "cuda":
        found["gigabytes"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return found


def measured(plan: Plan, data: Loaded, method: str, seeds: int, device: torch.device) -> dict[str, Any]:
    """One training, several, and their ratio."""
    timed(shortened(plan, 2), data, method, seeds, device)
    alone, together = (timed(plan, data, method, count, device) for count in (1, seeds))
    return {"one": alone, "several": together, "ratio": round(together["seconds"] / alone["seconds"], 2)}


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    where = found["environment"]["gpu"] or found["environment"]["cpu"]
    lines = [
        f"{found['title']}, {found['missing_rate']:.0%} of the samples incomplete, {where}.",
        "",
        f"| | one, seconds | {found['seeds']} side by side | times | seconds each |",
        "|---|---|---|---|---|",
    ]
    for method, row in found["methods"].items():
        one, several = row["one"]["seconds"], row["several"]["seconds"]
        lines.append(f"| {method} | {one:.1f} | {several:.1f} | {row['ratio']:.1f} | {several / found['seeds']:.1f} |")
    few = sum(row["ratio"] <= LIMIT for row in found["methods"].values())
    return "\n".join([*lines, "", f"{few} of {len(found['methods'])} methods cost at most {LIMIT:g} times one.", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", dest="methods", action="append", choices=NETWORKS)
    parser.add_argument("--data", default="handwritten", choices=tuple(CATALOGUE))
    parser.add_argument("--data-dir", type=Path, default=Path(), help="not needed for Handwritten")
    parser.add_argument("--missing-rate", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="at most so many in every stage, to try this script")
    parser.add_argument("--out", type=Path, default=RESULTS / "methods")
    asked = parser.parse_args(arguments)
    device = chosen_device(asked.device)
    plan = replace(read_plan("table2"), missing_rates=(asked.missing_rate,))
    plan = plan if asked.epochs is None else shortened(plan, asked.epochs)
    data = load(asked.data_dir, CATALOGUE[asked.data])
    words = [f"--{name.replace('_', '-')} {value}" for name, value in vars(asked).items()
             if name not in ("out", "data_dir", "methods") and value is not None]  # fmt: skip
    found: dict[str, Any] = {
        "title": data.entry.title,
        "missing_rate": asked.missing_rate,
        "seeds": asked.seeds,
        "environment": environment_of(device, " ".join(["benchmarks/studies/methods/stacked.py", *words])),
        "methods": {},
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for method in asked.methods or NETWORKS:
        row = found["methods"][method] = measured(plan, data, method, asked.seeds, device)
        print(method, row, file=sys.stderr, flush=True)
        (asked.out / "stacked.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (asked.out / "stacked.md").write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
