"""Training in two stages (Algorithm 2): pre-train, initialise the centres, train jointly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from viewfuse.batches import Samples, plain_batch, view_dropout_rate
from viewfuse.errors import Diverged
from viewfuse.network import Network, build_network
from viewfuse.nn.streams import tensor_cores
from viewfuse.random_numbers import generator_for_start
from viewfuse.replicates import TERMS, Replicates, ReplicateSpec, total_loss
from viewfuse.selection.centers import initial_centers
from viewfuse.selection.rules import clustering_weight
from viewfuse.settings import Settings
from viewfuse.watch import EarlyStopping, JointStage, clusters

_CURE = "lower learning_rate, or use scaling='minmax' or 'standard' if the data have extreme values"
_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_LOOKS = 8
"""How often a joint stage is looked at."""
MAX_STACKED = {"cpu": 1, "cuda": 32}
"""Networks trained side by side: a GPU has room for many, while on a CPU little is gained."""

History = dict[str, list[float | int | str]]


@dataclass
class TrainState(ReplicateSpec):
    """What one training holds.

    Attributes
    ----------
    clusters : int64 tensor of shape (samples,): those of the training samples before the joint stage; None until then
    joint_stage : what was seen of the joint stage
    diverged : which loss was not finite first, and where; empty while all were
    history : per epoch the mean of each loss term; `seconds` is the time of all that were trained together
    """

    clusters: Tensor | None = None
    joint_stage: JointStage = field(default_factory=JointStage)
    diverged: str = ""
    history: History = field(default_factory=lambda: {k: [] for k in ("epoch", "stage", *TERMS, "total", "seconds")})

    @property
    def objective(self) -> float:
        """The loss of the last epoch; infinite before there was one."""
        return float(self.history["total"][-1]) if self.history["total"] else inf


def train(stored: Samples, settings: Settings, seed: int, *, progress: bool = False) -> TrainState:
    """Train a network on the stored samples, on the device that they are on.

    Returns
    -------
    Training
        With the network's centres set: those of the joint stage, or of k-means where there was none.
    """
    return train_replicates([stored], settings, [seed], progress=progress)[0]


def train_replicates(
    sets: Sequence[Samples], settings: Settings, seeds: Sequence[int], *, progress: bool = False
) -> list[TrainState]:
    """Train one network per seed; each is what `train` makes of its samples and its seed, up to rounding.

    Parameters
    ----------
    sets : one set of samples per seed, of equal shapes and on one device; several may be the same
    """
    runs = [init_state(samples, settings, seed) for samples, seed in zip(sets, seeds, strict=True)]
    pretrain(runs, _epochs(runs)[0], progress=progress)
    check_diverged(runs)
    train_jointly(runs, progress=progress)
    return runs


def pretrain(runs: Sequence[TrainState], until: int, *, progress: bool = False) -> None:
    """The first stage up to an epoch, and the start of the cluster centres.

    Those that diverge say so in `diverged`. Trainings that went so far already stay as they are; those that go on from
    there begin with a new Adam.
    """
    waiting = [run for run in runs if run.clusters is None or len(run.history["epoch"]) < until]
    parts = list(_parts(waiting))
    for number, part in enumerate(parts, 1):
        name = "pre-training" if len(parts) == 1 else f"pre-training {number} of {len(parts)}"
        begun = len(part[0].history["epoch"])
        with tqdm(total=until, initial=begun, disable=not progress, unit="epoch", desc=name) as bar:
            _pretrain_together(part, range(begun, until), bar)


def train_jointly(runs: Sequence[TrainState], *, progress: bool = False) -> None:
    """The second stage of trainings that have had the first, with equal settings."""
    for part in _parts(runs):
        if _epochs(part)[1]:
            with tqdm(total=_epochs(part)[1], disable=not progress, unit="epoch", desc="joint training") as bar:
                _train_jointly_together(part, bar)


def init_state(stored: Samples, settings: Settings, seed: int) -> TrainState:
    """A network with the weights that its seed gives, for the samples and on their device."""
    widths = [view.shape[1] for view in stored.values]
    network = build_network(widths, settings, generator_for_start(seed)).to(stored.present.device)
    rate = settings.view_dropout
    return TrainState(
        network, stored, settings, seed,
        view_dropout=view_dropout_rate(stored.present) if isinstance(rate, str) else float(rate),
        clustering_weight=0.0,
    )  # fmt: skip


def _parts(runs: Sequence[TrainState]) -> Iterator[Sequence[TrainState]]:
    """The trainings that are done side by side: those that had as many epochs."""
    groups: dict[int, list[TrainState]] = {}
    for run in runs:
        groups.setdefault(len(run.history["epoch"]), []).append(run)
    for group in groups.values():
        count = -(-len(group) // MAX_STACKED[group[0].stored.present.device.type])
        size = -(-len(group) // count)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _epochs(runs: Sequence[TrainState]) -> tuple[int, int]:
    """Of the two stages."""
    return runs[0].settings.epochs(len(runs[0].stored))


def _pretrain_together(runs: Sequence[TrainState], epochs: range, bar: tqdm) -> None:
    replicates = Replicates(runs, joint=False)
    with tensor_cores(runs[0].stored.present.device):
        for epoch in epochs:
            _run_epoch(runs, replicates, epoch, "pre-training", bar)
            if all(run.diverged for run in runs):
                break
        replicates.finish()
        embeddings = replicates.embed()
    for run, own in zip(runs, embeddings, strict=True):
        run.diverged = run.diverged or _broken(own, epochs.stop)
        if not run.diverged:
            _prepare_joint_stage(run, own)


def _prepare_joint_stage(run: TrainState, embedding: Tensor) -> None:
    """Weigh the clustering loss and place the centres, given the embeddings of shape (samples, embedding)."""
    losses, asked = run.history["reconstruction"], run.settings.clustering_weight
    chosen = clustering_weight(float(losses[-1]) if losses else None)
    run.clustering_weight = chosen if isinstance(asked, str) else asked
    centers = initial_centers(embedding, run.settings.n_clusters, run.seed, run.stored.neighbor_ids)
    run.network.centers.data.copy_(torch.from_numpy(centers))
    run.clusters = clusters(run.network, embedding)
    run.joint_stage.kept = len(run.history["epoch"])


def _train_jointly_together(runs: Sequence[TrainState], bar: tqdm) -> None:
    """The joint stage; where it is watched, every training ends with the most consistent clusters that it had."""
    first, (_, second) = len(runs[0].history["epoch"]), _epochs(runs)
    watched, replicates = runs[0].settings.watched, Replicates(runs, joint=True)
    with tensor_cores(runs[0].stored.present.device):
        settles = runs[0].settings.schedule == "default"
        watches = (
            [EarlyStopping(r.network, r.stored.neighbor_ids, r.joint_stage, settles=settles) for r in runs]
            if watched
            else []
        )
        _look(watches, runs, replicates, first)
        for epoch in range(first, first + second):
            _run_epoch(runs, replicates, epoch, "joint", bar)
            if not watches:
                check_diverged(runs)
            elif epoch + 1 in {first + round(second * part / _LOOKS) for part in range(1, _LOOKS + 1)}:
                _look(watches, runs, replicates, epoch + 1)
            if watches and all(run.joint_stage.stopped for run in runs):
                break
        replicates.finish()
    for watch in watches:
        watch.restore_best()
    for run in runs if not watches else ():
        run.joint_stage.kept = first + second


def _look(watches: Sequence[EarlyStopping], runs: Sequence[TrainState], replicates: Replicates, epoch: int) -> None:
    if watches:
        replicates.unstack()
        for watch, run, embedding in zip(watches, runs, replicates.embed(), strict=True):
            watch.evaluate(epoch, embedding, run.diverged)


def pretraining_decision(run: TrainState, agreed: float | None) -> dict[str, Any]:
    """Facts and words on the first stage of a training.

    Parameters
    ----------
    agreed : how far trainings agreed when the scaling was chosen; None where there was one only
    """
    lasted, planned = run.history["stage"].count("pre-training"), _epochs([run])[0]
    evidence = {} if agreed is None else {"agreement": agreed}
    why = f"pre-training: all {lasted} epochs" if lasted else "no pre-training"
    if lasted < planned:
        why = (
            f"pre-training: {lasted} of {planned} epochs, as trainings agree by then (adjusted Rand index {agreed:.2f})"
        )
    return {"chosen": lasted, "evidence": evidence, "why": why}


def joint_stage_decision(run: TrainState) -> dict[str, Any]:
    """Facts and words on the joint stage of a training."""
    stage, before = run.joint_stage, run.history["stage"].count("pre-training")
    kept, lasted = stage.kept - before, len(run.history["epoch"]) - before
    if not lasted:
        why = "no joint stage: clusters by k-means on the embedding"
    elif stage.ended:
        why = f"joint stage ended early, {stage.ended}; kept is the network after {kept} of its epochs"
    elif not kept:
        why = f"joint stage: taken back after {lasted} epochs, as it "
        why += "merged clusters" if stage.merged else "made the clusters no better"
    elif kept < lasted:
        best = "before clusters were merged" if stage.merged else "when its clusters were the best"
        why = f"joint stage: kept is the network after {kept} of {lasted} epochs, {best}"
    else:
        why = f"joint stage: all {lasted} epochs"
    seen = {str(epoch): score for epoch, score in stage.seen.items()}
    even = {str(epoch): score for epoch, score in stage.size_entropy.items()}
    evidence = {
        "consistency_after_epoch": seen, "evenness_after_epoch": even, "clustering_weight": run.clustering_weight,
    }  # fmt: skip
    return {"chosen": kept, "evidence": evidence, "ended": stage.ended, "why": why}


def _run_epoch(runs: Sequence[TrainState], replicates: Replicates, epoch: int, stage: str, bar: tqdm) -> None:
    """One epoch of all."""
    began = time.perf_counter()
    terms = replicates.run_epoch(epoch)
    seconds = time.perf_counter() - began
    for run, own in zip(runs, terms.unbind(dim=1), strict=True):
        if run.joint_stage.stopped:  # only its company goes on
            continue
        run.diverged = run.diverged or _non_finite(own, epoch)
        _record(run, epoch, own.mean(dim=0).tolist(), stage, seconds)
    bar.set_postfix(loss=f"{runs[0].history['total'][-1]:.4f}", refresh=False)
    bar.update()


def passes(samples: Samples) -> Iterator[Samples]:
    """The samples in parts that bound the memory.

    Every pass has the same number of rows, the last one filled up with its last sample: matrix products of one
    shape round alike, so a sample's embedding is the same to the bit alone and in any company.
    """
    device = samples.present.device
    size = _ROWS_PER_PASS[device.type]
    for start in range(0, len(samples), size):
        yield samples.take(torch.arange(start, start + size, device=device).clamp(max=len(samples) - 1))


@torch.no_grad()
def embed(network: Network, samples: Samples, stored: Samples, settings: Settings) -> Tensor:
    """Embeddings of the samples as they are, of shape (samples, embedding)."""
    parts = [network.encode(plain_batch(part, stored, settings)) for part in passes(samples)]
    return torch.cat(parts)[: len(samples)]


def embed_stored(run: TrainState) -> Tensor:
    """Embeddings of the training samples as they are, of shape (samples, embedding); stops if one is not finite."""
    embedding = embed(run.network, run.stored, run.stored, run.settings)
    run.diverged = _broken(embedding, len(run.history["epoch"]))
    check_diverged([run])
    return embedding


def _broken(embedding: Tensor, epoch: int) -> str:
    """The last update of an epoch can break the weights without a loss that shows it; empty if it did not."""
    return "" if torch.isfinite(embedding).all() else f"the embedding is not finite after epoch {epoch}"


def _non_finite(terms: Tensor, epoch: int) -> str:
    """Where the first loss of an epoch that is not finite stands; empty if all are. `terms` : (steps, terms)."""
    bad = ~torch.isfinite(terms)
    if not bad.any():
        return ""
    step_number = int(bad.any(dim=1).nonzero()[0])
    names = " and ".join(name for name, is_bad in zip(TERMS, bad[step_number].tolist(), strict=True) if is_bad)
    return f"the {names} loss is not finite in epoch {epoch + 1}, step {step_number + 1}"


def check_diverged(runs: Sequence[TrainState]) -> None:
    """Stop with the first training that diverged."""
    for run in runs:
        if run.diverged:
            raise Diverged(f"{run.diverged}{f' (seed {run.seed})' if len(runs) > 1 else ''}; {_CURE}")


def _total(run: TrainState, terms: Sequence[float]) -> float:
    return total_loss(terms, run.settings.robustness_weight, run.clustering_weight)


def _record(run: TrainState, epoch: int, terms: list[float], stage: str, seconds: float) -> None:
    row: list[float | int | str] = [epoch + 1, stage, *terms, _total(run, terms), seconds]
    for name, value in zip(run.history, row, strict=True):
        run.history[name].append(value)
