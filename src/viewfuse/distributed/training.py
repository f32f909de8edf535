"""The joint stage on all rows: in epochs, with a checkpoint after each, watched on the bank; and its step.

Each process learns from its share of a global batch. The gradients are added up, and so are the soft sizes of the
clusters, on which the target of the clustering loss depends: it is a number of the whole batch. So the update is
the one that a single process would make.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.distributed.prepared_rows import PreparedRows, Visit, VisitPlan
from viewfuse.distributed.processes import Processes
from viewfuse.engine.batches import RandomNumbers, embed, epoch_keys, segments
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.training import Progress, TrainState, check_diverged
from viewfuse.errors import Diverged
from viewfuse.methods.urrl.method import TERMS, URRLMethod
from viewfuse.methods.urrl.training import EarlyStopping
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.layers import Adam, GraphedStep, tensor_cores
from viewfuse.utils.jobs import ahead

EPOCHS = 8
"""Checkpoints and looks at the clusters of the bank."""
STAGE = "all rows"
_FACTOR = 2.0
"""By how much the learning rate is larger than that of pre-training; batches are large, and the stage is long."""


def train_on_all(
    run: TrainState,
    rows: PreparedRows,
    plan: VisitPlan,
    processes: Processes,
    checkpoint: Checkpoint,
    progress: Progress,
) -> None:
    """Continue the joint stage of a network, from its weights, on the rows that the plan names.

    By the rules of the joint stage of an ordinary fit the first process ends with the network whose clusters of the
    bank were the best, of equals the last. Only its network is the result.
    """
    epochs, step = plan.epochs(EPOCHS), SharedStep(run, plan, processes)
    watch = EarlyStopping(run.method, run.network, run.stored.neighbor_ids, run.joint_stage, settles=False)
    stage = checkpoint.stage("all-rows", [run], step, [watch])
    processes.wait()  # until all have read where the first one will write
    first = run.n_epochs - (stage.epoch or 0)
    progress.expect(len(epochs) - (stage.epoch or 0))
    progress.begin("training on all rows")
    if stage.epoch is None and processes.is_first:
        _look(watch, run, first)
    for number in stage.left(range(len(epochs))):
        if processes.from_first(run.joint_stage.stopped):
            break
        _run_epoch(run, step, epochs[number], first + number, rows, plan, processes)
        _check_equal(step, processes, number)
        if processes.is_first:
            _look(watch, run, first + number + 1)
            stage.keep(number + 1, last=True)
        progress.advance(run.objective)
    progress.end_stage()
    if processes.is_first:
        watch.restore_best()


def _run_epoch(
    run: TrainState,
    step: SharedStep,
    visits: list[Visit],
    epoch: int,
    rows: PreparedRows,
    plan: VisitPlan,
    processes: Processes,
) -> None:
    began = time.perf_counter()
    with tensor_cores(run.device):
        for visit, groups, own in ahead(_loaded(visits, rows, plan, processes)):
            step.learn(visit, groups, own)
    terms = step.mean_terms(sum(visit.n_batches for visit in visits))
    broken = [name for name, term in zip(TERMS, terms, strict=True) if not isfinite(term)]
    if broken:
        run.diverged = f"the {' and '.join(broken)} loss is not finite in epoch {epoch + 1}"
        check_diverged([run])
    total = run.method.total(terms, run.numbers["clustering_weight"])
    run.record(STAGE, {**dict(zip(TERMS, terms, strict=True)), "total": total}, time.perf_counter() - began)


def _loaded(
    visits: list[Visit], rows: PreparedRows, plan: VisitPlan, processes: Processes
) -> Iterator[tuple[Visit, NDArray[np.int64], Samples]]:
    for visit in visits:
        groups = plan.groups_of(visit, processes)
        yield visit, groups, rows.read(visit.bucket, groups, plan.size)


def _look(watch: EarlyStopping, run: TrainState, epoch: int) -> None:
    watch.evaluate(epoch, embed(run.method, run.network, run.stored, run.stored))


def _check_equal(step: SharedStep, processes: Processes, epoch: int) -> None:
    """Stop where processes that must have the same weights do not."""
    found = processes.gather(step.checksum())
    if len(set(found)) > 1:
        raise Diverged(
            f"after epoch {epoch + 1} on all rows the processes have different weights ({found}); "
            "use machines of one kind, or fewer processes"
        )


class SharedStep:
    """A network in the joint stage, with the bank and the rows of one visit on its device.

    Rows stand behind the bank, in one set of samples, so that a step finds both in the same place. All that changes
    from step to step lies at a fixed place, so that a GPU can record a step once and replay it.

    Parameters
    ----------
    run : whose samples are the bank
    """

    def __init__(self, run: TrainState, plan: VisitPlan, processes: Processes) -> None:
        assert isinstance(run.method, URRLMethod)
        self.network: Any = run.network
        self._processes, self._plan, self._bank = processes, plan, len(run.stored)
        self._method = replace(run.method, sizes=self._sizes)
        self._own_groups = len(range(processes.rank, plan.groups, processes.size))
        most = max(map(plan.batches_in, range(len(plan.counts))))
        self._pool = _with_room(run.stored, most * self._own_groups * plan.size, next(self.network.parameters()).dtype)
        device = run.device
        self._numbers = {name: torch.tensor([one], device=device) for name, one in run.numbers.items()}
        self._per_group = plan.size * self._method.draws_per_sample(run.stored)
        self._random = RandomNumbers([plan.seed] * self._own_groups, device)
        self._keys = torch.zeros(most, self._own_groups, dtype=torch.int64, device=device)
        self._rows = self._bank + torch.arange(self._own_groups * plan.size, device=device).view(-1, plan.size)
        self._done = torch.zeros(1, dtype=torch.int64, device=device)
        self._terms = torch.zeros(len(TERMS), dtype=torch.float64, device=device)
        self.adam = self._optimizer(device)
        # Messages to other processes are no part of a recording.
        self._step = GraphedStep(self._update, device) if processes.size == 1 else self._update

    def _optimizer(self, device: torch.device) -> Adam:
        config, on_gpu = self._method.config, device.type == "cuda"
        rate, decay = _FACTOR * config.rate, config.weight_decay
        return Adam(self.network.parameters(), lr=rate, weight_decay=decay, fused=True, capturable=on_gpu)

    def _sizes(self, assignment: Tensor) -> Tensor:
        """The soft sizes of the clusters in the global batch, of shape (clusters,)."""
        return self._processes.sum_(assignment.sum(dim=(0, 1)))

    def learn(self, visit: Visit, groups: NDArray[np.int64], rows: Samples) -> None:
        """Learn from the batches of a visit.

        Parameters
        ----------
        groups : those of this process, of shape (batches, its groups)
        rows : the rows of these groups, in order
        """
        places = slice(self._bank, self._bank + len(rows))
        for held, view in zip(self._pool.values, rows.values, strict=True):
            held[places] = view.to(held)
        self._pool.present[places] = rows.present.to(self._pool.present.device)
        self._pool.neighbor_ids[places] = rows.neighbor_ids.to(self._pool.present.device)
        key = epoch_keys([self._plan.seed], visit.number)[0, 0]
        self._keys[: len(groups)] = segments(key, torch.from_numpy(groups), self._per_group).to(self._keys.device)
        self._done.zero_()
        for _ in range(visit.n_batches):
            self._step()

    def _update(self) -> None:
        """One step."""
        rows = self._rows + self._done * self._rows.numel()
        self._random.begin(self._keys.index_select(0, self._done)[0])
        draws = torch.unflatten(self._random.uniform(self._per_group), 1, (self._plan.size, -1))
        batch = self._method.prepare(self._pool, rows, self._numbers["view_dropout"].view(-1, 1, 1), draws)
        self.adam.zero_grad()
        terms = self._method.losses(self.network, batch, joint=True)
        # Each group is a small batch; the loss is the mean over those of all processes.
        loss = self._method.total(terms, self._numbers["clustering_weight"]).sum() / self._plan.groups
        torch.autograd.backward(loss)
        self._processes.sum_gradients(list(self.network.parameters()))
        self.adam.step()
        self._terms += torch.stack([term.detach().sum() for term in terms])
        self._done += 1

    def mean_terms(self, n_steps: int) -> list[float]:
        """The loss terms of all processes, mean over the steps since this was last asked."""
        found = self._processes.sum_(self._terms.clone()) / (n_steps * self._plan.groups)
        self._terms.zero_()
        return found.tolist()

    def checksum(self) -> int:
        """A number of the bits of all weights."""
        weights = torch.cat([one.detach().flatten() for one in self.network.parameters()])
        bits = weights.view(torch.int64 if weights.dtype == torch.float64 else torch.int32).long()
        return int((bits * (2 * torch.arange(len(bits), device=bits.device) + 1)).sum())


def _with_room(bank: Samples, n_rows: int, dtype: torch.dtype) -> Samples:
    """The bank, with room for so many rows behind it."""

    def longer(given: Tensor, kind: torch.dtype) -> Tensor:
        room = torch.zeros((n_rows, *given.shape[1:]), dtype=kind, device=given.device)
        return torch.cat([given.to(kind), room])

    values = [longer(view, dtype) for view in bank.values]
    return Samples(values, longer(bank.present, torch.bool), longer(bank.neighbor_ids, torch.int64))
