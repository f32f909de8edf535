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
from viewfuse.baselines import kmeans_after_knn, kmeans_after_mean
from viewfuse.data.views import Views
from viewfuse.datasets import HANDWRITTEN_VIEWS, load_handwritten
from viewfuse.io.writers import Sheet, as_json, write_history, write_labels, write_sheets
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.plots.layout import Places, place_samples
from viewfuse.plots.pictures import draw_map
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import write_evidence
from viewfuse.utils.atomic import write_file

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
    model = URRL(n_clusters=N_DIGITS, effort="quick", random_state=0, verbose=True)
    rows = [
        _score("k-means after mean imputation", digits, lambda: kmeans_after_mean(shown, N_DIGITS)),
        _score("k-means after KNN imputation", digits, lambda: kmeans_after_knn(shown, N_DIGITS)),
        _score("URRL (viewfuse), quick", digits, lambda: model.fit_predict(shown)),
    ]
    _print_table(rows)
    print("", *(one["why"] for one in model.decisions_.values()), sep="\n")
    print("\nNow the map and the report ...", flush=True)
    places = place_samples(model.embedding_)
    _write_run(out, model, Views(shown), places)
    _draw_map(model, places, digits, mask, out / "map.png")
    write_sheets(out, {"digits.csv": Sheet(("id", "digit"), enumerate(digits.tolist()))})
    write_report([out], out / "report.html", out / "digits.csv")
    print(f"Written to {out}: labels.csv, history.csv, map.png")
    print(f"Open this page in a browser: {(out / 'report.html').resolve()}")


def _write_run(out: Path, model: URRL, views: Views, places: Places) -> None:
    """The files of a run, as `viewfuse fit` writes them."""
    write_labels(out / "labels.csv", views, model.judge())
    write_history(out / "history.csv", model.history_)
    write_evidence(out, model, views, places)
    sizes = np.bincount(model.labels_, minlength=N_DIGITS).tolist()
    facts = {"views": list(views.names), "cluster_sizes": sizes, "decisions": model.decisions_}
    facts |= {"params": {"random_state": 0}, "command": "make demo"}
    model.save(out / "model")
    write_file(out / "summary.json", as_json(facts, indent=1).encode())


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


def _draw_map(model: URRL, places: Places, digits: NDArray[np.int64], mask: NDArray[np.bool_], path: Path) -> None:
    """Each cluster is named by its commonest digit."""
    tags = {int(c): str(np.bincount(digits[model.labels_ == c]).argmax()) for c in np.unique(model.labels_)}
    accuracy = metrics.clustering_accuracy(digits, model.labels_)
    title = f"Handwritten digits, half of them without 4 of their 6 views: {accuracy:.1%} in the right cluster"
    caption = "colour: cluster found; number: its commonest digit"
    names = model.view_names_
    draw_map(path, places, model.labels_, mask, names, title=title, tags=tags, caption=caption)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
