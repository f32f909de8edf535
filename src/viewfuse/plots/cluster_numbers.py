"""The tree from which the number of clusters was chosen: where its splits are drawn, and a picture of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from viewfuse.plots.pictures import picture
from viewfuse.plots.style import ON_SCREEN, PictureStyle
from viewfuse.selection.messages import p_value

_ROW = 0.28


def draw_choice(path: Path, decision: Mapping[str, Any], style: PictureStyle = ON_SCREEN) -> None:
    """Draw the tree of a decision about the number of clusters; of too few samples there is none to draw.

    Parameters
    ----------
    decision : ``decisions_["n_clusters"]``
    """
    if not decision["splits"]:
        return
    rows = 1 + max(max(one.rows) for one in forks(decision["splits"]))
    with picture(path, "pictures", (8, min(40.0, 1.6 + _ROW * rows)), style=style) as figure:
        draw_tree(figure.subplots(), decision)


def draw_tree(axes: Any, decision: Mapping[str, Any]) -> None:
    """Draw a tested tree, its root at the left; splits that do not stand are dotted, sizes are at the right."""
    _draw_forks(axes, forks(decision["splits"]), decision["splits"])
    title = f"{decision['chosen']} clusters" if decision["chosen"] > 1 else "1 cluster"
    axes.set_title(f"{title}: a continuum" if decision["kind"] == "continuum" else title, fontsize="large")
    axes.set_xlabel(
        "strength of the split: how much rarer than in a Gaussian\nneighbours cross (bars: several Gaussians)"
    )
    axes.set_yticks([])
    axes.margins(x=0.12)  # room for the p-value of the first split
    axes.invert_xaxis()
    axes.invert_yaxis()


def _draw_forks(axes: Any, found: Sequence[Fork], splits: Sequence[Mapping[str, Any]]) -> None:
    for one, split in zip(found, splits, strict=True):
        style = {"color": "0.25" if split["stands"] else "0.75", "linestyle": "-" if split["stands"] else ":"}
        axes.plot([one.height] * 2, one.rows, linewidth=1.5, **style)
        for end, row, size in zip(one.ends, one.rows, split["sizes"], strict=True):
            axes.plot([one.height, end], [row] * 2, linewidth=1.5, **style)
            if end == 0:
                axes.annotate(f" {size:,}", (0, row), va="center", fontsize="x-small", color=style["color"])
        middle = sum(one.rows) / 2
        error = split.get("error", 0.0)
        axes.hlines(middle, one.height - error, one.height + error, color=style["color"], linewidth=4, alpha=0.4)
        label = f"p {p_value(split['p_value'])}"
        axes.annotate(label, (one.height, middle), ha="right", va="bottom", fontsize="x-small", color=style["color"])


class Fork(NamedTuple):
    """A split in a drawing.

    Attributes
    ----------
    height : its strength, not above its parent's nor below 0
    rows : where both sides are, from the top
    ends : down to which height each side goes: that of the split below, 0 where there is none
    """

    height: float
    rows: tuple[float, float]
    ends: tuple[float, float]


def forks(splits: Sequence[Mapping[str, Any]]) -> list[Fork]:
    """The place of each split, see `viewfuse.selection.decisions.ClusterNumber`; parts without one have a row each."""
    below = {(one["parent"], one["side"]): place for place, one in enumerate(splits)}
    heights: list[float] = []
    for one in splits:
        above = heights[one["parent"]] if one["parent"] >= 0 else max(one["strength"], 0.0)
        heights.append(max(0.0, min(one["strength"], above)))
    rows, used, waiting = dict[tuple[int, int], float](), 0, [(0, 1), (0, 0)]
    while waiting:  # from the top; a side with a split waits for its own two sides
        part = waiting.pop()
        inner = below.get(part)
        if inner is None:
            rows[part], used = float(used), used + 1
        else:
            waiting += [(inner, 1), (inner, 0)]
    for place in range(len(splits) - 1, 0, -1):
        above = splits[place]
        rows[above["parent"], above["side"]] = (rows[place, 0] + rows[place, 1]) / 2
    return [
        Fork(heights[place], (rows[place, 0], rows[place, 1]),
             (_height(heights, below.get((place, 0))), _height(heights, below.get((place, 1)))))
        for place in range(len(splits))
    ]  # fmt: skip


def _height(heights: Sequence[float], place: int | None) -> float:
    return 0.0 if place is None else heights[place]
