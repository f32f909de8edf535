"""Small drawings as SVG, each with its meaning in words; colours come from the style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viewfuse.plots.layout import shortened
from viewfuse.plots.pictures import forks
from viewfuse.report.html import filled
from viewfuse.selection.decision_texts import p_value

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_CUTS = 20
"""Numbers of clusters by which the map can be coloured, from two on: more colours look alike."""
_WIDTH, _HEIGHT = 320, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 26
_LETTER = 6
"""About the width of a letter."""
_Text = tuple[float, float, str, str]
"""Place, anchor and words."""
Merges = Sequence[tuple[Sequence[int], Sequence[int], float]]
"""Which clusters join first: the clusters of both branches, and the height at which they join."""


def _chart(caption: str, words: str, width: float, height: float, **parts: Any) -> Markup:
    drawn = {"lines": [], "texts": [], "shade": None, "dot": None, "cuts": []} | parts
    return filled("chart.html", caption=caption, words=words, width=width, height=height, **drawn)


def _path(*points: tuple[float, float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def line_chart(
    points: Sequence[tuple[float, float]],
    title: str,
    along: str,
    *,
    since: float | None = None,
    axes: tuple[tuple[float, float], tuple[float, float]] | None = None,
) -> Markup:
    """A curve with both ends of its axes; the ground is shaded from `since` on.

    `along` says what goes from left to right, and `axes` where both begin and end; by default where the curve does.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    (low_x, high_x), (low_y, high_y) = axes or ((min(xs), max(xs)), (min(ys), max(ys)))
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - low_x) / span_x * (right - _LEFT)
        return across, bottom - (y - low_y) / span_y * (bottom - _TOP)

    def short(value: float) -> str:
        """A number for the room beside an axis: 1.2e-5 where it is neither 0.0000123 nor 1.23e-05."""
        text = f"{value:.3g}"
        return text if len(text) * _LETTER <= _LEFT - 4 else re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.1e}")

    shade, dot = None, None
    if since is not None and low_x < since <= high_x:
        start, _ = place(since, low_y)
        shade = start, _TOP, right - start, bottom - _TOP
    path = _path(*(place(x, y) for x, y in points))
    if len(points) == 1:
        dot = *path.split(","), f"{xs[0]:g}: {ys[0]:.4g}"
    lines = [("axis-line", f"{_LEFT},{_TOP} {_LEFT},{bottom} {right},{bottom}", None), ("line", path, None)]
    texts: list[_Text] = [(_LEFT - 4, place(low_x, y)[1] + 4, "end", short(y)) for y in dict.fromkeys((low_y, high_y))]
    ends = [(_LEFT, "start", f"{low_x:g}"), (_WIDTH, "end", f"{high_x:g}")][: 1 + (low_x < high_x)]
    room = (_WIDTH - _LEFT) // _LETTER - 4 - 2 * max(len(text) for *_, text in ends)
    texts += [(x, _HEIGHT - 9, anchor, text) for x, anchor, text in ends]
    texts += [((_WIDTH + _LEFT) / 2, _HEIGHT - 9, "middle", shortened(along, room))]
    words = f"{title}: from {ys[0]:.3g} at {xs[0]:g} to {ys[-1]:.3g} at {xs[-1]:g}"
    return _chart(title, words, _WIDTH, _HEIGHT, lines=lines, texts=texts, shade=shade, dot=dot)


def split_tree(splits: Sequence[Mapping[str, Any]]) -> Markup:
    """A tested tree, from the root at the left to the clusters at the right, with p-values; see `ClusterNumber`."""
    found = forks(splits)
    most, rows = found[0].height or 1.0, 1 + max(max(one.rows) for one in found)
    lines, texts = list[tuple[str, str, None]](), list[_Text]()
    for one, split in zip(found, splits, strict=True):
        x, *ends = (74 + 270 * (1 - height / most) for height in (one.height, *one.ends))
        ys = [16 + 20 * row for row in one.rows]
        half, middle = 270 * split.get("error", 0.0) / most, sum(ys) / 2
        path = _path((ends[0], ys[0]), (x, ys[0]), (x, ys[1]), (ends[1], ys[1]))
        lines.append(("line" if split["stands"] else "line fallen", path, None))
        lines.append(("error", _path((x - half, middle), (x + half, middle)), None))
        texts += [(348, y + 4, "start", f"{size:,}")
                  for y, leaf, size in zip(ys, one.leaves, split["sizes"], strict=True) if leaf]  # fmt: skip
        texts.append((x - 4, middle - 5, "end", f"p {p_value(split['p_value'], '= ')}"))
    words = f"The tree of splits; {sum(bool(one['stands']) for one in splits)} of {len(splits)} stand"
    return _chart("The tree that was tested", words, 400, 20 * rows + 12, lines=lines, texts=texts)


def cuts_of(merges: Merges, n_clusters: int) -> dict[int, list[int]]:
    """By number of clusters, from two on, the least label of the group that each cluster is in then."""
    groups, found = list(range(n_clusters)), dict[int, list[int]]()
    for step, (left, right, _) in enumerate(merges):
        found[n_clusters - step] = groups
        joined = {groups[left[0]], groups[right[0]]}
        groups = [min(joined) if own in joined else own for own in groups]
    return {k: found[k] for k in sorted(found)[:MOST_CUTS]}


def merge_tree(merges: Merges, n_clusters: int) -> Markup:
    """Which clusters join first, as a tree from left (all apart) to right (all one)."""
    order = {label: [label] for label in range(n_clusters)}  # by its least label each group, so that no branches cross
    for left, right, _ in merges:
        first, second = order.pop(min(left)), order.pop(min(right))
        order[min(*left, *right)] = first + second
    rows = [label for group in order.values() for label in group]
    place: dict[tuple[int, ...], tuple[float, float]] = {(label,): (0.0, float(row)) for row, label in enumerate(rows)}
    most = max((height for *_, height in merges), default=1.0) or 1.0
    lines, cuts = [], [n_clusters - step for step in range(len(merges))]
    for (left, right, height), cut in zip(merges, cuts, strict=True):
        (x1, y1), (x2, y2) = place[tuple(sorted(left))], place[tuple(sorted(right))]
        x = height / most
        corners = [(30 + 270 * a, 10 + 18 * b) for a, b in ((x1, y1), (x, y1), (x, y2), (x2, y2))]
        lines.append(("line cut", _path(*corners), cut))
        place[tuple(sorted([*left, *right]))] = x, (y1 + y2) / 2
    texts = [(24, 14 + 18 * row, "end", str(label)) for row, label in enumerate(rows)]
    joined = ["{} and {}".format(*("+".join(map(str, side)) for side in pair)) for *pair, _ in merges[:10]]
    return _chart(
        "Merge tree: which clusters join first, if you want fewer", f"Join first: {'; then '.join(joined)}",
        _WIDTH, 18 * n_clusters + 12, lines=lines, texts=texts, cuts=cuts[: -MOST_CUTS - 1 : -1],
    )  # fmt: skip
