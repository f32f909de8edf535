"""Folders of runs that never were: what `viewfuse fit` writes, without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from viewfuse.data.views import Views
from viewfuse.io.writers import Judged, Sheet, as_json, write_history, write_labels, write_sheets
from viewfuse.selection.decision_texts import records
from viewfuse.selection.decisions import Trust
from viewfuse.utils.atomic import write_file


def trust_of(level: str = "high", clusters: int = 3, again: float = 0.93, reasons=()) -> dict[str, Any]:
    """The verdict of a run, as ``decisions_`` holds it."""
    one = {"again": again, "low": again - 0.1, "high": again + 0.05}
    return records(Trust(level, {**one, "chance": 1 / clusters}, clusters, 0, [one] * clusters, list(reasons)))["trust"]


def write_run(
    folder: Path, n: int = 60, views=("rna", "protein"), clusters: int = 3, ids=None, seed: int = 0, **summary
) -> Path:
    """A run of `n` samples, in groups that lie apart on its map; `summary` replaces parts of summary.json."""
    rng = np.random.default_rng(seed)
    ids = [f"s{i + 1}" for i in range(n)] if ids is None else list(ids)
    labels = rng.integers(clusters, size=n)
    probabilities = rng.dirichlet(np.ones(clusters), size=n).astype(np.float32) * 0.4
    probabilities[np.arange(n), labels] += 0.6
    mask = rng.random((n, len(views))) < 0.7
    mask[np.arange(n), rng.integers(len(views), size=n)] = True
    arrays = {name: np.where(mask[:, [v]], rng.normal(size=(n, 2)), np.nan) for v, name in enumerate(views)}
    given = Views(arrays, ids=ids)
    sure, far = probabilities.max(axis=1), np.zeros(n, dtype=bool)
    write_labels(folder / "labels.csv", given, Judged(labels, probabilities, sure < 0.5, rng.random(n), far))
    stages = ["pre-training"] * 3 + ["joint"] * 2
    losses = {
        "epoch": [1, 2, 3, 4, 5],
        "stage": stages,
        "reconstruction": [3.0, 2.0, 1.5, 1.2, 1.1],
        "seconds": [0.1] * 5,
    }
    write_history(folder / "history.csv", losses)
    shown = np.sort(rng.permutation(n)[:20_000])
    angle = 2 * np.pi * labels[shown] / clusters
    xy = 10 * np.stack([np.cos(angle), np.sin(angle)]) + rng.normal(size=(2, len(shown)))
    write_sheets(folder, {"map.csv": Sheet(("id", "x", "y"), zip([ids[i] for i in shown], *xy.tolist(), strict=True))})
    write_sheets(
        folder / "explanation", _explanation(rng, [ids[i] for i in shown], labels[shown], mask[shown], views, clusters)
    )
    facts = {
        "views": list(views), "cluster_sizes": np.bincount(labels, minlength=clusters).tolist(), "remarks": [],
        "decisions": {"trust": trust_of(clusters=clusters)}, "params": {"random_state": 0}, "command": "viewfuse fit",
        "seconds": 1.0,
    }  # fmt: skip
    write_file(folder / "summary.json", as_json(facts | summary).encode())
    return folder


def _explanation(rng, ids, labels, mask, views, clusters) -> dict[str, Sheet]:
    header = ["id", "label", "confidence", "second_label", "second_confidence"]
    header += [f"{kind}_{name}" for kind in ("weight", "donors") for name in views]
    weights = rng.dirichlet(np.ones(len(views)), size=len(ids)).tolist()
    donors = rng.integers(len(ids), size=(len(ids), len(views), 4)).tolist()
    rows = [
        (name, label, 0.8, (label + 1) % clusters, 0.1, *weights[i],
         *("" if there else " ".join(ids[d] for d in donors[i][v]) for v, there in enumerate(mask[i])))
        for i, (name, label) in enumerate(zip(ids, labels.tolist(), strict=True))
    ]  # fmt: skip
    features = [
        (c, view, f"{view}_{j}", float(rng.normal()), float(rng.normal()), float(rng.normal()))
        for c in range(clusters) for view in views for j in range(5)
    ]  # fmt: skip
    names = ("label", "view", "feature", "difference", "mean", "mean_of_others")
    steps = [(" ".join(map(str, range(c))), str(c), float(c), clusters - c) for c in range(1, clusters)]
    again = [(c, 1, "", 0.9 - 0.2 * c, ("found again", "partly", "dissolves")[min(c, 2)]) for c in range(clusters)]
    return {
        "samples.csv": Sheet(header, rows),
        "features.csv": Sheet(names, features, ".7g"),
        "merges.csv": Sheet(("first", "second", "distance", "left"), steps),
        "clusters.csv": Sheet(("label", "size", "typical", "stability", "again"), again),
    }


def a_split(parent, side, sizes, strength, **own):
    """A split of a tested tree."""
    return {
        "parent": parent, "side": side, "sizes": sizes, "strength": strength, "p_value": 0.001, "level": 0.05,
        "agreement": 0.9, "null": 0.4, "held_out": {"rna": 0.5, "protein": None}, "stability": 0.75, "gap": 0.5,
        "stands": True, "error": 0.1, "views": {"rna": 0.8, "protein": None}, "alone": False, "valley": None, **own,
    }  # fmt: skip


SPLITS = [
    a_split(-1, 0, [90, 60], 2.5), a_split(0, 0, [50, 40], 1.25, p_value=1e-9),
    a_split(0, 1, [45, 15], 0.25, stands=False, p_value=0.25),
]  # fmt: skip
"""Three clusters."""
