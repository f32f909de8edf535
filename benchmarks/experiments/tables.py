"""Tables of results: ours beside what the paper prints, as text, CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import TypeVar

from benchmarks.experiments.catalogue import title_of
from benchmarks.experiments.choices import AUTO, COMPARED, SIMPLE, ChoiceComparison, Summary, comparisons, summaries
from benchmarks.experiments.plans import METHODS, gaps_of
from benchmarks.experiments.published import MEAN, POOLED_RATES, Figure, figures_of
from benchmarks.experiments.records import METRICS, Record, Score, scores
from viewfuse.io.formulas import as_csv
from viewfuse.io.writers import as_latex
from viewfuse.missing import Gaps
from viewfuse.utils.atomic import write_file

T = TypeVar("T")
NOTHING = "-"
_METHOD_NAMES = {
    "urrl": "URRL (viewfuse)",
    "completer": "COMPLETER (viewfuse)",
    "dcp": "DCP (viewfuse)",
    "sure": "SURE (viewfuse)",
    "dsimvc": "DSIMVC (viewfuse)",
    "cpspan": "CPSPAN (viewfuse)",
    "recformer": "RecFormer (viewfuse)",
    "nemo": "NEMO (viewfuse)",
    "pimvc": "PIMVC (viewfuse)",
    "kmeans-mean": "k-means, mean filled",
    "kmeans-knn": "k-means, KNN filled",
}
"""Of all methods that run here; what has another name is a printed figure."""
GAPS = "complete samples, missing cells, patterns"
"""What stands beside every missing rate, as the same rate means other gaps under other protocols."""
_METRIC_NAMES = {"acc": "ACC", "macro": "macro ACC", "nmi": "NMI", "ari": "ARI"}


@dataclass(frozen=True)
class ResultTable:
    """Text in rows and columns.

    Attributes
    ----------
    name : of its files
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Line:
    """Runs that differ in their seeds, and their masks, only.

    Attributes
    ----------
    missing_rate : as text; `MEAN` for the mean over several
    ours : per metric; empty where the line is the paper's alone
    paper : per metric what the paper prints, and of which data set
    gaps : what the first mask leaves, in the words of `GAPS`
    """

    dataset: str
    missing_rate: str
    condition: str
    method: str
    setting: str
    ours: dict[str, Score]
    paper: dict[str, Figure]
    runs: int
    gaps: str = ""

    def difference(self, metric: str) -> float | None:
        """Ours less the paper's; None where either is not there, or where the paper's is of other data."""
        if metric not in self.ours or metric not in self.paper or self.paper[metric].dataset != self.dataset:
            return None
        return self.ours[metric].value - self.paper[metric].value


def make_tables(records: Sequence[Record]) -> list[ResultTable]:
    """For every plan a table by missing rate; before it the mean over rates, or choices, where there are such."""
    tables = []
    for plan in dict.fromkeys(record.plan for record in records):
        own = [record for record in records if record.plan == plan]
        above = _means(plan, own) or _choices(plan, own)
        name, title = (f"{plan}-by-rate", f"{plan}: by missing rate") if above else (plan, plan)
        tables += [*above, _table(name, title, by_rate(plan, own)), *_by_views(plan, own)]
    return tables


def _by_views(plan: str, records: Sequence[Record]) -> list[ResultTable]:
    """Accuracy by the number of views that a sample has, of sets whose gaps are real; none where there are no such."""
    own = [record for record in records if record.by_views]
    if not own:
        return []
    lines = [alike for dataset in dict.fromkeys(one.dataset for one in own)
             for alike in _alike([one for one in own if one.dataset == dataset])]  # fmt: skip
    columns: dict[str, Callable[[list[Record]], str]] = {
        "data set": lambda alike: title_of(alike[0].dataset),
        "condition": lambda alike: alike[0].condition,
        "method": lambda alike: _METHOD_NAMES[alike[0].method],
        "setting": lambda alike: alike[0].setting,
        "all": lambda alike: str(scores(alike)["acc"]),
    }
    numbers = sorted({int(number) for one in own for number in json.loads(one.by_views)})
    for number in numbers:
        columns[f"{number} view{'s' * (number > 1)}"] = partial(_views_cell, str(number))
    title = f"{plan}: accuracy, %, of samples with so many views; brackets: how many samples"
    return [_filled(f"{plan}-by-views", title, columns, lines)]


def _views_cell(number: str, alike: Sequence[Record]) -> str:
    found = [json.loads(one.by_views).get(number) for one in alike]
    if None in found:
        return ""
    values = [accuracy for _, accuracy in found]
    return f"{Score(mean(values), stdev(values) if len(values) > 1 else nan)} ({found[0][0]})"


def _means(plan: str, records: Sequence[Record]) -> list[ResultTable]:
    if not figures_of(plan, MEAN):
        return []
    return [_table(plan, f"{plan}: mean of the missing rates 0, 0.25, 0.5 and 0.75", pooled(plan, records))]


def _choices(plan: str, records: Sequence[Record]) -> list[ResultTable]:
    """What was decided beside what could be fixed; none for plans that are not about that."""
    if not comparisons(records):
        return []
    summary = f"{plan}: accuracy of each choice, kept for all sets, less that of the best for each, seen with labels"
    return [
        *(_choice_table(plan, metric, own) for metric in COMPARED if (own := comparisons(records, metric))),
        _filled(f"{plan}-summary", summary, _SUMMARY_COLUMNS, list(summaries(records))),
    ]


def _choice_table(plan: str, metric: str, compared: Sequence[ChoiceComparison]) -> ResultTable:
    title = f"{plan}: {COMPARED[metric]}, %; best is the fixed choice that labels would pick"
    return _filled(plan if metric == "acc" else f"{plan}-{metric}", title, _choice_columns(compared), compared)


def _choice_columns(compared: Sequence[ChoiceComparison]) -> dict[str, Callable[[ChoiceComparison], str]]:
    columns: dict[str, Callable[[ChoiceComparison], str]] = {
        "data set": lambda one: title_of(one.dataset),
        "missing rate": lambda one: f"{one.missing_rate:g}",
        GAPS: lambda one: _gaps(one.first),
    }
    for choice in dict.fromkeys(choice for one in compared for choice in (AUTO, *one.fixed)):
        columns[choice] = partial(_choice_cell, choice)
    columns |= {_METHOD_NAMES[method]: partial(_simple_cell, method) for method in SIMPLE}
    return columns | {
        "best": lambda one: one.best,
        "auto - best": lambda one: f"{one.difference():+.2f}",
        "below a simple method": lambda one: _yes(one.below_simple()) if one.simple else "",
        "auto chose": lambda one: ", ".join(f"{scaling} {count}" for scaling, count in one.scalings.items()),
        "runs": lambda one: str(one.runs),
    }


def _level_cell(metric: str, one: Summary) -> str:
    return f"{one.levels[metric]:.2f}" if metric in one.levels else ""


_SUMMARY_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "data sets and rates": lambda one: one.part,
    "choice": lambda one: one.choice,
    "count": lambda one: str(one.count),
    **{f"{name}, %": partial(_level_cell, metric) for metric, name in COMPARED.items()},
    "mean difference": lambda one: f"{one.mean:+.2f}",
    "worst difference": lambda one: f"{one.worst:+.2f}",
    "where": lambda one: _place(one.where),
    "more than 2 below the best": lambda one: _of(one.far_below, one.count),
    "more than 1 below a simple method": lambda one: _of(len(one.below), one.with_simple),
    "where below": lambda one: "; ".join(_place(below) for below in one.below) if one.choice == AUTO else "",
}


def _choice_cell(choice: str, one: ChoiceComparison) -> str:
    return str(one.of(choice) or "")


def _of(count: int, of: int) -> str:
    return f"{count} of {of}" if of else ""


def _simple_cell(method: str, one: ChoiceComparison) -> str:
    return str(one.simple.get(method) or "")


def _place(one: ChoiceComparison) -> str:
    return f"{title_of(one.dataset)} at {one.missing_rate:g}"


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


def by_rate(plan: str, records: Sequence[Record]) -> list[Line]:
    """One line per data set, missing rate, condition, method and setting."""
    found = []
    for dataset, rate in dict.fromkeys((record.dataset, record.missing_rate) for record in records):
        here = [record for record in records if (record.dataset, record.missing_rate) == (dataset, rate)]
        figures = figures_of(plan, str(rate))
        found += [_line(own, f"{rate:g}", scores(own), figures) for own in _alike(here)]
        found += _papers_own(dataset, f"{rate:g}", figures)
    return found


def pooled(plan: str, records: Sequence[Record]) -> list[Line]:
    """One line per data set, condition, method and setting: the mean over missing rates of means and deviations.

    Only where all of the paper's missing rates are there: the mean of others says nothing beside it.
    """
    found, figures = [], figures_of(plan, MEAN)
    for dataset in dict.fromkeys(record.dataset for record in records):
        for own in _alike([record for record in records if record.dataset == dataset]):
            counted = [[record for record in own if record.missing_rate == rate] for rate in POOLED_RATES]
            if all(counted):
                each = [scores(part) for part in counted]
                known = [m for m in METRICS if all(m in s for s in each)]
                means = {m: Score(mean(s[m].value for s in each), mean(s[m].sd for s in each)) for m in known}
                found.append(_line([record for part in counted for record in part], MEAN, means, figures))
        found += _papers_own(dataset, MEAN, figures)
    return found


def _alike(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records of one condition, method and setting each, in the order of their first appearance."""
    for key in dict.fromkeys((record.condition, record.method, record.setting) for record in records):
        yield [record for record in records if (record.condition, record.method, record.setting) == key]


def _line(own: Sequence[Record], rate: str, ours: dict[str, Score], figures: Sequence[Figure]) -> Line:
    first = own[0]
    paper = [f for f in figures if (f.method, f.condition) == (first.method, first.condition)]
    # Of an ablation the paper prints one data set, which then stands beside others under its own name.
    if len({figure.dataset for figure in figures}) > 1:
        paper = [figure for figure in paper if figure.dataset == first.dataset]
    names = first.dataset, rate, first.condition, first.method, first.setting
    return Line(
        *names, ours, {figure.metric: figure for figure in paper}, len(own), "" if rate == MEAN else _gaps(first)
    )


def _gaps(one: Record) -> str:
    return short(gaps_of(one.plan, one.dataset, one.missing_rate, one.method, one.condition, one.n_views))


def short(gaps: Gaps | None) -> str:
    """Under the heading `GAPS`."""
    if gaps is None:
        return ""
    return f"{gaps.complete / gaps.samples:.0%}, {gaps.missing / gaps.samples / gaps.views:.0%}, {gaps.patterns}"


def _papers_own(dataset: str, rate: str, figures: Iterable[Figure]) -> list[Line]:
    """Lines of methods that only the paper ran, on the same data set."""
    others = [figure for figure in figures if figure.dataset == dataset and figure.method not in METHODS]
    keys = dict.fromkeys((figure.condition, figure.method) for figure in others)
    return [
        Line(dataset, rate, condition, method, "", {},
             {f.metric: f for f in others if (f.condition, f.method) == (condition, method)}, 0)
        for condition, method in keys
    ]  # fmt: skip


def _table(name: str, title: str, lines: Sequence[Line]) -> ResultTable:
    columns: dict[str, Callable[[Line], str]] = {
        "data set": lambda line: title_of(line.dataset),
        "missing rate": lambda line: line.missing_rate,
        GAPS: lambda line: line.gaps,
        "condition": lambda line: line.condition,
        "method": lambda line: _METHOD_NAMES.get(line.method, f"{line.method} (paper)"),
        "setting": lambda line: line.setting,
    }
    for metric, label in _METRIC_NAMES.items():
        columns[f"{label} %"] = partial(_our_cell, metric)
        columns[f"paper {label} %"] = partial(_paper_cell, metric)
        columns[f"difference {label}"] = partial(_difference_cell, metric)
    columns["runs"] = lambda line: str(line.runs or "")
    return _filled(name, title, columns, lines)


def _filled(name: str, title: str, columns: Mapping[str, Callable[[T], str]], lines: Sequence[T]) -> ResultTable:
    """A table with a row per line, less columns of which no line has anything."""
    filled = {column: [cell(line) for line in lines] for column, cell in columns.items()}
    kept = {column: cells for column, cells in filled.items() if any(cells)}
    rows = zip(*([cell or NOTHING for cell in cells] for cells in kept.values()), strict=True)
    return ResultTable(name, title, tuple(kept), tuple(rows))


def _our_cell(metric: str, line: Line) -> str:
    return str(line.ours.get(metric, ""))


def _paper_cell(metric: str, line: Line) -> str:
    figure = line.paper.get(metric)
    if figure is None:
        return ""
    of_what = "" if figure.dataset == line.dataset else f" ({title_of(figure.dataset)})"
    return f"{Score(figure.value, figure.sd)}{of_what}"


def _difference_cell(metric: str, line: Line) -> str:
    found = line.difference(metric)
    return "" if found is None else f"{found:+.2f}"


def write_tables(folder: Path, records: Sequence[Record]) -> list[ResultTable]:
    """Every table in four formats."""
    tables = make_tables(records)
    for table in tables:
        for ending, as_format in FORMATS.items():
            write_file(folder / f"{table.name}.{ending}", as_format(table).encode())
    return tables


def as_text(table: ResultTable) -> str:
    """Columns side by side."""
    cells = (table.header, *table.rows)
    widths = [max(len(row[c]) for row in cells) for c in range(len(table.header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([table.title, "", *lines, ""])


def as_markdown(table: ResultTable) -> str:
    """A pipe table."""
    rows = [table.header, ("---",) * len(table.header), *table.rows]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"**{table.title}**", "", *lines, ""])


FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "txt": as_text,
    "csv": lambda table: as_csv([table.header, *table.rows]),
    "md": as_markdown,
    "tex": lambda table: as_latex(table.header, table.rows, table.title),
}
