"""The training engine: networks go through the stages of a method.

A stage is a loss and how long it is learned. The engine shuffles and batches, steps the optimiser, keeps checkpoints,
records the losses, and stops where a stage is over or a loss is no longer finite. It knows nothing else of a method.
Networks whose layers take a leading axis for replicates are trained at once, others one after the other.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from viewfuse.data.side_information.knowledge import UNGUIDED, Guidance
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import RandomNumbers, can_stack, epoch_keys, pool, shuffled, stack, unstack
from viewfuse.errors import Diverged
from viewfuse.neighbors.index import Samples
from viewfuse.nn.layers import Adam, GraphedStep, tensor_cores
from viewfuse.utils.console import is_live, tell
from viewfuse.utils.settings import Setting


@dataclass
class JointStage:
    """What was seen of a joint stage, by the epoch after which it was looked at; the first look is before the stage."""

    seen: dict[int, float] = field(default_factory=dict)  # neighbour agreement of the clusters
    score: dict[int, float] = field(default_factory=dict)  # their macro agreement
    size_entropy: dict[int, float] = field(default_factory=dict)
    kept: int = 0  # the epoch after which the network was as it is now
    ended: str = ""  # what went wrong, where it was ended for that
    settled: bool = False  # whether it was ended as its clusters no longer got better, or hardly changed

    @property
    def stopped(self) -> bool:
        """Whether it was ended early."""
        return self.settled or bool(self.ended)


class Progress:
    """Shows the epochs of a whole fit.

    Used as a context manager, which removes the bar at the end. `epochs` are those of the stage so far.
    """

    def __init__(self, *, shown: bool = False) -> None:
        has_bar = shown and is_live()
        self._bar = tqdm(total=0, unit=" epochs", disable=not has_bar, leave=False, delay=1e-9)
        self._has_lines = shown and not has_bar
        self._stage, self.epochs, self._began = "", 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_stage()
        self._bar.close()

    def __reduce__(self) -> tuple[type[Progress], tuple[()]]:
        """Show nothing in another process."""
        return Progress, ()

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

    @property
    def is_shown(self) -> bool:
        """Whether anything is shown at all."""
        return self._has_lines or not self._bar.disable

    def tell(self, line: str) -> None:
        """A line for people that stays; nothing where it is empty."""
        if line and self._has_lines:
            tell(line)
        elif line and self.is_shown:
            self._bar.write(line, file=sys.stderr)

    def end_stage(self) -> None:
        """Say how long the stage took; others may follow."""
        if self._stage and self._has_lines:
            self.tell(f"{self._stage}: {self.epochs} epochs in {time.perf_counter() - self._began:.0f} s")
        self._stage = ""


SILENT = Progress()
Loss = Callable[[Tensor], Mapping[str, Tensor]]
"""From a batch of elements, of shape (replicates, batch) or (replicates, batch, numbers of an element), to terms of
shape (replicates,). A term called "total" is what is minimised; without it that is the sum of all terms. For networks
that cannot be stacked there is no axis for replicates."""
History = dict[str, list[Any]]


@dataclass(frozen=True)
class Stage:
    """How long, and in which steps, networks are trained with one loss.

    Attributes
    ----------
    rate : learning rate of Adam
    elements : what is batched, of shape (replicates, elements) or (replicates, elements, numbers of an element); None
        stands for all rows
    last : what becomes of the last batch of an epoch: where it would be short, "spread" makes all batches a little
        smaller, so that steps can be recorded, and "drop short" leaves it out; "drop" leaves it out even if it is
        full. The only batch of an epoch is always kept.
    same_adam : whether to keep the Adam of the stage before, if there was one
    weights : those that are trained; None stands for all
    after_epoch : called with the number of epochs so far
    watches : one per network, where the stage may end early, which `EarlyStopping` of URRL is
    """

    name: str
    epochs: int
    batch_size: int
    rate: float
    loss: Loss
    elements: Tensor | None = None
    last: Literal["spread", "drop short", "drop"] = "spread"
    same_adam: bool = False
    weight_decay: float = 0.0
    weights: Sequence[nn.Parameter] | None = None
    after_epoch: Callable[[int], None] = lambda epoch: None
    watches: Sequence[Any] = ()

    def is_over(self, runs: Sequence[TrainState]) -> bool:
        """Whether no network has anything more to learn."""
        return all(run.joint_stage.stopped if self.watches else run.diverged for run in runs)

    def steps(self, n_elements: int) -> tuple[int, int]:
        """Steps of an epoch, and elements of each."""
        started = -(-n_elements // self.batch_size)
        if self.last == "spread":
            return started, n_elements // started
        whole = n_elements // self.batch_size if self.last == "drop short" else started - 1
        return max(1, whole), min(self.batch_size, n_elements)


@dataclass
class TrainState:
    """What one training holds."""

    network: Any  # on the device of `stored`
    stored: Samples
    seed: int  # root of every random number
    method: Any = None  # what places samples with the network
    numbers: dict[str, float] = field(default_factory=dict)  # hyperparameters that may differ within a stack
    clusters: Tensor | None = None  # of the samples before the joint stage, of shape (samples,); None until then
    joint_stage: JointStage = field(default_factory=JointStage)
    diverged: str = ""  # which loss was not finite first, and where
    known: Guidance = UNGUIDED  # what is known of the samples beside their views
    # per epoch the mean of each loss term; `seconds` are those of all that were trained together
    history: History = field(default_factory=lambda: {"epoch": [], "stage": [], "total": [], "seconds": []})

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

    def take_over(self, other: TrainState) -> None:
        """Take over what the same training has learned in another process."""
        self.network.load_state_dict(other.network.state_dict())
        self.numbers, self.clusters, self.joint_stage = other.numbers, other.clusters, other.joint_stage
        self.diverged, self.known, self.history = other.diverged, other.known, other.history

    def record(self, stage: str, terms: Mapping[str, float], seconds: float) -> None:
        """Write down an epoch: the means of its loss terms, and how long it took."""
        epoch = self.n_epochs + 1
        row = {"epoch": epoch, "stage": stage, **terms, "seconds": seconds}
        row.setdefault("total", sum(terms.values()))
        for name in row:
            self.history.setdefault(name, [0.0] * (epoch - 1))
        for name, values in self.history.items():
            values.append(row.get(name, 0.0))


class Training:
    """Networks that are trained together, each on its own samples, through stages.

    Parameters
    ----------
    runs : with samples of equal shapes; some may share their samples

    Attributes
    ----------
    network : all of them as one, whose weights have a leading axis; a single one as it is
    random : draws what is random in a loss, from seed and epoch only
    each : numbers of the networks, of shape (replicates, 1)
    """

    def __init__(self, runs: Sequence[TrainState]) -> None:
        self.runs = runs
        self._networks = [run.network for run in runs]
        self.is_stacked = can_stack(self._networks[0])
        if len(runs) > 1 and not self.is_stacked:
            raise ValueError("these networks cannot be stacked; train them one after the other")
        self.network: Any = stack(self._networks)
        self.device = runs[0].device
        self.seeds = [run.seed for run in runs]
        self.n_samples = len(runs[0].stored)
        self.random = RandomNumbers(self.seeds, self.device)
        self.each = torch.arange(len(runs), device=self.device)[:, None]
        self.adam: Any = None
        self.watched = False  # whether networks may be stopped one by one, in the stage that runs

    @cached_property
    def values(self) -> list[Tensor]:
        """Per view the samples of each network, of shape (replicates, samples, columns)."""
        return [torch.stack(views) for views in zip(*(run.stored.values for run in self.runs), strict=True)]

    @cached_property
    def present(self) -> Tensor:
        """Which views samples have, a boolean tensor of shape (replicates, samples, views)."""
        return torch.stack([run.stored.present for run in self.runs])

    @cached_property
    def pooled(self) -> Samples:
        """All samples in one set, in which those that networks share stand once; see `first_rows`."""
        return pool(list({id(run.stored): run.stored for run in self.runs}.values()))

    @cached_property
    def first_rows(self) -> Tensor:
        """Where the samples of each network begin in `pooled`, of shape (replicates, 1)."""
        different = list(dict.fromkeys(id(run.stored) for run in self.runs))
        places = [different.index(id(run.stored)) for run in self.runs]
        return torch.tensor(places, device=self.device)[:, None] * self.n_samples

    def view(self, v: int, rows: Tensor) -> Tensor:
        """A view of the samples at `rows`, of shape (replicates, batch), as (replicates, batch, columns)."""
        return self.values[v][self.each, rows] if self.is_stacked else self.values[v][0, rows]

    def has(self, rows: Tensor) -> Tensor:
        """Which views the samples at `rows` have, of shape (replicates, batch, views)."""
        return self.present[self.each, rows] if self.is_stacked else self.present[0, rows]

    def number(self, name: str) -> Tensor:
        """A hyperparameter of each network, of shape (replicates,)."""
        return torch.tensor([run.numbers[name] for run in self.runs], dtype=torch.float32, device=self.device)

    def run(self, stage: Stage, progress: Progress = SILENT, checkpoint: Checkpoint | None = None) -> None:
        """Train for a stage; networks whose losses are not finite are marked as diverged."""
        if not stage.epochs:
            return
        first = self.runs[0].n_epochs
        until, steps = first + stage.epochs, self.begin(stage)
        kept = checkpoint and checkpoint.stage(f"{stage.name}-{until}", self.runs, self, stage.watches)
        with tensor_cores(self.device):
            for epoch in kept.left(range(first, until)) if kept else range(first, until):
                if stage.is_over(self.runs):
                    break
                began = time.perf_counter()
                terms = steps.run(epoch)
                self.record(stage.name, terms, time.perf_counter() - began)
                stage.after_epoch(epoch + 1)
                progress.advance(self.runs[0].objective)
                if kept:
                    kept.keep(epoch + 1, last=epoch + 1 == until or stage.is_over(self.runs))
        self.network.zero_grad()
        self.unstack()
        for network in (self.network, *self._networks):
            network.eval()

    def begin(self, stage: Stage) -> Epoch:
        """The optimiser of a stage, and its steps."""
        self.watched = bool(stage.watches)
        if self.adam is None or not stage.same_adam:
            weights = self.network.parameters() if stage.weights is None else stage.weights
            on_gpu = self.device.type == "cuda"
            self.adam = Adam(weights, lr=stage.rate, weight_decay=stage.weight_decay, fused=True, capturable=on_gpu)
        self.network.train()
        return Epoch(self, stage)

    def record(self, stage: str, terms: Mapping[str, Tensor], seconds: float) -> None:
        """Write down the means of an epoch, of terms of shape (steps, replicates), and which networks diverged.

        Of a watched stage nothing is written of networks that were stopped, though they still run in the stack.
        """
        for r, run in enumerate(self.runs):
            if self.watched and run.joint_stage.stopped:
                continue
            own = {name: term[:, r] for name, term in terms.items()}
            bad = {name: ~torch.isfinite(term) for name, term in own.items() if name != "total"}
            where = torch.stack(list(bad.values()), dim=1).any(dim=1).nonzero()
            if len(where) and not run.diverged:
                step = int(where[0])
                broken = " and ".join(name for name, is_bad in bad.items() if is_bad[step])
                run.diverged = f"the {broken} loss is not finite in epoch {run.n_epochs + 1}, step {step + 1}"
            run.record(stage, {name: float(term.mean()) for name, term in own.items()}, seconds)

    def unstack(self) -> None:
        """Write what was learned into the networks that were given."""
        unstack(self.network, self._networks)


class Epoch:
    """The steps of an epoch; all that changes lies at a fixed place, so that a GPU can record and replay a step."""

    def __init__(self, training: Training, stage: Stage) -> None:
        self._training, self._stage = training, stage
        self._n = training.n_samples if stage.elements is None else stage.elements.shape[1]
        steps, size = stage.steps(self._n)
        device = training.device
        self._order = torch.zeros(steps, len(training.runs), size, dtype=torch.int64, device=device)
        self._done = torch.zeros(1, dtype=torch.int64, device=device)
        self._names: list[str] = []
        self._terms = torch.empty(0, 0, 0)
        own = weakref.proxy(self)  # a step that held on to it would keep its memory until a garbage collection
        self._step: Callable[[], None] = lambda: own._update()
        if training.is_stacked:
            self._step = GraphedStep(self._step, device)

    def run(self, epoch: int) -> dict[str, Tensor]:
        """One pass over the shuffled elements; returns terms of shape (steps, replicates), on the CPU."""
        training = self._training
        keys = epoch_keys(training.seeds, epoch).to(training.device)
        steps, _, size = self._order.shape
        # Elements that no batch has room for wait for the order of the next epoch.
        order = shuffled(keys[:, 1], self._n)[:, : steps * size]
        self._order.copy_(torch.unflatten(order, 1, (steps, size)).transpose(0, 1))
        self._done.zero_()
        training.random.begin(keys[:, 0])
        devices = [training.device] if training.device.type == "cuda" else []
        with nullcontext() if training.is_stacked else torch.random.fork_rng(devices):
            if not training.is_stacked:  # layers of torch that draw, such as dropout, use the global generator
                torch.manual_seed(int(keys[0, 0]) % 2**63)
            for _ in range(steps):
                self._step()
        found = self._terms.cpu().clone()  # on a CPU the next epoch writes into the same place
        return dict(zip(self._names, found.unbind(dim=1), strict=True))

    def _update(self) -> None:
        training, stage = self._training, self._stage
        picked = self._order.index_select(0, self._done)[0]
        if stage.elements is not None:
            picked = stage.elements[training.each, picked]
        training.adam.zero_grad()
        terms = stage.loss(picked if training.is_stacked else picked[0])
        found = torch.stack(list(terms.values())).view(len(terms), -1)
        # The sum over replicates gives each the gradient of its own loss.
        torch.autograd.backward(terms["total"].sum() if "total" in terms else found.sum())
        training.adam.step()
        if not self._names:  # in the first call, which is never recorded
            self._names, self._terms = list(terms), found.new_zeros(len(self._order), *found.shape)
        self._terms.index_copy_(0, self._done, found.detach()[None])
        self._done += 1


def check_diverged(runs: Sequence[TrainState]) -> None:
    """Stop with the first training that diverged."""
    for run in runs:
        if run.diverged:
            what = f"{run.diverged}{f' (seed {run.seed})' if len(runs) > 1 else ''}; lower "
            extreme = " or 'standard' if the data have extreme values"
            raise Diverged(what, Setting("learning_rate"), ", or use ", Setting("scaling", "minmax"), extreme)
