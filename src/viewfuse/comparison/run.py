"""`viewfuse.compare`: several methods on the same masks of one set of samples."""

from __future__ import annotations

import gc
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.metrics.pairwise import euclidean_distances

from viewfuse.comparison import arguments
from viewfuse.comparison.arguments import RunFile, ToCompare, checked, take_plan
from viewfuse.comparison.results import Comparison, Run, held_out_agreement, without_view, write_comparison
from viewfuse.data.views import Views
from viewfuse.errors import DataError, ViewfuseError, WorkerLost
from viewfuse.fitted.manifest import digest
from viewfuse.io.writers import OUTLIER, as_json
from viewfuse.missing import describe, hide_more
from viewfuse.utils.atomic import exclusive
from viewfuse.utils.jobs import chosen_device, run_jobs
from viewfuse.utils.memory import forget_peak, memory_errors, memory_now, memory_peak
from viewfuse.utils.version import __version__

_WITHOUT_INFLUENCE = ("device", "verbose", "checkpoint", "n_jobs")
"""Parameters that change no result; the kind of device counts by itself."""
Log = Callable[[str], None]


def compare(
    views: Any,
    methods: str | Sequence[str] | Mapping[str, Any] = arguments.ALL,
    *,
    n_clusters: int,
    rates: Sequence[float] = (0.0,),
    missing_number: int | None = None,
    seeds: int = 5,
    labels: Any = None,
    held_out: bool = False,
    device: str = "auto",
    n_jobs: int | None = None,
    out: str | PathLike[str] | None = None,
    log: Log | None = None,
) -> Comparison:
    """Fit methods on the same masks, and compare what they find.

    On a CPU each run has one thread, and its seconds are those. Labels are looked at when all is done, and by nothing
    but the scores. A method that fails has no scores; the others continue.

    All runs share the samples of one data set, so nothing here tests whether methods differ on others;
    `viewfuse.comparison.ranks.ranks_over` does, over comparisons on several data sets.

    Parameters
    ----------
    views : what estimators are fitted on; some views may be missing already
    methods : "all", names of methods, or estimators by names of your own, whose other parameters stay as they are
    n_clusters : clusters that all look for
    rates : shares of the samples that views are hidden from, besides those that are missing; 0 hides nothing
    missing_number : how many of its views such a sample loses; two thirds of all views by default, rounded. It keeps
        one at least.
    seeds : runs of each method and rate; each has its own mask and training, the same mask for all methods
    labels : known class of each sample, None where it is not known: in the order of the samples, or by their ids
        (a dict, or a Series whose index are ids)
    held_out : also fit without each view in turn, and measure how well the clusters fit that view
        (`viewfuse.comparison.results`). It says without labels which method is better, needs three views at least, and
        takes one more fit per view
    n_jobs : runs side by side in processes of their own; -1 is one per core. None does one after the other, unless a
        ``joblib.parallel_config`` is active. The results are the same
    out : folder for tables and all runs; runs that it holds already are not done again. A folder
        of another comparison is refused
    log : called with a line per run, such as `print`
    """
    given, log = Views.of(views), log or (lambda line: None)
    asked = checked(given, methods, n_clusters, rates, missing_number, seeds, held_out, log)
    known, folder = arguments.known_classes(labels, given.ids), arguments.checked_folder(out)
    if known is not None and (count := sum(one is not None for one in known)) < len(given):
        log(f"scores are of the {count:,} of {len(given):,} samples whose class is known")
    with nullcontext() if folder is None else exclusive(folder, patience=0):
        runs = tuple(_runs(given, asked, device, n_jobs, folder, log))
        gaps = {rate: describe(hide_more(given.mask, rate, asked.missing_number, 0)) for rate in asked.rates}
        found = Comparison(tuple(asked.estimators), runs, known, gaps)
        if folder is not None:
            title = f"{len(given):,} samples, {len(given.names)} views, {asked.n_clusters} clusters"
            write_comparison(folder, found, title)
    return found


def _runs(views: Views, asked: ToCompare, device: str, n_jobs: int | None, folder: Path | None, log: Log) -> list[Run]:
    """All runs: those that the folder holds, and the others now."""
    checksum, kind = digest(views), chosen_device(device).type
    if folder is not None:
        facts = {"data": checksum, "clusters": asked.n_clusters, "missing_number": asked.missing_number}
        own = {f"{parameter} of {name}": value for name, estimator in asked.estimators.items()
               for parameter, value in _settings(estimator).items()
               if parameter not in ("n_clusters", "random_state")}  # fmt: skip
        take_plan(folder, {**facts, "held_out": asked.held_out, "device": kind, "version": __version__, **own})
    todo = [(rate, seed, name) for rate in asked.rates for seed in range(asked.seeds) for name in asked.estimators]
    found: dict[int, Run] = {}
    left: dict[int, tuple[Any, ...]] = {}
    files: dict[int, RunFile] = {}
    for number, (rate, seed, name) in enumerate(todo):
        estimator = clone(asked.estimators[name])
        common = {"n_clusters": asked.n_clusters, "random_state": seed, "device": device}
        taken = estimator.get_params(deep=False)
        estimator.set_params(**{parameter: value for parameter, value in common.items() if parameter in taken})
        run = None
        if folder is not None:
            mark = _mark(estimator, rate, seed, asked, checksum, kind)
            files[number] = RunFile(folder, name, rate, seed, mark, len(views))
            run = files[number].read()
        if run is None:
            left[number] = (name, estimator, rate, seed, views, replace(asked, estimators={}))
        else:
            found[number] = run
    if found:
        log(f"{len(found)} runs are there already, {len(left)} are left to do")

    def keep(number: int, run: Run) -> None:
        if number in files:
            files[number].write(run)
        said = f"failed: {run.failed}" if run.failed else f"{run.seconds:.1f} s"
        log(f"{number + 1} of {len(todo)}: {run.method}, rate {run.missing_rate:g}, seed {run.seed}: {said}")
        found[number] = run
        del left[number]

    on_cpu = kind == "cpu"
    _do_runs(left, keep, log, n_jobs=n_jobs if on_cpu else None, threads=1 if on_cpu else None)
    return [found[number] for number in range(len(todo))]


def _do_runs(left: Mapping[int, tuple[Any, ...]], keep: Callable[[int, Run], None], log: Log, **how: Any) -> None:
    """Do the runs that are left, by number; `keep` takes each out of `left` as soon as it is done.

    A method that ends its process has failed, the others continue.
    """
    numbers, jobs = list(left), list(left.values())

    def begin(place: int) -> None:
        name, estimator, rate, seed, *_ = jobs[place]
        if any("epochs" in one or one == "config" for one in estimator.get_params(deep=False)):  # it takes long
            log(f"{name}, rate {rate:g}, seed {seed} begins")

    def finish(place: int, run: Run) -> None:
        keep(numbers[place], run)

    try:
        run_jobs(_masked_and_done, jobs, begun=begin, done=finish, **how)
    except WorkerLost as error:
        lost = next(iter(left.values()))[0]  # all runs before the lost one are done
        for number, (name, _, rate, seed, *_) in list(left.items()):
            if name == lost:
                keep(number, Run(name, rate, seed, None, failed=str(error)))
        _do_runs(left, keep, log, **how)


def _masked_and_done(name: str, estimator: Any, rate: float, seed: int, views: Views, asked: ToCompare) -> Run:
    """A run on masked views; what is hidden is gone before any method sees it.

    Where asked for, with the mean agreement over views, each held out in turn; a method that cannot do without a view
    failed.
    """
    named = dict(zip(views.names, views.arrays, strict=True))
    mask = hide_more(views.mask, rate, asked.missing_number, seed)
    masked = Views(named, mask=mask, ids=views.ids, columns=views.columns).replace(offsets=views.offsets)
    run, scores = _done(name, estimator, masked), []
    for view, held in enumerate(views.names if asked.held_out and not run.failed else ()):
        shown, rows = without_view(masked, view)
        other = _done(name, clone(estimator), shown)
        if other.labels is None:
            return Run(name, rate, seed, None, failed=f"without view {held!r}: {other.failed}")
        labels = np.full(len(views), -1)
        labels[rows] = other.labels
        scores.append(100 * held_out_agreement(views, view, labels, asked.n_clusters))
    held_out = float(np.nanmean(scores)) if scores else np.nan
    return replace(run, missing_rate=rate, seed=seed, held_out=held_out)


def _done(name: str, estimator: Any, views: Views) -> Run:
    """Fit, and measure; whatever goes wrong inside a method is its own fault."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        gc.collect()  # what refers to itself would hold on to memory of the GPU
        torch.cuda.reset_peak_memory_stats()
    _load_libraries()
    measurable, before = forget_peak(), memory_now()
    began = time.perf_counter()
    try:
        with memory_errors():
            labels, n = np.asarray(estimator.fit(views).labels_), len(views)
        is_whole = labels.shape == (n,) and np.issubdtype(labels.dtype, np.integer)
        if is_whole and labels.min() == OUTLIER:
            outliers = f"{int((labels == OUTLIER).sum())} samples have the label -1, and so no cluster"
            raise DataError(
                f"{outliers}; only methods that give each sample one can be compared (URRL: outliers='mark')"
            )
        if not is_whole or labels.min() < 0 or labels.max() >= n:
            raise DataError(f"labels_ must be {n} integers from 0 to {n - 1}; got {str(labels)[:80]}")
    except ViewfuseError as error:
        return Run(name, 0.0, 0, None, failed=str(error))
    except (Exception, SystemExit) as error:  # of a third-party method, or a bug in ours
        return Run(name, 0.0, 0, None, failed=arguments.describe(error))
    seconds = time.perf_counter() - began
    memory = max(0.0, memory_peak() - before) if measurable else np.nan
    if on_gpu:
        memory = max(memory, torch.cuda.max_memory_allocated() / 1e6)
    return Run(name, 0.0, 0, labels.astype(np.int64), seconds=seconds, memory_mb=memory)


@cache
def _load_libraries() -> None:
    """Compute distances and begin a network once: the first run of a process would pay for what this loads."""
    euclidean_distances(np.zeros((2, 1)))
    torch.empty_like(torch.empty(1, device="meta"), device="cpu")


def _mark(estimator: Any, rate: float, seed: int, asked: ToCompare, checksum: str, device: str) -> str:
    """Of all that decides a run: data, mask, method with its code and parameters, version, kind of device."""
    own: Any = type(estimator)
    method = own.__module__, own.__name__, _settings(estimator), *_code_of(own)
    what = *method, rate, seed, asked.missing_number, asked.held_out, checksum, device, __version__
    return hashlib.sha256(as_json(what).encode()).hexdigest()


@cache
def _code_of(method: type) -> list[str]:
    """A checksum of the file in which a method of the user's own stands; none of packages, which have versions."""
    try:
        path = Path(inspect.getfile(method))
        is_own = "site-packages" not in path.parts and not method.__module__.startswith("viewfuse.")
        return [hashlib.sha256(path.read_bytes()).hexdigest()] if is_own else []
    except (OSError, TypeError):  # typed into a notebook, or built into Python
        return []


def _settings(estimator: Any) -> dict[str, str]:
    """Parameters that change results."""
    return {name: _as_text(value) for name, value in estimator.get_params().items() if name not in _WITHOUT_INFLUENCE}


def _as_text(value: Any) -> str:
    """A parameter as text that identifies it: `str` shortens arrays, and gives functions an address."""
    if code := getattr(value, "__code__", None):
        inside = hashlib.sha256(repr((code.co_code, code.co_consts, code.co_names)).encode())
        return f"{value.__module__}.{value.__qualname__} {inside.hexdigest()}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {value.shape} {hashlib.sha256(repr(np.asarray(value).tolist()).encode()).hexdigest()}"
    return str(value)
