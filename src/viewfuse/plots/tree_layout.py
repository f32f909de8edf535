"""Where the splits of a tested tree are drawn, in pictures and in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


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
