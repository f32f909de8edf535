"""The story of a fit: scale filled and reduced views, search neighbours, train under several scalings, choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.checks import check_samples
from viewfuse.data.side_information.knowledge import NOTHING, Knowledge
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import clusters as assigned
from viewfuse.engine.training import SILENT, History, Progress, TrainState
from viewfuse.fitted.batch_effects import batch_effects
from viewfuse.fitted.model import Model, Source
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.consensus import simple_partitions
from viewfuse.methods.urrl.hints import what_became
from viewfuse.methods.urrl.scaling_search import Search, Trial, check_memory, take_over
from viewfuse.methods.urrl.stages import (
    embed_stored,
    joint_stage_decision,
    planned_epochs,
    pretrain,
    pretraining_decision,
    train_jointly,
)
from viewfuse.nn.layers import with_gradients
from viewfuse.selection import rules
from viewfuse.selection.confidence import Calibration, mean_confidence
from viewfuse.selection.decision_texts import records
from viewfuse.selection.decisions import Decision, ScalingChoice, Trust
from viewfuse.selection.rules import SCALINGS
from viewfuse.selection.scores import candidate_scores, macro_agreement, matched_kappa, matched_share

_AGREED = 0.97
"""Cohen's kappa with k-means on the filled views from which on there is little to vote about."""


class Fitted(NamedTuple):
    """A model with the embedding of its samples, the last losses of all trainings with its scaling, and decisions."""

    model: Model
    embedding: Tensor
    history: History
    objectives: list[float]
    decisions: dict[str, dict[str, Any]]

    def labels(self) -> NDArray[np.int64]:
        """The clusters of the training samples, of shape (samples,)."""
        return self.model.assign(self.model.stored, self.embedding).argmax(axis=1)


@with_gradients
def fit_models(
    sources: Sequence[Source],
    config: Config,
    scaling: str,
    seeds: Sequence[Sequence[int]],
    device: torch.device,
    *,
    known: Knowledge = NOTHING,
    begun: TrainState | None = None,
    n_jobs: int | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> list[Fitted]:
    """Scale, search, train and choose: one model per set of samples.

    All trainings of all sets, which have equal shapes, are independent of each other: on a GPU they are stacked, on a
    CPU `n_jobs` of them run side by side (`viewfuse.utils.jobs.run_jobs`).

    Parameters
    ----------
    scaling : "auto" begins with one of `SCALINGS`, and tries the others where its clusters are not clear
    seeds : per set of samples those of its trainings; the one whose clusters have the highest score is kept
    begun : a pre-training with which the number of clusters was chosen; a training that would repeat it starts there
    """
    if known is not NOTHING:
        known.check(config.n_clusters)
    for source in sources:
        check_samples(source.reduced, config.n_clusters)
    for source, own in zip(sources, seeds, strict=True):
        n_waiting = len(own) * (len(SCALINGS) if scaling == "auto" else 1) - 1
        check_memory(source.reduced, config, device, n_waiting)
    searches = [
        Search.of(source, config, scaling, own, device, known) for source, own in zip(sources, seeds, strict=True)
    ]
    n_samples = len(sources[0].reduced)
    last = config.epochs(n_samples).pretraining
    first = config.trial_epochs(n_samples) if scaling == "auto" else last
    early = config.early_epochs(n_samples) if scaling == "auto" else last
    take_over(searches, begun, first)
    progress.expect(sum(search.most_epochs(first) for search in searches))
    for search in searches if progress.is_shown else ():
        progress.tell(search.long_wait())
    ways: dict[str, Any] = {"n_jobs": n_jobs, "threads": threads, "progress": progress, "checkpoint": checkpoint}
    _pretrain([trial for search in searches for trial in search.trials], early, **ways)
    if early < first:
        _pretrain([trial for search in searches if not search.is_clear for trial in search.trials], first, **ways)
    tries_more = [search for search in searches if config.effort == "auto" and not search.is_clear]
    _pretrain([trial for search in tries_more for trial in search.widen()], first, **ways)
    for search in searches:
        search.choose()  # and let go of the samples under other scalings
    unsettled = [search for search in searches if not (config.pretrained_as_needed and search.settled)]
    later = [trial for search in unsettled for trial in search.trials]
    joint = sum(planned_epochs(trial.run).joint for search in searches for trial in search.trials)
    learns = config.n_clusters > 1  # one cluster teaches nothing
    progress.expect(learns * joint + sum(last - trial.run.n_epochs for trial in later))
    _pretrain(later, last, **ways)
    for search in searches:
        search.drop_diverged()
    if learns:
        train_jointly([trial.run for search in searches for trial in search.trials], **ways)
    return [_best(search) for search in searches]


def _pretrain(trials: Sequence[Trial], until: int, **ways: Any) -> None:
    """Pre-train up to an epoch, and begin with the best clusters that are known by then."""
    pretrain([trial.run for trial in trials], until, **ways)
    for trial in trials:
        if not trial.run.diverged:
            trial.begin_with_best()


def _best(search: Search) -> Fitted:
    """The training whose clusters have the highest score, with the reasons."""
    source, trials = search.source, search.trials
    embeddings = [embed_stored(trial.run) for trial in trials]
    labels = [_placed(trial, z) for trial, z in zip(trials, embeddings, strict=True)]
    candidates = [trial.candidate(own) for trial, own in zip(trials, labels, strict=True)]
    scores = candidate_scores(candidates, search.config.n_clusters, search.known.views)
    (best,) = rules.best_of_each(candidates, scores).values()
    trial, run, embedding = trials[best], trials[best].run, embeddings[best]
    simple = _simple(search, trial, labels[best])
    clusters = trial.conclude(labels[best], embedding, [*search.found, trial.found], simple)
    others = [*(own for i, own in enumerate(labels) if i != best), *search.starts]
    scaler, stored, placed = trial.scaler, run.stored, _placed(trial, embedding)
    model = calibrated(source.model(run.method, scaler, stored, run.network), embedding, placed, others)
    soft, far = model.assign(stored, embedding), rules.outliers(stored, model.names, source.reduced.ids)
    whole, spared = [name for name, one in zip(model.names, scaler.whole, strict=True) if one], bool(search.scalers)
    facts = {"asked": search.asked, "clear": spared and search.clear, "quick": spared and not search.clear}
    facts["single"] = run.method.n_clusters == 1
    found: list[Decision] = [
        *source.decisions,
        ScalingChoice(scaler.kind, search.evidence, whole, search.failed, **facts),
        pretraining_decision(run, None if search.clear else search.agreed),
        joint_stage_decision(run),
        clusters,
        mean_confidence(soft, model.calibration),
    ]
    found += [far] if far.chosen else []
    if model.calibration is not None:
        found.append(trust_of(model, soft, far.chosen, trial.others["k-means"]))
    labelled = soft.argmax(axis=1)
    if search.known is not NOTHING:
        found += what_became(search.known, run.known, labelled, stored, source.reduced.ids, source.reduced.names)
    if source.before is not None:
        found.append(batch_effects(source.reduced, source.before, labelled))
    return Fitted(model, embedding, run.history, [one.objective for one in candidates], records(*found))


def _simple(search: Search, trial: Trial, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """What simple methods find, to vote with the network; nothing where k-means finds nearly what the network does.

    They know of no hints, pairs or weights, so they have no vote beside these.
    """
    known = search.known
    is_guided = any(one is not None for one in (known.hints, known.pairs, known.weights, known.views))
    agrees = matched_kappa(labels, trial.others["k-means"]) >= _AGREED
    if agrees or is_guided or search.config.center_start != "best":
        return []
    return simple_partitions(search.source.reduced, search.config.n_clusters, search.seeds[0])


def _placed(trial: Trial, embedding: Tensor) -> NDArray[np.int64]:
    """The clusters of the training samples as the network stands, of shape (samples,)."""
    return assigned(trial.run.method, trial.run.network, embedding).cpu().numpy()


def trust_of(
    model: Model, soft: NDArray[np.float32], n_outliers: int, reference: NDArray[np.int64] | None = None
) -> Trust:
    """Whether the clusters would be found again, and what else to know of them; `reference` are those of k-means."""
    labels, ids, n_clusters = soft.argmax(axis=1), model.stored.neighbor_ids, soft.shape[1]
    found = rules.found_again(soft.max(axis=1).astype(np.float64), labels, n_clusters)
    if n_clusters == 1:
        return found
    ours, simple = torch.from_numpy(labels).to(ids.device), None
    if reference is not None:
        each = [macro_agreement(x, ids, n_clusters) for x in (ours, torch.from_numpy(reference).to(ids.device))]
        simple = rules.on_kmeans(matched_share(labels, reference), *each)
    structure, sizes = rules.on_structure(model.stored, labels, n_clusters), rules.on_sizes(labels, n_clusters)
    others = rules.on_views(ours, ids, model.names), rules.on_outliers(n_outliers, len(labels))
    unsure = rules.on_uncertain(soft, model.n_present)
    return rules.with_reasons(found, unsure, simple, structure, sizes, *others)


def calibrated(
    model: Model, embedding: Tensor, labels: NDArray[np.int64], others: Sequence[NDArray[np.int64]]
) -> Model:
    """The model with soft assignments that are chances, unless they are to stay the paper's.

    `others` are what other trainings, or this one at other times, made of the training samples.
    """
    method: Any = model.method
    if not method.config.calibration:
        return model
    known = Calibration.of(labels, others, embedding, model.stored.neighbor_ids, model.method.n_clusters)
    return replace(model, calibration=known)
