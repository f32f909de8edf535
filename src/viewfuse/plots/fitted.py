"""Pictures of a fitted model for notebooks, and its short form as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from viewfuse.errors import DataError, MissingPackage, SettingError
from viewfuse.io.writers import NO_NAMES, OUTLIER, Judged
from viewfuse.plots.layout import Places, find_patterns, place_samples, shortened
from viewfuse.plots.pictures import Groups, draw_groups, draw_tree, patterns_of
from viewfuse.plots.style import distinct_colors, distinct_markers
from viewfuse.utils.console import how_to_install
from viewfuse.utils.settings import wrong

_MOST_GROUPS = 20
"""A legend of more would be longer than the picture."""
_GREY = (0.6, 0.6, 0.6)
_LONGEST, _IN_A_LINE = 40, 30
"""Letters of a name below the axes, and of all names that have room beside each other."""


class FittedPlots(ABC):
    """Methods that draw a fitted model; each returns matplotlib's Axes, and takes one as `ax`."""

    labels_: NDArray[np.int64]
    embedding_: NDArray[np.float32]
    soft_labels_: NDArray[np.float32]
    decisions_: dict[str, Any]
    view_names_: list[str]
    cluster_names_: Mapping[int, str] = NO_NAMES
    judge: Callable[..., Judged]
    _places: tuple[NDArray[np.float32], Places] | None = None

    @abstractmethod
    def _present(self) -> NDArray[np.bool_]:
        """Which views the training samples have, of shape (samples, views)."""

    def plot_map(self, color: Any = "cluster", *, ax: Any = None) -> Any:
        """Draw the training samples in two dimensions, as t-SNE places their embedding.

        Parameters
        ----------
        color : "cluster", "confidence", "novelty", "outliers", "missing" (which views), or an array of shape
            (samples,): numbers become a scale, text and booleans groups
        ax : where to draw; a new figure by default
        """
        check_is_fitted(self)
        ax, places = _axes(ax), self._placed()
        values, title = self._coloring(color)
        if isinstance(values, Groups):
            all_full = np.ones(places.n, dtype=bool)
            draw_groups(ax, places.xy, values, places.rows, all_full, title=title, most=_MOST_GROUPS)
        else:
            known = np.isfinite(values[places.rows])
            more = f"; grey: {(~known).sum():,} without" if not known.all() else ""
            if more:
                ax.scatter(*places.xy[:, ~known], facecolors="none", edgecolors=[_GREY], s=12, linewidths=0.8)
            dots = ax.scatter(*places.xy[:, known], c=values[places.rows][known], s=12, cmap="viridis", linewidths=0)
            ax.figure.colorbar(dots, ax=ax, label=f"{title}{more}")
        part = f"{len(places.rows):,} of " if len(places.rows) < places.n else ""
        ax.set(xticks=[], yticks=[], title=f"{part}{places.n:,} samples, by {title}")
        return ax

    def plot_clusters(self, *, ax: Any = None) -> Any:
        """Draw the sizes of the clusters; dark is the share of the samples that are not `uncertain`."""
        check_is_fitted(self)
        ax, n_clusters = _axes(ax), self.soft_labels_.shape[1]
        judged = self.judge()
        inside = judged.labels != OUTLIER
        sizes, sure = (
            np.bincount(judged.labels[own], minlength=n_clusters) for own in (inside, inside & ~judged.uncertain)
        )
        colors = distinct_colors(n_clusters)
        ax.bar(np.arange(n_clusters), sizes, color=colors, alpha=0.3, label="uncertain")
        ax.bar(np.arange(n_clusters), sure, color=colors, label="sure")
        ax.set(xlabel="cluster", ylabel="samples", title="Sizes of clusters; light: uncertain samples")
        ticks = range(n_clusters) if n_clusters <= _MOST_GROUPS else (0, n_clusters - 1)
        _name_ticks(ax, ticks, [self._called()[label] for label in ticks])
        return ax

    def plot_missing(self, *, ax: Any = None) -> Any:
        """Draw which views are missing together: a row per pattern, dark where the view is there."""
        check_is_fitted(self)
        ax = _axes(ax)
        present, sizes, _ = find_patterns(self._present())
        shown = present[:_MOST_GROUPS]
        ax.imshow(shown, aspect="auto", cmap="Blues", vmin=-0.15, vmax=1.4, interpolation="nearest")
        _name_ticks(ax, range(len(self.view_names_)), self.view_names_)
        ax.set_yticks(range(len(shown)), [f"{size:,}" for size in sizes[: len(shown)].tolist()])
        ax.set_xticks(np.arange(1, len(self.view_names_)) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, len(shown)) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=3)
        ax.tick_params(which="both", length=0)
        rest = len(sizes) - len(shown)
        more = f"; {rest} rarer pattern{' is' if rest == 1 else 's are'} left out" if rest else ""
        ax.set(ylabel="samples", title=f"Views that samples have (dark){more}")
        return ax

    def plot_k(self, *, ax: Any = None) -> Any:
        """Draw the tree of clusters, where the model chose their number itself."""
        check_is_fitted(self)
        number = self.decisions_.get("n_clusters", {})
        if not number.get("splits"):
            raise DataError("you set the number of clusters of this model; for a tree fit URRL(n_clusters='auto')")
        ax = _axes(ax)
        draw_tree(ax, number)
        return ax

    def _placed(self) -> Places:
        """Where the samples lie; looked for once."""
        if self._places is None or self._places[0] is not self.embedding_:
            self._places = self.embedding_, place_samples(self.embedding_)
        return self._places[1]

    def _coordinates(self) -> NDArray[np.float32]:
        """Places of shape (samples, 2) of a map that was drawn; of shape (0, 2) before."""
        return np.empty((0, 2), dtype=np.float32) if self._places is None else self._placed().table()

    def _called(self) -> list[str]:
        """The name of each cluster; its number where it has none."""
        return [self.cluster_names_.get(label, str(label)) for label in range(self.soft_labels_.shape[1])]

    def _coloring(self, color: Any) -> tuple[Any, str]:
        """Numbers of shape (samples,), or groups; and a title."""
        if not isinstance(color, str):
            given = np.asarray(color)
            if given.shape != self.labels_.shape:
                raise SettingError(
                    f"color has the shape {given.shape}; give one value for each of {len(self.labels_)} samples"
                )
            if given.dtype.kind in "fiu":
                return given.astype(float), "the given values"
            found, of_sample = np.unique(given.astype(str), return_inverse=True)
            return _groups(of_sample, found.tolist(), [*distinct_colors(len(found))]), "the given groups"
        n_clusters = self.soft_labels_.shape[1]
        if color == "cluster":
            names, shades = self._called(), [*distinct_colors(n_clusters)]
            is_outlier = self.labels_ == OUTLIER
            if is_outlier.any():
                names, shades = [*names, "outliers"], [*shades, _GREY]
            return _groups(np.where(is_outlier, n_clusters, self.labels_), names, shades), color
        if color == "outliers":
            names, shades = ["not far from others", "outlier"], [_GREY, distinct_colors(1)[0]]
            return _groups(self.judge().outlier.astype(np.int64), names, shades), color
        if color == "missing":
            return patterns_of(self._present(), self.view_names_), "missing views"
        if color not in ("confidence", "novelty"):
            raise wrong("color", "'cluster', 'confidence', 'novelty', 'outliers', 'missing' or an array", color)
        return self.soft_labels_.max(axis=1) if color == "confidence" else self.judge().novelty, color

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_inner()}

    def _repr_html_inner(self) -> str:
        """What a notebook shows: scikit-learn's diagram before the fit, what was found after it."""
        if not hasattr(self, "labels_"):
            from sklearn.utils import estimator_html_repr

            return str(estimator_html_repr(self))
        sure, n_clusters, n_views = self.soft_labels_.max(axis=1), self.soft_labels_.shape[1], len(self.view_names_)
        said = [f"{n_clusters} clusters; confidence {sure.mean():.2f} on average"]
        said += [str(self.decisions_["trust"]["why"])] if "trust" in self.decisions_ else []
        rows = []
        for label, name in enumerate(self._called()[:_MOST_GROUPS]):
            inside = self.labels_ == label
            mean = f"{sure[inside].mean():.2f}" if inside.any() else ""
            rows.append(f"<tr><td>{escape(name)}</td><td>{inside.sum():,}</td><td>{mean}</td></tr>")
        more = f"<p>and {n_clusters - len(rows)} more clusters</p>" if n_clusters > len(rows) else ""
        return (
            f'<div class="viewfuse-model"><p><b>{type(self).__name__}</b>, fitted on {len(self.labels_):,} samples in '
            f"{n_views} view{'s'[: n_views != 1]}<br>{'<br>'.join(map(escape, said))}</p><table><thead><tr>"
            "<th>cluster</th><th>samples</th><th>confidence</th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>{more}<pre>{escape(repr(self))}</pre></div>"
        )


def _groups(of_sample: NDArray[np.int64], names: Sequence[str], colors: Sequence[Any]) -> Groups:
    return Groups(of_sample, names, colors, distinct_markers(len(names)))


def _name_ticks(ax: Any, places: Sequence[int], names: Sequence[str]) -> None:
    """Write names below the axes; slanting, and ended at their places, where they would touch."""
    slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, names)) > _IN_A_LINE else {}
    ax.set_xticks(places, [shortened(name, _LONGEST) for name in names], **slant)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackage(f"pictures are drawn by matplotlib; {how_to_install('matplotlib', 'plot')}") from None
    return pyplot.subplots(layout="constrained")[1]
