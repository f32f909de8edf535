"""Runs of a plan, in groups that are independent jobs; what is done already is left alone.

On a GPU the runs of a group are trained side by side, and how their numbers are rounded depends on the group. So a
group that was interrupted is done again as a whole, and a bench that was killed ends with the same numbers.
"""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from benchmarks import machine
from benchmarks.experiments.catalogue import CATALOGUE, Loaded, load
from benchmarks.experiments.plans import ON_THE_CPU, OURS, Plan, PlannedRun, expand, grouped
from benchmarks.experiments.run_folders import (
    RunOutcome,
    code_checksum,
    fingerprint,
    is_done,
    mark_done,
    unmark,
    write_run,
)
from benchmarks.experiments.scoring import scored
from viewfuse.data.views import Views
from viewfuse.engine import replicates as passes
from viewfuse.engine.replicates import replicate_seeds
from viewfuse.errors import DataError, Diverged
from viewfuse.fitted.model import Source
from viewfuse.methods import estimator_of
from viewfuse.methods.network import embeddings
from viewfuse.methods.urrl.fit import fit_models
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.utils.jobs import run_jobs

Log = Callable[[str], None]


@dataclass(frozen=True)
class SettingChoice:
    """Which part of a plan is run, and where.

    Attributes
    ----------
    part : which runs of a set, see `expand`
    data : only these sets; all by default
    n_jobs : groups side by side on a CPU, see `viewfuse.utils.jobs.run_jobs`
    """

    data_dir: Path
    out: Path
    device: torch.device
    part: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    n_jobs: int | None = None


def run_plan(plan: Plan, choice: SettingChoice, command: str, log: Log) -> Path:
    """Run what is not done yet; returns the folder of the runs, one folder each."""
    if not choice.data_dir.is_dir():
        raise DataError(f"{choice.data_dir} is no folder; give the folder of the data sets as --data-dir")
    out, environment = choice.out / plan.name, environment_of(choice.device, command)
    used = 0
    for key in plan.data:
        if choice.data and key not in choice.data:
            continue
        try:
            data = load(choice.data_dir, CATALOGUE[key])
        except DataError as reason:
            log(f"{CATALOGUE[key].title} is left out: {reason}")
            continue
        if data.remark:
            log(f"{data.entry.title}: {data.remark}")
        _run_set(plan, data, choice, out, environment, log)
        used += 1
    if not used:
        raise DataError(f"none of the data sets of {plan.name} can be used; put one of them into {choice.data_dir}")
    return out


def _run_set(
    plan: Plan, data: Loaded, choice: SettingChoice, out: Path, environment: Mapping[str, Any], log: Log
) -> None:
    runs = expand(plan, data.entry, **choice.part)
    groups = grouped(runs, passes.MAX_STACKED[choice.device.type])
    checksum = data.checksum()
    left: list[tuple[Sequence[PlannedRun], list[str], str]] = []
    for number, group in enumerate(groups):
        kind = "cpu" if group[0].method in ON_THE_CPU else choice.device.type
        marks = [fingerprint(run, group, checksum, kind) for run in group]
        pairs = zip(group, marks, strict=True)
        undone = [run for run, mark in pairs if not is_done(out / run.folder, mark, data.labels)]
        if not undone:
            continue
        for run in undone:
            unmark(out / run.folder)  # what is there is of another run, also if this one is never finished
        line = f"{data.entry.title}, group {number + 1} of {len(groups)}: {_in_words(group)}"
        left.append((group, marks, line))

    def finish(place: int, outcomes: list[RunOutcome] | Diverged) -> None:
        if isinstance(outcomes, Diverged):
            log(f"not done: {outcomes}")
            return
        group, marks, _ = left[place]
        facts = {"data_sha256": checksum, "company": [run.folder for run in group]}
        _finish(group, marks, outcomes, out, facts, environment)

    on_cpu = choice.device.type == "cpu"
    run_jobs(
        _outcomes,
        [(group, data, choice.device) for group, *_ in left],
        choice.n_jobs if on_cpu else None,
        threads=1 if on_cpu else None,
        begun=lambda place: log(left[place][2]),
        done=finish,
    )


def _outcomes(group: Sequence[PlannedRun], data: Loaded, device: torch.device) -> list[RunOutcome] | Diverged:
    """What the runs of a group gave, or why they gave nothing."""
    try:
        return run_group(group, data, device)
    except Diverged as reason:
        return Diverged(str(reason))
    finally:
        if device.type == "cuda":
            gc.collect()  # what refers to itself would hold on to memory of the GPU


def _finish(
    group: Sequence[PlannedRun],
    marks: Sequence[str],
    outcomes: Sequence[RunOutcome],
    out: Path,
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> None:
    """Write a group: no run of it counts as done before all of them are there."""
    for run in group:
        unmark(out / run.folder)
    for run, outcome in zip(group, outcomes, strict=True):
        write_run(out / run.folder, {**run.facts(), **facts}, outcome, environment)
    for run, mark in zip(group, marks, strict=True):
        mark_done(out / run.folder, mark)


def _in_words(group: Sequence[PlannedRun]) -> str:
    first = group[0]
    what = ", ".join(part for part in (first.method, first.setting, first.condition) if part)
    return f"{what}, {len(group)} run{'s' * (len(group) > 1)}"


def run_group(group: Sequence[PlannedRun], data: Loaded, device: torch.device) -> list[RunOutcome]:
    """Cluster, and only then compare with the labels."""
    began = time.perf_counter()
    sets = [masked(run, data.views, data.mask) for run in group]
    found = (_trained if group[0].method == OURS else _by_others)(group, sets, device)
    seconds = (time.perf_counter() - began) / len(group)
    outcomes = []
    for run, one in zip(group, found, strict=True):
        arrays = {name: _of_all(run, values, data.mask) for name, values in one.arrays.items()}
        scores = {**scored(data.labels, arrays["found"], data.mask), "seconds": round(seconds, 3)}
        outcomes.append(RunOutcome(scores, one.history, {**arrays, "known": data.labels}, one.decisions))
    return outcomes


def masked(run: PlannedRun, views: Sequence[NDArray[np.float32]], mask: NDArray[np.bool_] | None = None) -> Views:
    """The views of a run; what its mask hides, drawn where the set has none, is gone before anything else sees them.

    Samples that have none of the run's views are left out: a method for two views cannot place them.
    """
    if mask is None:
        mask = paper_mask(len(views[0]), run.n_views, run.missing_rate, run.missing_number, random_state=run.seed)
    mask = mask[:, : run.n_views]
    there = mask.any(axis=1)
    return Views(apply_mask([view[there] for view in views[: run.n_views]], mask[there]))


def _of_all(run: PlannedRun, values: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
    """What was found, for all samples: those that were left out by `masked` are a group beyond the last cluster."""
    if mask is None or mask[:, : run.n_views].any(axis=1).all():
        return values
    whole = np.full((len(mask), *values.shape[1:]), run.n_clusters, dtype=values.dtype)
    whole[mask[:, : run.n_views].any(axis=1)] = values
    return whole


class _Found(NamedTuple):
    """What is known of a run without labels; see `RunOutcome`."""

    history: Mapping[str, Sequence[Any]]
    arrays: dict[str, NDArray[Any]]
    decisions: Mapping[str, Any]


def _trained(group: Sequence[PlannedRun], sets: Sequence[Views], device: torch.device) -> list[_Found]:
    settings = group[0].settings
    assert settings is not None
    seeds = [replicate_seeds(run.seed, 1) for run in group]
    sources = [Source.of(views, asked=group[0].reduction) for views in sets]
    fitted = fit_models(sources, settings, group[0].scaling, seeds, device)
    found: list[_Found] = []
    for run, one in zip(group, fitted, strict=True):
        arrays: dict[str, NDArray[Any]] = {"found": one.labels()}
        if run.keep_embedding:
            arrays["embedding"] = one.embedding.cpu().numpy()
        found.append(_Found(one.history, arrays, one.decisions))
    return found


def _by_others(group: Sequence[PlannedRun], sets: Sequence[Views], device: torch.device) -> list[_Found]:
    params = group[0].params
    assert params is not None
    method = estimator_of(group[0].method)(**params, device=str(device))
    if not hasattr(method, "train_many"):  # it has nothing but labels
        each = [
            clone(method).set_params(random_state=run.seed).fit(views) for run, views in zip(group, sets, strict=True)
        ]
        return [_Found({}, {"found": one.labels_}, {}) for one in each]
    found: list[_Found] = []
    for run, one in zip(group, method.train_many(sets, [run.seed for run in group]), strict=True):
        embedding = embeddings(one.network, one.samples)
        arrays: dict[str, NDArray[Any]] = {"found": one.network.assign(embedding).argmax(dim=1).cpu().numpy()}
        if run.keep_embedding:
            arrays["embedding"] = embedding.cpu().numpy()
        found.append(_Found(one.history, arrays, {}))
    return found


def environment_of(device: torch.device, command: str) -> dict[str, Any]:
    """Versions, device, and the commit where the code is a checkout."""
    facts = machine.facts(device, command)
    facts["versions"]["scipy"] = scipy.__version__
    return {**facts, "commit": _commit(), "code_sha256": code_checksum()}


def _commit() -> str | None:
    """The commit of the code, with a plus where files were changed since; None outside a checkout or without git."""
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit, changed = (
            subprocess.run([*here, *rest], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for rest in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit
