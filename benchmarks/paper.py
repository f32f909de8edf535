"""The paper in docs/paper: `python -m benchmarks.paper` reads every number from results/ and calls typst.

The text is docs/paper/paper.typ, which has no number of its own; this script writes build/paper/numbers.json for it.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product
from math import sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.clusters.experiment import read_choices
from benchmarks.clusters.summary import summary as cluster_tables
from benchmarks.experiments.catalogue import CATALOGUE, title_of
from benchmarks.experiments.choices import AUTO, comparisons
from benchmarks.experiments.plans import gaps_of
from benchmarks.experiments.records import Record, Score, read_records, read_rows, scores
from benchmarks.experiments.tables import by_rate, pooled, short
from benchmarks.patterns import Placed, table_of
from benchmarks.studies.methods import table2
from viewfuse.comparison.ranks import Ranks, paired_tests, ranks_of
from viewfuse.missing import cells_mask, describe, nested_mask, one_view_mask, paper_mask
from viewfuse.utils.version import __version__

ROOT = RESULTS.parent
TEXT = ROOT / "docs" / "paper" / "paper.typ"
OUT = ROOT / "build" / "paper"
_SAMPLES = CATALOGUE["handwritten"].n
_RATES = table2.MORE_RATES
_HOW = "the paper is set by typst: install it (`pip install typst`, or https://typst.app), then call `make paper` again"


def numbers() -> dict[str, Any]:
    """All that the text states."""
    runs = collected()
    return {
        "version": __version__,
        "masks": str(table2._MASKS),
        "sets": str(len(table2.SETS) + len(table2.MORE_SETS)),
        "methods_count": str(len(table2.METHODS)),
        "samples": str(_SAMPLES),
        "modules": modules(),
        "clusters": clusters(),
        "new": new_samples(),
        "protocols": protocols(),
        "reproduced": reproduced(read_records(RESULTS / "paper" / "table2.csv")),
        "decisions": decisions(read_records(RESULTS / "decisions" / "decisions.csv")),
        "methods": methods(runs),
        "ranks": ranking(runs, list(table2.METHODS), _RATES),
        "ranks_half": ranking(runs, list(table2.METHODS), (0.5,)),
        "tests": tests(runs),
        "real": real(),
    }


def collected() -> table2.Runs:
    """Accuracies by data set, method and rate; URRL and the simple methods are those of `decisions` where it has them.

    There wide views are reduced for all of them, which the runs of Table 2 did not do for k-means.
    """
    runs = table2.collected()
    found: table2.Runs = {}
    for one in read_records(RESULTS / "decisions" / "decisions.csv"):
        if CATALOGUE[one.dataset].is_measured and (one.method != "urrl" or one.condition == AUTO):
            found.setdefault((one.dataset, one.method, one.missing_rate), []).append(one.acc)
    return {**runs, **found}


def modules() -> dict[str, Any]:
    """Our rows of the module ablation in the paper's setting, beside the paper's."""
    lines = by_rate("modules", read_records(RESULTS / "paper" / "modules.csv"))
    sets = list(dict.fromkeys(line.dataset for line in lines if line.ours))
    rows = []
    for condition in dict.fromkeys(line.condition for line in lines if line.ours):
        own = {line.dataset: line for line in lines if line.condition == condition and line.ours}
        paper = next(iter(own.values())).paper["acc"]
        cells = [str(own[one].ours["acc"]) if one in own else "" for one in sets]
        rows.append([condition, *cells, str(Score(paper.value, paper.sd))])
    runs = sorted({line.runs for line in lines if line.ours})
    return {"sets": [title_of(one) for one in sets], "rows": rows, "runs": f"{runs[0]} to {runs[-1]}"}


def clusters() -> dict[str, Any]:
    """How often each criterion finds the number of classes."""
    table = cluster_tables(read_choices(RESULTS / "clusters" / "clusters.csv"))[0]
    return {"header": list(table.header), "rows": [list(row) for row in table.rows], "title": table.title}


def new_samples() -> dict[str, Any]:
    """New samples of Handwritten by the number of views that they have; and all sets where they were measured."""
    with (RESULTS / "handwritten" / "new.csv").open(newline="") as file:
        lines = [[float(cell) for cell in row[2:]] for row in csv.reader(file)]
    cells = [str(Score(mean(one), stdev(one))) for one in zip(*lines, strict=True)]
    path = RESULTS / "patterns" / "patterns.csv"
    table = table_of(read_rows(path, Placed)) if path.exists() else None
    rows = [[cell for i, cell in enumerate(row) if i != 2] for row in table.rows] if table else []
    header = [name for i, name in enumerate(table.header) if i != 2] if table else []
    return {"handwritten": cells, "runs": str(len(lines)), "header": header, "rows": rows}


def protocols() -> list[list[str]]:
    """What a missing rate of one half leaves of two and six views under each protocol."""
    draws: dict[str, Callable[[int, int], NDArray[np.bool_]]] = {
        "URRL-IMVC": lambda views, number: paper_mask(_SAMPLES, views, 0.5, number, 0),
        "one view kept": lambda views, _: one_view_mask(_SAMPLES, views, 0.5, 0),
        "cells": lambda views, _: cells_mask(_SAMPLES, views, 0.5, 0),
        "nested": lambda views, _: nested_mask(_SAMPLES, views, 0.5, 0),
    }
    return [[name, *(str(describe(draw(*shape))) for shape in ((2, 1), (6, 4)))] for name, draw in draws.items()]


def reproduced(records: Sequence[Record]) -> list[list[str]]:
    """Ours in both settings beside what the paper prints, means of four missing rates; sets of the paper."""
    rows = []
    for line in pooled("table2", records):
        if line.method == "urrl" and line.ours:
            paper = line.paper.get("acc")
            own = [str(line.ours[metric]) for metric in ("acc", "nmi", "ari")]
            difference = line.difference("acc")
            rows.append([title_of(line.dataset), line.setting, *own, "" if paper is None else f"{paper.value:.2f}",
                         "" if difference is None else f"{difference:+.2f}"])  # fmt: skip
    return rows


def decisions(records: Sequence[Record]) -> dict[str, Any]:
    """What is decided without labels, less every fixed choice and simple method, paired by mask, over data sets."""
    auto = {_cell(one): one.acc for one in records if (one.method, one.condition) == ("urrl", AUTO)}
    names = dict.fromkeys(one.condition for one in records if one.condition != AUTO)
    rows = []
    for name in names:
        less: dict[str, list[float]] = {}
        for one in records:
            if one.condition == name and _cell(one) in auto:
                less.setdefault(one.dataset, []).append(auto[_cell(one)] - one.acc)
        means = {dataset: mean(own) for dataset, own in less.items()}
        error = stdev(means.values()) / sqrt(len(means))
        worst, best = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        rows.append([name, str(len(means)), f"{mean(means.values()):+.1f} ± {error:.1f}",
                     f"{means[worst]:+.1f} ({title_of(worst)})", f"{means[best]:+.1f} ({title_of(best)})"])  # fmt: skip
    compared = [one for one in comparisons(records) if CATALOGUE[one.dataset].is_measured]
    behind = mean(-one.difference() for one in compared)
    below = sum(one.below_simple() for one in compared)
    return {"rows": rows, "behind": f"{behind:.1f}", "cells": str(len(compared)), "below": str(below)}


def _cell(one: Record) -> tuple[str, float, int]:
    return one.dataset, one.missing_rate, one.seed


def _means(runs: table2.Runs, dataset: str, method: str, rates: Sequence[float]) -> float:
    """The mean over rates of the means over ten masks; NaN where one is not there."""
    each = [runs.get((dataset, method, rate), []) for rate in rates]
    return mean(map(mean, each)) if all(len(one) == table2._MASKS for one in each) else np.nan


def methods(runs: table2.Runs) -> dict[str, Any]:
    """Accuracy of every method on every set at three rates."""
    names = list(table2.METHODS)
    rows = []
    for dataset, rate in product((*table2.SETS, *table2.MORE_SETS), _RATES):
        own = [_means(runs, dataset, method, (rate,)) for method in names]
        best = float(np.nanmax(own))
        cells = ["" if np.isnan(one) else f"{one:.1f}" for one in own]
        gaps = short(gaps_of("table2", dataset, rate, "urrl", ""))
        first = title_of(dataset) if rate == _RATES[0] else ""
        best_of = [bool(one == best) for one in own]
        rows.append({"set": first, "rate": f"{rate:g}", "gaps": gaps, "cells": cells, "best": best_of})
    return {"names": [table2.METHODS[name] for name in names], "rows": rows}


def _scores(runs: table2.Runs, names: Sequence[str], rates: Sequence[float]) -> np.ndarray[Any, Any]:
    """Of the sets that all of the methods were run on, of shape (sets, methods)."""
    rows = [[_means(runs, dataset, name, rates) for name in names] for dataset in (*table2.SETS, *table2.MORE_SETS)]
    return np.array([row for row in rows if not np.isnan(row).any()])


def ranking(runs: table2.Runs, names: Sequence[str], rates: Sequence[float]) -> dict[str, Any]:
    """Mean ranks of the methods that were run on most sets."""
    own = [name for name in names if _counted(runs, name, rates) >= len(table2.SETS) + len(table2.MORE_SETS) - 3]
    found: Ranks = ranks_of([table2.METHODS[name] for name in own], _scores(runs, own, rates))
    left = [table2.METHODS[name] for name in names if name not in own]
    pairs = [[name, f"{rank:.2f}"] for name, rank in zip(found.names, found.mean_ranks, strict=True)]
    return {"pairs": pairs, "difference": f"{found.critical_difference:.2f}", "p": f"{found.p_value:.1e}",
            "count": str(found.count), "left": ", ".join(left)}  # fmt: skip


def _counted(runs: table2.Runs, name: str, rates: Sequence[float]) -> int:
    return sum(not np.isnan(_means(runs, one, name, rates)) for one in (*table2.SETS, *table2.MORE_SETS))


def tests(runs: table2.Runs) -> list[list[str]]:
    """URRL against each simple method over data sets."""
    names = ["urrl", "nemo", "pimvc", "kmeans-knn"]
    found = paired_tests(names, _scores(runs, names, _RATES), "urrl")
    return [[table2.METHODS[one.method], f"{one.difference:+.1f}", str(one.wins), str(one.losses),
             f"{one.effect:+.2f}", f"{one.corrected:.2g}"] for one in found]  # fmt: skip


def real() -> list[dict[str, Any]]:
    """Sets with real gaps, all methods."""
    records, found = read_records(RESULTS / "real" / "table2.csv"), []
    for dataset in table2.REAL_SETS:
        own = [one for one in records if one.dataset == dataset]
        rows = []
        for method in table2.METHODS:
            alike = [one for one in own if one.method == method]
            by_views = [json.loads(one.by_views) for one in alike]
            cells = [f"{mean(one[number][1] for one in by_views):.1f}" for number in by_views[0]]
            rows.append([table2.METHODS[method], str(scores(alike)["acc"]), *cells, str(len(alike))])
        groups = [f"{number} ({size})" for number, (size, _) in json.loads(own[0].by_views).items()]
        found.append({"set": title_of(dataset), "gaps": str(CATALOGUE[dataset].gaps), "groups": groups, "rows": rows})
    return found


def main() -> int:
    """Write the numbers, and call typst where it is there."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "numbers.json").write_text(json.dumps(numbers(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    target = OUT / "paper.pdf"
    if shutil.which("typst"):
        subprocess.run(["typst", "compile", "--root", str(ROOT), str(TEXT), str(target)], check=True)
    else:
        try:
            typst = import_module("typst")
        except ImportError:
            print(_HOW, file=sys.stderr)
            return 2
        typst.compile(str(TEXT), output=str(target), root=str(ROOT))
    print(f"Open this file: {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
