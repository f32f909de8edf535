"""One model of a data set that no machine holds: from sharded Parquet files to labels, in one or many processes.

1. Pass 0 reads all shards: bounds of the columns, and the rows in the order of hashed ids (`pass_zero`).
2. The first process fits an ordinary `URRL` on the bank, the rows with the lowest hashes: all decisions are made there.
3. The rows are scaled, and their neighbours in the bank are found (`prepared_rows`).
4. All processes continue the joint stage, on all rows (`training`).
5. The model is saved, and every process writes the clusters of its shards (`label_files`).

Whatever is done already is not done again: a lost process costs no more than an epoch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from viewfuse.distributed.label_files import LabelFiles, RunFolder
from viewfuse.distributed.pass_zero import ColumnFacts, changed_shard, read_contents, read_offset, run_pass_zero
from viewfuse.distributed.prepared_rows import PreparedRows, VisitPlan
from viewfuse.distributed.processes import Processes, joined, was_restarted
from viewfuse.distributed.row_buckets import BucketReader, Buckets
from viewfuse.distributed.shards import Shards, found_shards, given_paths
from viewfuse.distributed.training import train_on_all
from viewfuse.engine.batches import clusters, replicate_seeds
from viewfuse.engine.checkpoint import Checkpoint, differences
from viewfuse.engine.training import Progress, TrainState
from viewfuse.errors import CannotWrite, DataError, Diverged, EmptySampleWarning, SettingError, SuspiciousDataWarning
from viewfuse.io.isolated.jobs import Blocks
from viewfuse.io.writers import as_json
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.estimator import URRL
from viewfuse.methods.urrl.method import URRLMethod, dropout_of
from viewfuse.methods.urrl.training import embed_stored
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import warn
from viewfuse.utils.memory import memory_peak
from viewfuse.utils.settings import Setting, checked_count
from viewfuse.utils.version import __version__

BANK = {"cpu": 20_000, "cuda": 100_000}
"""Rows that every process holds; new ones find their neighbours among them."""
STEPS = {"cpu": 250, "cuda": 2_500}
"""Batches of the joint stage on all rows: a GPU makes ten times as many in less time."""
LEAST_BANK = 2 * Config.donor_depth
"""Neighbours and donors of all rows are looked for among as many."""
BATCH = {"cpu": 1_024, "cuda": 4_096}
"""Rows per batch, over all processes."""


def fit_large(
    paths: str | PathLike[str] | Sequence[Any],
    out: str | PathLike[str],
    n_clusters: int | str = "auto",
    *,
    id_column: str | None = None,
    blocks: Blocks | None = None,
    bank: int | str = "auto",
    steps: int | str = "auto",
    batch_size: int | str = "auto",
    embedding: bool = True,
    device: str = "auto",
    random_state: int = 0,
    force: bool = False,
    trust_unchanged: bool = False,
    verbose: bool = False,
    **params: Any,
) -> dict[str, Any]:
    """Cluster the rows of sharded Parquet files; to be called in every process that takes part.

    The same call with the same `out` resumes a run that was lost or interrupted. Returns what `summary.json` says.

    Parameters
    ----------
    paths : a folder of .parquet files, a pattern, or a list of files with the same columns: one row per sample
    out : folder for the results, which all processes see: `model`, `labels`, `columns.csv`, `summary.json`
    n_clusters : number of clusters; "auto" chooses it on the bank
    id_column : by default the first one; ids are text or whole numbers, each once
    blocks : per view a pattern of its columns, where they are neither lists nor called VIEW.COLUMN
    bank : rows that every process holds, at least 20; "auto" is 100,000 on a GPU and 20,000 on a CPU
    steps : batches of the joint stage on all rows; "auto" is 2,500 on a GPU and 250 on a CPU
    batch_size : rows per batch, over all processes; "auto" is 4,096 on a GPU and 1,024 on a CPU
    embedding : whether the label files hold the embedding as well
    device : "cpu", "cuda", ...; "auto" takes a GPU where there is one, each process its own
    trust_unchanged : whether shards of the same sizes, footers and times as before are not read again, to compare them
    params : other parameters of `URRL`, for the fit on the bank, such as ``config=Config(...)``
    """
    with joined(device) as processes:
        _check_apart(paths, Path(out))
        shards = Shards(paths, id_column, blocks)
        job = _Job(shards, Path(out), processes, n_clusters, random_state, embedding, params, trust_unchanged, verbose)
        job.size(bank, steps, batch_size)
        done = job.begin(force)
        with Progress(shown=verbose and processes.is_first) as progress:
            if done is not None:
                job.check_contents(done, progress)
                progress.tell(f"{out} is finished already, by the same call; nothing is done again")
                return done
            return job.run(progress)


def _check_apart(paths: Any, out: Path) -> None:
    """Refuse results among the shards, where the next call would read its own labels, and around the shards."""
    place = Path(os.path.realpath(out))
    for folder in filter(Path.is_dir, given_paths(paths)):
        if Path(os.path.realpath(folder)) in (place, *place.parents):
            raise CannotWrite(
                f"{out} is in {folder}, all files of which are read, so its labels would be read next time; "
                "give an --out elsewhere"
            )
    for file in found_shards(paths):
        if place in Path(os.path.realpath(file)).parents:
            raise CannotWrite(f"{out} holds {file}, which is read; give another --out")


@dataclass
class _Job:
    shards: Shards
    out: Path
    processes: Processes
    n_clusters: int | str
    seed: int
    embedding: bool
    params: dict[str, Any]
    trust: bool = False
    verbose: bool = False
    bank: int = 0
    steps: int = 0
    batch_size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> RunFolder:
        """Where the results and the checkpoint are."""
        return RunFolder(self.out)

    def size(self, bank: int | str, steps: int | str, batch_size: int | str) -> None:
        """What "auto" means on this device."""
        kind = self.processes.device.type
        self.bank = checked_count("bank", bank, LEAST_BANK, auto=BANK[kind])
        self.steps = checked_count("steps", steps, auto=STEPS[kind])
        self.batch_size = checked_count("batch_size", batch_size, auto=BATCH[kind])
        if self.processes.size > max(1, self.batch_size // Config.batch_size):
            few = f" is less than {Config.batch_size} rows per process; start fewer processes, or give a larger one"
            raise SettingError(Setting("batch_size", self.batch_size), few)
        if self.params.get("outliers", "mark") != "mark":
            raise SettingError(Setting("outliers"), " of many files are not looked for; leave it out")
        self.seed = self.processes.from_first(replicate_seeds(self.seed, 1)[0])

    def begin(self, force: bool) -> dict[str, Any] | None:
        """Refuse a folder with other results, or with those of another fit; the summary where all is done already."""
        done = self.processes.together(lambda: self._clear(force) if self.processes.is_first else None)
        self.checkpoint = self.processes.together(self._checkpoint)
        return self.processes.from_first(done)

    def _clear(self, force: bool) -> dict[str, Any] | None:
        if force and self.out.is_dir() and not was_restarted():
            self.folder.clear()
        done = self._finished()
        if done is not None:
            self.folder.forget_checkpoint()  # a kill may have come before all of it was gone
            return done
        if self.out.exists() and not self.out.is_dir():
            raise CannotWrite(f"{self.out} is a file; give a folder as --out")
        checkpoint = self._checkpoint()
        is_ours = force or checkpoint.has_begun() or not self.out.is_dir() or not any(self.out.iterdir())
        if not is_ours:
            raise CannotWrite(f"{self.out} exists already; give another --out, or --force to overwrite it")
        checkpoint.begin()
        self._tell_ignored()
        return None

    def _finished(self) -> dict[str, Any] | None:
        """What a run of the same fit wrote when it was done; None where there is none; another fit is refused."""
        found = self.folder.read_summary()
        if found is None:
            return None
        differing = differences(found["fit"], json.loads(json.dumps(self._facts(), default=str)))
        if differing:
            cure = "give what was given then, another --out, or --force to overwrite it"
            raise CannotWrite(f"{self.out} has the results of another fit: {differing}; {cure}")
        return found

    def check_contents(self, done: dict[str, Any], progress: Progress) -> None:
        """Refuse results of shards with other rows."""
        progress.tell(f"comparing {len(self.shards):,} rows with those of {self.out}")
        self.shards.measure_from(read_offset(done.get("offset")))
        changed = changed_shard(self.shards, read_contents(done.get("contents", {})), self.processes, self.trust)
        if changed:
            raise CannotWrite(f"{self.out} has the results of other rows: {changed}")

    def _facts(self) -> dict[str, Any]:
        """All on which the results depend."""
        own = {"n_clusters": self.n_clusters, "random_state": self.seed, "batch_size": self.batch_size}
        own |= {"bank": self.bank, "steps": self.steps, "embedding": self.embedding}
        own |= {name: repr(x) if isinstance(x, Config) else x for name, x in self.params.items()}
        data = {"rows": len(self.shards), "views": list(self.shards.layout.names), "shards": self.shards.digest()}
        versions = {"version of viewfuse": __version__, "version of torch": str(torch.__version__)}
        return {**own, **data, **versions, "device": self.processes.device.type}

    def _checkpoint(self) -> Checkpoint:
        """The checkpoint, which refuses to resume with other data, settings or versions."""
        return Checkpoint(self.folder.checkpoint, self._facts())

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - began, 1)

    def run(self, progress: Progress) -> dict[str, Any]:
        """All five parts; what is refused before anything is trained keeps nothing that would refuse the cure.

        Later a shard may be out of reach for a moment, or there are too many processes: the same call then resumes.
        """
        try:
            return self._run(progress)
        except (DataError, SettingError, Diverged):
            if self.processes.is_first and not self._has_start():
                self.folder.forget_checkpoint()
            raise

    def _run(self, progress: Progress) -> dict[str, Any]:
        trained = max(self.bank, self.steps * self.batch_size)
        buckets = Buckets.of(len(self.shards), trained, self.bank)
        folder, widths = self.folder.checkpoint, self.shards.layout.widths
        progress.tell(f"reading {len(self.shards):,} rows of {len(self.shards.paths):,} shards")
        with self.timed("reading"):
            facts = run_pass_zero(self.shards, folder / "rows", buckets, self.processes, trust=self.trust)
            self._tell_lost(facts)
        reader = BucketReader(folder / "rows", buckets, sum(widths))
        with self.timed("fit of the bank"):
            start = self._start(reader, progress)
        if not self.processes.from_first((self.folder.model / "manifest.json").exists()):
            self._train(start, reader, progress)
        fitted = URRL.load(self.folder.model, device=str(self.processes.device))
        with self.timed("labels"):
            progress.tell("writing the labels of all rows")
            ways: dict[str, Any] = {"contents": facts.contents, "with_embedding": self.embedding}
            sizes = LabelFiles(self.folder.labels, self.shards, fitted._model, **ways).write(self.processes)
        summary = self._summary(fitted, facts, sizes.tolist())
        if self.processes.is_first:
            write_file(self.folder.columns, facts.as_csv(self.shards.layout).encode())
            write_file(self.folder.summary, as_json(summary, indent=1).encode())
            self.folder.forget_checkpoint()
        self.processes.wait()
        return summary

    def _tell_ignored(self) -> None:
        names = self.shards.ignored
        if names:
            ignored = f"{len(names)} column(s) beside those of lists are ignored: {', '.join(names[:8])}; "
            example = Setting("blocks", {"VIEW": "PATTERN"})
            cure = "name the columns of all views, such as ", example, ", if they matter"
            warn(SuspiciousDataWarning(ignored, *cure))

    def _tell_lost(self, facts: ColumnFacts) -> None:
        lost = len(self.shards) - facts.n_rows
        if lost and self.processes.is_first:
            warn(EmptySampleWarning(f"{lost:,} of {len(self.shards):,} rows have no view at all and are left out"))

    def _start(self, reader: BucketReader, progress: Progress) -> URRL:
        """The model of the bank, which the first process fits and all read."""
        folder = self.folder.checkpoint

        def fit() -> None:
            ids, values = reader.bank()
            progress.tell(f"fitting {len(ids):,} of {len(self.shards):,} rows")
            ways = {**self.params, "random_state": self.seed, "device": str(self.processes.device)}
            model = URRL(self.n_clusters, checkpoint=folder / "fit", verbose=self.verbose, **ways)
            model.fit(self.shards.layout.views(values, ids)).save(folder / "start")

        self.processes.together(lambda: fit() if self.processes.is_first and not self._has_start() else None)
        return URRL.load(folder / "start", device=str(self.processes.device))

    def _has_start(self) -> bool:
        return (self.folder.checkpoint / "start" / "manifest.json").exists()

    def _train(self, start: URRL, reader: BucketReader, progress: Progress) -> None:
        """The joint stage on all rows; afterwards the model is there."""
        model, processes = start._model, self.processes
        widths = [view.shape[1] for view in model.stored.values]
        rows = PreparedRows(self.folder.checkpoint / "prepared", widths, model.stored.neighbor_ids.shape[2])
        with self.timed("neighbours"):
            progress.tell("finding the neighbours of all rows in the bank")
            rows.prepare(reader, self.shards.layout, model, processes)
        run = _state(start, self.seed)
        size = run.method.config.batch_size
        plan = VisitPlan.of(rows.counts(reader.buckets.number), size, self.batch_size, self.steps, self.seed)
        with self.timed("training"):
            train_on_all(run, rows, plan, processes, self.checkpoint.part("all"), progress)
        if processes.is_first:
            _finish(start, run)
            start.save(self.folder.model)
        processes.wait()

    def _summary(self, fitted: URRL, facts: ColumnFacts, sizes: list[int]) -> dict[str, Any]:
        return {
            "rows": facts.n_rows,
            "shards": len(self.shards.paths),
            "views": list(self.shards.layout.names),
            "clusters": fitted.n_clusters_,
            "cluster_sizes": sizes,
            "bank": len(fitted.ids_),
            "steps": self.steps,
            "batch_size": self.batch_size,
            "processes": self.processes.size,
            "device": self.processes.device.type,
            "seconds": self.seconds,
            "peak_memory_mb": round(max(self.processes.gather(memory_peak()))),
            "decisions": fitted.decisions_,
            "fit": self._facts(),
            "offset": facts.saved()["offset"],
            "contents": {name: list(own) for name, own in facts.contents.items()},
        }


def _state(start: URRL, seed: int) -> TrainState:
    """The training of the bank, to be continued on all rows."""
    model = start._model
    assert isinstance(model.method, URRLMethod)
    numbers = {
        "view_dropout": dropout_of(model.method.config, model.stored.present),
        "clustering_weight": start.decisions_["joint_stage"]["evidence"]["clustering_weight"],
    }
    return TrainState(model.network, model.stored, seed, model.method, numbers, history=start.history_)


def _finish(start: URRL, run: TrainState) -> None:
    """Replace the model of the bank by the one that learned from all rows."""
    found, model = embed_stored(run), start._model
    if model.calibration is not None:
        labels = clusters(model.method, model.network, found).int()
        model = replace(model, calibration=replace(model.calibration, labels=labels))
    objectives = [*start.objectives_, run.objective]
    start._take_over(model, found, run.history, objectives, start.decisions_)
