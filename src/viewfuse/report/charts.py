"""Small drawings as SVG, each with its meaning in words; colours come from the style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from viewfuse.plots.pictures import forks
from viewfuse.plots.places import shortened
from viewfuse.report.html import Html, join, tag
from viewfuse.selection.messages import p_value

MOST_CUTS = 20
"""Numbers of clusters by which the map can be coloured, from two on: more colours look alike."""
_WIDTH, _HEIGHT = 320, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 26
_LETTER = 6
"""About the width of a letter."""


def share_bar(share: float, words: str) -> Html:
    """A bar that is filled up to a share of its length."""
    width = f"{100 * min(max(share, 0), 1):.1f}"
    parts = tag("rect", width=100, height=8, class_="track"), tag("rect", width=width, height=8, class_="fill")
    return _svg("bar", words, 100, 8, *parts, stretch=True)


def difference_bar(value: float, most: float, words: str) -> Html:
    """A bar to the right of the middle for more than the others have, to the left for less."""
    length = 50 * min(abs(value) / most, 1) if most else 0
    start = 50 if value > 0 else 50 - length
    bar = tag("rect", x=f"{start:.1f}", width=f"{length:.1f}", height=10, class_="more" if value > 0 else "less")
    return _svg("bar wide", words, 100, 10, bar, tag("rect", x=49.7, width=0.6, height=10, class_="axis"), stretch=True)


def swatch(color: int, shape: str) -> Html:
    """The mark of a cluster on the map."""
    return tag("svg", _mark(shape, f"c{color}"), class_="swatch", viewBox="-6 -6 12 12", aria_hidden="true")


CORNERS = {
    "s": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "^": ((0, -5), (4.5, 4), (-4.5, 4)),
    "v": ((0, 5), (4.5, -4), (-4.5, -4)),
    "D": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    "P": ((-2, -5), (2, -5), (2, -2), (5, -2), (5, 2), (2, 2), (2, 5), (-2, 5), (-2, 2), (-5, 2), (-5, -2), (-2, -2)),
    "X": ((-5, -3), (-3, -5), (0, -2), (3, -5), (5, -3), (2, 0), (5, 3), (3, 5), (0, 2), (-3, 5), (-5, 3), (-2, 0)),
}
"""Marks under matplotlib's names; any other is a dot."""


def _mark(shape: str, name: str) -> Html:
    if shape not in CORNERS:
        return tag("circle", r=4.5, class_=name)
    return tag("polygon", points=" ".join(f"{x},{y}" for x, y in CORNERS[shape]), class_=name)


def line_chart(
    points: Sequence[tuple[float, float]],
    title: str,
    along: str,
    *,
    since: float | None = None,
    axes: tuple[tuple[float, float], tuple[float, float]] | None = None,
) -> Html:
    """A curve with both ends of its axes.

    Parameters
    ----------
    along : what goes from left to right
    since : a place from which on the ground is shaded
    axes : where both axes begin and end, across and upwards; by default where the curve does
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    (low_x, high_x), (low_y, high_y) = axes or ((min(xs), max(xs)), (min(ys), max(ys)))
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - low_x) / span_x * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (y - low_y) / span_y * (_HEIGHT - _TOP - _BOTTOM)

    parts, bottom = list[Html](), _HEIGHT - _BOTTOM
    if since is not None and low_x < since <= high_x:
        start, _ = place(since, low_y)
        size = {"width": f"{_WIDTH - _RIGHT - start:.1f}", "height": _HEIGHT - _TOP - _BOTTOM}
        parts.append(tag("rect", x=f"{start:.1f}", y=_TOP, class_="shade", **size))
    ground = f"{_LEFT},{_TOP} {_LEFT},{bottom} {_WIDTH - _RIGHT},{bottom}"
    path = [f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in points)]
    parts.append(tag("polyline", points=ground, class_="axis-line"))
    parts.append(tag("polyline", points=" ".join(path), class_="line"))
    if len(points) == 1:
        cx, cy = path[0].split(",")
        parts.append(tag("circle", tag("title", f"{xs[0]:g}: {ys[0]:.4g}"), cx=cx, cy=cy, r=5, class_="dot"))
    parts += [_text(_LEFT - 4, place(low_x, y)[1] + 4, _short(y), "end") for y in dict.fromkeys((low_y, high_y))]
    ends = [(_LEFT, f"{low_x:g}", "start"), (_WIDTH, f"{high_x:g}", "end")][: 1 + (low_x < high_x)]
    parts += [_text(x, _HEIGHT - 9, words, anchor) for x, words, anchor in ends]
    room = (_WIDTH - _LEFT) // _LETTER - 4 - 2 * max(len(words) for _, words, _ in ends)
    parts += [_text((_WIDTH + _LEFT) / 2, _HEIGHT - 9, shortened(along, room), "middle")]
    words = f"{title}: from {ys[0]:.3g} at {xs[0]:g} to {ys[-1]:.3g} at {xs[-1]:g}"
    caption = tag("figcaption", title)
    return tag("figure", caption, _svg("chart", words, _WIDTH, _HEIGHT, *parts), class_="chart")


def _short(value: float) -> str:
    """A number for the room beside an axis: 1.2e-5 where it is neither 0.0000123 nor 1.23e-05."""
    text = f"{value:.3g}"
    return text if len(text) * _LETTER <= _LEFT - 4 else re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.1e}")


def split_tree(splits: Sequence[Mapping[str, Any]]) -> Html:
    """A tested tree, from the root at the left to the clusters at the right, with p-values.

    Parameters
    ----------
    splits : see `viewfuse.selection.decisions.ClusterNumber`
    """
    found = forks(splits)
    most, rows = found[0].height or 1.0, 1 + max(max(one.rows) for one in found)
    parts, texts = list[Html](), list[Html]()
    for one, split in zip(found, splits, strict=True):
        kind = "line" if split["stands"] else "line fallen"
        x, *ends = (74 + 270 * (1 - height / most) for height in (one.height, *one.ends))
        ys = [16 + 20 * row for row in one.rows]
        path = f"{ends[0]:.1f},{ys[0]:.1f} {x:.1f},{ys[0]:.1f} {x:.1f},{ys[1]:.1f} {ends[1]:.1f},{ys[1]:.1f}"
        parts.append(tag("polyline", points=path, class_=kind))
        half, middle = 270 * split.get("error", 0.0) / most, sum(ys) / 2
        parts.append(tag("polyline", points=f"{x - half:.1f},{middle:.1f} {x + half:.1f},{middle:.1f}", class_="error"))
        texts += [_text(348, y + 4, f"{size:,}", "start")
                  for y, leaf, size in zip(ys, one.leaves, split["sizes"], strict=True) if leaf]  # fmt: skip
        texts.append(_text(x - 4, middle - 5, f"p {p_value(split['p_value'], '= ')}", "end"))
    words = f"The tree of splits; {sum(bool(one['stands']) for one in splits)} of {len(splits)} stand"
    drawn = _svg("chart", words, 400, 20 * rows + 12, *parts, *texts)
    return tag("figure", tag("figcaption", "The tree that was tested"), drawn, class_="chart")


def cuts_of(merges: Sequence[tuple[Sequence[int], Sequence[int], float]], n_clusters: int) -> dict[int, list[int]]:
    """By number of clusters, from two on, the least label of the group that each cluster is in then."""
    groups, found = list(range(n_clusters)), dict[int, list[int]]()
    for step, (left, right, _) in enumerate(merges):
        found[n_clusters - step] = groups
        joined = {groups[left[0]], groups[right[0]]}
        groups = [min(joined) if own in joined else own for own in groups]
    return {k: found[k] for k in sorted(found)[:MOST_CUTS]}


def merge_tree(merges: Sequence[tuple[Sequence[int], Sequence[int], float]], n_clusters: int) -> Html:
    """Which clusters join first, as a tree from left (all apart) to right (all one).

    Parameters
    ----------
    merges : in their order, the clusters of both branches and the height at which they join
    """
    order = _leaves(merges, n_clusters)
    place: dict[tuple[int, ...], tuple[float, float]] = {(c,): (0.0, float(row)) for row, c in enumerate(order)}
    most = max((height for *_, height in merges), default=1.0) or 1.0
    height = 18 * n_clusters + 12
    parts, cuts = [_text(24, 14 + 18 * row, str(label), "end") for row, label in enumerate(order)], list[int]()
    for left, right, level in merges:
        (x1, y1), (x2, y2) = place[tuple(sorted(left))], place[tuple(sorted(right))]
        x = level / most
        corners = [(x1, y1), (x, y1), (x, y2), (x2, y2)]
        path = " ".join(f"{30 + 270 * a:.1f},{10 + 18 * b:.1f}" for a, b in corners)
        parts.append(tag("polyline", points=path, class_="line cut", data_cut=n_clusters - len(cuts)))
        cuts.append(n_clusters - len(cuts))
        place[tuple(sorted([*left, *right]))] = (x, (y1 + y2) / 2)
    words = "; then ".join(f"{_joined(left)} and {_joined(right)}" for left, right, _ in merges[:10])
    caption = tag("figcaption", "Merge tree: which clusters join first, if you want fewer")
    buttons = [tag("button", str(k), type="button", data_cut=k) for k in cuts[: -MOST_CUTS - 1 : -1]]
    ask = tag("p", "Colour the map by a cut of this tree into ", *buttons, " clusters.")
    return tag("figure", caption, _svg("chart", f"Join first: {words}", _WIDTH, height, *parts), ask, class_="chart")


def _leaves(merges: Sequence[tuple[Sequence[int], Sequence[int], float]], n_clusters: int) -> list[int]:
    """Clusters in an order in which no branches cross."""
    groups: list[list[int]] = [[label] for label in range(n_clusters)]
    for left, right, _ in merges:
        first = next(one for one in groups if set(one) == set(left))
        second = next(one for one in groups if set(one) == set(right))
        groups = [one for one in groups if one is not first and one is not second] + [first + second]
    return [label for one in groups for label in one]


def _joined(labels: Sequence[int]) -> str:
    return "+".join(map(str, labels))


def present_boxes(present: Sequence[bool], views: Sequence[str]) -> Html:
    """A box per view: full where it is there, empty where it is missing."""
    boxes = [
        tag("rect", x=14 * v + 1, y=1, width=11, height=11, rx=2, class_="there" if there else "missing")
        for v, there in enumerate(present)
    ]
    has = ", ".join(name for name, there in zip(views, present, strict=True) if there)
    return _svg("boxes", f"has {has}", 14 * len(views), 13, *boxes)


def _svg(kind: str, words: str, width: float, height: float, *parts: Html, stretch: bool = False) -> Html:
    ratio = {"preserveAspectRatio": "none"} if stretch else {"width": f"{width:g}", "height": f"{height:g}"}
    return tag("svg", *parts, class_=kind, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=words, **ratio)


def _text(x: float, y: float, words: str, anchor: str) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def side_by_side(figures: Sequence[Html]) -> Html:
    """Several charts in a row, or below each other where there is no room."""
    return tag("div", join(figures), class_="charts")
