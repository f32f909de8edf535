"""Pictures that are drawn into files, and the map of the embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import MissingPackage, ViewfuseError
from viewfuse.io.writers import OUTLIER
from viewfuse.plots.colors import distinct_colors, distinct_markers
from viewfuse.plots.places import Places, find_patterns, lacking
from viewfuse.utils.atomic import writing
from viewfuse.utils.console import how_to_install

_SETTINGS: Any = {
    "text.usetex": False,  # a matplotlibrc may ask for LaTeX where there is none
    "svg.hashsalt": "viewfuse",  # the same figure gives the same file
}
_MOST_TAGS = 60
"""More would cover the dots."""
_MOST_LISTED = 60
"""More groups would make a legend longer than the map; of more the largest are listed."""
_PER_COLUMN = 24
_MOST_PATTERNS = 7
_NAME_TAG: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontweight": "bold",
    "bbox": {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "0.4", "alpha": 0.7},
}


@contextmanager
def drawing(what: str) -> Iterator[Callable[..., Any]]:
    """Inside, `what` is drawn without LaTeX; gives matplotlib's class of figures, which needs no screen.

    Pyplot and its backend, which are the user's in notebooks, are not touched.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage(f"{what} are drawn by matplotlib; {how_to_install('matplotlib', 'plot')}") from None
    with matplotlib.rc_context(_SETTINGS):
        yield Figure


@contextmanager
def picture(path: Path, what: str, size: tuple[float, float], dpi: int = 120) -> Iterator[Any]:
    """A figure of `size` in inches, to draw one of `what` on; afterwards it is a PNG file."""
    with drawing(what) as new_figure:
        figure = new_figure(figsize=size, layout="constrained")
        yield figure
        with writing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=dpi)


def why_not_drawn(draw: Callable[..., object], *given: Any, **named: Any) -> str | None:
    """Draw a picture, which is never worth the results beside it: why it is not there, None where it is."""
    try:
        draw(*given, **named)
    except ViewfuseError as error:
        return str(error)
    except Exception as error:  # whatever matplotlib, its settings and its fonts are up to
        return f"matplotlib failed ({type(error).__name__}: {error}); check its settings"
    return None


class _Groups(NamedTuple):
    """What dots are coloured by: a group per sample, and per group its name, size, colour and marker."""

    of_sample: NDArray[np.int64]
    names: Sequence[str]
    sizes: Sequence[int]
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
) -> None:
    """Draw the samples as dots: colours for the clusters, and beside them colours for the views that are missing.

    Parameters
    ----------
    places : where the samples lie
    labels : int array of shape (samples,)
    mask : boolean array of shape (samples, views): which views a sample has; where all do, there is one picture
    tags : names of the clusters; their numbers by default
    """
    (chosen, xy, n), whole = places, bool(mask.all())
    with picture(path, "maps", (9 if whole else 17, 6.4)) as figure:
        panels = figure.subplots(1, 1 if whole else 2, squeeze=False)[0]
        clusters = _clusters(labels, tags)
        _draw_groups(panels[0], xy, clusters, chosen, np.asarray(mask.all(axis=1)))
        _draw_tags(panels[0], xy, clusters, chosen)
        words = caption or f"colour and {'number' if len(clusters.names) <= _MOST_TAGS else 'marker'}: cluster"
        panels[0].set_xlabel(words if whole else f"{words}; hollow: some views missing")
        if not whole:
            _draw_groups(panels[1], xy, _patterns(mask, view_names), chosen, np.ones(len(labels), dtype=bool))
            panels[1].set_xlabel("colour: which views are missing")
        shown = f"; {len(chosen):,} of {n:,} samples are shown" if len(chosen) < n else ""
        figure.suptitle(f"{title}\nt-SNE of the embedding{shown}", fontsize=11)


def _clusters(labels: NDArray[np.int64], tags: Mapping[int, str] | None) -> _Groups:
    found, of_sample, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    without = ["outliers"] * bool(found[0] == OUTLIER)
    names = without + [str(label) if tags is None else tags[label] for label in found[len(without) :].tolist()]
    n = len(found) - len(without)
    colors, markers = ["0.6"] * len(without) + [*distinct_colors(n)], ["o"] * len(without) + distinct_markers(n)
    return _Groups(of_sample, names, sizes.tolist(), colors, markers)


def _patterns(mask: NDArray[np.bool_], view_names: Sequence[str]) -> _Groups:
    """Samples by the views that they lack: all views first, in grey, then the most frequent patterns."""
    present, sizes, of_sample = find_patterns(mask)
    n_kept, n_rest = min(len(sizes), _MOST_PATTERNS), max(len(sizes) - _MOST_PATTERNS, 0)
    names = [lacking(one, view_names) for one in present[:n_kept]] + [f"{n_rest} other patterns"] * bool(n_rest)
    counts = sizes[:n_kept].tolist() + [int(sizes[n_kept:].sum())] * bool(n_rest)
    colors: list[Any] = list(distinct_colors(n_kept)) + ["0.45"] * bool(n_rest)
    if present[0].all():
        colors = ["0.75", *colors[: n_kept - 1], *colors[n_kept:]]
    return _Groups(np.minimum(of_sample, n_kept), names, counts, colors, ["o"] * len(names))


def _draw_groups(
    axes: Any, places: NDArray[np.float32], groups: _Groups, chosen: NDArray[np.int64], whole: NDArray[np.bool_]
) -> None:
    """Dots of the chosen samples, hollow where they are not whole, and a legend with the size of every group."""
    shown, is_whole = groups.of_sample[chosen], whole[chosen]
    for group, (color, marker) in enumerate(zip(groups.colors, groups.markers, strict=True)):
        for filled in (True, False):
            x, y = places[:, (shown == group) & (is_whole == filled)]
            face = {"color": color, "s": 14} if filled else {"facecolors": "none", "edgecolors": [color], "s": 18}
            axes.scatter(x, y, marker=marker, linewidths=0 if filled else 0.8, **face)
    largest = sorted(range(len(groups.names)), key=lambda group: -groups.sizes[group])[:_MOST_LISTED]
    dots, listed = [], []
    for group in sorted(largest):
        style = {"color": groups.colors[group], "marker": groups.markers[group], "linestyle": "none", "markersize": 5}
        dots += axes.plot([], [], **style)
        listed.append(f"{groups.names[group]} (n={groups.sizes[group]:,})")
    more = len(groups.names) - len(largest)
    axes.legend(
        dots, listed, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8, frameon=False,
        ncols=-(-len(listed) // _PER_COLUMN), columnspacing=1, title_fontsize=8,
        title=f"the {len(listed)} largest of {len(groups.names)}" if more else None,
    )  # fmt: skip
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)


def _draw_tags(axes: Any, places: NDArray[np.float32], groups: _Groups, chosen: NDArray[np.int64]) -> None:
    shown = groups.of_sample[chosen]
    found = np.unique(shown).tolist()
    style = {**_NAME_TAG, "fontsize": 11 if len(found) <= 15 else 7}
    for group in found if len(found) <= _MOST_TAGS else []:
        place = _middle(places[0], places[1], shown == group)
        # A little above the middle, so that a group of few dots, or of dots on one spot, is seen below it.
        axes.annotate(groups.names[group], places[:, place], (0, 12), textcoords="offset points", **style)


def _middle(x: NDArray[np.float32], y: NDArray[np.float32], here: NDArray[np.bool_]) -> int:
    """The dot nearest to the middle of its cluster; the middle itself may lie among other dots."""
    rows = np.flatnonzero(here)
    return int(rows[np.argmin((x[rows] - np.median(x[rows])) ** 2 + (y[rows] - np.median(y[rows])) ** 2)])
