"""Pictures that are drawn into files: the map of the embedding, and the tree that chose the number of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import MissingPackage, ViewfuseError
from viewfuse.io.writers import OUTLIER
from viewfuse.plots.layout import Places, find_patterns, lacking
from viewfuse.plots.style import COLUMN_WIDTHS, MARKERS, ON_SCREEN, PictureStyle, distinct_colors, distinct_markers
from viewfuse.selection.decision_texts import p_value
from viewfuse.utils.atomic import writing
from viewfuse.utils.console import how_to_install

_SETTINGS: Any = {
    "text.usetex": False,  # a matplotlibrc may ask for LaTeX where there is none
    "svg.hashsalt": "viewfuse",  # the same figure gives the same file
    "pdf.fonttype": 42,  # letters are embedded as fonts, which journals ask for, and not as drawings
}
_UNDATED = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_COLUMN_FONT = 8
"""Points; the smallest letters, two thirds of it, are those that journals still allow."""
_MOST_TAGS = 60
"""More would cover the dots."""
_MOST_LISTED = 60
"""More groups would make a legend longer than the map; of more the largest are listed."""
_PER_COLUMN = 24
_FULL_HEIGHT = 4.0
"""Inches of a panel from which on dots have their full size."""
_MOST_PATTERNS = 7
_NAME_TAG: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontweight": "bold",
    "bbox": {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "0.4", "alpha": 0.7},
}


@contextmanager
def drawing(what: str, **settings: Any) -> Iterator[Callable[..., Any]]:
    """Inside, `what` is drawn without LaTeX; gives matplotlib's class of figures, which needs no screen.

    Pyplot and its backend, which are the user's in notebooks, are not touched.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage(f"{what} are drawn by matplotlib; {how_to_install('matplotlib', 'plot')}") from None
    with matplotlib.rc_context(_SETTINGS | settings):
        yield Figure


@contextmanager
def picture(
    path: Path, what: str, size: tuple[float, float], dpi: int = 120, style: PictureStyle = ON_SCREEN
) -> Iterator[Any]:
    """A figure of `size` in inches, to draw one of `what` on; afterwards it is a file in every format of the style.

    The ending of `path` is replaced by the format; a figure for columns is as wide as these, in the same proportion.
    """
    width, settings = COLUMN_WIDTHS.get(style.columns, size[0]), {"font.size": _COLUMN_FONT} if style.columns else {}
    with drawing(what, **settings) as new_figure:
        figure = new_figure(figsize=(width, size[1] * width / size[0]), layout="constrained")
        yield figure
        for kind in style.formats:
            with writing(path.with_suffix(f".{kind}")) as temporary:
                sharp = 300 if style.columns else dpi
                figure.savefig(temporary, format=kind, dpi=sharp, metadata=_UNDATED[kind])


def why_not_drawn(draw: Callable[..., object], *given: Any, **named: Any) -> str | None:
    """Draw a picture, which is never worth the results beside it: why it is not there, None where it is."""
    try:
        draw(*given, **named)
    except ViewfuseError as error:
        return str(error)
    except Exception as error:  # whatever matplotlib, its settings and its fonts are up to
        return f"matplotlib failed ({type(error).__name__}: {error}); check its settings"
    return None


class Groups(NamedTuple):
    """What dots are coloured by: a group per sample, and per group its name, colour and marker."""

    of_sample: NDArray[np.int64]
    names: Sequence[str]
    colors: Sequence[Any]
    markers: Sequence[str]


def draw_map(
    path: Path,
    places: Places,
    labels: NDArray[np.int64],
    mask: NDArray[np.bool_],
    view_names: Sequence[str],
    *,
    title: str,
    tags: Mapping[int, str] | None = None,
    caption: str | None = None,
    style: PictureStyle = ON_SCREEN,
) -> None:
    """Draw the samples as dots: colours for the clusters, and beside them colours for the views that are missing.

    `mask` says which views a sample has; where all have all, there is one picture. `tags` are names of the clusters;
    their numbers by default. In one column pictures are below each other, and in columns captions have the title.
    """
    (chosen, xy, n), whole, columns = places, bool(mask.all()), style.columns
    shape, size = ((1, 1 if whole else 2), (9 if whole else 17, 6.4)) if whole or columns != 1 else ((2, 1), (9, 12.8))
    with picture(path, "maps", size, style=style) as figure:
        panels = figure.subplots(*shape, squeeze=False).ravel()
        clusters = _clusters(labels, tags)
        draw_groups(panels[0], xy, clusters, chosen, np.asarray(mask.all(axis=1)))
        shown = clusters.of_sample[chosen]
        found = np.unique(shown).tolist()
        own = {**_NAME_TAG, "fontsize": "medium" if len(found) <= 15 else "x-small"}
        for group in found if len(found) <= _MOST_TAGS else []:
            # at the dot nearest to the middle, which itself may lie among other dots; a little above it, so that a
            # group of few dots, or of dots on one spot, is seen
            rows = np.flatnonzero(shown == group)
            x, y = xy[:, rows]
            place = rows[np.argmin((x - np.median(x)) ** 2 + (y - np.median(y)) ** 2)]
            panels[0].annotate(clusters.names[group], xy[:, place], (0, 12), textcoords="offset points", **own)
        words = caption or f"colour and {'number' if len(clusters.names) <= _MOST_TAGS else 'marker'}: cluster"
        hollow = f"{words};{chr(10) if columns else ' '}hollow: some views missing"  # columns are narrow
        panels[0].set_xlabel(words if whole else hollow)
        if not whole:
            draw_groups(panels[1], xy, patterns_of(mask, view_names), chosen, np.ones(len(labels), dtype=bool))
            panels[1].set_xlabel("colour: which views are missing")
        part = f"; {len(chosen):,} of {n:,} samples are shown" if len(chosen) < n else ""
        if not columns:
            figure.suptitle(f"{title}\nt-SNE of the embedding{part}", fontsize=11)


def _clusters(labels: NDArray[np.int64], tags: Mapping[int, str] | None) -> Groups:
    found, of_sample = np.unique(labels, return_inverse=True)
    without = ["outliers"] * bool(found[0] == OUTLIER)
    names = without + [str(label) if tags is None else tags[label] for label in found[len(without) :].tolist()]
    n, numbers = int(found[-1]) + 1, found[len(without) :]
    # Colours go by number: a cluster keeps its own where another one is empty.
    colors = ["0.6"] * len(without) + [*distinct_colors(n)[numbers]]
    markers = ["o"] * len(without) + [*np.array(distinct_markers(n))[numbers]]
    return Groups(of_sample, names, colors, markers)


def patterns_of(mask: NDArray[np.bool_], view_names: Sequence[str]) -> Groups:
    """Samples by the views that they lack: all views first, in grey, then the most frequent patterns.

    Markers differ, as green and pink are grey, too, for those who confuse red and green.
    """
    present, sizes, of_sample = find_patterns(mask)
    n_kept, n_rest = min(len(sizes), _MOST_PATTERNS), max(len(sizes) - _MOST_PATTERNS, 0)
    names = [lacking(one, view_names) for one in present[:n_kept]]
    names += [f"{n_rest} other pattern{'s' if n_rest > 1 else ''}"] * bool(n_rest)
    colors: list[Any] = list(distinct_colors(n_kept)) + ["0.45"] * bool(n_rest)
    if present[0].all():
        colors = ["0.75", *colors[: n_kept - 1], *colors[n_kept:]]
    return Groups(np.minimum(of_sample, n_kept), names, colors, ["o", *MARKERS][:n_kept] + ["o"] * bool(n_rest))


def draw_groups(
    axes: Any, places: NDArray[np.float32], groups: Groups, chosen: NDArray[np.int64], whole: NDArray[np.bool_],
    *, title: str = "", most: int | None = None,
) -> None:  # fmt: skip
    """Dots of the chosen samples, hollow where they are not whole, and a legend of the `most` largest groups."""
    shown, is_whole = groups.of_sample[chosen], whole[chosen]
    inches = axes.get_window_extent().height / axes.figure.dpi
    scale = min(1.0, inches / _FULL_HEIGHT)
    for group, (color, marker) in enumerate(zip(groups.colors, groups.markers, strict=True)):
        for filled in (True, False):
            x, y = places[:, (shown == group) & (is_whole == filled)]
            face = {"color": [color], "s": 14} if filled else {"facecolors": "none", "edgecolors": [color], "s": 18}
            face["s"] *= scale**2
            axes.scatter(x, y, marker=marker, linewidths=0 if filled else 0.8 * scale, **face)
    sizes = np.bincount(groups.of_sample, minlength=len(groups.names)).tolist()
    found = [group for group, size in enumerate(sizes) if size]
    largest = sorted(found, key=lambda group: -sizes[group])[: _MOST_LISTED if most is None else most]
    dots, listed = [], []
    for group in sorted(largest):
        style = {"color": groups.colors[group], "marker": groups.markers[group], "linestyle": "none", "markersize": 5}
        dots += axes.plot([], [], **style)
        listed.append(f"{groups.names[group]} (n={sizes[group]:,})")
    words = [title] * bool(title) + [f"the {len(listed)} largest of {len(found)}"] * (len(found) > len(listed))
    axes.legend(
        dots, listed, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize="small", frameon=False,
        ncols=-(-len(listed) // _PER_COLUMN), columnspacing=1, title_fontsize="small", handletextpad=0.2,
        title="; ".join(words) or None,
    )  # fmt: skip
    axes.set(xticks=[], yticks=[])
    axes.margins(max(0.08, 0.35 / inches))  # room for the name of the highest cluster


_ROW = 0.28


def draw_choice(path: Path, decision: Mapping[str, Any], style: PictureStyle = ON_SCREEN) -> None:
    """Draw the tree of ``decisions_["n_clusters"]``; of too few samples there is none to draw."""
    if not decision["splits"]:
        return
    rows = 1 + max(max(one.rows) for one in forks(decision["splits"]))
    with picture(path, "pictures", (8, min(40.0, 1.6 + _ROW * rows)), style=style) as figure:
        axes = figure.subplots()
        draw_tree(axes, decision)
        if style.columns:  # captions have that
            axes.set_title("")


def draw_tree(axes: Any, decision: Mapping[str, Any]) -> None:
    """Draw a tested tree, its root at the left; splits that do not stand are dotted, sizes are at the right."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]  # lines of other splits may be behind the letters
    for one, split in zip(forks(decision["splits"]), decision["splits"], strict=True):
        style = {"color": "0.25" if split["stands"] else "0.45", "linestyle": "-" if split["stands"] else ":"}
        letters = {"fontsize": "x-small", "color": style["color"]}
        axes.plot([one.height] * 2, one.rows, linewidth=1.5, **style)
        for end, leaf, row, size in zip(one.ends, one.leaves, one.rows, split["sizes"], strict=True):
            axes.plot([one.height, end], [row] * 2, linewidth=1.5, **style)
            if leaf:
                axes.annotate(f" {size:,}", (0, row), va="center", **letters)
        middle, error = sum(one.rows) / 2, split.get("error", 0.0)
        axes.hlines(middle, one.height - error, one.height + error, color=style["color"], linewidth=4, alpha=0.4)
        place = {"textcoords": "offset points", "ha": "right", "va": "bottom", "path_effects": halo}
        axes.annotate(f"p {p_value(split['p_value'], '= ')}", (one.height, middle), (-2, 3), **place, **letters)
    title = f"{decision['chosen']} clusters" if decision["chosen"] > 1 else "1 cluster"
    axes.set_title(f"{title}: a continuum" if decision["kind"] == "continuum" else title, fontsize="large")
    words = "strength of the split: how much rarer than in a Gaussian\nneighbours cross (bars: several Gaussians)"
    axes.set_xlabel(words)
    axes.set_yticks([])
    inches = axes.get_window_extent().width / axes.figure.dpi
    axes.margins(x=max(0.12, 0.7 / inches))  # room for the p-value of the first split
    axes.invert_xaxis()
    axes.invert_yaxis()


class Fork(NamedTuple):
    """A split in a drawing."""

    height: float  # its strength, not above its parent's nor below 0
    rows: tuple[float, float]  # where both sides are, from the top
    ends: tuple[float, ...]  # down to which height each side goes: that of the split below, 0 where there is none
    leaves: tuple[bool, ...]  # whether there is none


def forks(splits: Sequence[Mapping[str, Any]]) -> list[Fork]:
    """The place of each split, see `viewfuse.selection.decisions.ClusterNumber`; parts without one have a row each."""
    below = {(one["parent"], one["side"]): place for place, one in enumerate(splits)}
    heights: list[float] = []
    for one in splits:
        above = heights[one["parent"]] if one["parent"] >= 0 else one["strength"]
        heights.append(max(0.0, min(one["strength"], above)))
    found, free = dict[int, Fork](), count()

    def row(place: int) -> float:
        """Where a split is, in the middle of its sides, after it was drawn with all below it, from the top."""
        sides = below.get((place, 0)), below.get((place, 1))
        rows = [float(next(free)) if one is None else row(one) for one in sides]
        ends = tuple(0.0 if one is None else heights[one] for one in sides)
        found[place] = Fork(heights[place], (rows[0], rows[1]), ends, tuple(one is None for one in sides))
        return sum(rows) / 2

    if splits:
        row(0)
    return [found[place] for place in range(len(splits))]
