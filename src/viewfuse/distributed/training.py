"""The joint stage on all rows: in epochs, with a checkpoint after each, watched on the bank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from viewfuse.distributed.processes import Processes
from viewfuse.distributed.rows.prepared_rows import PreparedRows, Visit, VisitPlan
from viewfuse.distributed.shared_step import SharedStep
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.early_stopping import EarlyStopping
from viewfuse.engine.passes import embed
from viewfuse.engine.progress import Progress
from viewfuse.engine.training import TrainState, check_diverged
from viewfuse.errors import Diverged
from viewfuse.methods.urrl.method import TERMS
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.cuda import tensor_cores
from viewfuse.utils.threads import ahead

EPOCHS = 8
"""Checkpoints and looks at the clusters of the bank."""
STAGE = "all rows"


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
    if not all(map(isfinite, terms)):
        run.diverged = f"a loss is not finite in epoch {epoch + 1}"
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
