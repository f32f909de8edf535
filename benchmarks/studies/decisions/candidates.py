"""Default fits on given masks, scored afterwards: accuracy, calibration, and whose clusters were kept.

    python -m benchmarks.studies.decisions.candidates DATA_DIR OUT.csv MASKS(5-9) RATES(.25,.5,.75) SET...

Sets called noise_plain and noise_corr are made here: Gaussian noise in three views, its columns independent or not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import Views, metrics
from viewfuse.engine.replicates import replicate_seeds
from viewfuse.fitted.model import Source
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.fit import fit_models
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.selection.scores import _matched

BINS = 10


def noise(name: str):
    """Views without structure, and labels that mean nothing."""
    rng = np.random.default_rng(7)
    views = [rng.normal(size=(600, width)).astype(np.float32) for width in (20, 30, 10)]
    if name == "noise_corr":
        turned = [view @ rng.normal(size=(view.shape[1],) * 2).astype(np.float32) for view in views]
        views = [view * np.exp(rng.normal(size=view.shape[1])).astype(np.float32) for view in turned]
    return views, rng.integers(0, 5, 600), 5, 1


def data(folder: Path, name: str):
    """Views, labels, clusters, and views that an incomplete sample lacks."""
    if name.startswith("noise_"):
        return noise(name)
    found = load(folder, CATALOGUE[name])
    return found.views, found.labels, found.entry.classes, found.entry.missing_number


def calibration_error(confidence, right) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, bin by bin."""
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    groups = [places == b for b in range(BINS) if (places == b).any()]
    return float(sum(abs(confidence[g].mean() - right[g].mean()) * g.mean() for g in groups))


def scores(known, fitted) -> dict:
    """Of one fit, in percent where that is usual."""
    probabilities = fitted.model.assign(fitted.embedding)
    found, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    right = _matched(known, found) == known
    half = np.argsort(-confidence, kind="stable")[: len(known) // 2]
    decisions = fitted.decisions
    return {
        "acc": 100 * right.mean(), "nmi": 100 * metrics.nmi(known, found), "ari": 100 * metrics.ari(known, found),
        "macro": 100 * np.mean([right[known == c].mean() for c in np.unique(known)]),
        "ece": calibration_error(confidence, right), "confidence": confidence.mean(),
        "top_half_gain": right[half].mean() - right.mean(), "scaling": decisions["scaling"]["chosen"],
        "clear": decisions["scaling"]["clear"], "clusters": decisions["clusters"]["chosen"],
        "score_network": decisions["clusters"]["evidence"]["network"],
        "score_kmeans": decisions["clusters"]["evidence"]["k-means"],
        "pretrain_epochs": decisions["pretraining"]["chosen"], "joint_epochs_kept": decisions["joint_stage"]["chosen"],
    }  # fmt: skip


def main(folder: str, out: str, masks: str, rates: str, *names: str) -> None:
    """Write one line per fit."""
    first, last = map(int, masks.split("-"))
    device, rows = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []
    for name in names:
        views, known, k, missing = data(Path(folder), name)
        known = np.unique(known, return_inverse=True)[1]
        for rate in map(float, rates.split(",")):
            drawn = [paper_mask(len(known), len(views), rate, missing, random_state=m) for m in range(first, last + 1)]
            sets = [Source.of(Views(apply_mask(list(views), mask))) for mask in drawn]
            seeds = [replicate_seeds(m, 1) for m in range(first, last + 1)]
            for m, fitted in enumerate(fit_models(sets, Config(n_clusters=k), "auto", seeds, device), first):
                rows.append({"dataset": name, "missing_rate": rate, "mask": m, **scores(known, fitted)})
    pd.DataFrame(rows).round(4).to_csv(out, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
