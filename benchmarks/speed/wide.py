"""Wide and sparse views: what their reduction takes, and that a training step does not notice how wide they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks import machine
from benchmarks.reference.data import ScaledTable
from benchmarks.speed.adapter import OurTraining, scaled_table
from benchmarks.speed.child import N_CLUSTERS, WEIGHT, costs, in_child, mixture
from viewfuse import URRL
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.errors import EmptyClusterWarning
from viewfuse.methods.urrl.config import Config
from viewfuse.reduction.reduce import fit_reduction

Facts = dict[str, Any]
_BARS = {
    "step": {"ratio": 1.3},
    "sparse": {"seconds": 300.0, "peak_mb": 6_000.0},
    "text": {"seconds": 120.0, "peak_mb": 1_500.0},
}
"""What each part may take at most."""
_MANY = 100_000
"""Rows of the sparse view for which its bars are meant."""
_TOPICS = 6


@dataclass(frozen=True)
class WideSize:
    """How large the wide and sparse views are.

    Attributes
    ----------
    rows, columns : of the dense views, ten Gaussians of which 30 % are missing
    narrow : columns of the views beside which a step is timed
    sparse_rows, sparse_columns, filled : of one sparse view of counts, and the share of cells that are not zero
    texts, words : samples, and columns of each of three sparse views of words
    epochs : of each stage of the fit of texts
    portions : epochs of which the median step counts
    """

    rows: int = 1_000
    columns: tuple[int, ...] = (20_000, 500)
    narrow: tuple[int, ...] = (256, 256)
    sparse_rows: int = 10_000
    sparse_columns: int = 30_000
    filled: float = 0.03
    texts: int = 169
    words: int = 3_500
    epochs: int | str = "auto"
    portions: int = 9


def measure_wide(device: torch.device, size: WideSize) -> Facts:
    """Every part, with its bars, as a dict that JSON can hold."""
    found = {
        "dense": in_child(reduce_dense, size) | {"rows": size.rows, "columns": list(size.columns)},
        "step": step_times(device, size),
        "sparse": in_child(reduce_sparse, size) | {"rows": size.sparse_rows, "columns": size.sparse_columns},
        "text": in_child(fit_texts, (size, str(device))) | {"rows": size.texts, "columns": [size.words] * 3},
    }
    bars = {name: bar for name, bar in _BARS.items() if name != "sparse" or size.sparse_rows >= _MANY}
    return {name: {**facts, "bars": bars.get(name, {})} for name, facts in found.items()} | {"load": machine.load()}


def reduce_dense(size: WideSize) -> Facts:
    """Seconds and memory of set-up and reduction of the dense views, in this process."""
    return _reduced(mixture(size.rows, size.columns)[0])


def reduce_sparse(size: WideSize) -> Facts:
    """The same for the sparse view."""
    return _reduced([counts(size.sparse_rows, size.sparse_columns, size.filled)])


def _reduced(data: list[Any]) -> Facts:
    def work() -> list[str]:
        views = Views(data)
        reduction = fit_reduction(views)
        reduction.apply(views)
        return [one.how for one in reduction.front_ends]

    how, found = costs(work)
    return {**found, "how": how}


def fit_texts(job: tuple[WideSize, str]) -> Facts:
    """Seconds and memory of a fit of texts with the defaults, on a device, in this process."""
    size, device = job
    data = [texts(size.texts, size.words, seed) for seed in range(3)]
    model = URRL(
        _TOPICS, config=Config(pretrain_epochs=size.epochs, joint_epochs=size.epochs), random_state=0, device=device
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyClusterWarning)
        return costs(lambda: model.fit(data))[1]


def step_times(device: torch.device, size: WideSize) -> Facts:
    """Milliseconds of a step of the joint stage with the wide views, reduced, and with narrow ones, in turns."""
    settings = Config(n_clusters=N_CLUSTERS, clustering_weight=WEIGHT)
    tables = {"wide": _reduced_table(size), "narrow": scaled_table(mixture(size.rows, size.narrow)[0])}
    runs = {name: OurTraining(table, settings, 0, device) for name, table in tables.items()}
    for run in runs.values():
        run.begin_joint_stage()
        run.run_epoch(0)  # libraries set themselves up in the first call
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(size.portions):
        for name, run in runs.items():
            times[name].append(machine.seconds(_epoch(run), device))
    steps = -(-size.rows // settings.batch_size)
    found = {f"{name}_ms": 1e3 * median(own) / steps for name, own in times.items()}
    widths = [view.shape[1] for view in tables["wide"].values]
    return {**found, "ratio": found["wide_ms"] / found["narrow_ms"], "columns": widths, "beside": list(size.narrow)}


def _epoch(run: OurTraining) -> Callable[[], object]:
    return lambda: run.run_epoch(0)


def _reduced_table(size: WideSize) -> ScaledTable:
    views = Views(mixture(size.rows, size.columns)[0])
    reduction = fit_reduction(views)
    reduced = reduction.apply(views)
    scaled = fit_scaler(reduced, "minmax", reduction.units).apply(reduced)
    return ScaledTable([np.array(array) for array in scaled.arrays], np.array(scaled.mask))


def counts(rows: int, columns: int, filled: float, seed: int = 0) -> sp.csr_array:
    """Sparse counts of shape (rows, columns), float32: every row has as many, one in each stretch of columns.

    They come from no clusters: how long a reduction takes does not depend on that, as its rounds are fixed.
    """
    rng, per_row = np.random.default_rng(seed), max(1, round(columns * filled))
    edges = np.linspace(0, columns, per_row + 1).astype(np.int32)
    indices, values = np.empty((rows, per_row), np.int32), np.empty((rows, per_row), np.float32)
    for row in range(rows):  # one at a time, as what made them should not count as memory of the reduction
        indices[row] = rng.integers(edges[:-1], edges[1:])
        values[row] = rng.geometric(0.3, per_row) ** 2  # a long tail, as counts have it
    ends = np.arange(0, rows * per_row + 1, per_row)
    return sp.csr_array((values.ravel(), indices.ravel(), ends), shape=(rows, columns))


def texts(rows: int, columns: int, seed: int = 0) -> sp.csr_array:
    """Sparse counts of words, float32 of shape (rows, columns): some hundred per text, six topics in turn."""
    rng = np.random.default_rng(seed)
    usual = 1 / np.arange(1, columns + 1)
    topics = usual * rng.gamma(0.3, size=(_TOPICS, columns))
    found = [
        rng.multinomial(rng.integers(150, 400), chances / chances.sum())
        for chances in topics[np.arange(rows) % _TOPICS]
    ]
    return sp.csr_array(np.array(found, dtype=np.float32))


def lines(found: Mapping[str, Any]) -> list[tuple[str, str, float, float | None]]:
    """Per figure what it is, its unit, what was measured, and the most that it may be."""
    names = {
        "dense": f"reduction of {_shape(found['dense'])}, dense",
        "sparse": f"reduction of {_shape(found['sparse'])}, sparse",
        "text": f"fit of texts, {_shape(found['text'])}, sparse",
    }
    rows = [
        (name, unit, facts[key], facts["bars"].get(key))
        for part, name in names.items()
        for facts in [found[part]]
        for key, unit in (("seconds", "s"), ("peak_mb", "MB"))
        if key in facts
    ]
    step = found["step"]
    beside = " + ".join(f"{width}" for width in step["beside"])
    return [
        *rows,
        (f"a step after reduction, over one of {beside} columns", "times", step["ratio"], step["bars"]["ratio"]),
    ]


def _shape(facts: Mapping[str, Any]) -> str:
    columns = facts["columns"] if isinstance(facts["columns"], list) else [facts["columns"]]
    return f"{facts['rows']:,} x ({' + '.join(f'{width:,}' for width in columns)})"
