"""From views to a fitted model: scale, search, train under several scalings, choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.checks import absent_views
from viewfuse.data.scaling import KINDS, Scaler, check_scaling
from viewfuse.data.views import Views
from viewfuse.engine.footprint import free_bytes
from viewfuse.engine.loop import History, TrainState, check_diverged, embed_stored
from viewfuse.engine.seeds import seed_under_scaling
from viewfuse.errors import DataError, NotEnoughMemory
from viewfuse.fitted.model import Model
from viewfuse.fitted.prepared import Prepared, Source, prepare, scalers_of
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
from viewfuse.reduction.views import Asked
from viewfuse.selection.confidence import confidence_decision, sharpness
from viewfuse.selection.messages import told
from viewfuse.selection.rules import (
    SCALINGS,
    STABLE,
    Decision,
    are_clear,
    best_of_each,
    best_scaling,
    clusters_decision,
    reliability,
    scaling_decision,
)
from viewfuse.selection.scores import (
    Candidate,
    agreement,
    matched_share,
    neighbor_agreements,
    partition_score,
    stability,
)
from viewfuse.selection.teaching import centers_of


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
    scaling : "auto" begins with one of `SCALINGS`, tries the others where its clusters are not clear, and goes on with
        that of the best clusters
    seeds : per set of samples those of its trainings; the one with the highest neighbour agreement is kept
    fill : how empty cells are filled, see `viewfuse.data.filling.filler`
    reduction : how wide and sparse views become narrow, see `viewfuse.reduction.views`
    """
    for views in sets:
        check_samples(views, config.n_clusters)
    check_scaling(scaling, ("auto", *KINDS))
    sources = [Source.of(views, fill, reduction) for views in sets]
    for source in sources:
        check_memory(source.reduced, config, device)
    searches = [_Search.of(source, config, scaling, own, device) for source, own in zip(sources, seeds, strict=True)]
    n_samples = len(sets[0])
    last = config.epochs(n_samples)[0]
    first = config.trial_epochs(n_samples) if scaling == "auto" else last
    pretrain([trial.run for search in searches for trial in search.trials], first, progress=progress)
    more = [trial for search in searches if not search.is_clear for trial in search.widen()]
    pretrain([trial.run for trial in more], first, progress=progress)
    chosen = [_Chosen.of(search) for search in searches]
    del searches, more  # and with them the samples under other scalings
    unsettled = [one for one in chosen if not (config.pretrained_as_needed and one.settled)]
    pretrain([trial.run for one in unsettled for trial in one.kept], last, progress=progress)
    chosen = [one.sound() for one in chosen]
    train_jointly([trial.run for one in chosen for trial in one.kept], progress=progress)
    return [one.best() for one in chosen]


@dataclass(frozen=True)
class _Trial:
    """Samples with what one training makes of them."""

    prepared: Prepared
    run: TrainState

    def model(self) -> Model:
        (columns, filler, reduction, _, reduced), scaler, stored, index, _ = self.prepared
        method = self.run.method
        assert isinstance(method, URRLMethod)
        return Model(reduced.names, columns, method, filler, reduction, scaler, stored, index, self.run.network)

    def candidate(self, labels: NDArray[np.int64]) -> Candidate:
        return Candidate(self.prepared.scaler.kind, labels, self.prepared.stored.neighbor_ids, self.run.objective)

    @property
    def is_clear(self) -> bool:
        """Whether k-means on the filled views finds nearly the same clusters; never after a divergence."""
        if self.run.diverged:
            return False
        start, k = self.start(), self.run.method.n_clusters
        return are_clear(matched_share(start, self.prepared.reference), len(start), k)

    def start(self) -> NDArray[np.int64]:
        """The clusters after pre-training so far, of shape (samples,)."""
        assert self.run.clusters is not None
        return self.run.clusters.cpu().numpy()


@dataclass
class _Search:
    """The trainings of one set of samples, of which the best scaling goes on.

    Attributes
    ----------
    scalers : those that were not tried yet
    asked : whether the user named the scaling
    """

    source: Source
    config: Config
    seeds: Sequence[int]
    device: torch.device
    scalers: list[Scaler]
    asked: bool
    trials: list[_Trial] = field(default_factory=list)

    @classmethod
    def of(cls, source: Source, config: Config, scaling: str, seeds: Sequence[int], device: torch.device) -> _Search:
        """Begin with one scaling."""
        first, *others = scalers_of(source, scaling)
        search = cls(source, config, seeds, device, [first], scaling != "auto")
        search.widen()
        search.scalers = others
        return search

    def widen(self) -> list[_Trial]:
        """Add the trainings under the scalings that were not tried yet: each with each seed."""
        new = [trial for scaler in self.scalers for trial in self._trials(scaler)]
        self.trials += new
        self.scalers = []
        return new

    def _trials(self, scaler: Scaler) -> list[_Trial]:
        depth, k = URRLMethod(self.config).neighbor_depth, self.config.n_clusters
        prepared = prepare(self.source, scaler, depth, k, self.seeds[0], self.device)
        place = 0 if self.asked else SCALINGS.index(scaler.kind)
        seeds = [seed_under_scaling(seed, place) for seed in self.seeds]
        return [_Trial(prepared, init_state(prepared.stored, self.config, seed)) for seed in seeds]

    @property
    def is_clear(self) -> bool:
        """Whether all trainings so far found what k-means finds in the filled views."""
        return all(trial.is_clear for trial in self.trials)


class _Chosen(NamedTuple):
    """What is known of a set of samples after the trial.

    Attributes
    ----------
    kept : the trainings with the scaling that was chosen
    starts : clusters of all trainings at that time, those of `kept` first
    evidence : the best neighbour agreement by scaling
    failed : scalings with which no training kept finite losses
    asked : whether the user named the scaling
    clear : whether the clusters were clear at that time
    spared : whether other scalings were not tried for that reason
    """

    kept: list[_Trial]
    starts: list[NDArray[np.int64]]
    evidence: dict[str, float]
    failed: list[str]
    asked: bool
    clear: bool
    spared: bool

    @classmethod
    def of(cls, search: _Search) -> _Chosen:
        """Choose the scaling whose best clusters have the highest neighbour agreement."""
        tried = dict.fromkeys(trial.prepared.scaler.kind for trial in search.trials)
        trials = _sound(search.trials)
        candidates = [trial.candidate(trial.start()) for trial in trials]
        scores = neighbor_agreements(candidates)
        evidence = {scaling: scores[i] for scaling, i in best_of_each(candidates, scores).items()}
        chosen = best_scaling({scaling: evidence[scaling] for scaling in SCALINGS if scaling in evidence} or evidence)
        kept = [trial for trial in trials if trial.prepared.scaler.kind == chosen]
        others = [trial for trial in trials if trial.prepared.scaler.kind != chosen]
        failed = [scaling for scaling in tried if scaling not in evidence]
        starts = [trial.start() for trial in (*kept, *others)]
        return cls(kept, starts, evidence, failed, search.asked, search.is_clear, bool(search.scalers))

    def sound(self) -> _Chosen:
        """Without those that diverged since; stops if all did."""
        starts = [start for trial, start in zip(self.kept, self.starts, strict=False) if not trial.run.diverged]
        return self._replace(kept=_sound(self.kept), starts=starts + self.starts[len(self.kept) :])

    @property
    def settled(self) -> bool:
        """Whether nearly the same clusters were found in several ways, so that more pre-training would bring little."""
        return self.clear or (self.agreed is not None and self.agreed >= STABLE)

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
        trial, run, reference = self.kept[best], self.kept[best].run, self.kept[best].prepared.reference
        confidence = confidence_decision(labels[best], reference, run.method.n_clusters)
        clusters = _taught(trial, labels[best], embeddings[best])
        model = _calibrated(trial.model(), embeddings[best], confidence["chosen"])
        placed = model.assign(embeddings[best]).argmax(axis=1)
        # A single training is compared as it was when the scaling was chosen; alone, with what k-means finds.
        own, others = _one_out(labels, best) if len(labels) > 1 else _one_out(self.starts, 0)
        final = len(labels) > 1 or np.array_equal(own, labels[best])
        agreed = agreement(own, others or [reference])
        assert agreed is not None
        compared = others or [labels[best] if clusters["chosen"] == "k-means" else reference]
        whole = [name for name, is_whole in zip(model.names, model.scaler.whole, strict=True) if is_whole]
        facts = {"asked": self.asked, "clear": self.spared}
        decisions = {
            **trial.prepared.source.decisions,
            "scaling": scaling_decision(model.scaler.kind, self.evidence, whole, self.failed, **facts),
            "pretraining": pretraining_decision(run, None if self.clear else self.agreed),
            "joint_stage": joint_stage_decision(run),
            "clusters": clusters,
            "confidence": confidence,
            "reliability": reliability(agreed, len(others) + 1, final=final, alone=len(labels) == 1),
        }
        objectives, steady = [one.objective for one in candidates], stability(placed, compared)
        return Fitted(model, embeddings[best], run.history, run.seed, objectives, told(decisions), steady)


def _taught(trial: _Trial, labels: NDArray[np.int64], embedding: Tensor) -> Decision:
    """Teach the network the clusters of k-means on the filled views where these score higher, if it can learn them.

    Parameters
    ----------
    labels, embedding : of the training samples, as the training ended
    """
    method, stored, reference = trial.run.method, trial.prepared.stored, trial.prepared.reference
    assert isinstance(method, URRLMethod)
    own, other = (partition_score(found, stored.neighbor_ids, method.n_clusters) for found in (labels, reference))
    decision = clusters_decision(own, other if method.config.center_start == "best" else None)
    if decision["chosen"] == "k-means":
        centers = centers_of(embedding, reference, method.n_clusters)
        if centers is None:
            return {**decision, "chosen": "network"}
        trial.run.network.centers.data.copy_(centers)
    return decision


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


def check_samples(views: Views, n_clusters: int) -> None:
    """Refuse fewer samples than clusters, and views that nobody has."""
    if len(views) < n_clusters:
        raise DataError(
            f"n_samples={len(views)} should be >= n_clusters={n_clusters}; give more samples or ask for fewer clusters"
        )
    for line in absent_views(views):
        raise DataError(line)


def check_memory(views: Views, config: Config, device: torch.device) -> None:
    """Refuse a training that cannot end well, before it begins."""
    needed, free = fit_bytes(len(views), views.widths, config), free_bytes(device)
    if needed > free:
        widths = ", ".join(f"{name} {width:,}" for name, width in zip(views.names, views.widths, strict=True))
        raise NotEnoughMemory(
            f"training on {len(views):,} samples with columns {widths} and n_neighbors={config.n_neighbors} needs "
            f"about {needed:,} bytes, but only {free:,} are free; use reduction='auto', fewer columns or neighbours"
        )
