"""What a comparison found: scores, paired differences, costs, agreement of runs and of methods; and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isnan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from viewfuse import metrics
from viewfuse.data.filling import fit_filler
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.fitted.model import scaled_tensors
from viewfuse.io.formulas import as_csv
from viewfuse.io.writers import as_latex
from viewfuse.missing import Gaps
from viewfuse.neighbors.index import MultiViewIndex
from viewfuse.reduction.reduce import fit_reduction
from viewfuse.utils.atomic import write_file

METRICS = {"acc": metrics.clustering_accuracy, "nmi": metrics.nmi, "ari": metrics.ari}
HELD_OUT = "held_out"
BELOW_BEST = "below_best"
STABILITY = "stability"
COSTS = ("seconds", "memory_mb")
LEAST_VIEWS = 3
"""With fewer, one view or none is left to the fit, and nothing is fused."""
_DEPTH = 10
"""Neighbours of a sample that count; fewer in clusters that have fewer other members."""


@dataclass(frozen=True)
class Run:
    """One method on one mask.

    Attributes
    ----------
    labels : of shape (samples,); None where the method failed
    held_out : how well clusters that are found without a view fit that view, in percent, mean over the views
        (`viewfuse.comparison.results`); NaN where it was not asked for
    seconds, memory_mb : of the fit on all views; NaN where they could not be measured
    failed : why there are no labels
    """

    method: str
    missing_rate: float
    seed: int
    labels: NDArray[np.int64] | None
    held_out: float = np.nan
    seconds: float = np.nan
    memory_mb: float = np.nan
    failed: str = ""


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison.

    Attributes
    ----------
    known : per sample its class, None where it is not known; None without any
    gaps : what the first mask of each missing rate leaves
    """

    methods: tuple[str, ...]
    runs: tuple[Run, ...] = field(repr=False)
    known: NDArray[np.object_] | None = field(default=None, repr=False)
    gaps: Mapping[float, Gaps] = field(default_factory=dict, repr=False)
    _scores: dict[tuple[str, float, int], dict[str, float]] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Scores of each run: against known classes, and in views held out; the first one orders methods."""
        measured = any(not isnan(run.held_out) for run in self.runs)
        return (*(METRICS if self.known is not None else ()), *((HELD_OUT,) if measured else ()))

    def scores(self, run: Run) -> dict[str, float]:
        """The `metrics` of a run in percent; NaN where a method failed."""
        key = run.method, run.missing_rate, run.seed
        if key not in self._scores:
            every = dict.fromkeys(METRICS, np.nan) | {HELD_OUT: run.held_out}
            if self.known is not None and run.labels is not None:
                there = np.array([label is not None for label in self.known])
                pair = self.known[there].astype(str), run.labels[there]
                every |= {name: 100 * score(*pair) for name, score in METRICS.items()}
            self._scores[key] = {name: every[name] for name in self.metrics}
        return self._scores[key]

    def rows(self) -> list[dict[str, Any]]:
        """Per method and missing rate means and deviations over seeds; deviations are NaN of one run.

        `below_best` is by how much a method is below the best one, mean and deviation of the differences on the same
        masks; the best is the highest mean of the first metric among methods of which no run failed. `stability` is the
        mean adjusted Rand index of any two runs.
        """
        rates = dict.fromkeys(run.missing_rate for run in self.runs)
        return [row for rate in rates for row in self._rows_of([run for run in self.runs if run.missing_rate == rate])]

    def _rows_of(self, runs: Sequence[Run]) -> list[dict[str, Any]]:
        by_method = {name: [run for run in runs if run.method == name] for name in self.methods}
        rows = [self._row(name, own) for name, own in by_method.items()]
        by = next(iter(self.metrics), "")
        whole = [row for row in rows if by and not row["failed"] and not isnan(row[by])]
        if whole:
            best = by_method[max(whole, key=lambda row: row[by])["method"]]
            for row in rows:
                score = {run.seed: self.scores(run)[by] for run in by_method[row["method"]]}
                shared = [run for run in best if run.seed in score]
                row |= _summed(BELOW_BEST, [self.scores(run)[by] - score[run.seed] for run in shared])
        return rows

    def _row(self, method: str, runs: Sequence[Run]) -> dict[str, Any]:
        done = [run for run in runs if not run.failed]
        row: dict[str, Any] = {"method": method, "missing_rate": runs[0].missing_rate, "runs": len(done)}
        for metric in self.metrics:
            row |= _summed(metric, [self.scores(run)[metric] for run in done])
        row |= _summed(BELOW_BEST, []) if self.metrics else {}
        pairs = combinations([run.labels for run in done if run.labels is not None], 2)
        agreed = [_pair_stability(*pair) for pair in pairs]
        row[STABILITY] = 100 * mean(agreed) if agreed else np.nan
        for cost in COSTS:
            row |= _summed(cost, [getattr(run, cost) for run in done])
        reason = next((run.failed for run in runs if run.failed), "")
        return row | {"failed_runs": len(runs) - len(done), "failed": reason}

    def table(self) -> Any:
        """`rows` as a data frame."""
        from pandas import DataFrame

        return DataFrame(self.rows())

    def agreement(self) -> NDArray[np.float64]:
        """Mean adjusted Rand index of any two methods on the same masks, of shape (methods, methods); NaN without."""
        found = np.full((len(self.methods),) * 2, np.nan)
        by_mask: dict[tuple[float, int], dict[str, NDArray[np.int64]]] = {}
        for run in self.runs:
            if run.labels is not None:
                by_mask.setdefault((run.missing_rate, run.seed), {})[run.method] = run.labels
        for a, first in enumerate(self.methods):
            for b, second in enumerate(self.methods):
                pairs = [(own[first], own[second]) for own in by_mask.values() if {first, second} <= own.keys()]
                if pairs:
                    found[a, b] = mean(adjusted_rand_score(*pair) for pair in pairs)
        return found


def _pair_stability(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """The adjusted Rand index; two partitions of one cluster each agree on nothing: 0."""
    trivial = len(np.unique(first)) == len(np.unique(second)) == 1
    return 0.0 if trivial else float(adjusted_rand_score(first, second))


def _summed(name: str, measured: Sequence[float]) -> dict[str, float]:
    values = [value for value in measured if not isnan(value)]
    return {name: mean(values) if values else np.nan, f"{name}_sd": stdev(values) if len(values) > 1 else np.nan}


def write_comparison(folder: Path, found: Comparison, title: str) -> None:
    """The tables of a comparison."""
    write_file(folder / "table.csv", _as_csv(found.rows()))
    write_file(folder / "table.md", markdown(found, title).encode())
    write_file(folder / "table.tex", latex({title: cells(found)}, note(found)).encode())
    pairs = zip(found.methods, found.agreement().tolist(), strict=True)
    rows = [{"method": name, **dict(zip(found.methods, own, strict=True))} for name, own in pairs]
    write_file(folder / "agreement.csv", _as_csv(rows))


NAMES = {
    "acc": "accuracy", "nmi": "NMI", "ari": "ARI", HELD_OUT: "held-out agreement", BELOW_BEST: "below the best",
    STABILITY: "stability", "seconds": "seconds", "memory_mb": "memory, MB",
}  # fmt: skip
"""Of what is measured; scores are in percent."""


Cells = tuple[list[str], list[list[str]]]
"""A header, and lines of text."""


def cells(found: Comparison) -> Cells:
    """A header and lines of text: within each missing rate the best first, then methods of which runs failed."""
    shown = [*found.metrics, *((BELOW_BEST,) if found.metrics else ()), STABILITY, *COSTS]

    def place(row: dict[str, Any]) -> tuple[float, bool, bool, float]:
        score = row[found.metrics[0]] if found.metrics and row["runs"] else 0.0
        return row["missing_rate"], not row["runs"], row["failed_runs"] > 0, -score

    def cell(row: dict[str, Any], name: str) -> str:
        if isnan(row[name]):
            return "-" if row["runs"] else "failed"
        digits, deviation = 0 if name == "memory_mb" else 1, row.get(f"{name}_sd", np.nan)
        spread = "" if isnan(deviation) or name in COSTS else f" ± {deviation:.{digits}f}"
        return f"{row[name]:.{digits}f}{spread}"

    lines = []
    for row in sorted(found.rows(), key=place):
        runs = f"{row['runs']} of {row['runs'] + row['failed_runs']}" if row["failed_runs"] else str(row["runs"])
        lines.append([f"{row['missing_rate']:g}", row["method"], *(cell(row, name) for name in shown), runs])
    return ["missing rate", "method", *(NAMES[name] for name in shown), "runs"], lines


def note(found: Comparison) -> str:
    """How the methods are ordered, what the order does not say, and what the masks leave."""
    order = (
        "Methods are in the order that was asked for: without labels and held-out views nothing says which is "
        "better. Stability is how much runs with other masks and seeds agree (ARI); stable clusters may be wrong."
    )
    if found.metrics:
        order = (
            f"Highest {NAMES[found.metrics[0]]} first; differences to the best are those on the same masks. This is "
            "one data set: its runs share samples, so no test is made, and other data may order the methods otherwise."
        )
    return order + "".join(f"\nMissing rate {rate:g}: {gaps}." for rate, gaps in found.gaps.items())


def markdown(found: Comparison, title: str) -> str:
    """The table as Markdown, with what it says and what failed below."""
    failed = "\n".join(f"- {line}" for line in failures(found))
    header, lines = cells(found)
    spread = " ± standard deviation" * any("±" in cell for line in lines for cell in line)
    said = f"Mean{spread} over runs, scores in percent."
    more = f"\nFailed:\n\n{failed}\n" if failed else ""
    return f"# {title}\n\n{said}\n\n{markdown_table(header, lines)}\n\n{note(found)}\n{more}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells of text as Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def latex(tables: Mapping[str, Cells], note: str) -> str:
    """Tables by their titles as LaTeX, with the note as a comment."""
    comment = "".join(f"% {line}\n" for line in note.splitlines())
    return "\n".join(as_latex(*cells, title) for title, cells in tables.items()) + comment


def failures(found: Comparison) -> list[str]:
    """Which methods failed, how often, and why."""
    return [
        f"{row['method']} failed in {row['failed_runs']} of {row['runs'] + row['failed_runs']} runs at missing rate "
        f"{row['missing_rate']:g}: {row['failed']}"
        for row in found.rows()
        if row["failed"]
    ]


def _as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    def cell(value: Any) -> Any:
        return value if not isinstance(value, float) else "" if isnan(value) else f"{value:.6g}"

    return as_csv([list(rows[0]), *(list(map(cell, row.values())) for row in rows)]).encode()


def without_view(views: Views, view: int) -> tuple[Views, NDArray[np.bool_]]:
    """All views but one, of the samples that have any of them; and which samples these are, of shape (samples,)."""
    others = [v for v in range(len(views.names)) if v != view]
    rows: NDArray[np.bool_] = np.any(views.mask[:, others], axis=1)
    return _part(views[rows], others), rows


def held_out_agreement(views: Views, view: int, labels: NDArray[np.int64], n_clusters: int) -> float:
    """How much more often than by chance neighbours in a view share a cluster: 1 is the most, 0 is chance.

    Every cluster counts the same, whatever its size. Of a cluster with m of n samples, chance is (m - 1) / (n - 1):
    the mean over all ways to shuffle the labels. Clusters that are asked for but not found count as 0, and so does one
    cluster of all samples. Labels, of shape (samples,), are -1 where a sample has none.
    """
    rows = views.mask[:, view] & (labels >= 0)
    own, n = labels[rows], int(rows.sum())
    if n < 3:
        return np.nan
    shown = _part(views[rows], [view])
    filled, _ = fit_filler(shown, "neighbors").apply(shown)
    reduction = fit_reduction(filled, "auto")
    reduced = reduction.apply(filled)
    values, present = scaled_tensors(reduced, fit_scaler(reduced, "mixed", reduction.units), torch.device("cpu"))
    nearest = MultiViewIndex(values, present).neighbors_of_own(min(_DEPTH, n - 1))[:, 0].numpy()  # nearest first
    found, sizes = np.unique(own, return_counts=True)
    scores = []
    for cluster, size in zip(found.tolist(), sizes.tolist(), strict=True):
        if 1 < size < n:
            share = float((own[nearest[own == cluster, : size - 1]] == cluster).mean())
            chance = (size - 1) / (n - 1)
            scores.append((share - chance) / (1 - chance))
    return sum(scores) / max(n_clusters, len(found))


def _part(views: Views, places: Sequence[int]) -> Views:
    """Some of the views."""
    named = {name: tuple(getattr(views, name)[v] for v in places) for name in ("names", "arrays", "columns", "offsets")}
    return views.replace(mask=views.mask[:, list(places)], **named)
