"""A picture of mean ranks: bars join methods whose ranks differ by chance only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewfuse.comparison.ranks import Ranks
from viewfuse.plots.pictures import picture
from viewfuse.plots.style import ON_SCREEN, PictureStyle

_LINE, _BAR = 0.55, 0.22
"""Inches between names, and between bars."""
_LEVEL_WORDS = "5 %"


def draw_critical_difference(path: Path, ranks: Ranks, *, title: str, style: PictureStyle = ON_SCREEN) -> None:
    """Draw methods along an axis of mean ranks, the best on the left, with the critical difference above it."""
    height = 1.6 + _BAR * len(ranks.alike()) + 0.34 * ((len(ranks.names) + 1) // 2)
    with picture(path, "pictures of ranks", (9, height), dpi=130, style=style) as figure:
        _draw_ranks(figure.subplots(), ranks)
        words = (
            f"mean ranks over {ranks.count} data sets; bars join what may differ by chance (Nemenyi, {_LEVEL_WORDS})"
        )
        if not style.columns:  # captions have that
            figure.suptitle(f"{title}\n{words}; Friedman p = {ranks.p_value:.2g}", fontsize=10)


def _draw_ranks(axes: Any, ranks: Ranks) -> None:
    """The axis, a bar per group of methods that are alike, and a line per method that leads to its name."""
    k, bars = len(ranks.names), ranks.alike()
    half = (k + 1) // 2
    _axis(axes, k, ranks.critical_difference)
    for place, (first, last) in enumerate(bars):
        depth = -0.25 - 0.25 * place
        ends = ranks.mean_ranks[first] - 0.04, ranks.mean_ranks[last] + 0.04
        axes.plot(ends, (depth, depth), color="0.25", linewidth=4, solid_capstyle="round")
    below = -0.25 * (len(bars) + 1) - 0.15
    for i, (name, rank) in enumerate(zip(ranks.names, ranks.mean_ranks, strict=True)):
        left = i < half
        depth = below - _LINE * (i if left else k - 1 - i)
        end = 1 - 0.15 if left else k + 0.15
        color = "#0072b2" if rank == ranks.mean_ranks[0] else "0.5"
        axes.plot((rank, rank, end), (0, depth, depth), color=color, linewidth=1)
        text = f"{name}  {rank:.2f} " if left else f" {rank:.2f}  {name}"
        axes.text(end, depth, text, ha="right" if left else "left", va="center")
    axes.set_xlim(1 - 0.3 * k, max(k + 0.3 * k, 1.1 + ranks.critical_difference))
    axes.set_ylim(below - _LINE * half, 1.35)
    axes.axis("off")


def _axis(axes: Any, k: int, difference: float) -> None:
    """The axis of ranks, and above it how long the critical difference is."""
    axes.plot((1, k), (0, 0), color="black", linewidth=1.2)
    for rank in range(1, k + 1):
        axes.plot((rank, rank), (0, 0.12), color="black", linewidth=1.2)
        axes.text(rank, 0.2, str(rank), ha="center", va="bottom", fontsize="small")
    axes.plot((1, 1 + difference), (0.85, 0.85), color="#d55e00", linewidth=2)
    for end in (1, 1 + difference):
        axes.plot((end, end), (0.78, 0.92), color="#d55e00", linewidth=2)
    axes.text(
        1 + difference / 2, 0.97, f"critical difference {difference:.2f}", ha="center", va="bottom", fontsize="small"
    )
