"""For tests of schedules: small samples, and trainings that only seem to have been trained."""

from __future__ import annotations

import numpy as np
import torch

from conftest import make_blobs
from training_tools import index_samples
from viewfuse.methods.urrl.config import Config

TINY = {"embedding_dim": 8, "hidden_dim": 8, "n_heads": 2, "batch_size": 16}
CPU = torch.device("cpu")
GROUPS = make_blobs(60, 3)[1]


def seed_of(seed, place):
    """The seed under the scaling at a place."""
    return int(np.random.SeedSequence([seed, 2**33, place]).generate_state(1)[0]) if place else seed


def run_past(run, until, labels):
    """As if a training had lasted so long, and found these clusters."""
    for epoch in range(run.n_epochs, until):
        row = {"epoch": epoch + 1, "stage": "pre-training", "reconstruction": 1 / (epoch + 1), "robustness": 1.0}
        row["total"] = 1.0 / (run.seed % 7 + 1)
        for name, values in run.history.items():
            values.append(row.get(name, 0.0))
    run.clusters = torch.from_numpy(labels)


def stored_samples(n=60, settings=None):
    views, _, mask = make_blobs(n, 3)
    values = [torch.from_numpy(np.where(mask[:, v, None], view, 0)) for v, view in enumerate(views)]
    return index_samples(values, torch.from_numpy(mask), settings or Config(n_clusters=3, **TINY))
