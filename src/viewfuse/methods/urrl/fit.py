"""From views to a fitted model: scale, search, train under several scalings, choose."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.checks import absent_views
from viewfuse.data.filling.empty_cells import warn_of_filled
from viewfuse.data.filling.filler import Filler, fit_filler
from viewfuse.data.scaling import KINDS, Scaler, check_scaling, fit_scaler
from viewfuse.data.views import Views
from viewfuse.engine.footprint import free_bytes
from viewfuse.engine.loop import History, TrainState, check_diverged, embed_stored
from viewfuse.engine.seeds import seed_under_scaling
from viewfuse.errors import DataError, NotEnoughMemory
from viewfuse.fitted.model import Model, scaled_tensors
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.cost import fit_bytes
from viewfuse.methods.urrl.method import URRLMethod
from viewfuse.methods.urrl.training import (
    init_state,
    joint_stage_decision,
    pretrain,
    pretraining_decision,
    train_jointly,
)
from viewfuse.neighbors.row_lookup import RowIndex, index_rows
from viewfuse.neighbors.samples import Samples, index_training_set
from viewfuse.reduction.views import Asked, Reduction, fit_reduction
from viewfuse.selection.confidence import confidence_decision, sharpness
from viewfuse.selection.filled_kmeans import filled_kmeans
from viewfuse.selection.messages import told
from viewfuse.selection.rules import (
    SCALINGS,
    STABLE,
    Decision,
    best_of_each,
    best_scaling,
    reliability,
    scaling_decision,
)
from viewfuse.selection.scores import Candidate, agreement, neighbor_agreements, stability


class Fitted(NamedTuple):
    """A model with what its training gave.

    Attributes
    ----------
    embedding : of the training samples, of shape (samples, embedding)
    objectives : the last losses of the trainings with the same scaling
    decisions : per thing that was decided what was chosen, from which evidence, and why in words
    stability : float32 array of shape (samples,), see `viewfuse.selection.scores.stability`
    """

    model: Model
    embedding: Tensor
    history: History
    seed: int
    objectives: list[float]
    decisions: dict[str, dict[str, Any]]
    stability: NDArray[np.float32]

    def labels(self) -> NDArray[np.int64]:
        """The clusters of the training samples, of shape (samples,)."""
        return self.model.assign(self.embedding).argmax(axis=1)


def fit_models(
    sets: Sequence[Views],
    config: Config,
    scaling: str,
    seeds: Sequence[Sequence[int]],
    device: torch.device,
    *,
    fill: str = "neighbors",
    reduction: Asked = "auto",
    progress: bool = False,
) -> list[Fitted]:
    """Fill, reduce, scale, search, train and choose: one model per set of samples.

    All trainings of all sets, which have equal shapes, are independent of each other; on a GPU they run side by side.

    Parameters
    ----------
    scaling : "auto" begins with every scaling in `SCALINGS`, and goes on with that of the best clusters
    seeds : per set of samples those of its trainings; the one with the highest neighbour agreement is kept
    fill : how empty cells are filled, see `viewfuse.data.filling.filler`
    reduction : how wide and sparse views become narrow, see `viewfuse.reduction.views`
    """
    for views in sets:
        _check_samples(views, config.n_clusters)
    check_scaling(scaling, ("auto", *KINDS))
    sources = [_Source.of(views, fill, reduction) for views in sets]
    for source in sources:
        _check_memory(source.reduced, config, device)
    trials = [_trials(source, scaling, config, own, device) for source, own in zip(sources, seeds, strict=True)]
    n_samples = len(sets[0])
    last = config.epochs(n_samples)[0]
    first = config.trial_epochs(n_samples) if scaling == "auto" else last
    pretrain([trial.run for own in trials for trial in own], first, progress=progress)
    chosen = [_Chosen.of(own, asked=scaling != "auto") for own in trials]
    del trials  # and with them the samples under other scalings
    unsettled = [one for one in chosen if not (config.pretrained_as_needed and one.settled)]
    pretrain([trial.run for one in unsettled for trial in one.kept], last, progress=progress)
    chosen = [one.sound() for one in chosen]
    train_jointly([trial.run for one in chosen for trial in one.kept], progress=progress)
    return [one.best() for one in chosen]


class _Source(NamedTuple):
    """A set of samples as it was given, but for its values: those are filled and reduced."""

    columns: tuple[Sequence[Hashable], ...]
    filler: Filler
    reduction: Reduction
    decisions: dict[str, Decision]
    reduced: Views

    @classmethod
    def of(cls, views: Views, fill: str, asked: Asked) -> _Source:
        """Fill empty cells and reduce the views."""
        filler = fit_filler(views, fill)
        filled, cells = filler.apply(views)
        warn_of_filled(cells, stacklevel=5)
        reduction = fit_reduction(filled, asked)
        decisions = {
            "empty_cells": {"chosen": fill, "evidence": {one.view: one.facts() for one in cells}},
            "reduction": reduction.decision(filled, asked),
        }
        return cls(views.columns, filler, reduction, decisions, reduction.apply(filled))


class _Prepared(NamedTuple):
    """Samples before training, under one scaling."""

    source: _Source
    scaler: Scaler
    stored: Samples
    row_index: RowIndex


@dataclass(frozen=True)
class _Trial:
    """Samples with what one training makes of them."""

    prepared: _Prepared
    run: TrainState

    def model(self) -> Model:
        (columns, filler, reduction, _, reduced), scaler, stored, index = self.prepared
        method = self.run.method
        assert isinstance(method, URRLMethod)
        return Model(reduced.names, columns, method, filler, reduction, scaler, stored, index, self.run.network)

    def candidate(self, labels: NDArray[np.int64]) -> Candidate:
        return Candidate(self.prepared.scaler.kind, labels, self.prepared.stored.neighbor_ids, self.run.objective)

    def start(self) -> NDArray[np.int64]:
        """The clusters after pre-training so far, of shape (samples,)."""
        assert self.run.clusters is not None
        return self.run.clusters.cpu().numpy()


def _trials(source: _Source, scaling: str, config: Config, seeds: Sequence[int], device: torch.device) -> list[_Trial]:
    """The trainings of one set of samples: each scaling with each seed."""
    ways = [_prepared(source, scaler, config, device) for scaler in _scalers(source, scaling)]
    places = [SCALINGS.index(way.scaler.kind) if scaling == "auto" else 0 for way in ways]
    return [
        _Trial(way, init_state(way.stored, config, seed_under_scaling(seed, place)))
        for way, place in zip(ways, places, strict=True)
        for seed in seeds
    ]


def _scalers(source: _Source, scaling: str) -> list[Scaler]:
    """The scalings that are tried; one that does the same as another is tried once."""
    kinds = SCALINGS if scaling == "auto" else (scaling,)
    scalers = [fit_scaler(source.reduced, kind, source.reduction.units) for kind in kinds]
    if scaling == "auto" and not all(scalers[0].whole):
        scalers = [*scalers[1:], scalers[0]]  # of equals "standard" is kept, as it says more than "mixed"
    return [one for i, one in enumerate(scalers) if not any(one.does_the_same(other) for other in scalers[:i])]


def _prepared(source: _Source, scaler: Scaler, config: Config, device: torch.device) -> _Prepared:
    values, present = scaled_tensors(source.reduced, scaler, device)
    stored = index_training_set(values, present, URRLMethod(config).neighbor_depth)
    return _Prepared(source, scaler, stored, index_rows(values, present))


class _Chosen(NamedTuple):
    """What is known of a set of samples after the trial.

    Attributes
    ----------
    kept : the trainings with the scaling that was chosen
    starts : clusters of all trainings at that time, those of `kept` first
    evidence : the best neighbour agreement by scaling
    failed : scalings with which no training kept finite losses
    asked : whether the user named the scaling
    """

    kept: list[_Trial]
    starts: list[NDArray[np.int64]]
    evidence: dict[str, float]
    failed: list[str]
    asked: bool

    @classmethod
    def of(cls, trials: Sequence[_Trial], *, asked: bool) -> _Chosen:
        """Choose the scaling whose best clusters have the highest neighbour agreement."""
        tried = dict.fromkeys(trial.prepared.scaler.kind for trial in trials)
        trials = _sound(trials)
        candidates = [trial.candidate(trial.start()) for trial in trials]
        scores = neighbor_agreements(candidates)
        evidence = {scaling: scores[i] for scaling, i in best_of_each(candidates, scores).items()}
        chosen = best_scaling({scaling: evidence[scaling] for scaling in SCALINGS if scaling in evidence} or evidence)
        kept = [trial for trial in trials if trial.prepared.scaler.kind == chosen]
        others = [trial for trial in trials if trial.prepared.scaler.kind != chosen]
        failed = [scaling for scaling in tried if scaling not in evidence]
        return cls(kept, [trial.start() for trial in (*kept, *others)], evidence, failed, asked)

    def sound(self) -> _Chosen:
        """Without those that diverged since; stops if all did."""
        starts = [start for trial, start in zip(self.kept, self.starts, strict=False) if not trial.run.diverged]
        return self._replace(kept=_sound(self.kept), starts=starts + self.starts[len(self.kept) :])

    @property
    def settled(self) -> bool:
        """Whether the trainings found nearly the same clusters, so that more pre-training would bring little."""
        return self.agreed is not None and self.agreed >= STABLE

    @property
    def agreed(self) -> float | None:
        """How far the trainings agreed when the scaling was chosen."""
        return agreement(*_one_out(self.starts, 0))

    def best(self) -> Fitted:
        """The training whose clusters have the highest neighbour agreement, with the reasons."""
        embeddings = [embed_stored(trial.run) for trial in self.kept]
        labels = [t.model().assign(z).argmax(axis=1) for t, z in zip(self.kept, embeddings, strict=True)]
        candidates = [trial.candidate(own) for trial, own in zip(self.kept, labels, strict=True)]
        (best,) = best_of_each(candidates, neighbor_agreements(candidates)).values()
        trial, run = self.kept[best], self.kept[best].run
        reference = filled_kmeans(trial.prepared.stored, trial.model().method.n_clusters, run.seed).cpu().numpy()
        confidence = confidence_decision(labels[best], reference, trial.model().method.n_clusters)
        model = _calibrated(trial.model(), embeddings[best], confidence["chosen"])
        # Of a single one only what it found when the scaling was chosen can be compared.
        own, others = _one_out(labels, best) if len(labels) > 1 else _one_out(self.starts, 0)
        final = len(labels) > 1 or np.array_equal(own, labels[best])
        whole = [name for name, is_whole in zip(model.names, model.scaler.whole, strict=True) if is_whole]
        decisions = {
            **trial.prepared.source.decisions,
            "scaling": scaling_decision(model.scaler.kind, self.evidence, whole, self.failed, asked=self.asked),
            "pretraining": pretraining_decision(run, self.agreed),
            "joint_stage": joint_stage_decision(run),
            "confidence": confidence,
            "reliability": reliability(agreement(own, others), len(others) + 1, final=final, alone=len(labels) == 1),
        }
        objectives = [one.objective for one in candidates]
        return Fitted(
            model, embeddings[best], run.history, run.seed, objectives, told(decisions), stability(labels[best], others)
        )


def _calibrated(model: Model, embedding: Tensor, level: float) -> Model:
    """The model with probabilities whose best ones have this mean over the training samples."""
    return replace(model, sharpness=sharpness(model.assign(embedding), level))


def _sound(trials: Sequence[_Trial]) -> list[_Trial]:
    """Those that did not diverge; stops if all did."""
    sound = [trial for trial in trials if not trial.run.diverged]
    if not sound:
        check_diverged([trial.run for trial in trials])
    return sound


def _one_out(labels: Sequence[NDArray[np.int64]], place: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The partition at a place, and the others."""
    return labels[place], [own for i, own in enumerate(labels) if i != place]


def _check_samples(views: Views, n_clusters: int) -> None:
    if len(views) < n_clusters:
        raise DataError(
            f"n_samples={len(views)} should be >= n_clusters={n_clusters}; give more samples or ask for fewer clusters"
        )
    for line in absent_views(views):
        raise DataError(line)


def _check_memory(views: Views, config: Config, device: torch.device) -> None:
    """Refuse a training that cannot end well, before it begins."""
    needed, free = fit_bytes(len(views), views.widths, config), free_bytes(device)
    if needed > free:
        widths = ", ".join(f"{name} {width:,}" for name, width in zip(views.names, views.widths, strict=True))
        raise NotEnoughMemory(
            f"training on {len(views):,} samples with columns {widths} and n_neighbors={config.n_neighbors} needs "
            f"about {needed:,} bytes, but only {free:,} are free; use reduction='auto', fewer columns or neighbours"
        )
