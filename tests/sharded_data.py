"""Small sharded data sets, a quick fit of them, and what it wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from conftest import make_blobs
from viewfuse import Config
from viewfuse.distributed.fit_large import fit_large
from viewfuse.distributed.processes import Processes

N = 150
QUICK = {
    "bank": 60, "steps": 3, "batch_size": 48, "scaling": "standard", "device": "cpu",
    "config": Config(learning_rate=1e-3, clustering_weight=0.01, hidden_dim=8, embedding_dim=8, pretrain_epochs=1,
                     joint_epochs=1),
}  # fmt: skip


def rows(n=N, seed=0):
    """A table with an id and two columns of lists, a third of them empty."""
    views, labels, mask = make_blobs(n, 3, widths=(4, 6), seed=seed)
    columns = {"id": [f"s{i}" for i in range(n)]}
    for v, view in enumerate(views):
        columns[f"v{v}"] = [row.tolist() if there else None for row, there in zip(view, mask[:, v], strict=True)]
    return pa.table(columns), labels


def write_shards(folder, table, count, name="part"):
    """The table in so many files, of different sizes."""
    folder.mkdir()
    ends = np.linspace(0, 1, count + 1) ** 1.5 * len(table)
    for i, (start, stop) in enumerate(zip(ends[:-1].astype(int), ends[1:].astype(int), strict=True)):
        pq.write_table(table.slice(start, stop - start), folder / f"{name}{i}.parquet")
    return folder


def quick_fit(data, out, **options):
    return fit_large(data, out, 3, **{**QUICK, **options})


class InThread(Processes):
    """A thread that stands for a process: what it has for the others lies in a list."""

    def gather(self, value):
        values, all_are_here = self.meeting
        values[self.rank] = value
        all_are_here.wait(60)
        found = list(values)
        all_are_here.wait(60)  # before the next values are put there
        return found


def in_threads(size, work):
    """What `work` gives in each of so many processes that work together."""
    meeting = [None] * size, Barrier(size)

    def one(rank):
        own = InThread(rank, size, torch.device("cpu"))
        own.meeting = meeting
        return work(own)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def written(out):
    """All label files as one table, in the order of the ids."""
    table = pa.concat_tables([pq.read_table(path) for path in (out / "labels").iterdir()])
    return table.sort_by("id")
