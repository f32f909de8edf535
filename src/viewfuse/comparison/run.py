"""`viewfuse.compare`: several methods on the same masks of one set of samples."""

from __future__ import annotations

import gc
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from viewfuse import __version__
from viewfuse.comparison.evidence import Evidence
from viewfuse.comparison.files import data_checksum, read_run, run_file, take_plan, write_comparison, write_run
from viewfuse.comparison.results import Comparison, Run
from viewfuse.data.checks import check_samples
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SettingError, ViewfuseError
from viewfuse.io.writers import as_json
from viewfuse.methods.registry import estimator_of, method_names, rough_seconds
from viewfuse.missing import hide_more
from viewfuse.parallel import Job, as_done
from viewfuse.utils.devices import chosen_device
from viewfuse.utils.process_memory import forget_peak, memory_now, memory_peak

ALL = "all"
_WITHOUT_INFLUENCE = ("device", "verbose", "checkpoint")
"""Parameters that change no result; the kind of device counts by itself."""
Log = Callable[[str], None]


def compare(
    views: Any,
    methods: str | Sequence[str] | Mapping[str, Any] = ALL,
    *,
    n_clusters: int,
    rates: Sequence[float] = (0.0,),
    missing_number: int | None = None,
    seeds: int = 5,
    labels: Any = None,
    device: str = "auto",
    out: str | PathLike[str] | None = None,
    log: Log | None = None,
) -> Comparison:
    """Fit methods on the same masks, and compare what they find.

    Runs are independent jobs (`viewfuse.parallel`); on a CPU each has one thread, and its seconds are those. Labels are
    looked at when all is done, and by nothing but the scores. A method that fails has no scores, and the last rank; the
    others go on.

    Parameters
    ----------
    views : what estimators are fitted on; some views may be missing already
    methods : "all", names of methods, or estimators by names of your own, whose other parameters stay as they are
    n_clusters : clusters that all look for
    rates : shares of the samples that views are hidden from, besides those that are missing; 0 hides nothing
    missing_number : how many of its views such a sample loses; two thirds of all views by default, rounded. It keeps
        one at least.
    seeds : runs of each method and rate; each has its own mask and training, the same mask for all methods
    labels : known class of each sample, None where it is not known; without any, methods are compared by how well
        their clusters hold together in all views (`viewfuse.comparison.evidence`)
    out : folder for tables, the picture of ranks and all runs; runs that it holds already are not done again. A folder
        of another comparison is refused
    log : is told of each run
    """
    given = Views.of(views)
    n_clusters, seeds = _count("n_clusters", n_clusters), _count("seeds", seeds)
    check_samples(given, n_clusters)
    asked = _Asked(_estimators(methods), n_clusters, _rates(rates), _number(missing_number, given), seeds)
    known = _known(labels, len(given))
    folder = None if out is None else Path(out)
    runs = _runs(given, asked, device, folder, log or (lambda line: None))
    found = Comparison(tuple(asked.estimators), tuple(runs), known)
    if folder is not None:
        why = write_comparison(
            folder, found, f"{len(given):,} samples, {len(given.names)} views, {n_clusters} clusters"
        )
        if why and log:
            log(f"the picture of ranks is not there: {why}")
    return found


@dataclass(frozen=True)
class _Asked:
    """What is compared."""

    estimators: Mapping[str, Any]
    n_clusters: int
    rates: tuple[float, ...]
    missing_number: int
    seeds: int


def _runs(views: Views, asked: _Asked, device: str, folder: Path | None, log: Log) -> list[Run]:
    """All runs: those that the folder holds, and the others now."""
    checksum, kind = data_checksum(views), chosen_device(device).type
    if folder is not None:
        take_plan(folder, _plan(asked, checksum, kind))
    evidence = Evidence(views)
    todo = [(rate, seed, name) for rate in asked.rates for seed in range(asked.seeds) for name in asked.estimators]
    found: dict[int, Run] = {}
    left: list[tuple[int, Path | None, str]] = []
    jobs: list[Job] = []
    for number, (rate, seed, name) in enumerate(todo):
        own = _prepared(asked.estimators[name], asked.n_clusters, seed, device)
        mark = _mark(own, rate, seed, asked, checksum, kind)
        path = None if folder is None else run_file(folder, name, rate, seed)
        run = None if path is None else read_run(path, mark)
        if run is None:
            left.append((number, path, mark))
            jobs.append(_job((name, own, rate, seed), views, asked.missing_number, kind))
        else:
            found[number] = run
    for place, run in as_done(jobs):
        (number, path, mark), labels = left[place], run.labels
        run = run if labels is None else replace(run, evidence=evidence(labels, asked.n_clusters))
        if path is not None:
            write_run(path, run, mark)
        log(f"{number + 1} of {len(todo)}: {run.method}, rate {run.missing_rate:g}, seed {run.seed}: {_in_words(run)}")
        found[number] = run
    return [found[number] for number in range(len(todo))]


def _job(what: tuple[str, Any, float, int], views: Views, missing_number: int, kind: str) -> Job:
    """One run; on a CPU it has one thread, whoever does it."""
    on_gpu, n_bytes = kind == "cuda", 4 * 4 * len(views) * sum(views.widths) + 16 * len(views) ** 2
    seconds, args = rough_seconds(what[1].get_params(deep=False), len(views)), (*what, views, missing_number)
    return Job(_masked_and_done, args, None if on_gpu else 1, int(on_gpu), seconds, n_bytes)


def _masked_and_done(name: str, estimator: Any, rate: float, seed: int, views: Views, missing_number: int) -> Run:
    run = _done(name, estimator, _masked(views, rate, missing_number, seed))
    return replace(run, missing_rate=rate, seed=seed)


def _plan(asked: _Asked, checksum: str, device: str) -> dict[str, Any]:
    """What all runs of a comparison have in common; more methods, rates and seeds can come in addition."""
    facts = {"data": checksum, "clusters": asked.n_clusters, "missing_number": asked.missing_number}
    own = {
        f"{parameter} of {name}": value
        for name, estimator in asked.estimators.items()
        for parameter, value in _settings(estimator).items()
        if parameter not in ("n_clusters", "random_state")
    }
    return {**facts, "device": device, "version": __version__, **own}


def _in_words(run: Run) -> str:
    return f"failed: {run.failed}" if run.failed else f"{run.seconds:.1f} s"


def _masked(views: Views, rate: float, number: int, seed: int) -> Views:
    """The views with more of them hidden; what is hidden is gone before any method sees it."""
    mask = hide_more(views.mask, rate, number, seed) if rate else views.mask
    named = dict(zip(views.names, views.arrays, strict=True))
    return Views(named, mask=mask, ids=views.ids, columns=views.columns)


def _prepared(estimator: Any, n_clusters: int, seed: int, device: str) -> Any:
    """An estimator for one run."""
    own = clone(estimator)
    asked = {"n_clusters": n_clusters, "random_state": seed, "device": device}
    return own.set_params(**{name: value for name, value in asked.items() if name in own.get_params(deep=False)})


def _done(name: str, estimator: Any, views: Views) -> Run:
    """Fit, and measure; whatever goes wrong inside a method is its own fault."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        gc.collect()  # what refers to itself would hold on to memory of the GPU
        torch.cuda.reset_peak_memory_stats()
    measurable, before = forget_peak(), memory_now()
    began = time.perf_counter()
    try:
        labels = _checked(estimator.fit(views).labels_, len(views))
    except ViewfuseError as error:
        return Run(name, 0.0, 0, None, failed=str(error))
    except Exception as error:  # of a method of somebody else, or a bug in ours
        return Run(name, 0.0, 0, None, failed=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    memory = max(0.0, memory_peak() - before) if measurable else np.nan
    if on_gpu:
        memory = max(memory, torch.cuda.max_memory_allocated() / 1e6)
    return Run(name, 0.0, 0, labels, seconds=seconds, memory_mb=memory)


def _checked(labels: Any, n: int) -> NDArray[np.int64]:
    found = np.asarray(labels)
    if found.shape != (n,) or not np.issubdtype(found.dtype, np.integer) or (n and found.min() < 0):
        raise DataError(f"labels_ must be {n} integers of at least 0; got an array of shape {found.shape}")
    return found.astype(np.int64)


def _mark(estimator: Any, rate: float, seed: int, asked: _Asked, checksum: str, device: str) -> str:
    """Of all that decides a run: data, mask, method, parameters, version, kind of device."""
    params = _settings(estimator)
    what = [type(estimator).__module__, type(estimator).__name__, params, rate, seed, asked.missing_number]
    return hashlib.sha256(as_json([*what, checksum, device, __version__]).encode()).hexdigest()


def _settings(estimator: Any) -> dict[str, str]:
    """Parameters that change results."""
    return {name: str(value) for name, value in estimator.get_params().items() if name not in _WITHOUT_INFLUENCE}


def _estimators(methods: str | Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Estimators by name, in the order that was asked for."""
    if isinstance(methods, Mapping):
        wrong = [name for name in methods if not re.fullmatch(r"[\w+-][\w.+-]*", str(name))]
        if wrong:
            raise SettingError(f"methods: {wrong[0]!r} cannot name a folder; use letters, digits, '.', '+' and '-'")
        found = dict(methods)
    else:
        asked = [methods] if isinstance(methods, str) else list(methods)
        names = method_names() if ALL in asked else list(dict.fromkeys(asked))
        found = {name: estimator_of(name)() for name in names}
    if not found:
        raise SettingError("methods names no method; give at least one")
    return found


def _rates(rates: Sequence[float]) -> tuple[float, ...]:
    for rate in rates:
        if not isinstance(rate, Real) or not 0 <= rate <= 1:
            raise SettingError(f"rates must be numbers from 0 to 1; got {rate!r}")
    if not len(rates):
        raise SettingError("rates has no number; give at least one, such as 0.5")
    return tuple(dict.fromkeys(float(rate) for rate in rates))


def _number(number: int | None, views: Views) -> int:
    """How many views are hidden of a sample."""
    n_views = len(views.names)
    if number is None:
        return min(n_views - 1, max(1, round(2 * n_views / 3)))
    if not isinstance(number, Integral) or not 0 <= number < n_views:
        raise SettingError(f"missing_number must be from 0 to {n_views - 1}; got {number!r}")
    return int(number)


def _count(name: str, given: Any) -> int:
    if not isinstance(given, Integral) or isinstance(given, bool) or int(given) < 1:
        raise SettingError(f"{name} must be an integer of at least 1; got {given!r}")
    return int(given)


def _known(labels: Any, n: int) -> NDArray[np.object_] | None:
    """Per sample its class as text, or None."""
    if labels is None:
        return None
    given = list(labels.tolist() if hasattr(labels, "tolist") else labels)
    if len(given) != n:
        raise DataError(
            f"labels has {len(given)} entries, but there are {n} samples; give one per sample, None if unknown"
        )
    known = np.array([None if one is None or one != one else str(one) for one in given], dtype=object)
    if all(one is None for one in known):
        raise DataError("labels are all unknown; leave them out")
    return known
