"""Training in two stages (Algorithm 2): pre-train, initialise the centres, train jointly."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from viewfuse.batches import Samples, plain_batch, view_dropout_rate
from viewfuse.centers import initial_centers
from viewfuse.decisions import clustering_weight, consistency
from viewfuse.errors import Diverged
from viewfuse.graphs import tensor_cores
from viewfuse.network import Network, build_network
from viewfuse.random_numbers import generator_for_start
from viewfuse.replicates import TERMS, Replicates, total_loss
from viewfuse.settings import Settings

_CURE = "lower learning_rate, or use scaling='minmax' or 'standard' if the data have extreme values"
_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
_LOOKS = 4
"""How often a joint stage is looked at."""
_FALL = 0.05
_ROWS_AT_ONCE = 1024
TOGETHER = {"cpu": 1, "cuda": 16}
"""Networks trained side by side: a GPU has room for many, while on a CPU little is gained."""

History = dict[str, list[float | int | str]]


@dataclass
class JointStage:
    """What was seen of a joint stage.

    Attributes
    ----------
    seen : consistency of the clusters by the epoch after which it was looked at, the first one before the stage
    kept : the epoch after which the network was as it is now
    ended : why it was ended early; empty where it was not
    """

    seen: dict[int, float] = field(default_factory=dict)
    kept: int = 0
    ended: str = ""


@dataclass
class Training:
    """What one training holds.

    Attributes
    ----------
    network : the network, on the device of `stored`
    stored : the training samples
    seed : root of every random number
    clustering_weight : lambda_2 in force
    joint_stage : what was seen of the joint stage
    diverged : which loss was not finite first, and where; empty while all were
    history : per epoch the mean of each loss term; `seconds` is the time of all that were trained together
    """

    network: Network
    stored: Samples
    settings: Settings
    seed: int
    clustering_weight: float = 0.0
    joint_stage: JointStage = field(default_factory=JointStage)
    diverged: str = ""
    history: History = field(default_factory=lambda: {k: [] for k in ("epoch", "stage", *TERMS, "total", "seconds")})

    @property
    def objective(self) -> float:
        """The loss of the last epoch; infinite before there was one."""
        return float(self.history["total"][-1]) if self.history["total"] else inf


def train(stored: Samples, settings: Settings, seed: int, *, progress: bool = False) -> Training:
    """Train a network on the stored samples, on the device that they are on.

    Returns
    -------
    Training
        With the network's centres set: those of the joint stage, or of k-means where there was none.
    """
    return train_replicates([stored], settings, [seed], progress=progress)[0]


def train_replicates(
    sets: Sequence[Samples], settings: Settings, seeds: Sequence[int], *, progress: bool = False
) -> list[Training]:
    """Train one network per seed; each is what `train` makes of its samples and its seed, up to rounding.

    Parameters
    ----------
    sets : one set of samples per seed, of equal shapes and on one device; several may be the same
    """
    at_once = TOGETHER[sets[0].present.device.type]
    runs: list[Training] = []
    for start in range(0, len(seeds), at_once):
        chosen = slice(start, start + at_once)
        with tensor_cores(sets[0].present.device):
            runs += _train_together(sets[chosen], settings, seeds[chosen], progress)
    return runs


def _train_together(
    sets: Sequence[Samples], settings: Settings, seeds: Sequence[int], progress: bool
) -> list[Training]:
    runs = [Training(_start(s, settings, seed), s, settings, seed) for s, seed in zip(sets, seeds, strict=True)]
    replicates = Replicates([run.network for run in runs], sets, settings, [_rate(s, settings) for s in sets], seeds)
    first, second = settings.epochs(len(sets[0]))
    with tqdm(total=first + second, disable=not progress, unit="epoch", desc="pre-training") as bar:
        for epoch in range(first):
            _run_epoch(runs, replicates, epoch, "pre-training", bar)
            _refuse_diverged(runs)
        replicates.unstack()
        _begin_joint_stage(runs, replicates)
        bar.set_description("joint training")
        _run_joint_stage(runs, replicates, range(first, first + second), bar)
    return runs


def _begin_joint_stage(runs: Sequence[Training], replicates: Replicates) -> None:
    for run in runs:
        asked, losses = run.settings.clustering_weight, run.history["reconstruction"]
        run.clustering_weight = (
            clustering_weight(float(losses[-1]) if losses else None) if isinstance(asked, str) else asked
        )
    replicates.begin_joint_stage(_start_centers(runs), [run.clustering_weight for run in runs])
    replicates.unstack()


def _run_joint_stage(runs: Sequence[Training], replicates: Replicates, epochs: range, bar: tqdm) -> None:
    """The joint stage; where it is watched, every training ends with the most consistent clusters that it had."""
    watches = [Watch(run, epochs.start) for run in runs] if runs[0].settings.watched and epochs else []
    looks = {epochs.start + round(len(epochs) * part / _LOOKS) - 1 for part in range(1, _LOOKS + 1)}
    for epoch in epochs:
        _run_epoch(runs, replicates, epoch, "joint", bar)
        if not watches:
            _refuse_diverged(runs)
        elif epoch in looks:
            replicates.unstack()
            for watch in watches:
                watch.look(epoch + 1)
            if all(watch.ended for watch in watches):
                break
    replicates.unstack()
    for run in runs:
        run.joint_stage.kept = len(run.history["epoch"])
    for watch in watches:
        watch.go_back()


class Watch:
    """Looks after the joint stage of one training.

    The stage is ended where losses are no longer finite, where clusters are emptied, or where the clusters are less
    consistent than before it by `_FALL`.

    Parameters
    ----------
    epoch : how many there were before the stage
    """

    def __init__(self, run: Training, epoch: int) -> None:
        self._run, self._best, self._weights = run, -inf, run.network.state_dict()
        self._n_clusters = 0
        self._epoch = epoch
        self.look(epoch)

    @property
    def ended(self) -> str:
        """Why the stage was ended; empty where it was not."""
        return self._run.joint_stage.ended

    def look(self, epoch: int) -> None:
        """Note how consistent the clusters are, and keep the network if they are as good as ever."""
        stage = self._run.joint_stage
        if stage.ended:
            return
        if self._run.diverged:
            stage.ended = self._run.diverged
            return
        embedding = embed(self._run.network, self._run.stored, self._run.stored, self._run.settings)
        if not torch.isfinite(embedding).all():
            stage.ended = f"the embedding is not finite after epoch {epoch}"
            return
        labels = _labels(self._run, embedding)
        found = int((labels.bincount() > 0).sum())
        stage.seen[epoch] = score = consistency(labels, self._run.stored.near)
        if found < self._n_clusters:
            stage.ended = f"{self._n_clusters - found} of {self._n_clusters} clusters were emptied"
        elif score < self._best - _FALL:
            stage.ended = f"the consistency of the clusters fell from {self._best:.3f} to {score:.3f}"
        elif score >= self._best:
            self._keep(epoch, score)
        self._n_clusters = max(self._n_clusters, found)

    def _keep(self, epoch: int, score: float) -> None:
        self._best, self._epoch = score, epoch
        self._weights = {name: weights.clone() for name, weights in self._run.network.state_dict().items()}

    def go_back(self) -> None:
        """Give the network the weights that were kept."""
        self._run.network.load_state_dict(self._weights)
        self._run.joint_stage.kept = self._epoch


def joint_stage_decision(run: Training) -> dict[str, Any]:
    """Facts and words on the joint stage of a training."""
    stage, before = run.joint_stage, run.history["stage"].count("pre-training")
    kept, lasted = stage.kept - before, len(run.history["epoch"]) - before
    weight = f"clustering loss weighted {run.clustering_weight:.3g}"
    if not lasted:
        why = "no joint stage: clusters by k-means on the embedding"
    elif stage.ended:
        why = f"joint stage ended early, {stage.ended}; kept is the network after {kept} of its epochs, {weight}"
    elif kept < lasted:
        why = f"joint stage: kept is the network after {kept} of {lasted} epochs, its best clusters, {weight}"
    else:
        why = f"joint stage: all {lasted} epochs, {weight}"
    seen = {str(epoch): score for epoch, score in stage.seen.items()}
    evidence = {"consistency_after_epoch": seen, "clustering_weight": run.clustering_weight}
    return {"chosen": kept, "evidence": evidence, "ended": stage.ended, "why": why}


@torch.no_grad()
def _labels(run: Training, embedding: Tensor) -> Tensor:
    """The clusters of the training samples, of shape (samples,), given their embeddings."""
    return torch.cat([run.network.assign(rows).argmax(dim=1) for rows in torch.split(embedding, _ROWS_AT_ONCE)])


def _start(stored: Samples, settings: Settings, seed: int) -> Network:
    """A network with the weights of its seed, for the samples and on their device."""
    widths = [view.shape[1] for view in stored.values]
    return build_network(widths, settings, generator_for_start(seed)).to(stored.present.device)


def _rate(stored: Samples, settings: Settings) -> float:
    """phi_1, the view dropout in force."""
    rate = settings.view_dropout
    return view_dropout_rate(stored.present) if isinstance(rate, str) else float(rate)


def _run_epoch(runs: Sequence[Training], replicates: Replicates, epoch: int, stage: str, bar: tqdm) -> None:
    """One epoch of all."""
    began = time.perf_counter()
    terms = replicates.run_epoch(epoch)
    seconds = time.perf_counter() - began
    for run, own in zip(runs, terms.unbind(dim=1), strict=True):
        if run.joint_stage.ended:  # only its company goes on
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


def embed_stored(run: Training) -> Tensor:
    """Embeddings of the training samples as they are, of shape (samples, embedding); stops if one is not finite."""
    embedding = embed(run.network, run.stored, run.stored, run.settings)
    if not torch.isfinite(embedding).all():
        # The last update of an epoch can break the weights without a loss that shows it.
        raise Diverged(f"the embedding is not finite after epoch {len(run.history['epoch'])}; {_CURE}")
    return embedding


def _start_centers(runs: Sequence[Training]) -> list[NDArray[np.float32]]:
    """The start of every training's centres, several at a time."""
    embeddings = [embed_stored(run) for run in runs]
    counts, seeds = [run.settings.n_clusters for run in runs], [run.seed for run in runs]
    with ThreadPoolExecutor(min(len(runs), os.cpu_count() or 1)) as pool:
        return list(pool.map(initial_centers, embeddings, counts, seeds))


def _non_finite(terms: Tensor, epoch: int) -> str:
    """Where the first loss of an epoch that is not finite stands; empty if all are. `terms` : (steps, terms)."""
    bad = ~torch.isfinite(terms)
    if not bad.any():
        return ""
    step_number = int(bad.any(dim=1).nonzero()[0])
    names = " and ".join(name for name, is_bad in zip(TERMS, bad[step_number].tolist(), strict=True) if is_bad)
    return f"the {names} loss is not finite in epoch {epoch + 1}, step {step_number + 1}"


def _refuse_diverged(runs: Sequence[Training]) -> None:
    for run in runs:
        if run.diverged:
            raise Diverged(f"{run.diverged}{f' (seed {run.seed})' if len(runs) > 1 else ''}; {_CURE}")


def _total(run: Training, terms: Sequence[float]) -> float:
    return total_loss(terms, run.settings.robustness_weight, run.clustering_weight)


def _record(run: Training, epoch: int, terms: list[float], stage: str, seconds: float) -> None:
    row: list[float | int | str] = [epoch + 1, stage, *terms, _total(run, terms), seconds]
    for name, value in zip(run.history, row, strict=True):
        run.history[name].append(value)
