"""`make demo`: cluster handwritten digits of which half have lost four of their six views."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse import URRL, metrics
from viewfuse.atomic import write_file
from viewfuse.baselines import kmeans_after_knn, kmeans_after_mean
from viewfuse.datasets import HANDWRITTEN_VIEWS, load_handwritten
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.results import history_csv, labels_csv
from viewfuse.views import Views

N_DIGITS = 10


def main(out: Path) -> None:
    """Run the demo and write its files into the folder `out`."""
    views, digits = load_handwritten()
    mask = paper_mask(len(digits), len(views), missing_rate=0.5, missing_number=4, random_state=0)
    shown = apply_mask(dict(zip(HANDWRITTEN_VIEWS, views, strict=True)), mask)
    print(
        f"{len(digits)} handwritten digits in {len(views)} views; {(~mask.all(axis=1)).sum()} lack 4 views.\n",
        flush=True,
    )
    model = URRL(n_clusters=N_DIGITS, random_state=0, verbose=True)
    rows = [
        _score("k-means after mean imputation", digits, lambda: kmeans_after_mean(shown, N_DIGITS)),
        _score("k-means after KNN imputation", digits, lambda: kmeans_after_knn(shown, N_DIGITS)),
        _score("URRL (viewfuse)", digits, lambda: model.fit_predict(shown)),
    ]
    _print_table(rows)
    write_file(out / "labels.csv", labels_csv(Views(shown), model.soft_labels_))
    write_file(out / "history.csv", history_csv(model.history_))
    draw_map(model, digits, mask, out / "map.png")
    print(f"\nWritten to {out}: labels.csv, history.csv, map.png")


def _score(name: str, digits: NDArray[np.int64], run: Callable[[], NDArray[Any]]) -> tuple[str, list[float]]:
    began = time.perf_counter()
    labels = run()
    seconds = time.perf_counter() - began
    scores = [100 * score(digits, labels) for score in (metrics.clustering_accuracy, metrics.nmi, metrics.ari)]
    return name, [*scores, seconds]


def _print_table(rows: Sequence[tuple[str, list[float]]]) -> None:
    print(f"\n{'':32}{'accuracy %':>12}{'NMI %':>8}{'ARI %':>8}{'seconds':>10}")
    for name, (accuracy, nmi, ari, seconds) in rows:
        print(f"{name:32}{accuracy:12.1f}{nmi:8.1f}{ari:8.1f}{seconds:10.1f}")


def draw_map(model: URRL, digits: NDArray[np.int64], mask: NDArray[np.bool_], path: Path) -> None:
    """Draw the embedding in two dimensions, coloured by cluster, each cluster named by its commonest digit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from sklearn.manifold import TSNE

    x, y = TSNE(init="pca", random_state=0).fit_transform(model.embedding_).T
    whole, colours = mask.all(axis=1), plt.get_cmap("tab10")(model.labels_ % 10)
    figure, axes = plt.subplots(figsize=(8, 6.4), layout="constrained")
    axes.scatter(x[whole], y[whole], s=12, color=colours[whole])
    axes.scatter(x[~whole], y[~whole], s=16, facecolors="none", edgecolors=colours[~whole], linewidths=0.7)
    for label in np.unique(model.labels_):
        members = model.labels_ == label
        digit = str(np.bincount(digits[members]).argmax())
        axes.text(float(np.median(x[members])), float(np.median(y[members])), digit, **_NAME_TAG)
    dots = [
        Line2D([], [], color="0.3", marker="o", linestyle="", markersize=4, label="all six views"),
        Line2D([], [], color="0.3", marker="o", linestyle="", markersize=4, fillstyle="none", label="two views only"),
    ]
    axes.legend(handles=dots, loc="best", fontsize=9)
    accuracy = metrics.clustering_accuracy(digits, model.labels_)
    axes.set_title(f"Handwritten digits, half of them without 4 of their 6 views: {accuracy:.1%} in the right cluster")
    axes.set_xlabel("t-SNE of the embedding; colour: cluster found; number: its commonest digit")
    axes.title.set_fontsize(11)
    axes.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=120)
    plt.close(figure)


_NAME_TAG: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 13,
    "fontweight": "bold",
    "bbox": {"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": "0.4", "alpha": 0.9},
}

if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
