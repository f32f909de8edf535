"""What watches a training: early stopping of the joint stage; and progress for the user, also over many files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from tqdm.auto import tqdm

from viewfuse.engine.batches import Placing, clusters
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.scores import merits, size_entropy
from viewfuse.utils.console import is_live, tell

_FALL = 0.05
_TIE = 0.003
_LESS_PURE = 0.05
_MERGED = 0.01
_PATIENCE = 3
_STILL = 0.0075
_SECONDS_BETWEEN = 30.0
"""Between two lines about files, where there is no bar."""


@dataclass
class JointStage:
    """What was seen of a joint stage.

    Attributes
    ----------
    seen : neighbour agreement of the clusters by the epoch after which it was evaluated, the first one before the stage
    score : their macro agreement, likewise
    size_entropy : of their sizes, likewise
    kept : the epoch after which the network was as it is now
    ended : what went wrong, where it was ended for that; else empty
    settled : whether it was ended as its clusters no longer got better, or hardly changed
    """

    seen: dict[int, float] = field(default_factory=dict)
    score: dict[int, float] = field(default_factory=dict)
    size_entropy: dict[int, float] = field(default_factory=dict)
    kept: int = 0
    ended: str = ""
    settled: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it was ended early."""
        return self.settled or bool(self.ended)


class EarlyStopping:
    """Looks after the joint stage of one network.

    Kept is the last state whose neighbour agreement is the best one, or less by `_TIE` at most: among equals the longer
    training is the better one. A state whose score (`viewfuse.selection.scores`), in which every cluster counts the
    same, is lower than before the stage by `_LESS_PURE` is not kept; nor is one whose score is lower at all while
    clusters were merged (the entropy of sizes is lower by `_MERGED`): merging alone raises the agreement. The stage is
    ended where losses are no longer finite, where clusters are emptied, where the agreement is lower than its best by
    `_FALL`, where `_PATIENCE` evaluations in a row gained less than `_TIE` together, and where a share of the samples
    below `_STILL` has changed its cluster since the last evaluation.

    Parameters
    ----------
    neighbor_ids : the neighbours of the training samples, see `neighbor_agreement`
    settles : whether it ends where it brings nothing more
    views : what each view counts, see `view_weights`
    """

    def __init__(
        self, method: Placing, network: Any, neighbor_ids: Tensor, stage: JointStage, *, settles: bool = True,
        views: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self._method, self._network, self._neighbor_ids, self._stage = method, network, neighbor_ids, stage
        # Without neighbours, or with one cluster, all clusters are equally good, and the last ones are kept.
        self._tells = method.n_clusters > 1 and bool((neighbor_ids != NO_NEIGHBOR).any())
        self._patience: float = _PATIENCE if settles else inf
        self._still = _STILL if settles and self._tells else 0.0
        self._best, self._mark, self._n_clusters, self._waited = -inf, -inf, 0, 0
        self._weights: dict[str, Tensor] = {}
        self._labels: Tensor | None = None
        self._views = views

    def evaluate(self, epoch: int, embedding: Tensor, diverged: str = "") -> None:
        """Score the clusters, and keep the network if they are as good as ever.

        Parameters
        ----------
        epoch : how many there were
        embedding : of the training samples, of shape (samples, embedding)
        diverged : which loss was not finite; empty if all were
        """
        if self._stage.stopped:
            return
        if diverged or not torch.isfinite(embedding).all():
            self._stage.ended = diverged or f"the embedding is not finite after epoch {epoch}"
            return
        self.judge(epoch, clusters(self._method, self._network, embedding))

    def judge(self, epoch: int, labels: Tensor) -> None:
        """Score clusters that are known, of shape (samples,), and keep the network if they are as good as ever."""
        found = int((labels.bincount() > 0).sum())
        merit = merits([labels], self._neighbor_ids, self._method.n_clusters, self._views)[0]
        score = self._stage.seen[epoch] = merit.agreement
        self._stage.score[epoch] = merit.score
        self._stage.size_entropy[epoch] = size_entropy(labels, self._method.n_clusters)
        if found < self._n_clusters:
            self._stage.ended = f"{self._n_clusters - found} of {self._n_clusters} clusters were emptied"
        elif score < self._best - _FALL:
            self._stage.ended = f"the neighbour agreement of the clusters fell from {self._best:.3f} to {score:.3f}"
        else:
            self._compare(epoch, score)
        self._n_clusters = max(self._n_clusters, found)
        self._stage.settled |= not self._stage.ended and self._moved(labels) < self._still
        self._labels = labels

    def _moved(self, labels: Tensor) -> float:
        """The share of the samples that have changed their cluster since the last evaluation; all in the first."""
        return 1.0 if self._labels is None else float((labels != self._labels).double().mean())

    def _compare(self, epoch: int, score: float) -> None:
        lost = self._lost(epoch)
        better = score > self._best or not self._tells
        if not lost and (better or score >= self._best - _TIE):
            self._keep(epoch)
        if better and not lost:
            self._best = score
        self._wait(score, gained=not lost and (score >= self._mark + _TIE or not self._tells))
        self._stage.settled = self._waited >= self._patience

    def _lost(self, epoch: int) -> bool:
        """Whether clusters are much less pure than before the stage, or less pure and merged."""
        stage = self._stage
        purer, more_even = (seen[epoch] - next(iter(seen.values())) for seen in (stage.score, stage.size_entropy))
        return purer < -_LESS_PURE or (purer < 0 and more_even < -_MERGED)

    def _wait(self, score: float, *, gained: bool) -> None:
        if gained:
            self._mark, self._waited = score, 0
        else:
            self._waited += 1

    def _keep(self, epoch: int) -> None:
        self._stage.kept = epoch
        self._weights = {name: weights.clone() for name, weights in self._network.state_dict().items()}

    @property
    def counters(self) -> dict[str, float]:
        """What it has to remember besides weights and what is in the stage."""
        return {"best": self._best, "mark": self._mark, "n_clusters": self._n_clusters, "waited": self._waited}

    @property
    def labels(self) -> Tensor | None:
        """The clusters that were judged last, of shape (samples,)."""
        return self._labels

    @property
    def best_weights(self) -> dict[str, Tensor]:
        """Weights of the network that is kept so far."""
        return self._weights

    def recall(
        self, counters: Mapping[str, float], best_weights: dict[str, Tensor], labels: Tensor | None = None
    ) -> None:
        """Go on from what another one remembered."""
        self._best, self._mark = counters["best"], counters["mark"]
        self._weights, self._labels = best_weights, labels
        self._n_clusters, self._waited = int(counters["n_clusters"]), int(counters["waited"])

    def restore_best(self) -> None:
        """Give the network the weights that were kept."""
        self._network.load_state_dict(self._weights)


class Progress:
    """Shows the epochs of a whole fit.

    Used as a context manager; the bar is removed at the end, and nothing is shown before the first stage begins.

    Parameters
    ----------
    shown : whether anything is shown at all

    Attributes
    ----------
    epochs : of the stage, so far
    """

    def __init__(self, *, shown: bool = False) -> None:
        has_bar = shown and is_live()
        self._bar = tqdm(total=0, unit=" epochs", disable=not has_bar, leave=False, delay=1e-9)
        self._has_lines = shown and not has_bar
        self._stage, self.epochs, self._began = "", 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.end_stage()
        self._bar.close()

    def expect(self, epochs: int) -> None:
        """Say how many epochs are still to come, at most."""
        self._bar.total = self._bar.n + epochs

    def begin(self, stage: str) -> None:
        """Begin a stage; the one before is over."""
        self.end_stage()
        self._stage, self.epochs, self._began = stage, 0, time.perf_counter()
        self._bar.set_description_str(stage)  # with a colon of its own there would be two where no total is known

    def advance(self, loss: float) -> None:
        """One epoch of the stage is done, with this loss."""
        self.epochs += 1
        self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        self._bar.update()

    def reach(self, epochs: int, loss: float) -> None:
        """Advance to so many epochs of the stage, with this loss; those that were shown already count."""
        for _ in range(epochs - self.epochs):
            self.advance(loss)

    def __reduce__(self) -> tuple[type[Progress], tuple[()]]:
        """Show nothing in another process."""
        return Progress, ()

    @property
    def is_shown(self) -> bool:
        """Whether anything is shown at all."""
        return self._has_lines or not self._bar.disable

    def tell(self, line: str) -> None:
        """A line for people that stays; nothing where it is empty."""
        if line and self._has_lines:
            tell(line)
        elif line and not self._bar.disable:
            self._bar.write(line, file=sys.stderr)

    def end_stage(self) -> None:
        """Say how long the stage took; others may follow."""
        if self._stage and self._has_lines:
            seconds = time.perf_counter() - self._began
            self.tell(f"{self._stage}: {self.epochs} epochs in {seconds:.0f} s")
        self._stage = ""


class ShardProgress:
    """Shows files, rows per second and the time left; used as a context manager.

    How many rows files have is not known before they are opened, so the time left follows from their bytes.

    Parameters
    ----------
    sizes : bytes of every file that is to be done
    shown : whether anything is shown at all
    """

    def __init__(self, sizes: Sequence[int], *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        has_bar = shown and is_live()
        form = "predicting {percentage:3.0f}%|{bar}| {desc}"
        self._bar = tqdm(total=sum(sizes), disable=not has_bar, leave=False, delay=1e-9, bar_format=form)
        self._has_lines = shown and not has_bar
        self._files, self._all_files, self._all_bytes = 0, len(sizes), sum(sizes)
        self._rows = self._bytes = 0
        self._clock, self._began = clock, clock()
        self._shown_at = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._bar.close()

    def advance(self, rows: int, n_bytes: int, files: int = 0) -> None:
        """So many more are done."""
        self._rows, self._bytes, self._files = self._rows + rows, self._bytes + n_bytes, self._files + files
        self._bar.set_description_str(str(self), refresh=False)
        self._bar.update(n_bytes)
        if self._has_lines and self._clock() - self._shown_at >= _SECONDS_BETWEEN:
            self._shown_at = self._clock()
            tell(self)

    def __str__(self) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        left = seconds * (self._all_bytes - self._bytes) / max(self._bytes, 1)
        files = f"{self._files} of {self._all_files} files, {self._rows:,} rows"
        return f"{files}, {self._rows / seconds:,.0f} rows/s, {_spelled(left)} left"


def _spelled(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


SILENT = Progress()
"""Shows nothing."""
