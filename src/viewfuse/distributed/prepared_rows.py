"""Rows as the network learns from them: reduced, scaled, with their neighbours in the bank; on disk, bucket by bucket.

Rows lie in the order of their hashes, so any run of them is a random sample. Runs of a fixed number of rows are groups:
the contrast of a sample with others, which the robustness loss is about, stays within its group. A global batch is some
groups of one bucket; every process learns from its share of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.distributed.processes import Processes
from viewfuse.distributed.row_buckets import BucketReader
from viewfuse.distributed.shards import Layout
from viewfuse.engine.batches import epoch_keys, shuffled
from viewfuse.errors import SettingError
from viewfuse.fitted.model import Model
from viewfuse.neighbors.samples import Samples
from viewfuse.utils.atomic import writing
from viewfuse.utils.jobs import side_by_side, turns
from viewfuse.utils.memory import parts
from viewfuse.utils.settings import Setting

_SHARE = 4
"""Threads that the memory of a bucket counts for."""
_CHECKSUM_BYTES, _BYTES_AT_A_TIME = 4, 2**20


class Visit(NamedTuple):
    """A bucket that is learned from at one time.

    Attributes
    ----------
    number : how many visits there were before, of any bucket
    n_batches : so many, the first ones, are learned from
    """

    number: int
    bucket: int
    n_batches: int


@dataclass(frozen=True)
class VisitPlan:
    """Which rows are learned from, and when: the same for any number of processes.

    Attributes
    ----------
    counts : rows per bucket
    size : rows per group
    groups : groups per global batch
    steps : global batches
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
        visits = list(self._visits())
        done = list(accumulate(visit.n_batches for visit in visits))
        places = [min(count - 1, (end - 1) * count // max(1, self.steps)) for end in done]
        found = [[visit for visit, place in zip(visits, places, strict=True) if place == e] for e in range(count)]
        return [epoch for epoch in found if epoch]

    def _visits(self) -> Iterator[Visit]:
        left, number = self.steps, 0
        while left > 0:
            order = shuffled(epoch_keys([self.seed], number)[:, 1], len(self.counts))[0].tolist()
            for bucket in order:
                n_batches = min(left, self.batches_in(bucket))
                if n_batches:
                    yield Visit(number, bucket, n_batches)
                    number, left = number + 1, left - n_batches

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
    """The rows of all buckets, one file each.

    Parameters
    ----------
    widths : columns per view as the network sees them
    depth : neighbours per view
    """

    def __init__(self, folder: Path, widths: Sequence[int], depth: int) -> None:
        self._folder, self._widths, self._depth = folder, list(widths), depth
        self._record = np.dtype(
            [
                ("values", "<f4", (sum(self._widths),)),
                ("near", "<i4", (len(self._widths), depth)),
                ("present", "?", (len(self._widths),)),
            ]
        )

    def path(self, bucket: int) -> Path:
        """Where a bucket is."""
        return self._folder / f"{bucket:04d}.npy"

    def counts(self, n_buckets: int) -> list[int]:
        """Rows per bucket."""
        return [len(np.load(self.path(bucket), mmap_mode="r")) for bucket in range(n_buckets)]

    def prepare(self, reader: BucketReader, layout: Layout, model: Model, processes: Processes) -> None:
        """Make the files that are not there yet, each process its own, from the rows that `reader` has."""
        one_at_a_time = turns(model.stored.present.device)

        def make(bucket: int) -> None:
            if not _is_whole(self.path(bucket)):
                self.write(bucket, self._records(reader.rows(bucket)[1], layout, model, one_at_a_time))
            reader.forget(bucket)

        for _ in side_by_side(make, processes.own(range(reader.buckets.number)), share=_SHARE):
            pass
        processes.wait()

    def write(self, bucket: int, records: NDArray[Any]) -> None:
        """Keep a bucket, with a checksum at its end."""
        with writing(self.path(bucket)) as temporary:
            with temporary.open("wb") as file:
                np.save(file, records, allow_pickle=False)
            checksum = _checksum(temporary, temporary.stat().st_size)
            with temporary.open("ab") as file:
                file.write(checksum)

    def _records(
        self, rows: NDArray[np.float32], layout: Layout, model: Model, one_at_a_time: AbstractContextManager[Any]
    ) -> NDArray[Any]:
        records = np.zeros(len(rows), self._record)
        for part in parts(len(rows)):
            views, _ = model.complete(layout.views(rows[part]), by_name=True)
            values, present = model.tensors(views)
            with one_at_a_time:
                samples = model.locate(values, present)
            records["values"][part] = torch.cat([view.cpu() for view in samples.values], dim=1).numpy()
            records["near"][part] = samples.neighbor_ids.cpu().numpy()
            records["present"][part] = present.cpu().numpy()
        return records

    def read(self, bucket: int, groups: NDArray[np.int64], size: int) -> Samples:
        """The rows of some groups, one group after another, on the CPU."""
        stored = np.load(self.path(bucket), mmap_mode="r")
        whole = stored[: len(stored) // size * size].reshape(-1, size)
        records = whole[groups.reshape(-1)].reshape(-1)
        values = torch.split(torch.from_numpy(np.ascontiguousarray(records["values"])), self._widths, dim=1)
        near, present = (torch.from_numpy(np.ascontiguousarray(records[name])) for name in ("near", "present"))
        return Samples(list(values), present, near.long())


def _is_whole(path: Path) -> bool:
    """Whether a bucket is there as it was written."""
    try:
        size = path.stat().st_size - _CHECKSUM_BYTES
        with path.open("rb") as file:
            file.seek(size)
            return file.read() == _checksum(path, size)
    except (OSError, ValueError):
        return False


def _checksum(path: Path, size: int) -> bytes:
    """Of the first bytes of a file."""
    found = 0
    with path.open("rb") as file:
        for start in range(0, size, _BYTES_AT_A_TIME):
            found = zlib.crc32(file.read(min(_BYTES_AT_A_TIME, size - start)), found)
    return found.to_bytes(_CHECKSUM_BYTES, "little")
