"""Epochs of trainings: which run side by side, what is recorded, and when one has diverged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from viewfuse.engine.early_stopping import JointStage
from viewfuse.engine.footprint import max_stacked
from viewfuse.engine.passes import embed
from viewfuse.engine.progress import Progress
from viewfuse.engine.stacked_replicates import Replicates, ReplicateSpec
from viewfuse.errors import Diverged
from viewfuse.utils.settings import Setting

_CURE = (
    "lower ", Setting("learning_rate"), ", or use ", Setting("scaling", "minmax"),
    " or 'standard' if the data have extreme values",
)  # fmt: skip
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
    history: History = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epoch", "stage", *self.method.terms, "total", "seconds"):
            self.history.setdefault(name, [])

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to train it: not what finds neighbours of new samples."""
        return {**self.__dict__, "stored": replace(self.stored, index=None)}

    @property
    def n_epochs(self) -> int:
        """How many epochs there were."""
        return len(self.history["epoch"])

    @property
    def objective(self) -> float:
        """The loss of the last epoch; infinite before there was one."""
        return float(self.history["total"][-1]) if self.history["total"] else inf

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return self.stored.present.device


class Learned(NamedTuple):
    """What changes while a training goes on, so that it can go on in another process."""

    weights: dict[str, Tensor]
    numbers: dict[str, float]
    clusters: Tensor | None
    joint_stage: JointStage
    diverged: str
    history: History

    @classmethod
    def of(cls, run: TrainState) -> Learned:
        """As it is now."""
        stage = run.joint_stage
        return cls(run.network.state_dict(), run.numbers, run.clusters, stage, run.diverged, run.history)

    def into(self, run: TrainState) -> None:
        """Let the same training, as it was before, be so."""
        run.network.load_state_dict(self.weights)
        run.numbers, run.clusters, run.joint_stage = self.numbers, self.clusters, self.joint_stage
        run.diverged, run.history = self.diverged, self.history


def stacked_groups(runs: Sequence[TrainState]) -> Iterator[Sequence[TrainState]]:
    """The trainings that run side by side: those that had as many epochs, on samples of equal shapes."""
    groups: dict[tuple[int, ...], list[TrainState]] = {}
    for run in runs:
        widths = [view.shape[1] for view in run.stored.values]
        groups.setdefault((run.n_epochs, len(run.stored), *widths), []).append(run)
    for group in groups.values():
        count = -(-len(group) // max_stacked(group[0].network, group[0].device))
        size = -(-len(group) // count)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def run_epoch(runs: Sequence[TrainState], replicates: Replicates, epoch: int, stage: str, progress: Progress) -> None:
    """One epoch of all; of those that were stopped nothing is recorded."""
    began = time.perf_counter()
    terms = replicates.run_epoch(epoch)
    seconds = time.perf_counter() - began
    for run, own in zip(runs, terms.unbind(dim=1), strict=True):
        if not run.joint_stage.stopped:
            run.diverged = run.diverged or _non_finite(own, epoch, run.method.terms)
            record(run, epoch, own.mean(dim=0).tolist(), stage, seconds)
    progress.advance(runs[0].objective)


def record(run: TrainState, epoch: int, terms: list[float], stage: str, seconds: float) -> None:
    """Write down an epoch: the means of its loss terms, and how long it took."""
    row: list[float | int | str] = [epoch + 1, stage, *terms, run.method.total(terms, run.numbers), seconds]
    for name, value in zip(run.history, row, strict=True):
        run.history[name].append(value)


def _non_finite(terms: Tensor, epoch: int, names: Sequence[str]) -> str:
    """Where the first loss of an epoch that is not finite stands; empty if all are. `terms` : (steps, terms)."""
    bad = ~torch.isfinite(terms)
    if not bad.any():
        return ""
    step_number = int(bad.any(dim=1).nonzero()[0])
    broken = " and ".join(name for name, is_bad in zip(names, bad[step_number].tolist(), strict=True) if is_bad)
    return f"the {broken} loss is not finite in epoch {epoch + 1}, step {step_number + 1}"


def broken_embedding(embedding: Tensor, epoch: int) -> str:
    """The last update of an epoch can break the weights without a loss that shows it; empty if it did not."""
    return "" if torch.isfinite(embedding).all() else f"the embedding is not finite after epoch {epoch}"


def embed_stored(run: TrainState) -> Tensor:
    """Embeddings of the training samples as they are, of shape (samples, embedding); stops if one is not finite."""
    embedding = embed(run.method, run.network, run.stored, run.stored)
    run.diverged = broken_embedding(embedding, run.n_epochs)
    check_diverged([run])
    return embedding


def check_diverged(runs: Sequence[TrainState]) -> None:
    """Stop with the first training that diverged."""
    for run in runs:
        if run.diverged:
            raise Diverged(f"{run.diverged}{f' (seed {run.seed})' if len(runs) > 1 else ''}; ", *_CURE)
