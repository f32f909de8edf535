"""A fitted model: what is needed to place samples, and nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.batches import Samples, newcomers, store
from viewfuse.data.scaling import KINDS, Scaler, fit_scaler
from viewfuse.data.tables import labelled
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SettingError
from viewfuse.neighbors.row_lookup import RowIndex, find_rows, index_rows
from viewfuse.network import Network
from viewfuse.seeds import seed_under_scaling
from viewfuse.selection.rules import (
    SCALINGS,
    STABLE,
    Candidate,
    agreement,
    best_of_each,
    best_scaling,
    consistencies,
    scaling_decision,
    stability,
    verdict,
)
from viewfuse.settings import Settings
from viewfuse.training import (
    History,
    Training,
    begin,
    check_diverged,
    embed,
    embed_stored,
    joint_stage_decision,
    pretrain,
    pretraining_decision,
    train_jointly,
)

_ROWS_AT_A_TIME = 1024
_ROWS_PER_PART = 64


@dataclass(frozen=True)
class Model:
    """A trained network with the scaled training samples, among which new samples find their neighbours.

    Attributes
    ----------
    names, columns : of the views that it was fitted on
    """

    names: tuple[str, ...]
    columns: tuple[Sequence[Hashable], ...]
    settings: Settings
    scaler: Scaler
    stored: Samples
    index: RowIndex
    network: Network

    def to(self, device: torch.device) -> Model:
        """The model on `device`; the network itself moves."""
        if self.stored.present.device == device:
            return self
        return replace(
            self, stored=self.stored.to(device), index=self.index.to(device), network=self.network.to(device)
        )

    def thinned(self, rows: NDArray[np.int64]) -> Model:
        """The model with some of its training samples only, which are then each other's neighbours."""
        kept = self.stored.take(torch.from_numpy(rows).to(self.stored.present.device))
        stored = store(kept.values, kept.present, self.settings)
        return replace(self, stored=stored, index=index_rows(stored.values, stored.present))

    def embed(self, views: Views) -> Tensor:
        """Embeddings of shape (samples, embedding) of samples with the model's views, any of them missing."""
        return self.place(views)[1]

    def place(self, views: Views) -> tuple[Samples, Tensor]:
        """The samples with their neighbours among the stored ones, and what `embed` gives."""
        stored = self.stored
        values, present = _tensors(views, self.scaler, stored.present.device)
        known = find_rows(self.index, stored.values, stored.present, values, present)
        samples = newcomers(values, present, stored, known)
        embedding = embed(self.network, samples, stored, self.settings)
        _check_finite(embedding, views)
        return samples, embedding

    @torch.no_grad()
    def assign(self, embedding: Tensor) -> NDArray[np.float32]:
        """Chances of shape (samples, clusters)."""
        # Rows, clusters and columns at once would be far larger than the embedding.
        chunks = [self.network.assign(rows) for rows in torch.split(embedding, _ROWS_AT_A_TIME)]
        return torch.cat(chunks).cpu().numpy()

    @torch.no_grad()
    def rebuild(self, embedding: Tensor) -> list[NDArray[np.float32]]:
        """Per view what the decoder expects, of shape (samples, columns), in the units of the data."""
        n = len(embedding)
        # Parts of one size, the last one filled up, so that a sample gets the same numbers in any company.
        rows = torch.arange(-(-n // _ROWS_PER_PART) * _ROWS_PER_PART, device=embedding.device).clamp(max=n - 1)
        parts = [self.network.decode(part) for part in torch.split(embedding[rows], _ROWS_PER_PART)]
        views = [self._within_range(v, torch.cat(found)[:n]) for v, found in enumerate(zip(*parts, strict=True))]
        return [self.scaler.undo(v, view.cpu().numpy()) for v, view in enumerate(views)]

    def _within_range(self, v: int, values: Tensor) -> Tensor:
        """Scaled values of a view, none beyond those of the training samples: no negative counts, constants stay."""
        seen = self.stored.values[v][self.stored.present[:, v]]
        return values.clamp(seen.amin(dim=0), seen.amax(dim=0)) if len(seen) else values


class Fitted(NamedTuple):
    """A model with what its training gave.

    Attributes
    ----------
    embedding : of the training samples, of shape (samples, embedding)
    objectives : the last losses of the trainings with the same scaling
    decisions : per thing that was decided what was chosen, from which evidence, and why in words
    stability : float32 array of shape (samples,), see `viewfuse.selection.rules.stability`
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
    settings: Settings,
    scaling: str,
    seeds: Sequence[Sequence[int]],
    device: torch.device,
    *,
    progress: bool,
) -> list[Fitted]:
    """Scale, search, train and choose: one model per set of samples.

    All trainings of all sets, which have equal shapes, are independent of each other; on a GPU they run side by side.

    Parameters
    ----------
    scaling : "auto" begins with every scaling in `decisions.SCALINGS`, and goes on with that of the best clusters
    seeds : per set of samples those of its trainings; the most consistent one is kept
    """
    sets = [views.dense() for views in sets]
    for views in sets:
        _check_samples(views, settings.n_clusters)
    if scaling not in ("auto", *KINDS):
        raise SettingError(f"scaling must be one of auto, {', '.join(KINDS)}; got {scaling!r}")
    trials = [_trials(views, scaling, settings, own, device) for views, own in zip(sets, seeds, strict=True)]
    n_samples = len(sets[0])
    last = settings.epochs(n_samples)[0]
    first = settings.trial_epochs(n_samples) if scaling == "auto" else last
    pretrain([trial.run for own in trials for trial in own], first, progress=progress)
    chosen = [_Chosen.of(own) for own in trials]
    del trials  # and with them the samples under other scalings
    unsettled = [one for one in chosen if not (settings.pretrained_as_needed and one.settled)]
    pretrain([trial.run for one in unsettled for trial in one.kept], last, progress=progress)
    chosen = [one.sound() for one in chosen]
    train_jointly([trial.run for one in chosen for trial in one.kept], progress=progress)
    return [one.best() for one in chosen]


class _Prepared(NamedTuple):
    """Samples before training, under one scaling."""

    views: Views
    scaler: Scaler
    stored: Samples
    row_index: RowIndex


@dataclass(frozen=True)
class _Trial:
    """Samples with what one training makes of them."""

    prepared: _Prepared
    run: Training

    def model(self) -> Model:
        views, scaler, stored, index = self.prepared
        return Model(views.names, views.columns, self.run.settings, scaler, stored, index, self.run.network)

    def candidate(self, labels: NDArray[np.int64]) -> Candidate:
        return Candidate(self.prepared.scaler.kind, labels, self.prepared.stored.near, self.run.objective)

    def start(self) -> NDArray[np.int64]:
        """The clusters after pre-training so far, of shape (samples,)."""
        assert self.run.clusters is not None
        return self.run.clusters.cpu().numpy()


def _trials(views: Views, scaling: str, settings: Settings, seeds: Sequence[int], device: torch.device) -> list[_Trial]:
    """The trainings of one set of samples: each scaling with each seed."""
    ways = _prepared_ways(views, scaling, settings, device)
    places = [SCALINGS.index(way.scaler.kind) if scaling == "auto" else 0 for way in ways]
    return [
        _Trial(way, begin(way.stored, settings, seed_under_scaling(seed, place)))
        for way, place in zip(ways, places, strict=True)
        for seed in seeds
    ]


def _prepared_ways(views: Views, scaling: str, settings: Settings, device: torch.device) -> list[_Prepared]:
    """The samples under each scaling that is tried."""
    if scaling != "auto":
        return [_prepared(views, fit_scaler(views, scaling), settings, device)]
    scalers = [fit_scaler(views, kind) for kind in SCALINGS]
    # Where no view is scaled as a whole, "mixed" is "standard".
    return [_prepared(views, one, settings, device) for one in scalers if one.kind != "mixed" or any(one.whole)]


def _prepared(views: Views, scaler: Scaler, settings: Settings, device: torch.device) -> _Prepared:
    values, present = _tensors(views, scaler, device)
    return _Prepared(views, scaler, store(values, present, settings), index_rows(values, present))


class _Chosen(NamedTuple):
    """What is known of a set of samples after the trial.

    Attributes
    ----------
    kept : the trainings with the scaling that was chosen
    starts : clusters of all trainings at that time, those of `kept` first
    evidence : the best consistency by scaling
    failed : scalings with which no training kept finite losses
    """

    kept: list[_Trial]
    starts: list[NDArray[np.int64]]
    evidence: dict[str, float]
    failed: list[str]

    @classmethod
    def of(cls, trials: Sequence[_Trial]) -> _Chosen:
        """Choose the scaling whose best clusters are the most consistent."""
        tried = dict.fromkeys(trial.prepared.scaler.kind for trial in trials)
        trials = _sound(trials)
        candidates = [trial.candidate(trial.start()) for trial in trials]
        scores = consistencies(candidates)
        evidence = {scaling: scores[i] for scaling, i in best_of_each(candidates, scores).items()}
        chosen = best_scaling({scaling: evidence[scaling] for scaling in SCALINGS if scaling in evidence} or evidence)
        kept = [trial for trial in trials if trial.prepared.scaler.kind == chosen]
        others = [trial for trial in trials if trial.prepared.scaler.kind != chosen]
        failed = [scaling for scaling in tried if scaling not in evidence]
        return cls(kept, [trial.start() for trial in (*kept, *others)], evidence, failed)

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
        """The training with the most consistent clusters, with the reasons."""
        embeddings = [embed_stored(trial.run) for trial in self.kept]
        labels = [t.model().assign(z).argmax(axis=1) for t, z in zip(self.kept, embeddings, strict=True)]
        candidates = [trial.candidate(own) for trial, own in zip(self.kept, labels, strict=True)]
        (best,) = best_of_each(candidates, consistencies(candidates)).values()
        model, run = self.kept[best].model(), self.kept[best].run
        # Of a single one only what it found when the scaling was chosen can be compared.
        own, others = _one_out(labels, best) if len(labels) > 1 else _one_out(self.starts, 0)
        final = len(labels) > 1 or np.array_equal(own, labels[best])
        whole = [name for name, is_whole in zip(model.names, model.scaler.whole, strict=True) if is_whole]
        decisions = {
            "scaling": scaling_decision(model.scaler.kind, self.evidence, whole, self.failed),
            "pretraining": pretraining_decision(run, self.agreed),
            "joint_stage": joint_stage_decision(run),
            "verdict": verdict(agreement(own, others), len(others) + 1, final=final, alone=len(labels) == 1),
        }
        objectives = [one.objective for one in candidates]
        return Fitted(
            model, embeddings[best], run.history, run.seed, objectives, decisions, stability(labels[best], others)
        )


def _sound(trials: Sequence[_Trial]) -> list[_Trial]:
    """Those that did not diverge; stops if all did."""
    sound = [trial for trial in trials if not trial.run.diverged]
    if not sound:
        check_diverged([trial.run for trial in trials])
    return sound


def _one_out(labels: Sequence[NDArray[np.int64]], place: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The partition at a place, and the others."""
    return labels[place], [own for i, own in enumerate(labels) if i != place]


def _tensors(views: Views, scaler: Scaler, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Scaled values and who is present, in memory of their own: the model must not change when the caller's does."""
    arrays = scaler.apply(views).arrays
    if scaler.kind == "none":
        arrays = tuple(np.array(array, order="C") for array in arrays)
    return [torch.from_numpy(array).to(device) for array in arrays], torch.tensor(np.array(views.mask), device=device)


def _check_finite(embedding: Tensor, views: Views) -> None:
    bad = (~torch.isfinite(embedding).all(dim=1)).nonzero()
    if len(bad):
        raise DataError(
            f"row {labelled(int(bad[0]), views.ids)}: its values are too far from those that the model was fitted on; "
            "look for fill values and other units"
        )


def _check_samples(views: Views, n_clusters: int) -> None:
    if len(views) < n_clusters:
        raise DataError(
            f"n_samples={len(views)} should be >= n_clusters={n_clusters}; give more samples or ask for fewer clusters"
        )
    for name, count in zip(views.names, views.mask.sum(axis=0), strict=True):
        if not count:
            raise DataError(f"view {name!r} is missing in every row, so nothing can be learned of it; leave it out")
