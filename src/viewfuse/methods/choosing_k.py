"""How many clusters there are in the data: one short pre-training, which knows no number, and a tested tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from viewfuse.data.checks import check_samples
from viewfuse.data.scaling import KINDS, check_scaling
from viewfuse.data.views import Views
from viewfuse.engine.batches import embed, seed_under_scaling
from viewfuse.engine.callbacks import SILENT, Progress
from viewfuse.engine.checkpoint import NO_CHECKPOINT, Checkpoint
from viewfuse.engine.training import TrainState, check_diverged
from viewfuse.fitted.model import Source, scaled_tensors, scalers_of
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.method import URRLMethod
from viewfuse.methods.urrl.training import init_state, pretrain
from viewfuse.methods.urrl.trials import check_memory
from viewfuse.neighbors.samples import Samples, index_training_set
from viewfuse.nn.layers import with_gradients
from viewfuse.reduction.frontend import Asked
from viewfuse.selection.cluster_number import (
    number_decision,
    possible_range,
    splits_tested,
    without_view,
)
from viewfuse.selection.decisions import ClusterNumber
from viewfuse.selection.kmeans import filled_table
from viewfuse.selection.rules import SCALINGS
from viewfuse.selection.splits import LEAST, Look
from viewfuse.selection.tree import cluster_tree, principal

_ROWS = 2_500
"""Samples that are enough to choose the number of clusters."""


class Choice(NamedTuple):
    """A number of clusters, and the pre-training with which it was chosen; there is none of too few samples."""

    decision: ClusterNumber
    run: TrainState | None


@with_gradients
def choose_n_clusters(
    views: Views,
    config: Config,
    within: Any,
    scaling: str,
    seed: int,
    device: torch.device,
    *,
    fill: str = "neighbors",
    reduction: Asked = "auto",
    threads: int | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> Choice:
    """How many clusters the samples have, with the evidence for every number.

    A network is pre-trained as long as the first scaling is tried, on at most 2,500 of the samples. The tree of their
    embeddings is then tested, split by split.

    Parameters
    ----------
    config : its number of clusters is not looked at
    within : the least and the largest number that is looked at
    scaling, seed, device, fill, reduction, threads : see `viewfuse.methods.urrl.fit.fit_models`
    """
    check_scaling(scaling, ("auto", *KINDS))
    some = _drawn(views, seed)
    check_samples(some, 1)
    possible = possible_range(within, len(some))
    if len(some) < 2 * LEAST or possible[1] == 1:
        return Choice(number_decision([], len(some), possible), None)
    source = Source.of(some, fill, reduction)
    check_memory(source.reduced, config, device)
    ways: dict[str, Any] = {"threads": threads, "progress": progress, "checkpoint": checkpoint.part("choice")}
    run = pretrained(source, replace(config, n_clusters=1), scaling, seed, device, **ways)
    return Choice(number_decision(evident_splits(run, some.names), len(some), possible), run)


def _drawn(views: Views, seed: int) -> Views:
    if len(views) <= _ROWS:
        return views
    return views[np.sort(np.random.default_rng([seed, 3]).choice(len(views), _ROWS, replace=False))]


def pretrained(
    source: Source,
    config: Config,
    scaling: str,
    seed: int,
    device: torch.device,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> TrainState:
    """A network under the first scaling with which training does not diverge."""
    runs: list[TrainState] = []
    for scaler in scalers_of(source, scaling):
        values, present = scaled_tensors(source.reduced, scaler, device)
        stored = index_training_set(values, present, URRLMethod(config).neighbor_depth)
        place = SCALINGS.index(scaler.kind) if scaling == "auto" else 0
        runs.append(init_state(stored, config, seed_under_scaling(seed, place)))
        until = config.trial_epochs(len(present))
        pretrain(runs[-1:], until, threads=threads, progress=progress, checkpoint=checkpoint)
        if not runs[-1].diverged:
            return runs[-1]
    check_diverged(runs)
    raise AssertionError("check_diverged stops")


def evident_splits(run: TrainState, names: Sequence[str]) -> list[dict[str, Any]]:
    """The tree of the samples of a pre-training, as far as its splits stand."""
    look = look_of(run)
    tree = cluster_tree(look.embedding, run.stored.neighbor_ids, run.seed % 2**32)
    return splits_tested(tree, look, names, torch.Generator().manual_seed(run.seed))


def look_of(run: TrainState) -> Look:
    """What the network sees of its samples, with all of their views and without each."""
    stored = run.stored

    def seen(own: Samples) -> torch.Tensor:
        return principal(embed(run.method, run.network, own, stored))

    hidden = torch.stack([seen(without_view(stored, v)) for v in range(len(stored.values))])
    table = filled_table(stored, torch.arange(len(stored), device=stored.present.device))
    return Look(seen(stored), hidden, stored.values, stored.present, table)
