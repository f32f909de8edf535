"""The picture of a speed measurement: ours beside plain, and time and memory over the number of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from viewfuse.plots.pictures import picture

_COLOURS = {"ours": "#1b6ca8", "plain": "#c8a15a"}
_NAMES = {"ours": "viewfuse", "plain": "plain reference"}


class SpeedLine(NamedTuple):
    """One comparison; `ratio` is how many times better the package is."""

    what: str
    unit: str
    ours: float
    plain: float
    ratio: float


def comparisons(found: Mapping[str, Any]) -> list[SpeedLine]:
    """What was measured for both, as lines of a table."""
    training, predict, memory = found["training"], found["predict"], found["memory"]
    rates = training["ours"]["steps_per_second"], training["plain"]["steps_per_second"]
    lines = [SpeedLine("training", "steps/s", *rates, training["ratio"])]
    lines += [
        SpeedLine(f"training, {name.split('_')[1]} networks at once", "steps/s", part["steps_per_second"], rates[1],
             part["steps_per_second"] / rates[1])
        for name, part in training.items() if name.startswith("ours_")
    ]  # fmt: skip
    reached = found["accuracy"]
    if reached and reached["ratio"]:
        what = f"to {reached['target']:.0%} accuracy"
        lines.append(SpeedLine(what, "s", reached["ours_seconds"], reached["plain_seconds"], reached["ratio"]))
    rows = predict["ours_rows_per_second"], predict["plain_rows_per_second"]
    wait = predict["ours_latency_ms"], predict["plain_latency_ms"]
    lines += [SpeedLine("predict, many rows", "rows/s", *rows, predict["throughput_ratio"])]
    lines += [SpeedLine("predict, one row", "ms", *wait, predict["latency_ratio"])]
    lines += [_search(part) for part in found["neighbors"]]
    lines += _memory(memory, "more_than_before_mb", "memory of a fit")
    return lines + _memory(memory, "gpu_peak_mb", "GPU memory of a fit")


def _search(part: Mapping[str, Any]) -> SpeedLine:
    return SpeedLine(f"neighbours of {part['n']:,}", "s", part["ours_seconds"], part["plain_seconds"], part["ratio"])


def _memory(memory: Mapping[str, Any], key: str, what: str) -> list[SpeedLine]:
    if any(key not in memory[who] for who in ("ours", "plain")):
        return []
    ours, plain = memory["ours"][key], memory["plain"][key]
    return [SpeedLine(what, "MB", ours, plain, plain / max(ours, 1e-9))]


def draw_speed(path: Path, found: Mapping[str, Any]) -> None:
    """Bars of how many times better the package is, and the scaling curves, as PNG."""
    lines = comparisons(found)
    with picture(path, "pictures", (11, 3.6 + 0.42 * len(lines))) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=[0.42 * len(lines) + 0.6, 3.0])
        _draw_bars(figure.add_subplot(grid[0, :]), lines)
        _draw_curve(figure.add_subplot(grid[1, 0]), found["scaling"], "seconds", "seconds, from arrays to labels")
        _draw_curve(figure.add_subplot(grid[1, 1]), found["scaling"], "peak_mb", "peak memory of the process, MB")
        figure.suptitle(_title(found["machine"]), fontsize=11)


def _title(machine: Mapping[str, Any]) -> str:
    where = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    return f"viewfuse {machine['versions']['viewfuse']} beside a plain reference: {where}, {machine['date']}"


def _draw_bars(axes: Any, lines: Sequence[SpeedLine]) -> None:
    """The plain reference is the line at 1, so that quantities of all units fit one axis."""
    places, ratios = range(len(lines)), [line.ratio for line in lines]
    axes.barh(places, [r - 1 for r in ratios], left=1, height=0.62,
              color=[_COLOURS["ours" if r >= 1 else "plain"] for r in ratios])  # fmt: skip
    axes.axvline(1, color="0.2", linewidth=1.2)
    for place, line in zip(places, lines, strict=True):
        text = f"{line.ratio:.2g} x   ({number(line.ours)} against {number(line.plain)} {line.unit})"
        axes.annotate(text, (max(line.ratio, 1), place), (5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *[0.8 * r for r in ratios]), 3.5 * max(2, *ratios))  # room for the words
    axes.set_yticks(places, [line.what for line in lines])
    axes.invert_yaxis()
    ticks = [
        t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if axes.get_xlim()[0] <= t <= 2 * max(ratios)
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(
        "times better than the plain reference, which is the line at 1 (blue: viewfuse is better; sand: it is not)"
    )
    axes.spines[["top", "right"]].set_visible(False)


def _draw_curve(axes: Any, points: Sequence[Mapping[str, Any]], key: str, label: str) -> None:
    for who, marker in (("ours", "o"), ("plain", "s")):
        there = [(point["n"], point[who][key]) for point in points if key in point.get(who, {})]
        if there:
            axes.plot(*zip(*there, strict=True), marker=marker, color=_COLOURS[who], label=_NAMES[who])
    axes.set(xscale="log", yscale="log", ylabel=label)
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    _name_ticks(axes.yaxis, _round_numbers(low, high))
    _name_ticks(axes.xaxis, [point["n"] for point in points])
    axes.set_xlabel(f"samples ({_training_length(points)})")
    axes.grid(True, color="0.9")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9)


def _name_ticks(axis: Any, places: Sequence[float]) -> None:
    """Plain numbers instead of powers of ten."""
    axis.set_ticks(places, [number(place) for place in places])
    axis.set_ticks([], minor=True)


def _round_numbers(low: float, high: float) -> list[float]:
    """Some between the two: few digits where that gives two at least, else more."""
    for digits in ((1, 2, 5), range(1, 10), np.arange(1, 10, 0.25), np.arange(1, 10, 0.05)):
        found = [float(digit * 10.0**power) for power in range(-3, 8) for digit in digits]
        between = [number for number in found if low <= number <= high]
        if len(between) > 1:
            return between
    return [low, high]


def _training_length(points: Sequence[Mapping[str, Any]]) -> str:
    epochs = points[0]["epochs"] if points else "auto"
    return "epochs by default" if epochs == "auto" else f"{epochs} epoch{'s' * (epochs != 1)} per stage"


def number(value: float) -> str:
    """Three digits, thousands set apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
