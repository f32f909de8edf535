"""The joint stage on all rows: the rows as the network sees them, which of them are learned from when, and its step.

Rows are reduced, scaled, and have neighbours in the bank; on disk they lie bucket by bucket, in the order of their
hashes, so any run of them is a random sample. Runs of a fixed number of rows are groups: the contrast of a sample with
others, which the robustness loss is about, stays within its group. A global batch is some groups of one bucket.

Each process learns from its share of a global batch. The gradients are added up, and so are the soft sizes of the
clusters, on which the target of the clustering loss depends: it is a number of the whole batch. So the update is
the one that a single process would make. After each epoch there is a checkpoint, and a look at the bank's clusters.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.distributed.first_pass import BucketReader
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Layout
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import RandomNumbers, embed, epoch_keys, segments, shuffled
from viewfuse.engine.training import Progress, TrainState, check_diverged
from viewfuse.errors import Diverged, SettingError
from viewfuse.fitted.model import Model
from viewfuse.methods.urrl.losses_and_augmentation import TERMS, URRLMethod
from viewfuse.methods.urrl.stages import EarlyStopping
from viewfuse.neighbors.index import Samples
from viewfuse.nn.layers import Adam, GraphedStep, tensor_cores
from viewfuse.utils.atomic import writing
from viewfuse.utils.jobs import ahead, turns
from viewfuse.utils.memory import parts
from viewfuse.utils.settings import Setting

EPOCHS = 8
"""Checkpoints and looks at the clusters of the bank."""
STAGE = "all rows"
_FACTOR = 2.0
"""By how much the learning rate is larger than that of pre-training; batches are large, and the stage is long."""
_SHARE = 4
"""Threads that the memory of a bucket counts for."""
_CHECKSUM_BYTES = 4


class Visit(NamedTuple):
    """A bucket whose first batches are learned from; `number` visits, of any bucket, came before."""

    number: int
    bucket: int
    n_batches: int


@dataclass(frozen=True)
class VisitPlan:
    """Which rows are learned from, and when: the same for any number of processes.

    There are `counts` rows per bucket, `size` rows per group, `groups` per global batch, and `steps` such batches.
    """

    counts: Sequence[int]
    size: int
    groups: int
    steps: int
    seed: int

    @classmethod
    def of(cls, counts: Sequence[int], size: int, batch_size: int, steps: int, seed: int) -> VisitPlan:
        """Batches of `batch_size` rows, or of as many as a bucket has."""
        own = min([size, *counts])
        groups = min(max(1, batch_size // own), min(count // own for count in counts))
        return cls(counts, own, groups, steps, seed)

    def batches_in(self, bucket: int) -> int:
        """How many batches a bucket has; what is left over changes from visit to visit."""
        return self.counts[bucket] // (self.size * self.groups)

    def epochs(self, count: int) -> list[list[Visit]]:
        """All visits, in `count` parts of about equally many steps; fewer where there are fewer visits."""
        found: list[list[Visit]] = [[] for _ in range(count)]
        done = number = 0
        while done < self.steps:
            for bucket in shuffled(epoch_keys([self.seed], number)[:, 1], len(self.counts))[0].tolist():
                n_batches = min(self.steps - done, self.batches_in(bucket))
                if n_batches:
                    done += n_batches
                    found[(done - 1) * count // self.steps].append(Visit(number, bucket, n_batches))
                    number += 1
        return [epoch for epoch in found if epoch]

    def groups_of(self, visit: Visit, processes: Processes) -> NDArray[np.int64]:
        """The groups that a process learns from, of shape (batches, its groups of each)."""
        if processes.size > self.groups:
            raise SettingError(
                f"a batch is {self.groups} groups of {self.size} rows, too few for {processes.size} processes; "
                "start fewer, or give a larger ",
                Setting("batch_size"),
            )
        key = epoch_keys([self.seed], visit.number)[:, 1]
        order = shuffled(key, self.counts[visit.bucket] // self.size)[0].numpy()
        batches = order[: visit.n_batches * self.groups].reshape(visit.n_batches, self.groups)
        return np.ascontiguousarray(batches[:, processes.rank :: processes.size])


class PreparedRows:
    """The rows of all buckets, one file each: columns of each view and neighbours, as the network sees them."""

    def __init__(self, folder: Path, widths: Sequence[int], depth: int) -> None:
        self._folder, self._widths, n_views = folder, list(widths), len(widths)
        self._record = np.dtype(
            [("values", "<f4", (sum(widths),)), ("near", "<i4", (n_views, depth)), ("present", "?", (n_views,))]
        )

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:04d}.npy"

    def prepare(self, reader: BucketReader, layout: Layout, model: Model, processes: Processes) -> list[int]:
        """Make the files that are not there yet from the rows that `reader` has; how many rows each bucket has."""
        one_at_a_time = turns(model.stored.present.device)

        def make(bucket: int) -> int:
            path = self._path(bucket)
            if not _is_whole(path):
                with writing(path) as temporary, temporary.open("wb") as file:
                    np.save(file, records(reader.rows(bucket)[1]), allow_pickle=False)
                    file.flush()
                    file.write(_checksum(np.memmap(temporary, np.uint8, "r")))
            reader.forget(bucket)
            return len(np.load(path, mmap_mode="r"))

        def records(rows: NDArray[np.float32]) -> NDArray[Any]:
            found = np.zeros(len(rows), self._record)
            for part in parts(len(rows)):
                views, _ = model.complete(layout.views(rows[part]), by_name=True)
                values, present = model.tensors(views)
                with one_at_a_time:
                    samples = model.locate(values, present)
                found["values"][part] = torch.cat([view.cpu() for view in samples.values], dim=1).numpy()
                found["near"][part] = samples.neighbor_ids.cpu().numpy()
                found["present"][part] = present.cpu().numpy()
            return found

        return processes.map(make, range(reader.buckets.number), share=_SHARE)

    def read(self, bucket: int, groups: NDArray[np.int64], size: int) -> Samples:
        """The rows of some groups, one group after another, on the CPU."""
        stored = np.load(self._path(bucket), mmap_mode="r")
        whole = stored[: len(stored) // size * size].reshape(-1, size)
        records = whole[groups.reshape(-1)].reshape(-1)
        values, near, present = (torch.from_numpy(records[name].copy()) for name in ("values", "near", "present"))
        return Samples(list(torch.split(values, self._widths, dim=1)), present, near.long())


def _is_whole(path: Path) -> bool:
    """Whether a bucket is there as it was written, with a checksum at its end."""
    try:
        content = np.memmap(path, np.uint8, "r")
        return content[-_CHECKSUM_BYTES:].tobytes() == _checksum(content[:-_CHECKSUM_BYTES])
    except (OSError, ValueError):
        return False


def _checksum(content: NDArray[np.uint8]) -> bytes:
    return zlib.crc32(content.data).to_bytes(_CHECKSUM_BYTES, "little")


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

    def look(epoch: int) -> None:
        if processes.is_first:
            watch.evaluate(epoch, embed(run.method, run.network, run.stored, run.stored))

    stage = checkpoint.stage("all-rows", [run], step, [watch])
    processes.gather(None)  # until all have read where the first one will write
    first = run.n_epochs - (stage.epoch or 0)
    progress.expect(len(epochs) - (stage.epoch or 0))
    progress.begin("training on all rows")
    if stage.epoch is None:
        look(first)
    for number in stage.left(range(len(epochs))):
        if processes.from_first(run.joint_stage.stopped):
            break
        began = time.perf_counter()
        terms = step.epoch(rows, epochs[number])
        broken = [name for name, term in terms.items() if not isfinite(term)]
        if broken:
            run.diverged = f"the {' and '.join(broken)} loss is not finite in epoch {first + number + 1}"
            check_diverged([run])
        total = run.method.total(terms, run.numbers["clustering_weight"])
        run.record(STAGE, {**terms, "total": total}, time.perf_counter() - began)
        found = processes.gather(step.checksum())
        if len(set(found)) > 1:
            raise Diverged(
                f"after epoch {number + 1} on all rows the processes have different weights ({found}); "
                "use machines of one kind, or fewer processes"
            )
        look(first + number + 1)
        if processes.is_first:
            stage.keep(number + 1, last=True)
        progress.advance(run.objective)
    progress.end_stage()
    if processes.is_first:
        watch.restore_best()


class SharedStep:
    """A network in the joint stage, with the bank and the rows of one visit on its device.

    Rows stand behind the bank, in one set of samples, so that a step finds both in the same place. All that changes
    from step to step lies at a fixed place, so that a GPU can record a step once and replay it.
    """

    def __init__(self, run: TrainState, plan: VisitPlan, processes: Processes) -> None:
        assert isinstance(run.method, URRLMethod)
        self.network: Any = run.network
        self._processes, self._plan, self._bank = processes, plan, len(run.stored)
        self._method = replace(run.method, sizes=self._sizes)
        n_groups, device = len(range(processes.rank, plan.groups, processes.size)), run.device
        most = max(map(plan.batches_in, range(len(plan.counts))))
        places = torch.arange(self._bank + most * n_groups * plan.size, device=device)
        self._pool = run.stored.take(places.clamp(max=self._bank - 1))  # those behind the bank are room for others
        self._numbers = {name: torch.tensor([one], device=device) for name, one in run.numbers.items()}
        self._per_group = plan.size * self._method.draws_per_sample(run.stored)
        self._random = RandomNumbers([plan.seed] * n_groups, device)
        self._keys = torch.zeros(most, n_groups, dtype=torch.int64, device=device)
        self._rows = self._bank + torch.arange(n_groups * plan.size, device=device).view(-1, plan.size)
        self._done = torch.zeros(1, dtype=torch.int64, device=device)
        self._terms = torch.zeros(len(TERMS), dtype=torch.float64, device=device)
        config, on_gpu = self._method.config, device.type == "cuda"
        rate, decay = _FACTOR * config.rate, config.weight_decay
        self.adam = Adam(self.network.parameters(), lr=rate, weight_decay=decay, fused=True, capturable=on_gpu)
        # Messages to other processes are no part of a recording.
        self._step = GraphedStep(self._update, device) if processes.size == 1 else self._update

    def _sizes(self, assignment: Tensor) -> Tensor:
        """The soft sizes of the clusters in the global batch, of shape (clusters,)."""
        return self._processes.sum_(assignment.sum(dim=(0, 1)))

    def epoch(self, rows: PreparedRows, visits: Sequence[Visit]) -> dict[str, float]:
        """Learn from the batches of some visits; the loss terms of all processes, mean over the steps."""

        def loaded() -> Iterator[tuple[Visit, NDArray[np.int64], Samples]]:
            for visit in visits:
                groups = self._plan.groups_of(visit, self._processes)
                yield visit, groups, rows.read(visit.bucket, groups, self._plan.size)

        with tensor_cores(self._done.device):
            for visit, groups, own in ahead(loaded()):
                self._learn(visit, groups, own)
        n_terms = sum(visit.n_batches for visit in visits) * self._plan.groups
        found = self._processes.sum_(self._terms.clone()) / n_terms
        self._terms.zero_()
        return dict(zip(TERMS, found.tolist(), strict=True))

    def _learn(self, visit: Visit, groups: NDArray[np.int64], rows: Samples) -> None:
        """Learn from a visit: the groups of this process, of shape (batches, its groups), and their rows, in order."""
        held = [*self._pool.values, self._pool.present, self._pool.neighbor_ids]
        for pool, own in zip(held, [*rows.values, rows.present, rows.neighbor_ids], strict=True):
            pool[self._bank : self._bank + len(rows)] = own.to(pool)
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
        if self._processes.size > 1:  # in one message
            gradients = [one.grad for one in self.network.parameters() if one.grad is not None]
            summed = self._processes.sum_(torch.cat([one.flatten() for one in gradients]))
            for gradient, part in zip(gradients, torch.split(summed, [one.numel() for one in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        self.adam.step()
        self._terms += torch.stack([term.detach().sum() for term in terms.values()])
        self._done += 1

    def checksum(self) -> int:
        """A number of the bits of all weights."""
        weights: Any = torch.cat([one.detach().flatten() for one in self.network.parameters()]).cpu().numpy()
        return zlib.crc32(weights)
