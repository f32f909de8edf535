"""Training in two stages (Algorithm 2): pre-train, initialise the centres, train jointly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from viewfuse.engine.checkpoint import NO_CHECKPOINT, Checkpoint
from viewfuse.engine.early_stopping import EarlyStopping
from viewfuse.engine.graphed_step import tensor_cores
from viewfuse.engine.loop import Learned, TrainState, broken_embedding, check_diverged, run_epoch, stacked_groups
from viewfuse.engine.passes import clusters
from viewfuse.engine.progress import SILENT, Progress, Reported
from viewfuse.engine.rng import generator_for_start
from viewfuse.engine.stacked_replicates import Replicates
from viewfuse.methods.urrl.augment import view_dropout_rate
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.cost import fit_bytes, step_seconds
from viewfuse.methods.urrl.method import URRLMethod
from viewfuse.neighbors.samples import Samples
from viewfuse.parallel import Job, in_worker
from viewfuse.parallel import run as run_jobs
from viewfuse.selection.kmeans import initial_centers, paper_centers
from viewfuse.selection.rules import Decision, clustering_weight

_EVALUATIONS = 8
"""How often a joint stage is evaluated."""


def init_state(stored: Samples, config: Config, seed: int) -> TrainState:
    """A network with the weights that its seed gives, for the samples and on their device."""
    method, widths = URRLMethod(config), [view.shape[1] for view in stored.values]
    network = method.build(widths, generator_for_start(seed)).to(stored.present.device)
    rate = config.view_dropout
    rate = view_dropout_rate(stored.present) if isinstance(rate, str) else float(rate)
    return TrainState(network, stored, method, seed, {"view_dropout": rate, "clustering_weight": 0.0})


def pretrain(
    runs: Sequence[TrainState],
    until: int,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> None:
    """The first stage up to an epoch, and the start of the cluster centres.

    Those that diverge say so in `diverged`. Trainings that went so far already stay as they are; those that go on from
    there begin with a new Adam.

    Parameters
    ----------
    threads : of each training on a CPU, see `viewfuse.parallel`; None leaves all
    """
    waiting = [one for one in runs if one.clusters is None or one.n_epochs < until]
    groups = list(stacked_groups(waiting))
    if any(group[0].n_epochs < until for group in groups):
        progress.begin("pre-training" if len(groups) == 1 else f"pre-training of {len(groups)}")
    jobs = [_job(_pretrain_together, group, until, checkpoint, threads) for group in groups]
    _learn(groups, jobs, progress, checkpoint)


def train_jointly(
    runs: Sequence[TrainState],
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> None:
    """The second stage of trainings that have had the first, with equal configurations; see `pretrain`."""
    groups = [group for group in stacked_groups(runs) if planned_epochs(group[0])[1]]
    if groups:
        progress.begin("joint training" if len(groups) == 1 else f"joint training of {len(groups)}")
    last = [group[0].n_epochs + planned_epochs(group[0])[1] for group in groups]
    jobs = [
        _job(_train_jointly_together, group, until, checkpoint, threads)
        for group, until in zip(groups, last, strict=True)
    ]
    _learn(groups, jobs, progress, checkpoint)


_Training = Callable[[Sequence[TrainState], range, Progress, Checkpoint], None]


def _job(train: _Training, group: Sequence[TrainState], until: int, checkpoint: Checkpoint, threads: int | None) -> Job:
    """A stage of trainings that are stacked, for whoever runs it."""
    first, epochs = group[0], range(group[0].n_epochs, until)
    config, widths, n = _config(first), [view.shape[1] for view in first.stored.values], len(first.stored)
    seconds = len(epochs) * max(1, n // config.batch_size) * step_seconds(widths, config)
    args = (train, group, epochs, checkpoint)
    return Job(_learned, args, threads, int(first.device.type == "cuda"), seconds, fit_bytes(n, widths, config))


def _learned(train: _Training, group: Sequence[TrainState], epochs: range, checkpoint: Checkpoint) -> list[Learned]:
    """Train, in this process or in a worker, where Ctrl-C has to wait for the end of the epoch as well."""
    with checkpoint.interruptible() if in_worker() else nullcontext():
        train(group, epochs, Reported(), checkpoint)
    return [Learned.of(one) for one in group]


def _learn(
    groups: Sequence[Sequence[TrainState]], jobs: Sequence[Job], progress: Progress, checkpoint: Checkpoint
) -> None:
    found: Any = run_jobs(jobs, listener=progress.advance, stopping=checkpoint.is_stopping)
    for group, learned in zip(groups, found, strict=True):
        for one, own in zip(group, learned, strict=True):
            own.into(one)


def _config(run: TrainState) -> Config:
    assert isinstance(run.method, URRLMethod)
    return run.method.config


def planned_epochs(run: TrainState) -> tuple[int, int]:
    """Of the two stages."""
    return _config(run).epochs(len(run.stored))


def _pretrain_together(runs: Sequence[TrainState], epochs: range, progress: Progress, checkpoint: Checkpoint) -> None:
    replicates = Replicates(runs, joint=False)
    stage = checkpoint.stage(f"pretraining-{epochs.stop}", runs, replicates)
    with tensor_cores(runs[0].device):
        for epoch in stage.left(epochs):
            run_epoch(runs, replicates, epoch, "pre-training", progress)
            stage.keep(epoch + 1, last=epoch + 1 == epochs.stop)
            if all(run.diverged for run in runs):
                break
        replicates.finish()
        embeddings = replicates.embed()
    for run, own in zip(runs, embeddings, strict=True):
        run.diverged = run.diverged or broken_embedding(own, epochs.stop)
        if not run.diverged:
            _prepare_joint_stage(run, own)


def _prepare_joint_stage(run: TrainState, embedding: Tensor) -> None:
    """Weigh the clustering loss and place the centres, given the embeddings of shape (samples, embedding)."""
    losses, config = run.history["reconstruction"], _config(run)
    chosen = clustering_weight(float(losses[-1]) if losses else None)
    asked = config.clustering_weight
    run.numbers["clustering_weight"] = chosen if isinstance(asked, str) else asked
    if config.center_start == "ward":
        centers = paper_centers(embedding, config.n_clusters)
    else:
        centers = initial_centers(embedding, config.n_clusters, run.seed, run.stored.neighbor_ids)
    run.network.centers.data.copy_(torch.from_numpy(centers))
    run.clusters = clusters(run.method, run.network, embedding)
    run.joint_stage.kept = run.n_epochs


def _train_jointly_together(
    runs: Sequence[TrainState], epochs: range, progress: Progress, checkpoint: Checkpoint
) -> None:
    """The joint stage; where it is watched, every training ends with the best clusters that it had."""
    first, second = epochs.start, len(epochs)
    replicates, watches = Replicates(runs, joint=True), _watches(runs)
    stage = checkpoint.stage("joint", runs, replicates, watches)
    due = {first + round(second * part / _EVALUATIONS) for part in range(1, _EVALUATIONS + 1)}
    with tensor_cores(runs[0].device):
        if stage.epoch is None:
            _judge_start(watches, runs, first)
        for epoch in stage.left(epochs):
            if watches and _all_stopped(runs):
                break
            run_epoch(runs, replicates, epoch, "joint", progress)
            if not watches:
                check_diverged(runs)
            elif epoch + 1 in due:
                _evaluate(watches, runs, replicates, epoch + 1)
            stage.keep(epoch + 1, last=epoch + 1 == epochs.stop or _all_stopped(runs))
        replicates.finish()
    for watch in watches:
        watch.restore_best()
    for run in runs if not watches else ():
        run.joint_stage.kept = epochs.stop


def _all_stopped(runs: Sequence[TrainState]) -> bool:
    return all(run.joint_stage.stopped for run in runs)


def _watches(runs: Sequence[TrainState]) -> list[EarlyStopping]:
    """One for each training; none where the user said how long the stage lasts."""
    if not _config(runs[0]).watched:
        return []
    settles = _config(runs[0]).settles
    return [EarlyStopping(r.method, r.network, r.stored.neighbor_ids, r.joint_stage, settles=settles) for r in runs]


def _judge_start(watches: Sequence[EarlyStopping], runs: Sequence[TrainState], epoch: int) -> None:
    """The clusters before the joint stage, which are known."""
    for watch, run in zip(watches, runs, strict=False):  # there may be no watches
        assert run.clusters is not None
        watch.judge(epoch, run.clusters)


def _evaluate(watches: Sequence[EarlyStopping], runs: Sequence[TrainState], replicates: Replicates, epoch: int) -> None:
    if watches:
        replicates.unstack()
        for watch, run, embedding in zip(watches, runs, replicates.embed(), strict=True):
            watch.evaluate(epoch, embedding, run.diverged)


def pretraining_decision(run: TrainState, agreed: float | None) -> Decision:
    """How long the first stage of a training lasted.

    Parameters
    ----------
    agreed : how far trainings agreed when the scaling was chosen; None where there was one only
    """
    evidence = {} if agreed is None else {"agreement": agreed}
    lasted = run.history["stage"].count("pre-training")
    return {"chosen": lasted, "planned": planned_epochs(run)[0], "evidence": evidence}


def joint_stage_decision(run: TrainState) -> Decision:
    """After how many epochs of the joint stage the network is kept, and what was seen."""
    stage, before = run.joint_stage, run.history["stage"].count("pre-training")
    evidence = {
        "neighbor_agreement_after_epoch": {str(epoch): score for epoch, score in stage.seen.items()},
        "size_entropy_after_epoch": {str(epoch): score for epoch, score in stage.size_entropy.items()},
        "clustering_weight": run.numbers["clustering_weight"],
    }
    facts = {
        "lasted": run.n_epochs - before,
        "planned": planned_epochs(run)[1],
        "ended": stage.ended,
        "merged": stage.merged,
    }
    return {"chosen": stage.kept - before, "evidence": evidence, **facts}
