"""One model of a data set that no machine holds: from sharded Parquet files to labels, in one or many processes.

1. The first pass reads all shards: bounds of the columns, and the rows in the order of hashed ids (`first_pass`).
2. The first process fits an ordinary `URRL` on the bank, the rows with the lowest hashes: all decisions are made there.
3. The rows are scaled, and their neighbours in the bank are found; all processes continue the joint stage, on all
   rows (`training`).
4. The model is saved, and every process writes the clusters of its shards (`LabelFiles`).

Whatever is done already is not done again: a lost process costs no more than an epoch.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.distributed.first_pass import BucketReader, Buckets, Checksum, Contents, changed_shard, run_first_pass
from viewfuse.distributed.processes import Processes, attempt, joined
from viewfuse.distributed.shards import Rows, Shards
from viewfuse.distributed.training import PreparedRows, VisitPlan, train_on_all
from viewfuse.engine.checkpoint import FACTS, Checkpoint, differences
from viewfuse.engine.replicates import clusters, embed, replicate_seeds
from viewfuse.engine.training import Progress, TrainState
from viewfuse.errors import CannotWrite, DataError, Diverged, EmptySampleWarning, SettingError, SuspiciousDataWarning
from viewfuse.fitted.model import Model
from viewfuse.io.isolated.jobs import Blocks
from viewfuse.io.writers import as_json
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.estimator import URRL
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod, dropout_of
from viewfuse.methods.urrl.stages import embed_stored
from viewfuse.utils.atomic import parsed, write_file, writing
from viewfuse.utils.console import needed, warn
from viewfuse.utils.jobs import turns
from viewfuse.utils.memory import memory_peak
from viewfuse.utils.settings import Setting, checked_count
from viewfuse.utils.version import __version__

_NAMES = ("checkpoint", "model", "labels", "summary.json", "columns.csv")
AUTO = {
    "cpu": {"bank": 20_000, "steps": 250, "batch_size": 1_024},
    "cuda": {"bank": 100_000, "steps": 2_500, "batch_size": 4_096},
}
"""What "auto" means on a device: a GPU makes ten times as many steps in less time."""
LEAST = {"bank": 2 * Config.donor_depth, "steps": 1, "batch_size": 1}
"""Neighbours and donors of all rows are looked for in the bank."""


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
        shards = Shards(paths, id_column, blocks)
        _check_apart(shards, Path(out))
        asked = {"n_clusters": n_clusters, "random_state": random_state, "batch_size": batch_size}
        asked |= {"bank": bank, "steps": steps, "embedding": embedding}
        job = _Job(shards, Path(out), processes, asked, params)
        with Progress(shown=verbose and processes.is_first) as progress:
            return job.run(progress, force=force, trust=trust_unchanged)


def _check_apart(shards: Shards, out: Path) -> None:
    """Refuse results among the shards, where the next call would read its own labels, and around the shards."""
    place = Path(os.path.realpath(out))
    for folder in shards.folders:
        if Path(os.path.realpath(folder)) in (place, *place.parents):
            raise CannotWrite(
                f"{out} is in {folder}, all files of which are read, so its labels would be read next time; "
                "give an --out elsewhere"
            )
    for file in shards.paths:
        if place in Path(os.path.realpath(file)).parents:
            raise CannotWrite(f"{out} holds {file}, which is read; give another --out")


class _Job:
    """One call: its `facts`, in which "auto" is what it means on this device, and the places of all that is written."""

    def __init__(
        self, shards: Shards, out: Path, processes: Processes, asked: Mapping[str, Any], params: Mapping[str, Any]
    ) -> None:
        self.shards, self.out, self.processes, self.params = shards, out, processes, params
        kind = processes.device.type
        sizes = {name: checked_count(name, asked[name], LEAST[name], auto=auto) for name, auto in AUTO[kind].items()}
        self.bank, self.steps, self.batch_size = sizes.values()
        if processes.size > max(1, self.batch_size // Config.batch_size):
            few = f" is less than {Config.batch_size} rows per process; start fewer processes, or give a larger one"
            raise SettingError(Setting("batch_size", self.batch_size), few)
        if params.get("outliers", "mark") != "mark":
            raise SettingError(Setting("outliers"), " of many files are not looked for; leave it out")
        self.seed = processes.from_first(replicate_seeds(asked["random_state"], 1)[0])
        self.kept, self.model, self.labels, self.summary, self.columns = self.places = [out / one for one in _NAMES]
        self.seconds: dict[str, float] = {}
        self.facts = {
            **asked, **sizes, "random_state": self.seed,
            **{name: repr(one) if isinstance(one, Config) else one for name, one in params.items()},
            "rows": len(shards), "views": list(shards.layout.names), "shards": processes.together(shards.digest),
            "version of viewfuse": __version__, "version of torch": str(torch.__version__), "device": kind,
        }  # fmt: skip

    def _claim(self, force: bool) -> dict[str, Any] | None:
        """The summary of the same fit that is done; else begin, where the folder has nothing of others."""
        found = self._read_summary()
        if force and self.out.is_dir() and attempt() == "0":  # else the processes were started again
            there = [path for path in self.places if path.is_file() or (path.is_dir() and any(path.iterdir()))]
            if there and not (found or (self.kept / FACTS).is_file()):  # others have folders of these names, too
                raise CannotWrite(f"{there[0]} is of no fit-large; move it, or give another --out")
            for path in self.places:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            found = None
        if found is not None:
            differing = differences(found["fit"], json.loads(json.dumps(self.facts, default=str)))
            if differing:
                cure = "give what was given then, another --out, or --force to overwrite it"
                raise CannotWrite(f"{self.out} has the results of another fit: {differing}; {cure}")
            self._forget_checkpoint()  # a kill may have come before all of it was gone
            return found
        if self.out.exists() and not self.out.is_dir():
            raise CannotWrite(f"{self.out} is a file; give a folder as --out")
        checkpoint = Checkpoint(self.kept, self.facts)
        if not (force or checkpoint.has_begun() or not self.out.is_dir() or not any(self.out.iterdir())):
            raise CannotWrite(f"{self.out} exists already; give another --out, or --force to overwrite it")
        checkpoint.begin()
        names = self.shards.ignored
        if names:
            ignored = f"{len(names)} column(s) beside those of lists are ignored: {', '.join(names[:8])}; "
            example = Setting("blocks", {"VIEW": "PATTERN"})
            warn(SuspiciousDataWarning(ignored, "name the columns of all views, such as ", example, ", if they matter"))
        return None

    def _read_summary(self) -> dict[str, Any] | None:
        """What a run wrote when it was done; None where there is none."""
        try:
            found: dict[str, Any] = parsed(self.summary.read_bytes())
            return {**found, "fit": dict(found["fit"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _forget_checkpoint(self) -> None:
        if self.kept.is_dir():
            shutil.rmtree(self.kept)

    def run(self, progress: Progress, *, force: bool, trust: bool) -> dict[str, Any]:
        """The summary, of now or of before; what is refused before anything is trained keeps nothing.

        So nothing refuses the cure. Later a shard may be out of reach for a moment, or there are too many processes:
        the same call then resumes.
        """
        done = self.processes.first(lambda: self._claim(force))
        self.checkpoint = self.processes.together(lambda: Checkpoint(self.kept, self.facts))
        if done is not None:
            progress.tell(f"comparing {len(self.shards):,} rows with those of {self.out}")
            changed = changed_shard(self.shards, done.get("offset"), done.get("contents", {}), self.processes, trust)
            if changed:
                raise CannotWrite(f"{self.out} has the results of other rows: {changed}")
            progress.tell(f"{self.out} is finished already, by the same call; nothing is done again")
            return done
        try:
            return self._run(progress, trust)
        except (DataError, SettingError, Diverged):
            if self.processes.is_first and not self._has_start():
                self._forget_checkpoint()
            raise

    def _run(self, progress: Progress, trust: bool) -> dict[str, Any]:
        shards, processes = self.shards, self.processes
        buckets = Buckets.of(len(shards), max(self.bank, self.steps * self.batch_size), self.bank)
        progress.tell(f"reading {len(shards):,} rows of {len(shards.paths):,} shards")
        with self._timed("reading"):
            facts = run_first_pass(shards, self.kept / "rows", buckets, processes, trust=trust)
        lost = len(shards) - facts.n_rows
        if lost and processes.is_first:
            warn(EmptySampleWarning(f"{lost:,} of {len(shards):,} rows have no view at all and are left out"))
        reader = BucketReader(self.kept / "rows", buckets, shards.layout.width)
        with self._timed("fit of the bank"):
            start = self._start(reader, progress)
        if not processes.from_first((self.model / "manifest.json").exists()):
            self._train(start, reader, progress)
        fitted = URRL.load(self.model, device=str(processes.device))
        with self._timed("labels"):
            progress.tell("writing the labels of all rows")
            files = LabelFiles(self.labels, shards, fitted._model, facts.contents, self.facts["embedding"])
            sizes = files.write(processes)
        summary = {
            "rows": facts.n_rows,
            "shards": len(shards.paths),
            "views": list(shards.layout.names),
            "clusters": fitted.n_clusters_,
            "cluster_sizes": sizes.tolist(),
            "bank": len(fitted.ids_),
            "steps": self.steps,
            "batch_size": self.batch_size,
            "processes": processes.size,
            "device": processes.device.type,
            "seconds": self.seconds,
            "peak_memory_mb": round(max(processes.gather(memory_peak()))),
            "decisions": fitted.decisions_,
            "fit": self.facts,
            "offset": facts.offset,
            "contents": facts.contents,
        }

        def finish() -> None:
            write_file(self.columns, facts.as_csv(shards.layout).encode())
            write_file(self.summary, as_json(summary, indent=1).encode())
            self._forget_checkpoint()

        processes.first(finish)
        return summary

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - began, 1)

    def _start(self, reader: BucketReader, progress: Progress) -> URRL:
        """The model of the bank, which the first process fits and all read."""
        device = str(self.processes.device)

        def fit() -> None:
            if self._has_start():
                return
            ids, values = reader.bank()
            progress.tell(f"fitting {len(ids):,} of {len(self.shards):,} rows")
            ways = {**self.params, "random_state": self.seed, "device": device}
            ways |= {"checkpoint": self.kept / "fit", "verbose": progress.is_shown}
            model = URRL(self.facts["n_clusters"], **ways)
            model.fit(self.shards.layout.views(values, ids)).save(self.kept / "start")

        self.processes.first(fit)
        return URRL.load(self.kept / "start", device=device)

    def _has_start(self) -> bool:
        return (self.kept / "start" / "manifest.json").exists()

    def _train(self, start: URRL, reader: BucketReader, progress: Progress) -> None:
        """Continue the joint stage, from the network of the bank, on all rows; afterwards the model is there."""
        model, processes, method = start._model, self.processes, start._model.method
        assert isinstance(method, URRLMethod)
        widths = [view.shape[1] for view in model.stored.values]
        rows = PreparedRows(self.kept / "prepared", widths, model.stored.neighbor_ids.shape[2])
        with self._timed("neighbours"):
            progress.tell("finding the neighbours of all rows in the bank")
            counts = rows.prepare(reader, self.shards.layout, model, processes)
        numbers = {
            "view_dropout": dropout_of(method.config, model.stored.present),
            "clustering_weight": start.decisions_["joint_stage"]["evidence"]["clustering_weight"],
        }
        run = TrainState(model.network, model.stored, self.seed, method, numbers, history=start.history_)
        plan = VisitPlan.of(counts, method.config.batch_size, self.batch_size, self.steps, self.seed)
        with self._timed("training"):
            train_on_all(run, rows, plan, processes, self.checkpoint.part("all"), progress)
        processes.first(lambda: _save(start, run, self.model))


def _save(start: URRL, run: TrainState, folder: Path) -> None:
    """Save the model of the bank as the one that learned from all rows."""
    found, model = embed_stored(run), start._model
    if model.calibration is not None:
        labels = clusters(model.method, model.network, found).int()
        model = replace(model, calibration=replace(model.calibration, labels=labels))
    start._take_over(model, found, run.history, [*start.objectives_, run.objective], start.decisions_)
    start.save(folder)


class LabelFiles:
    """Writes the clusters of shards under a model, which was trained when they held `contents`: others are refused."""

    def __init__(self, folder: Path, shards: Shards, model: Model, contents: Contents, with_embedding: bool) -> None:
        self._folder, self._shards, self._model, self._contents = folder, shards, model, contents
        self._arrow, self._parquet = needed("pyarrow", "io", folder), needed("pyarrow.parquet", "io", folder)
        self._turns = turns(model.stored.present.device)
        self._n_clusters, width = model.network.centers.shape
        arrow = self._arrow
        kinds = {
            "id": self._parquet.read_schema(shards.paths[0]).field(shards.layout.id_column).type,
            "label": arrow.int32(),
            "confidence": arrow.float32(),
            "out_of_range": arrow.bool_(),
        }
        embedding = {"embedding": arrow.list_(arrow.float32(), width)} if with_embedding else {}
        self._schema = arrow.schema(kinds | embedding)

    def write(self, processes: Processes) -> NDArray[np.int64]:
        """Write the files that are not there yet; the sizes of the clusters over all rows."""
        return np.sum(processes.map(self._written, self._shards.named), axis=0)

    def _written(self, named: tuple[Path, str]) -> NDArray[np.int64]:
        """The sizes of the clusters of one shard, whose file is there afterwards."""
        shard, name = named
        try:
            known = self._parquet.read_table(self._folder / name, page_checksum_verification=True)
            if known.schema.equals(self._schema):
                return self._sizes(known)
        except (OSError, ValueError):  # there is no file, or a damaged one; errors of pyarrow are among these
            pass
        sizes, checksum = np.zeros(self._n_clusters, np.int64), Checksum(shard)
        ways = {"use_dictionary": False, "write_statistics": False, "compression": "NONE", "write_page_checksum": True}
        with (
            writing(self._folder / name) as temporary,
            self._parquet.ParquetWriter(temporary, self._schema, **ways) as writer,
        ):
            for rows in self._shards.read(shard):
                checksum.add(rows)
                table = self._table(shard, rows)
                writer.write_table(table)
                sizes += self._sizes(table)
            if checksum.digest != self._contents[name][0]:
                raise DataError(f"{shard} has changed while the model was trained; bring the old file back")
        return sizes

    def _sizes(self, table: Any) -> NDArray[np.int64]:
        labels = np.asarray(table.column("label"), np.int64)
        if len(labels) and not 0 <= labels.min() <= labels.max() < self._n_clusters:
            raise ValueError("labels of other clusters")
        return np.bincount(labels, minlength=self._n_clusters)

    def _table(self, shard: Path, rows: Rows) -> Any:
        """What is written of some rows."""
        model = self._model
        views, _ = model.complete(self._shards.layout.views(rows.values), by_name=True)
        values, present = model.tensors(views)
        with self._turns, torch.no_grad():
            samples = model.locate(values, present)
            embedding = embed(model.method, model.network, samples, model.stored)
            chances, far = model.assign(samples, embedding), model.is_far(values, present)
        found = embedding.cpu().numpy()
        broken = np.flatnonzero(~np.isfinite(found).all(axis=1))
        if len(broken):
            raise DataError(
                f"{shard}, id {rows.ids[int(broken[0])].as_py()!r}: its values are too far from those of other rows; "
                "look for fill values and other units"
            )
        columns = [rows.ids, chances.argmax(axis=1).astype(np.int32), chances.max(axis=1), far]
        if "embedding" in self._schema.names:
            flat = self._arrow.array(found.reshape(-1))
            columns.append(self._arrow.FixedSizeListArray.from_arrays(flat, found.shape[1]))
        return self._arrow.table(columns, schema=self._schema)
