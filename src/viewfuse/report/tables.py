"""The numbers of the page: every table that it shows, which is also written beside it as a CSV file."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from viewfuse.errors import DataError
from viewfuse.fitted.clusters import typical_samples
from viewfuse.io.writers import Sheet, as_json
from viewfuse.plots.places import find_patterns, lacking
from viewfuse.report.run_folder import FinishedRun
from viewfuse.selection.decisions import ClusterNumber
from viewfuse.selection.messages import label, words


class Feature(NamedTuple):
    """A feature in which a cluster differs from the other samples, see `viewfuse.fitted.clusters.Difference`."""

    label: int
    view: str
    feature: str
    difference: float
    mean: float
    mean_of_others: float


class Cluster(NamedTuple):
    """A cluster in numbers.

    Attributes
    ----------
    confidence : mean over its samples; NaN where it has none
    found_again : how well it would be found again, from 0 to 1, and a word for it; NaN and "" where it is not known
    interval : in which the former lies in nine of ten cases; empty where it is not known
    has : per view the share of its samples that have it
    typical : ids of its surest samples
    """

    label: int
    samples: int
    share: float
    confidence: float
    uncertain: int
    found_again: tuple[float, str]
    interval: tuple[float, ...]
    has: tuple[float, ...]
    typical: tuple[str, ...]


def clusters_of(run: FinishedRun) -> list[Cluster]:
    """The clusters by number."""
    return [_cluster(run, label) for label in range(run.n_clusters)]


def _cluster(run: FinishedRun, label: int) -> Cluster:
    rows = run.of_cluster(label)
    mean = run.confidence[rows].mean() if len(rows) else math.nan
    has = run.present[rows].mean(axis=0) if len(rows) else np.zeros(len(run.views))
    typical = tuple(run.ids[row] for row in typical_samples(rows, run.confidence).tolist())
    facts = (label, len(rows), len(rows) / max(len(run.ids), 1), float(mean), int(run.uncertain[rows].sum()))
    again = run.found_again[label] if run.found_again else (math.nan, "")
    own = run.trust.clusters[label] if run.trust is not None else {}
    interval = tuple(own[name] for name in ("low", "high") if name in own)
    return Cluster(*facts, again, interval, tuple(has.tolist()), typical)


def features_of(run: FinishedRun) -> list[Feature]:
    """What sets the clusters apart, by cluster and view, the largest difference first."""
    found = run.features
    if found is None:
        return []
    texts = zip(found.column("view"), found.column("feature"), strict=True)
    numbers = (found.numbers(name).tolist() for name in Feature._fields[3:])
    labels = found.whole_numbers("label").tolist()
    return [
        Feature(label, *names, *facts)
        for label, names, facts in zip(labels, texts, zip(*numbers, strict=True), strict=True)
    ]


def tables_of(run: FinishedRun) -> dict[str, Sheet]:
    """The tables by the names of their files."""
    sheets = {
        "clusters.csv": _cluster_sheet(run),
        "features.csv": Sheet(Feature._fields, features_of(run), ".7g"),
        "missing.csv": _pattern_sheet(run),
        "decisions.csv": _decision_sheet(run),
    }
    if run.history is not None:
        sheets["losses.csv"] = Sheet(tuple(run.history.columns), zip(*run.history.columns.values(), strict=True))
    if run.number is not None:
        sheets["k.csv"] = k_sheet(run.number)
    if run.merges is not None:
        sheets["merges.csv"] = Sheet(tuple(run.merges.columns), zip(*run.merges.columns.values(), strict=True))
    return sheets


def merges_of(run: FinishedRun) -> list[tuple[list[int], list[int], float]]:
    """Which clusters join first: the labels of both groups, and how far apart these are."""
    if run.merges is None:
        return []
    names = run.merges.column("first"), run.merges.column("second")
    groups: set[tuple[str, ...]] = {(str(label),) for label in range(run.n_clusters)}
    merges = []
    for row, pair in enumerate(zip(*names, strict=True)):
        first, second = (
            tuple(sorted(cell.split(), key=int)) if cell.replace(" ", "").isdigit() else () for cell in pair
        )
        if first == second or not {first, second} <= groups:
            where = f"{run.merges.path}, data row {row + 1}"
            raise DataError(f"{where}: {pair[0]!r} and {pair[1]!r} are no groups of clusters; check the file")
        groups = groups - {first, second} | {tuple(sorted(first + second, key=int))}
        merges.append(([int(label) for label in first], [int(label) for label in second]))
    return [(*pair, distance) for pair, distance in zip(merges, run.merges.numbers("distance").tolist(), strict=True)]


def k_sheet(number: ClusterNumber) -> Sheet:
    """Per split of the tree what speaks for it."""
    views = list(number.splits[0]["held_out"])
    names = ("strength", "error", "p_value", "level", "agreement", "null", "stability", "gap")
    rows = [
        (place, one["parent"], *one["sizes"], int(one["stands"]), *(float(one.get(name, math.nan)) for name in names),
         *(_known(one.get(part, {}).get(name)) for part in ("held_out", "views") for name in views))
        for place, one in enumerate(number.splits)
    ]  # fmt: skip
    parts = [f"{part}_{name}" for part in ("held_out", "agreement") for name in views]
    return Sheet(("split", "parent", "left", "right", "stands", *names, *parts), rows)


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _cluster_sheet(run: FinishedRun) -> Sheet:
    header = ["cluster", "samples", "share", "confidence", "uncertain", "found_again", "in_a_word", "low", "high"]
    rows = [
        (*one[:5], *one.found_again, *(one.interval or (math.nan, math.nan)), *one.has, " ".join(one.typical))
        for one in clusters_of(run)
    ]
    return Sheet([*header, *(f"has_{name}" for name in run.views), "typical"], rows)


def _pattern_sheet(run: FinishedRun) -> Sheet:
    present, sizes, _ = find_patterns(run.present)
    words = [lacking(one, run.views, longest=10_000) for one in present]
    facts = zip(words, present.astype(int).tolist(), sizes.tolist(), strict=True)
    rows = [(word, *there, size, size / len(run.ids)) for word, there, size in facts]
    return Sheet(["views", *(f"has_{name}" for name in run.views), "samples", "share"], rows)


def _decision_sheet(run: FinishedRun) -> Sheet:
    rows = [
        (name, as_json(one.chosen), f"{label(one)}: {words(one)}", as_json(one.evidence))
        for name, one in run.decisions.items()
    ]
    return Sheet(("decision", "chosen", "why", "evidence"), rows)
