"""Tables of the comparison: how often each criterion finds the known number of clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from pathlib import Path
from statistics import mean

from benchmarks.clusters.experiment import OURS, NumberChoice, write_choices
from benchmarks.experiments.catalogue import CATALOGUE, title_of
from benchmarks.experiments.tables import ResultTable, as_markdown
from viewfuse.utils.atomic import write_file

CLEAR = {
    "handwritten": 0.5, "bdgp": 0.5, "bbcsport": 0.5, "citeseq_inhouse1182": 0.5, "ngs": 0.5, "mnist4": 0.5,
    "caltech7x200_reextracted": 0.5, "tcga_brca150": 0.5, "3sources": 0.25,
}  # fmt: skip
"""Up to which rate the default with the true number reaches 85 % accuracy (results/decisions/candidates.csv)."""


def is_clear(one: NumberChoice) -> bool:
    """Whether the classes of a real set can be found at all."""
    return one.dataset in CLEAR and one.missing_rate <= CLEAR[one.dataset]


GROUPS: dict[str, Callable[[NumberChoice], bool]] = {
    "real sets": lambda one: one.dataset in CATALOGUE,
    "real sets whose classes can be found (85 % accuracy with the true number)": is_clear,
    "synthetic sets with clusters": lambda one: one.dataset not in CATALOGUE and one.true_k > 1,
    "sets without structure": lambda one: one.true_k == 1,
}


def summary(found: Sequence[NumberChoice]) -> list[ResultTable]:
    """One table per group of sets, and one that lists the real sets."""
    tables = []
    for title, belongs in GROUPS.items():
        own = [one for one in found if belongs(one)]
        if own:
            tables.append(_compared(f"{title}: {_cells(own)} cells", own))
    return [*tables, _listed([one for one in found if one.dataset in CATALOGUE])]


def _cells(found: Sequence[NumberChoice]) -> int:
    return len({(one.dataset, one.missing_rate, one.mask) for one in found})


def _compared(title: str, found: Sequence[NumberChoice]) -> ResultTable:
    names = sorted({one.criterion for one in found}, key=lambda name: (name != OURS, name))
    rows = [_row(name, [one for one in found if one.criterion == name]) for name in names]
    header = (
        "criterion",
        "exact",
        "within one",
        "among those that hold",
        "mean abs log2(k/true)",
        "ARI less that at true k",
    )
    return ResultTable("clusters", title, header, tuple(rows))


def _row(name: str, own: Sequence[NumberChoice]) -> tuple[str, ...]:
    held = [str(one.true_k) in (one.holds or str(one.chosen)).split() for one in own]
    off = mean(abs(log2(one.chosen / one.true_k)) for one in own)
    lost = mean(one.ari - one.ari_at_true_k for one in own)
    exact, near = (mean(abs(one.chosen - one.true_k) <= most for one in own) for most in (0, 1))
    return (name, f"{exact:.0%}", f"{near:.0%}", f"{mean(held):.0%}", f"{off:.2f}", f"{lost:+.3f}")


def _listed(found: Sequence[NumberChoice]) -> ResultTable:
    names = list(dict.fromkeys(one.criterion for one in found))
    keys = sorted({(one.dataset, one.missing_rate) for one in found})
    rows = [
        _line(key, rate, names, [o for o in found if (o.dataset, o.missing_rate) == (key, rate)]) for key, rate in keys
    ]
    return ResultTable("sets", "What is chosen, mask by mask", ("data set", "rate", "true", *names), tuple(rows))


def _line(key: str, rate: float, names: Sequence[str], own: Sequence[NumberChoice]) -> tuple[str, ...]:
    chosen = [" ".join(str(one.chosen) for one in own if one.criterion == name) for name in names]
    return (title_of(key), f"{rate:g}", str(own[0].true_k), *chosen)


def write_summary(folder: Path, found: Sequence[NumberChoice]) -> list[ResultTable]:
    """`clusters.csv` with a line per choice, and `clusters.md` with the tables, which are returned as well."""
    write_choices(folder / "clusters.csv", found)
    tables = summary(found)
    write_file(folder / "clusters.md", "\n".join(as_markdown(one) for one in tables).encode())
    return tables
