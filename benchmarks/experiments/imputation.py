"""How well missing views are filled: views that are there are hidden, filled, and compared with what they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.catalogue import CATALOGUE, Loaded, load_each, title_of
from benchmarks.experiments.plans import check_known
from benchmarks.experiments.records import Score, write_rows
from benchmarks.experiments.tables import ResultTable, as_markdown
from viewfuse import URRL
from viewfuse.baselines import filled_by_mean, filled_by_nearest
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.utils.atomic import write_file

DATA = ("citeseq_inhouse1182", "bdgp", "handwritten", "tcga_brca150")
RATE = 0.5
SEEDS = 3
OURS = "viewfuse"
MEASURES = ("columns", "samples", "error")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Filling:
    """How well one view of one data set was filled.

    Attributes
    ----------
    seed : of the mask and of the training
    view : its number
    filled_by : who filled it
    hidden : samples that lack the view
    columns : mean over columns of the correlation with the truth across hidden samples
    samples : mean over hidden samples of the correlation with the truth across columns
    error : root of the mean squared error, in deviations of the column
    """

    dataset: str
    seed: int
    view: int
    filled_by: str
    hidden: int
    columns: float
    samples: float
    error: float


def bench_imputation(
    data_dir: Path,
    *,
    device: str = "auto",
    seeds: int | None = None,
    data: Sequence[str] = (),
    models: Path | None = None,
    log: Callable[[str], None] = print,
) -> list[Filling]:
    """Fill hidden views of every data set that is there; a set that is not is left out with a line.

    Parameters
    ----------
    seeds : masks and trainings of each set
    data : only these of `DATA`
    models : folder in which fitted models are kept; one that is there is not fitted again
    """
    check_known("data set", data, DATA)
    found: list[Filling] = []
    for key, loaded in load_each(data_dir, data or DATA, log):
        for seed in range(seeds or SEEDS):
            log(f"{title_of(key)}, seed {seed}")
            kept = models and models / f"{key}-{seed}"
            start = URRL(loaded.entry.classes, random_state=seed, device=device)
            found += fillings(loaded, seed, partial(_fitted, start=start, kept=kept))
    if not found:
        raise DataError(f"{data_dir} holds none of {', '.join(data or DATA)}")
    return found


def fillings(loaded: Loaded, seed: int, fitted: Callable[[Views], URRL]) -> Iterator[Filling]:
    """Hide views of a data set, fill them in every way, and compare with what they were."""
    entry = loaded.entry
    mask = paper_mask(entry.n, len(entry.widths), RATE, entry.missing_number, random_state=seed)
    views = Views(apply_mask(loaded.views, mask))
    for name, filled in filled_views(fitted(views), views).items():
        for v, truth in enumerate(loaded.views):
            gone = ~mask[:, v]
            if gone.any():
                yield Filling(entry.key, seed, v, name, int(gone.sum()), **compared(filled[v], truth, gone))


def _fitted(views: Views, start: URRL, kept: Path | None) -> URRL:
    """The estimator fitted on the views, or what is kept of an earlier time."""
    if kept is not None and kept.is_dir():
        return start.load(kept, device=start.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # those of fitting; what is filled is scored
        model = start.fit(views)
    if kept is not None:
        model.save(kept)
    return model


def filled_views(model: URRL, views: Views) -> dict[str, Sequence[NDArray[np.float32]]]:
    """Per way to fill all views, in their own columns."""
    return {
        OURS: model.impute(views).arrays,
        "donors of the model": filled_by_donors(model, views),
        "five nearest": filled_by_nearest(views),
        "thirty nearest": filled_by_nearest(views, 30),
        "column mean": filled_by_mean(views),
    }


def filled_by_donors(model: URRL, views: Views) -> list[NDArray[np.float32]]:
    """Missing views as the mean of the donors that the model finds (Algorithm 1), whose values are not reduced."""
    explained = model.explain(views)
    places = {name: row for row, name in enumerate(views.ids.tolist())}
    filled = filled_by_mean(views)
    for v, array in enumerate(views.arrays):
        for row in np.flatnonzero(~views.mask[:, v]):
            donors = [places[name] for name in explained.donors[row, v]]
            if donors:
                filled[v][row] = array[donors].mean(axis=0)
    return filled


def compared(filled: NDArray[Any], truth: NDArray[Any], gone: NDArray[np.bool_]) -> dict[str, float]:
    """The three measures of the rows that are `gone`, of shape (samples,), of a view of shape (samples, columns)."""
    deviation = truth.std(axis=0, dtype=np.float64)
    varies = deviation > 0
    found, known = filled[gone].astype(np.float64), truth[gone].astype(np.float64)
    off = (found[:, varies] - known[:, varies]) / deviation[varies]
    return {
        "columns": _correlation(found, known),
        "samples": _correlation(found.T, known.T),
        "error": float(np.sqrt(np.square(off).mean())) if off.size else 0.0,
    }


def _correlation(found: Array, known: Array) -> float:
    """Pearson's, of each column that varies in `known`, on average; 0 where `found` does not vary."""
    a, b = found - found.mean(axis=0), known - known.mean(axis=0)
    varies = np.ptp(known, axis=0) > 0
    lengths = np.sqrt(np.square(a).sum(axis=0) * np.square(b).sum(axis=0))
    each = (a * b).sum(axis=0)[varies] / np.maximum(lengths[varies], np.finfo(float).tiny)
    return float(np.where(np.ptp(found, axis=0)[varies] > 0, each, 0.0).mean()) if varies.any() else nan


def write_fillings(folder: Path, found: Sequence[Filling]) -> ResultTable:
    """`impute.csv` with a line per filling, and `impute.md` with their means, which are returned as well."""
    write_rows(folder / "impute.csv", Filling, found)
    table = table_of(found)
    write_file(folder / "impute.md", as_markdown(table).encode())
    return table


def table_of(found: Sequence[Filling]) -> ResultTable:
    """Means and deviations over seeds, per data set, view and way to fill."""
    groups: dict[tuple[str, int, str], list[Filling]] = {}
    for one in found:
        groups.setdefault((one.dataset, one.view, one.filled_by), []).append(one)
    keys = sorted(groups, key=lambda key: list(dict.fromkeys((k[0], k[1]) for k in groups)).index(key[:2]))
    header = ("data set", "view", "columns", "filled by", "correlation, columns", "samples", "error", "runs")
    title = f"Hidden views, filled: mean and deviation over masks, {RATE:.0%} of the samples incomplete"
    return ResultTable("impute", title, header, tuple(_row(key, groups[key]) for key in keys))


def _row(key: tuple[str, int, str], runs: Sequence[Filling]) -> tuple[str, ...]:
    dataset, view, filled_by = key
    width = str(CATALOGUE[dataset].widths[view]) if dataset in CATALOGUE else ""
    cells = (_cell([getattr(one, measure) for one in runs]) for measure in MEASURES)
    return (title_of(dataset), str(view), width, filled_by, *cells, str(len(runs)))


def _cell(values: Sequence[float]) -> str:
    score = Score(mean(values), stdev(values) if len(values) > 1 else nan)
    return f"{score.value:.3f}" if len(values) < 2 else f"{score.value:.3f} ± {score.sd:.3f}"
