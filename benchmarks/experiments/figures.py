"""Figures of results: curves, ablations, losses, confusion and embeddings, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix

from benchmarks.experiments.catalogue import title_of
from benchmarks.experiments.choices import ChoiceComparison, comparisons
from benchmarks.experiments.plans import OURS
from benchmarks.experiments.records import Record
from benchmarks.experiments.run_folders import done_folders, has_arrays, read_arrays, read_facts, read_losses
from benchmarks.experiments.tables import Line, by_rate
from viewfuse.plots.layout import plane
from viewfuse.plots.pictures import drawing
from viewfuse.utils.atomic import writing

_LABELS = {"acc": "accuracy, %", "nmi": "NMI, %", "ari": "ARI, %"}
_STYLES = {
    (OURS, "paper"): ("viewfuse, the paper's setting", "#1b6ca8", "o"),
    (OURS, "default"): ("viewfuse, default setting", "#d1495b", "s"),
    ("kmeans-mean", ""): ("k-means, mean filled", "#8a8a8a", "^"),
    ("kmeans-knn", ""): ("k-means, KNN filled", "#c8a15a", "v"),
}
_PAPER = "#2e2e2e"
_TERMS = ("total", "reconstruction", "robustness", "clustering")
_SHOWN_RATE = 0.5
"""The missing rate of confusion matrices; the paper's ablations have it, too."""
_MOST_DOTS = 2_000
_FEW_EPOCHS = 10
"""So few points deserve a mark each."""
_NUMBERED = 12
"""Larger confusion matrices would have no room for numbers."""


class FolderRun(NamedTuple):
    """A run that is done: what it is, and where."""

    facts: Mapping[str, Any]
    folder: Path


@drawing("figures")
def draw_figures(out: Path, records: Sequence[Record], runs: Path | None) -> list[Path]:
    """Everything that can be drawn: from records alone, and with the folder of runs also what only runs hold."""
    drawn: list[Path] = []
    for plan in dict.fromkeys(record.plan for record in records):
        compared = comparisons([record for record in records if record.plan == plan])
        if compared:
            drawn += _choices(out / f"{plan}-choices", compared)
        for dataset in dict.fromkeys(record.dataset for record in records if record.plan == plan):
            own = [record for record in records if (record.plan, record.dataset) == (plan, dataset)]
            drawn += _from_records(out, plan, dataset, own)
    folders = [FolderRun(read_facts(folder), folder) for folder in done_folders(runs)] if runs is not None else []
    for plan, dataset in dict.fromkeys((run.facts["plan"], run.facts["dataset"]) for run in folders):
        here = [run for run in folders if (run.facts["plan"], run.facts["dataset"]) == (plan, dataset)]
        drawn += _from_runs(out, f"{plan}-{dataset}", sorted(here, key=lambda run: run.facts["place"]))
    return drawn


def _from_records(out: Path, plan: str, dataset: str, records: Sequence[Record]) -> Iterator[Path]:
    lines = [line for line in by_rate(plan, records) if line.ours]
    conditions = {line.condition for line in lines}
    if len({line.missing_rate for line in lines}) > 1 and len(conditions) == 1:
        yield from _curves(out / f"{plan}-{dataset}-curves", lines)
    if len(conditions) > 1:
        yield from _conditions(out / f"{plan}-{dataset}-conditions", plan, lines)


def _from_runs(out: Path, name: str, runs: Sequence[FolderRun]) -> Iterator[Path]:
    """`runs` are of one plan and data set."""
    trained = [run for run in runs if run.facts["method"] == OURS]
    # Runs that were copied without their arrays are not shown.
    with_arrays = [run for run in runs if has_arrays(run.folder)]
    for setting in dict.fromkeys(run.facts["setting"] for run in trained):
        own = [run for run in trained if run.facts["setting"] == setting]
        kept = [run for run in with_arrays if run.facts["keep_embedding"] and run.facts["setting"] in ("", setting)]
        if any(run.facts["setting"] for run in kept):
            yield from _embeddings(out / f"{name}-{setting}-embedding", kept)
        if len({run.facts["condition"] for run in own}) == 1:
            yield from _convergence(out / f"{name}-{setting}-convergence", own)
            shown = [run for run in own if run.facts["missing_rate"] == _SHOWN_RATE and has_arrays(run.folder)]
            if shown:
                yield from _confusion(out / f"{name}-{setting}-confusion", shown)


def _saved(stem: Path, figure: Any) -> Iterator[Path]:
    """The figure as PNG and SVG; the latter without a date, so that the same results give the same file."""
    for kind, extra in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
        path = stem.with_name(f"{stem.name}.{kind}")
        with writing(path) as temporary:
            figure.savefig(temporary, format=kind, **extra)
        yield path


def _panels(*shape: int, figsize: tuple[float, float], **how: Any) -> tuple[Any, Any]:
    with drawing("figures") as new_figure:
        figure = new_figure(figsize=figsize, layout="constrained")
        return figure, figure.subplots(*shape, **how)


def _style(method: str, setting: str) -> tuple[str, str, str]:
    return _STYLES.get((method, setting), (method, "0.4", "x"))


def _curves(stem: Path, lines: Sequence[Line]) -> Iterator[Path]:
    """Scores over the missing rate, a panel per metric and a curve per method."""
    figure, panels = _panels(1, 3, figsize=(12, 4), sharex=True)
    for axes, metric in zip(panels, _LABELS, strict=True):
        styles = list(dict.fromkeys((line.method, line.setting) for line in lines))
        for place, (method, setting) in enumerate(styles):
            own = [line for line in lines if (line.method, line.setting) == (method, setting)]
            label, colour, marker = _style(method, setting)
            # A little apart, so that equal scores do not hide each other.
            rates = [100 * float(line.missing_rate) + 0.7 * (place - (len(styles) - 1) / 2) for line in own]
            values, spread = [line.ours[metric].value for line in own], _spread(own, metric)
            axes.errorbar(rates, values, spread, label=label, color=colour, marker=marker, markersize=5, capsize=3)
        axes.set(xlabel="samples with missing views, %", ylabel=_LABELS[metric], xticks=_rates(lines))
        axes.grid(True, color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"{title_of(lines[0].dataset)}; {_counted(lines)}")
    return _saved(stem, figure)


def _rates(lines: Sequence[Line]) -> list[float]:
    return sorted({100 * float(line.missing_rate) for line in lines})


def _spread(lines: Sequence[Line], metric: str) -> list[float]:
    """Deviations; none for single runs."""
    return [0.0 if isnan(line.ours[metric].sd) else line.ours[metric].sd for line in lines]


def _counted(lines: Sequence[Line]) -> str:
    counts = sorted({line.runs for line in lines})
    if counts == [1]:
        return "a single run each"
    return f"mean and standard deviation of {' or '.join(map(str, counts))} runs"


def _conditions(stem: Path, plan: str, lines: Sequence[Line]) -> Iterator[Path]:
    """Accuracy of every condition, a panel per missing rate, with the paper's beside it."""
    rates = list(dict.fromkeys(line.missing_rate for line in lines))
    names = list(dict.fromkeys(line.condition for line in lines))
    columns = min(3, len(rates))
    rows = ceil(len(rates) / columns)
    size = (3.2 + 3.6 * columns + 1.2 * (columns == 1), 1.5 + rows * (1.0 + 0.36 * len(names)))
    figure, panels = _panels(rows, columns, figsize=size, squeeze=False, sharey=True, sharex=True)
    for axes, rate in zip(panels.flat, rates, strict=False):
        _draw_conditions(axes, [line for line in lines if line.missing_rate == rate], names)
        axes.set_title(f"missing rate {rate}", fontsize=10)
    for axes in panels.flat[len(rates) :]:
        axes.set_visible(False)
    for axes in panels.flat[: len(rates)][-columns:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(_LABELS["acc"])
    panels[0, 0].invert_yaxis()
    handles, labels = _unique_handles(panels.flat[: len(rates)])
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if columns == 1 else 4, frameon=False)
    figure.suptitle(f"{plan}: {title_of(lines[0].dataset)}; {_counted(lines)}", fontsize=11)
    return _saved(stem, figure)


def _draw_conditions(axes: Any, lines: Sequence[Line], names: Sequence[str]) -> None:
    styles = list(dict.fromkeys((line.method, line.setting) for line in lines))
    for method, setting in styles:
        own = [line for line in lines if (line.method, line.setting) == (method, setting)]
        label, colour, marker = _style(method, setting)
        heights = [_height(line, lines, names) for line in own]
        values = [line.ours["acc"].value for line in own]
        axes.errorbar(values, heights, xerr=_spread(own, "acc"), label=label, color=colour, marker=marker,
                      linestyle="none", markersize=5, capsize=3)  # fmt: skip
    printed = {line.condition: line.paper["acc"] for line in lines if "acc" in line.paper}
    if printed:
        of_what = {title_of(figure.dataset) for figure in printed.values()}
        axes.plot([figure.value for figure in printed.values()], [names.index(name) for name in printed], "D",
                  color=_PAPER, fillstyle="none", markersize=7, label=f"the paper, {', '.join(of_what)}")  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.grid(True, axis="x", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _height(line: Line, lines: Sequence[Line], names: Sequence[str]) -> float:
    """Where a line stands: lines of one condition a little apart."""
    same = [other for other in lines if other.condition == line.condition]
    return names.index(line.condition) + 0.22 * (same.index(line) - (len(same) - 1) / 2)


def _choices(stem: Path, compared: Sequence[ChoiceComparison]) -> Iterator[Path]:
    """Accuracy of what is decided beside every fixed choice: a panel per missing rate, a row per data set."""
    rates = sorted({one.missing_rate for one in compared})
    rows = list(dict.fromkeys(one.dataset for one in compared))
    size = (3.4 + 3.4 * len(rates), 1.9 + 0.36 * len(rows))
    figure, panels = _panels(1, len(rates), figsize=size, squeeze=False, sharey=True, sharex=True)
    for axes, rate in zip(panels.flat, rates, strict=True):
        _draw_choices(axes, [one for one in compared if one.missing_rate == rate], rows)
        axes.set_title(f"missing rate {rate:g}", fontsize=10)
        axes.set_xlabel(_LABELS["acc"])
        axes.set_yticks(range(len(rows)), [title_of(row) for row in rows])
        axes.grid(True, axis="x", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    handles, labels = _unique_handles(panels.flat)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels) if len(rates) > 2 else 2, frameon=False
    )
    runs = "/".join(map(str, sorted({one.runs for one in compared})))
    figure.suptitle(f"What is decided without labels, beside fixed choices; runs: {runs}", fontsize=11)
    return _saved(stem, figure)


def _draw_choices(axes: Any, compared: Sequence[ChoiceComparison], rows: Sequence[str]) -> None:
    """Later marks lie on earlier ones: what was decided lies on top."""
    fixed = [(score.value, rows.index(one.dataset)) for one in compared for score in one.fixed.values()]
    best = [(one.fixed[one.best].value, rows.index(one.dataset)) for one in compared]
    simple = [(score.value, rows.index(one.dataset)) for one in compared for score in one.simple.values()]
    auto = [(one.auto.value, rows.index(one.dataset)) for one in compared]
    _dots(axes, fixed, "o", "fixed choices", color="0.6", markersize=5)
    _dots(axes, simple, "x", "simple methods", color="#8a6a1f", markersize=5)
    _dots(axes, best, "o", "the best fixed choice, seen with labels", color=_PAPER, fillstyle="none", markersize=10)
    _dots(axes, auto, "o", "decided without labels", color=_STYLES[OURS, "default"][1], markersize=6)


def _dots(axes: Any, places: Sequence[tuple[float, int]], marker: str, label: str, **look: Any) -> None:
    if places:
        x, y = zip(*places, strict=True)
        axes.plot(x, y, marker, label=label, **look)


def _unique_handles(panels: Sequence[Any]) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _convergence(stem: Path, runs: Sequence[FolderRun]) -> Iterator[Path]:
    """Every loss over the epochs, a curve per missing rate: the mean over seeds."""
    figure, panels = _panels(1, 4, figsize=(15, 3.8), sharex=True)
    rates = sorted({run.facts["missing_rate"] for run in runs})
    import matplotlib

    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(rates)))
    for rate, colour in zip(rates, colours, strict=True):
        read = [read_losses(run.folder) for run in runs if run.facts["missing_rate"] == rate]
        histories = [history for history in read if history is not None and len(history)]
        for axes, term in zip(panels, _TERMS, strict=True):
            _draw_losses(axes, histories, term, f"missing rate {rate:g}", colour)
    for axes, term in zip(panels, _TERMS, strict=True):
        axes.set(xlabel="epoch", title=f"{term} loss")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(True, color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)), frameon=False)
    first = runs[0].facts
    seeds = len({run.facts["seed"] for run in runs})
    what = f"{title_of(first['dataset'])}, {first['setting']} setting; mean of {seeds} seed{'s' * (seeds > 1)}"
    figure.suptitle(f"{what}; dashed: the joint stage begins", fontsize=11)
    return _saved(stem, figure)


def _draw_losses(axes: Any, histories: Sequence[NDArray[np.void]], term: str, label: str, colour: Any) -> None:
    if not histories:
        return
    longest = max(histories, key=len)
    epochs, joint = longest["epoch"], longest["stage"] == "joint"
    # A watched joint stage may end early: later epochs are the mean of those that got there.
    mean = np.array(
        [np.mean([history[term][i] for history in histories if i < len(history)]) for i in range(len(epochs))]
    )
    shown = mean > 0  # a term that is switched off is zero
    marker = "." if len(epochs) <= _FEW_EPOCHS else ""
    axes.plot(epochs[shown], mean[shown], label=label, color=colour, linewidth=1.4, marker=marker)
    if joint.any() and not joint.all() and len(axes.lines) == 1:
        axes.axvline(epochs[joint][0] - 0.5, color="0.5", linestyle="--", linewidth=1)


def _confusion(stem: Path, runs: Sequence[FolderRun]) -> Iterator[Path]:
    """Classes against the clusters that match them, in percent of the class, over all seeds."""
    pairs = [read_arrays(run.folder) for run in runs]
    shares = np.mean([_matched(arrays["known"], arrays["found"]) for arrays in pairs], axis=0)
    count, facts = len(shares), runs[0].facts
    figure, axes = _panels(figsize=(7, 6))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if count <= _NUMBERED:
        for row, column in np.ndindex(shares.shape):
            ink = "white" if shares[row, column] > 55 else "0.2"
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", color=ink, fontsize=9)
    ticks = range(0, count, max(1, count // 10))
    axes.set(xticks=ticks, yticks=ticks, xlabel="cluster, under the name of the class that it matches", ylabel="class")
    axes.set_title(
        f"{title_of(facts['dataset'])}, {facts['setting']} setting, missing rate {facts['missing_rate']:g}, "
        f"{len(runs)} run{'s' * (len(runs) > 1)}", fontsize=11
    )  # fmt: skip
    figure.colorbar(image, label="% of the class", shrink=0.85)
    return _saved(stem, figure)


def _matched(known: NDArray[Any], found: NDArray[Any]) -> NDArray[np.float64]:
    """Percent of each class in each cluster, of shape (classes, classes), clusters in the order of their classes."""
    counts = contingency_matrix(known, found).astype(float)
    size = max(counts.shape)
    padded = np.zeros((size, size))
    padded[: counts.shape[0], : counts.shape[1]] = counts
    columns = linear_sum_assignment(padded, maximize=True)[1]
    return 100 * (padded / np.maximum(padded.sum(axis=1, keepdims=True), 1))[:, columns]


def _embeddings(stem: Path, runs: Sequence[FolderRun]) -> Iterator[Path]:
    """T-SNE of the embeddings of one seed and missing rate, a panel per condition; colours are the known classes."""
    rate = runs[0].facts["missing_rate"]
    same = [run for run in runs if (run.facts["seed"], run.facts["missing_rate"]) == (0, rate)]
    columns = min(3, len(same))
    rows = ceil(len(same) / columns)
    figure, panels = _panels(rows, columns, figsize=(3.6 * columns, 0.6 + 3.5 * rows), squeeze=False)
    for axes, run in zip(panels.flat, same, strict=False):
        _draw_embedding(axes, run)
    for axes in panels.flat[len(same) :]:
        axes.set_visible(False)
    facts = same[-1].facts
    what = f"{title_of(facts['dataset'])}, {facts['setting']} setting, missing rate {facts['missing_rate']:g}"
    figure.suptitle(f"{what}: t-SNE; colours are known classes, accuracy in brackets", fontsize=11)
    return _saved(stem, figure)


def _draw_embedding(axes: Any, run: FolderRun) -> None:
    arrays = read_arrays(run.folder)
    chosen = np.sort(np.random.default_rng(0).permutation(len(arrays["known"]))[:_MOST_DOTS])
    x, y = plane(arrays["embedding"][chosen])
    classes = np.unique(arrays["known"][chosen], return_inverse=True)[1]
    few = classes.max() < 10
    import matplotlib

    colours = matplotlib.colormaps["tab10" if few else "tab20"](classes % (10 if few else 20))
    axes.scatter(x, y, color=colours, s=6, linewidths=0)
    axes.set_title(f"{run.facts['condition'] or run.facts['method']} ({run.facts['acc']:.1f} %)", fontsize=10)
    axes.set(xticks=[], yticks=[])
