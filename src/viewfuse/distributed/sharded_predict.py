"""Labels of samples in many files: each file by itself, so that a stopped run resumes with what is left.

A shard is one file with all views of its samples. It is read and predicted a few samples at a time, and its labels
become one file, named after it, as a whole. Then a record says of which file, model and options they are. A shard whose
record is true already is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from viewfuse.data.filling import Filled
from viewfuse.data.views import Views
from viewfuse.errors import BadModelFile, CannotWrite, DataError
from viewfuse.fitted.manifest import MANIFEST, read_manifest
from viewfuse.fitted.novelty import USUAL
from viewfuse.io.readers import Reading, open_source
from viewfuse.io.safety import guarded
from viewfuse.io.source import ROWS_AT_A_TIME, split_by_prefix
from viewfuse.io.writers import OUTLIER, Judged, as_json, write_predictions
from viewfuse.methods import load
from viewfuse.selection.confidence import ALPHA
from viewfuse.utils.atomic import exclusive, sealed, unsealed, write_file
from viewfuse.utils.console import is_live, tell
from viewfuse.utils.jobs import run_jobs, worker_count
from viewfuse.utils.version import __version__

DONE = "done"
"""The folder of records; a folder that has one was written here."""
_SECONDS_BETWEEN = 30.0
"""Between two lines about files, where there is no bar."""
_COUNTED = ("samples", "uncertain", "outliers", "out_of_range")
Found = dict[str, Any]
"""Counts of what was found in samples, in a form that JSON can hold."""


@dataclass(frozen=True)
class ShardTask:
    """What is done with every shard: `mark` tells the model, `view` names that of files that are one table each."""

    model: Path
    mark: str
    device: str = "auto"
    alpha: float = ALPHA
    view: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """One file as it was when it was listed, and the places of its labels and of their record."""

    file: Path
    n_bytes: int
    changed: int
    labels: Path
    record: Path

    def recorded(self) -> dict[str, Any]:
        """What was written after the labels, which may be gone; nothing where the record is damaged."""
        try:
            record = unsealed(self.record.read_bytes())
            return {**record, "model": record["of"]["model"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def known(self, asked: ShardTask, trust: bool = False) -> Found | None:
        """What was found when the labels were written; None where they have to be written.

        With `trust` a file that was not written to since is taken for the same, else its content is compared.
        """
        record = self.recorded()
        if not record or not self.labels.exists() or record["of"] != self.facts(asked):
            return None
        is_same = (trust and record["changed"] == self.changed) or record["content"] == self.content()
        return record["found"] if is_same else None

    def content(self) -> str:
        """A checksum of all bytes of the file."""
        with guarded(self.file), self.file.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]

    def facts(self, asked: ShardTask) -> dict[str, Any]:
        """What tells these labels from those of a longer file, of another model or other options, or from a part."""
        facts = {
            "file": self.file.name, "bytes": self.n_bytes, "model": asked.mark, "alpha": asked.alpha,
            "view": asked.view, "reading": {name: one for name, one in asked.reading.items() if name != "trusted"},
            "version": __version__, "bytes_of_labels": self.labels.stat().st_size,
        }  # fmt: skip
        return dict(json.loads(as_json(facts)))


def predict_shards(
    model: Path,
    files: Sequence[Path],
    out: Path,
    *,
    n_jobs: int | None = None,
    again: bool = False,
    trust_unchanged: bool = False,
    verbose: bool = False,
    **asked: Any,
) -> Found:
    """Write labels of the samples of each file into the folder `out`; files that are done already are skipped.

    Parameters
    ----------
    model : folder of a saved model
    files : each with all views of its samples
    n_jobs : files side by side, each in a process; -1 is one per core. None does one after the other, unless a
        ``joblib.parallel_config`` is active: of a cluster all machines must see the same paths
    again : whether files that are done are done again
    trust_unchanged : whether files of the same size and time as those that were done count as the same; by default
        they are read, to compare their contents
    verbose : whether rows per second and the time left are shown
    asked : other attributes of `ShardTask`

    Returns
    -------
    dict
        How many shards, samples, samples per cluster, uncertain ones, outliers and samples out of range; rows per
        second of what was done now.
    """
    wanted = ShardTask(model.absolute(), model_mark(model), **asked)
    shards = shards_of(files, out)
    known: dict[Shard, Found] = {}
    with exclusive(out, patience=0):
        if not again:
            marks = {record["model"] for record in map(Shard.recorded, shards) if record}
            if marks - {wanted.mark}:
                raise CannotWrite(
                    f"{out} has labels of another model; give another folder, or --force to write all anew"
                )
            before = [(shard, shard.known(wanted, trust_unchanged)) for shard in shards]
            known = {shard: found for shard, found in before if found is not None}
        began = time.monotonic()
        done = _predicted(wanted, [shard for shard in shards if shard not in known], n_jobs, verbose)
    speed = sum(one["samples"] for one in done) / max(time.monotonic() - began, 1e-9)
    found = [*known.values(), *done]
    facts = {"shards": len(shards), "skipped": len(known), **{n: sum(one[n] for one in found) for n in _COUNTED}}
    facts["cluster_sizes"] = np.sum([one["cluster_sizes"] for one in found], axis=0).tolist()
    cells = sum((Counter(one["filled_cells"]) for one in found), Counter[str]())
    facts |= {"filled_cells": dict(cells)} if cells else {}
    return facts | ({"rows_per_second": round(speed)} if done else {})


def model_mark(model: Path) -> str:
    """A checksum of the manifest, which has those of all tensors."""
    read_manifest(model)
    return hashlib.sha256((model / MANIFEST).read_bytes()).hexdigest()


def shards_of(files: Sequence[Path], out: Path) -> list[Shard]:
    """Files with the places of their labels, which are called like them."""
    named: dict[str, Path] = {}
    shards = []
    for file in files:
        labels, record = out / f"{file.stem}.csv", out / DONE / f"{file.stem}.json"
        other = named.setdefault(file.stem.lower(), file)  # some systems take a and A for one name
        if other is not file:
            raise DataError(f"{other} and {file} would both be predicted into {labels}; rename one, or use two folders")
        if Path(os.path.realpath(out)) in Path(os.path.realpath(file)).parents:
            raise CannotWrite(f"{out} holds {file}, which is read; give another folder for the labels")
        with guarded(file):
            facts = file.stat()
        shards.append(Shard(file.absolute(), facts.st_size, facts.st_mtime_ns, labels.absolute(), record.absolute()))
    return shards


def predict_shard(fitted: Any, asked: ShardTask, shard: Shard, advance: Callable[[int, int], None]) -> Found:
    """Write the labels of one shard, and then that they are there; `advance` gets rows that are done, and bytes."""
    shard.record.unlink(missing_ok=True)  # whatever was there is true no longer
    content = shard.content()  # before it is read: a file that changes meanwhile is done again
    given = shard.file if asked.view is None else {asked.view: shard.file}
    source = split_by_prefix(open_source(given, Reading(**asked.reading)), fitted.view_names_)

    def parts() -> Iterator[Views]:
        for views in source.chunks(ROWS_AT_A_TIME):
            yield views
            advance(len(views), round(shard.n_bytes * len(views) / len(source)))

    placed = predict_parts(fitted, parts(), shard.labels, asked.alpha)
    found = {**placed.facts(), "filled_cells": placed.filled.totals()}
    record = {"of": shard.facts(asked), "content": content, "changed": shard.changed, "found": found}
    write_file(shard.record, sealed(record))
    return found


@lru_cache(maxsize=1)  # a process keeps the model for its next shard
def _loaded(model: Path, mark: str, device: str) -> Any:
    """The model, if it is still the same."""
    fitted = load(model, device=device)
    if model_mark(model) != mark:
        raise BadModelFile(f"{model} was replaced while its labels were written; begin again")
    return fitted


def _one_shard(
    asked: ShardTask, shard: Shard, advance: Callable[[int, int], None] = lambda rows, size: None
) -> Found | DataError:
    """Predict a shard; what is wrong with one file does not stop the others, but a full disk does."""
    try:
        with guarded(shard.file):
            return predict_shard(_loaded(asked.model, asked.mark, asked.device), asked, shard, advance)
    except DataError as error:
        return error


def _predicted(asked: ShardTask, todo: Sequence[Shard], n_jobs: int | None, verbose: bool) -> list[Found]:
    """What was found in shards; an error at the end where some have no labels."""
    found: list[Found] = []
    failed: list[DataError] = []
    alone = worker_count(n_jobs) == 1 or len(todo) == 1
    progress = ShardProgress([shard.n_bytes for shard in todo], shown=verbose)

    def finish(place: int, outcome: Found | DataError) -> None:
        rows = 0
        if isinstance(outcome, DataError):
            failed.append(outcome)
        else:
            found.append(outcome)
            rows = outcome["samples"]
        progress.advance(*((0, 0) if alone else (rows, todo[place].n_bytes)), files=1)

    jobs = [(asked, shard, progress.advance) if alone else (asked, shard) for shard in todo]
    try:
        with closing(progress):
            run_jobs(_one_shard, jobs, n_jobs, threads=None, done=finish)
    except KeyboardInterrupt:
        so_far = f"{len(found)} of {len(todo)} files were done; the same command resumes with the others"
        raise KeyboardInterrupt(f"interrupted; {so_far}") from None
    finally:
        _loaded.cache_clear()
    if failed:
        count = f"{len(failed)} of {len(todo)} files {'has' if len(failed) == 1 else 'have'} no labels, the others have"
        if not found:
            count = f"none of {len(todo)} files has labels" if len(todo) > 1 else "the file that was left has no labels"
        raise DataError(f"{count}: {failed[0]}; then the same command resumes with what is left")
    return found


class Placed:
    """Places samples, and counts them; novel ones lie farther from training samples than 95 % of these from others."""

    def __init__(self, fitted: Any, alpha: float) -> None:
        self._fitted, self._alpha, self.filled, self.counts = fitted, alpha, Filled(fitted), Counter[str]()
        self._sizes = np.zeros(len(fitted.cluster_centers_), dtype=np.int64)

    def place(self, views: Views) -> tuple[Views, Judged]:
        """Some samples, and what is said of them."""
        judged: Judged = self._fitted.judge(self.filled.complete(views), self._alpha)
        inside = judged.labels[judged.labels != OUTLIER]
        self._sizes += np.bincount(inside, minlength=len(self._sizes))
        marks = {"uncertain": judged.uncertain, "outliers": judged.outlier, "out_of_range": judged.far}
        marks |= {"samples": np.ones_like(judged.labels), "novel": judged.novelty > USUAL}
        self.counts.update({name: int(one.sum()) for name, one in marks.items()})
        return views, judged

    def facts(self) -> dict[str, Any]:
        """In a form that JSON can hold, without what was filled."""
        return {**{name: self.counts[name] for name in _COUNTED}, "cluster_sizes": self._sizes.tolist()}


def predict_parts(fitted: Any, parts: Iterable[Views], out: Path, alpha: float) -> Placed:
    """Write the labels of samples, which come a few at a time, to the CSV file `out`, as a whole or not at all."""
    placed = Placed(fitted, alpha)
    write_predictions(out, map(placed.place, parts), fitted.cluster_names_)
    return placed


class ShardProgress:
    """Shows files of so many bytes, rows per second and the time left, which bytes say: rows are not known before."""

    def __init__(self, sizes: Sequence[int], *, shown: bool) -> None:
        form = "predicting {percentage:3.0f}%|{bar}| {desc}"
        hidden = not (shown and is_live())
        self._bar = tqdm(total=sum(sizes), disable=hidden, leave=False, delay=1e-9, bar_format=form)
        self._has_lines = shown and hidden
        self._n_files, self._n_bytes = len(sizes), sum(sizes)
        self._files = self._rows = self._bytes = 0
        self._began = self._shown_at = time.monotonic()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def advance(self, rows: int, n_bytes: int, files: int = 0) -> None:
        """So many more are done."""
        self._rows, self._bytes, self._files = self._rows + rows, self._bytes + n_bytes, self._files + files
        now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        left = tqdm.format_interval(round(seconds * (self._n_bytes - self._bytes) / max(self._bytes, 1)))
        done = f"{self._files} of {self._n_files} files, {self._rows:,} rows"
        line = f"{done}, {self._rows / seconds:,.0f} rows/s, {left} left"
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(n_bytes)
        if self._has_lines and now - self._shown_at >= _SECONDS_BETWEEN:
            self._shown_at = now
            tell(line)
