"""What a comparison found: scores, costs, agreement of methods, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from viewfuse import metrics
from viewfuse.comparison.ranks import Ranks, ranks_of
from viewfuse.errors import SettingError

METRICS = {"acc": metrics.clustering_accuracy, "nmi": metrics.nmi, "ari": metrics.ari}
EVIDENCE = "evidence"
COSTS = ("seconds", "memory_mb")


@dataclass(frozen=True)
class Run:
    """One method on one mask.

    Attributes
    ----------
    labels : of shape (samples,); None where the method failed
    evidence : how well the clusters hold together in all views that were given, in percent; needs no labels
    seconds, memory_mb : of the fit; NaN where they could not be measured
    failed : why there are no labels
    """

    method: str
    missing_rate: float
    seed: int
    labels: NDArray[np.int64] | None
    evidence: float = np.nan
    seconds: float = np.nan
    memory_mb: float = np.nan
    failed: str = ""


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison.

    Attributes
    ----------
    known : per sample its class, None where it is not known; None without any
    """

    methods: tuple[str, ...]
    runs: tuple[Run, ...] = field(repr=False)
    known: NDArray[np.object_] | None = field(default=None, repr=False)
    _scores: dict[int, dict[str, float]] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: against known classes where there are any, and always the evidence."""
        return (*(METRICS if self.known is not None else ()), EVIDENCE)

    def scores(self, run: Run) -> dict[str, float]:
        """Accuracy, NMI and ARI in percent where classes are known, and the evidence; NaN where a method failed."""
        if id(run) not in self._scores:
            self._scores[id(run)] = {**self._against_known(run), EVIDENCE: run.evidence}
        return self._scores[id(run)]

    def _against_known(self, run: Run) -> dict[str, float]:
        if self.known is None:
            return {}
        if run.labels is None:
            return dict.fromkeys(METRICS, np.nan)
        there = np.array([label is not None for label in self.known])
        pair = self.known[there].astype(str), run.labels[there]
        return {name: 100 * score(*pair) for name, score in METRICS.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Per method and missing rate means and deviations over seeds; deviations are NaN of one run."""
        found = []
        for rate in dict.fromkeys(run.missing_rate for run in self.runs):
            for method in self.methods:
                own = [run for run in self.runs if (run.method, run.missing_rate) == (method, rate)]
                done = [run for run in own if not run.failed]
                row: dict[str, Any] = {"method": method, "missing_rate": rate, "runs": len(done)}
                for metric in self.metrics:
                    row |= _summed(metric, [self.scores(run)[metric] for run in done])
                for cost in COSTS:
                    row |= _summed(cost, [getattr(run, cost) for run in done])
                found.append(row | {"failed": next((run.failed for run in own if run.failed), "")})
        return found

    def table(self) -> Any:
        """`rows` as a data frame."""
        from pandas import DataFrame

        return DataFrame(self.rows())

    def agreement(self) -> NDArray[np.float64]:
        """Mean adjusted Rand index of any two methods on the same masks, of shape (methods, methods); NaN without."""
        found = np.full((len(self.methods),) * 2, np.nan)
        by_mask = self._by_mask()
        for a, first in enumerate(self.methods):
            for b, second in enumerate(self.methods):
                pairs = [(own[first].labels, own[second].labels) for own in by_mask if {first, second} <= own.keys()]
                both = [adjusted_rand_score(x, y) for x, y in pairs if x is not None and y is not None]
                if both:
                    found[a, b] = mean(both)
        return found

    def ranks(self, metric: str | None = None) -> Ranks:
        """Methods by their mean ranks over all masks; by accuracy where classes are known, else by the evidence."""
        by = metric or self.metrics[0]
        if by not in self.metrics:
            raise SettingError(f"metric must be one of {', '.join(self.metrics)}; got {by!r}")
        whole = [own for own in self._by_mask() if len(own) == len(self.methods)]
        scores = [[self.scores(own[name])[by] for name in self.methods] for own in whole]
        return ranks_of(self.methods, np.array(scores, dtype=np.float64).reshape(-1, len(self.methods)))

    def _by_mask(self) -> list[dict[str, Run]]:
        """Per missing rate and seed the runs by method."""
        found: dict[tuple[float, int], dict[str, Run]] = {}
        for run in self.runs:
            found.setdefault((run.missing_rate, run.seed), {})[run.method] = run
        return list(found.values())


def _summed(name: str, measured: Sequence[float]) -> dict[str, float]:
    values = [value for value in measured if not isnan(value)]
    return {name: mean(values) if values else np.nan, f"{name}_sd": stdev(values) if len(values) > 1 else np.nan}
