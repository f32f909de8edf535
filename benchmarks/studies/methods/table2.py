"""The whole of Table 2, all methods by missing rate: python -m benchmarks.studies.methods.table2 writes table2.md.

URRL and k-means come from `../paper/table2.csv`, the networks from `gpu.csv`, NEMO and PIMVC from `table2_cpu.csv`;
what the paper prints comes from the package. For sets that the paper does not have, all but the networks come from
`../decisions/decisions.csv`, at three rates; sets with real gaps come from `../real/table2.csv`. A mean is written
where all rates are there, and its deviation is the mean of those of the rates, as in `../paper/table2.md`.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks import RESULTS
from benchmarks.experiments import published
from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.experiments.plans import gaps_of
from benchmarks.experiments.records import read_records
from benchmarks.experiments.tables import GAPS, short

HERE = RESULTS / "methods"
RATES = (0.0, 0.25, 0.5, 0.75)
_MASKS = 10
SETS = (
    "handwritten", "scene15", "bdgp", "caltech7x200_reextracted", "landuse21", "citeseq_inhouse1182", "tcga_brca150",
)  # fmt: skip
MORE_RATES = RATES[1:]
MORE_SETS = ("reuters1200", "bbcsport", "ngs", "3sources", "movies", "prokaryotic", "proteinfold", "mnist4")
REAL_SETS = ("3sources_partial", "miniacc_partial")
METHODS = {
    "urrl": "URRL", "nemo": "NEMO", "pimvc": "PIMVC", "kmeans-knn": "k-means, KNN filled", "recformer": "RecFormer",
    "cpspan": "CPSPAN", "dsimvc": "DSIMVC", "sure": "SURE", "dcp": "DCP", "completer": "Completer",
    "kmeans-mean": "k-means, mean filled",
}  # fmt: skip
PAIRS = ("sure", "dcp", "completer")
Runs = dict[tuple[str, str, float], list[float]]


def main() -> None:
    """Write the tables."""
    runs, printed = collected(), printed_means()
    parts = [
        "Accuracy in percent, mean ± sd of ten masks, by the share of incomplete samples. Paper: what its Table 2 "
        "prints for the mean of the four rates. SURE, DCP and COMPLETER get the first two views of sets with more; for "
        "the paper two were drawn. The six networks are of the code of now where half of the samples are incomplete, "
        "and DSIMVC everywhere; at other rates the other five are of the code before (column `commit` of `gpu.csv`)."
    ]
    parts += [table(dataset, RATES, runs, printed) for dataset in SETS]
    parts += ["## Eight sets that the paper does not have"]
    parts += [table(dataset, MORE_RATES, runs, printed) for dataset in MORE_SETS]
    if any(dataset in REAL_SETS for dataset, *_ in runs):
        parts += ["## Sets with real gaps\n\nThe mask is that of the data, so ± is the deviation of ten trainings."]
        parts += [table(dataset, CATALOGUE[dataset].rates(RATES), runs, printed) for dataset in REAL_SETS]
    (HERE / "table2.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def collected() -> Runs:
    """Accuracies by data set, method and rate."""
    found: Runs = defaultdict(list)
    measured = [path for room in ("paper", "real") if (path := RESULTS / room / "table2.csv").exists()]
    for one in (record for path in measured for record in read_records(path)):
        if one.setting in ("", "default"):
            found[one.dataset, one.method, one.missing_rate].append(one.acc)
    for one in read_records(RESULTS / "decisions" / "decisions.csv"):
        if one.dataset in MORE_SETS and (one.method != "urrl" or one.condition == "auto"):
            found[one.dataset, one.method, one.missing_rate].append(one.acc)
    for name in ("gpu.csv", "table2_cpu.csv"):
        with (HERE / name).open(newline="") as file:
            for row in csv.DictReader(file):
                found[row["dataset"], row["method"], float(row["missing_rate"])].append(float(row["acc"]))
    return found


def printed_means() -> dict[tuple[str, str], str]:
    """What the paper prints, by data set and method."""
    with (Path(published.__file__).parent / "paper" / "published.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "table2" and row["metric"] == "acc"]
    return {(row["dataset"], row["method"]): f"{float(row['value']):.1f} ± {float(row['sd']):.1f}" for row in rows}


def table(dataset: str, rates: Sequence[float], runs: Runs, printed: dict[tuple[str, str], str]) -> str:
    """One data set; with the paper's column where the paper has it."""
    of_paper = any(one == dataset for one, _ in printed)
    header = ["", *(f"{rate:.0%}" for rate in rates), "mean", *["paper"] * of_paper]
    gaps = [short(gaps_of("table2", dataset, rate, "urrl", "")) for rate in rates]
    lines = [f"**{CATALOGUE[dataset].title}**\n", row(header), row(["---"] * len(header))]
    lines.append(row([GAPS, *gaps, "", *[""] * of_paper]))
    for method, name in METHODS.items():
        own = [runs.get((dataset, method, rate), []) for rate in rates]
        if not any(own):
            continue
        cells = [f"{mean(one):.1f} ± {stdev(one):.1f}" if len(one) == _MASKS else "" for one in own]
        whole = f"{mean(map(mean, own)):.1f} ± {mean(map(stdev, own)):.1f}" if all(cells) else ""
        theirs = printed.get((dataset, "urrl" if method == "urrl" else name), "")
        two = ", two views" if method in PAIRS and len(CATALOGUE[dataset].widths) > 2 else ""
        lines.append(row([name + two, *cells, whole, *[theirs] * of_paper]))
    return "\n".join(lines)


def row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
