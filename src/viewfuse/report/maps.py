"""A picture of the embedding in two dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import MissingPackage
from viewfuse.utils.atomic import writing

_MOST_DOTS = 5_000
"""More samples than this are represented by a random choice of so many."""
_MOST_TAGS = 60
"""More would cover the dots."""
_WORTH_THREADS = 1_000
"""With fewer dots threads wait for each other most of the time."""
_NAME_TAG: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontweight": "bold",
    "bbox": {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "0.4", "alpha": 0.7},
}


def draw_map(
    path: Path,
    embedding: NDArray[np.float32],
    labels: NDArray[np.int64],
    whole: NDArray[np.bool_],
    *,
    title: str,
    tags: Mapping[int, str] | None = None,
    caption: str = "colour and number: cluster",
) -> None:
    """Draw the samples as dots: colour for the cluster, hollow where views are missing, a tag on every cluster.

    Parameters
    ----------
    embedding : array of shape (samples, embedding)
    labels : int array of shape (samples,)
    whole : boolean array of shape (samples,): whether a sample has all views
    tags : names of the clusters; their numbers by default
    """
    plt = pyplot("maps")
    chosen = _choice(len(labels))
    (x, y), labels, whole = plane(embedding[chosen]), labels[chosen], whole[chosen]
    colours = plt.get_cmap("tab10" if labels.max() < 10 else "tab20")(labels % (10 if labels.max() < 10 else 20))
    figure, axes = plt.subplots(figsize=(8, 6.4), layout="constrained")
    axes.scatter(x[whole], y[whole], s=12, color=colours[whole])
    axes.scatter(x[~whole], y[~whole], s=16, facecolors="none", edgecolors=colours[~whole], linewidths=0.7)
    found = np.unique(labels).tolist()
    style = {**_NAME_TAG, "fontsize": 11 if len(found) <= 15 else 7}
    for label in found if len(found) <= _MOST_TAGS else []:
        place = _middle(x, y, labels == label)
        axes.text(x[place], y[place], str(label) if tags is None else tags[label], **style)
    if not whole.all():
        dots = [axes.plot([], [], "o", color="0.3", markersize=4, fillstyle=style)[0] for style in ("full", "none")]
        axes.legend(dots, ["all views", "some views missing"], loc="best", fontsize=9)
    axes.set_title(title, fontsize=11)
    shown = f"; {len(chosen):,} of {len(embedding):,} samples" if len(chosen) < len(embedding) else ""
    axes.set_xlabel(f"t-SNE of the embedding; {caption}{shown}")
    axes.set(xticks=[], yticks=[])
    with writing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    plt.close(figure)


def _middle(x: NDArray[np.float32], y: NDArray[np.float32], here: NDArray[np.bool_]) -> int:
    """The dot nearest to the middle of its cluster; the middle itself may lie among other dots."""
    rows = np.flatnonzero(here)
    return int(rows[np.argmin((x[rows] - np.median(x[rows])) ** 2 + (y[rows] - np.median(y[rows])) ** 2)])


def pyplot(what: str) -> Any:
    """Matplotlib without a screen, to draw `what`."""
    try:
        import matplotlib
    except ImportError:
        raise MissingPackage(f"{what} are drawn by matplotlib; pip install 'viewfuse[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _choice(n: int) -> NDArray[np.int64]:
    rows = np.random.default_rng(0).permutation(n)[:_MOST_DOTS]
    return np.sort(rows)


def plane(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Coordinates of shape (2, samples)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(points) < 10:  # too few for neighbourhoods
        flat = np.zeros((len(points), 2), dtype=np.float32)
        count = min(2, *points.shape)
        flat[:, :count] = PCA(count).fit_transform(points)
        return flat.T
    start = PCA(2, random_state=0).fit_transform(points)
    start = start / max(float(start[:, 0].std()), 1e-12) * 1e-4  # as t-SNE wants it; equal points divide by zero there
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1 if len(points) < _WORTH_THREADS else None):
        return TSNE(init=start.astype(np.float32), perplexity=perplexity, random_state=0).fit_transform(points).T
