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
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from viewfuse.data.filling import Filled
from viewfuse.data.views import Views
from viewfuse.errors import BadModelFile, CannotWrite, DataError
from viewfuse.fitted.manifest import MANIFEST, read_manifest
from viewfuse.fitted.novelty import USUAL
from viewfuse.io.readers import Reading, open_source
from viewfuse.io.safety import guarded
from viewfuse.io.source import ROWS_AT_A_TIME, FileSource, split_by_prefix
from viewfuse.io.writers import OUTLIER, Judged, as_json, write_predictions
from viewfuse.methods import load
from viewfuse.methods.trusting import ALPHA
from viewfuse.utils.atomic import exclusive, sealed, unsealed, write_file
from viewfuse.utils.console import is_live, tell
from viewfuse.utils.jobs import run_jobs, worker_count
from viewfuse.utils.version import __version__

_SECONDS_BETWEEN = 30.0
"""Between two lines about files, where there is no bar."""

DONE = "done"
"""The folder of records; a folder that has one was written here."""
_COUNTED = ("samples", "uncertain", "outliers", "out_of_range")
Found = dict[str, Any]
"""Counts of what was found in samples, in a form that JSON can hold."""
Advance = Callable[[int, int], None]
"""Called with how many more rows are done, and how many bytes of the file that is."""


@dataclass(frozen=True)
class ShardTask:
    """What is done with every shard.

    Attributes
    ----------
    mark : of the model, to know it again
    view : the name of the view where each file is one table that is not called like it
    reading : options of `read_views`
    """

    model: Path
    mark: str
    device: str = "auto"
    alpha: float = ALPHA
    view: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """All on which labels depend besides the samples."""
        reading = {name: value for name, value in self.reading.items() if name != "trusted"}
        known = {"model": self.mark, "alpha": self.alpha, "view": self.view, "reading": reading}
        return {**known, "version": __version__}

    def open(self, file: Path) -> FileSource:
        """The samples of one shard."""
        return open_source(file if self.view is None else {self.view: file}, Reading(**self.reading))


@dataclass(frozen=True)
class Shard:
    """One file as it was when it was listed, and the places of its labels and of their record."""

    file: Path
    n_bytes: int
    changed: int
    labels: Path
    record: Path

    def known(self, asked: ShardTask, trust: bool = False) -> Found | None:
        """What was found when the labels were written; None where they have to be written.

        With `trust` a file that was not written to since is taken for the same, else its content is compared.
        """
        try:
            record = unsealed(self.record.read_bytes())
            if record["of"] != self.facts(asked):
                return None
            is_same = (trust and record["changed"] == self.changed) or record["content"] == self.content()
            return record["found"] if is_same else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def model(self) -> str | None:
        """The mark of the model whose labels are recorded; None without a record."""
        try:
            return str(unsealed(self.record.read_bytes())["of"]["model"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def content(self) -> str:
        """A checksum of all bytes of the file."""
        with guarded(self.file), self.file.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]

    def facts(self, asked: ShardTask) -> dict[str, Any]:
        """What tells these labels from those of a longer file, of another model or other options, or from a part."""
        own = {"file": self.file.name, "bytes": self.n_bytes}
        return json.loads(as_json({**own, **asked.facts(), "bytes_of_labels": self.labels.stat().st_size}))


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
    with exclusive(out, patience=0):
        if not again and any(shard.model() not in (None, wanted.mark) for shard in shards):
            raise CannotWrite(f"{out} has labels of another model; give another folder, or --force to write all anew")
        asked_before = [] if again else [(shard, shard.known(wanted, trust_unchanged)) for shard in shards]
        known = {shard: found for shard, found in asked_before if found is not None}
        todo = [shard for shard in shards if shard not in known]
        began = time.monotonic()
        done = _predicted(wanted, todo, n_jobs, verbose)
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
        other = named.setdefault(file.stem.lower(), file)  # some systems take a and A for one name
        if other is not file:
            where = f"{out / file.stem}.csv"
            raise DataError(f"{other} and {file} would both be predicted into {where}; rename one, or use two folders")
        if Path(os.path.realpath(out)) in Path(os.path.realpath(file)).parents:
            raise CannotWrite(f"{out} holds {file}, which is read; give another folder for the labels")
        with guarded(file):
            facts = file.stat()
        labels, record = out / f"{file.stem}.csv", out / DONE / f"{file.stem}.json"
        shards.append(Shard(file.absolute(), facts.st_size, facts.st_mtime_ns, labels.absolute(), record.absolute()))
    return shards


def predict_shard(fitted: Any, asked: ShardTask, shard: Shard, advance: Advance = lambda rows, size: None) -> Found:
    """Write the labels of one shard, and then that they are there."""
    shard.record.unlink(missing_ok=True)  # whatever was there is true no longer
    content = shard.content()  # before it is read: a file that changes meanwhile is done again
    source = split_by_prefix(asked.open(shard.file), fitted.view_names_)

    def parts() -> Iterator[Views]:
        for views in source.chunks(ROWS_AT_A_TIME):
            yield views
            advance(len(views), round(shard.n_bytes * len(views) / len(source)))

    placed = predict_parts(fitted, parts(), shard.labels, asked.alpha)
    found = {**placed.facts(), "filled_cells": placed.filled.totals()}
    record = {"of": shard.facts(asked), "content": content, "changed": shard.changed, "found": found}
    write_file(shard.record, sealed(record))
    return found


def _loaded(model: Path, mark: str, device: str) -> Any:
    """The model, if it is still the same."""
    fitted = load(model, device=device)
    if model_mark(model) != mark:
        raise BadModelFile(f"{model} was replaced while its labels were written; begin again")
    return fitted


_loaded_once = lru_cache(maxsize=1)(_loaded)
"""A process keeps the model for its next shard."""


def _one_shard(asked: ShardTask, shard: Shard, advance: Advance = lambda rows, size: None) -> Found | DataError:
    """Predict a shard; what is wrong with one file does not stop the others, but a full disk does."""
    try:
        with guarded(shard.file):
            return predict_shard(_loaded_once(asked.model, asked.mark, asked.device), asked, shard, advance)
    except DataError as error:
        return error


def _predicted(asked: ShardTask, todo: Sequence[Shard], n_jobs: int | None, verbose: bool) -> list[Found]:
    """What was found in shards; an error at the end where some have no labels."""
    outcomes: list[Found | DataError] = []
    alone = worker_count(n_jobs) == 1 or len(todo) == 1
    try:
        with ShardProgress([shard.n_bytes for shard in todo], shown=verbose) as progress:

            def finish(place: int, outcome: Found | DataError) -> None:
                rows = 0 if isinstance(outcome, DataError) else outcome["samples"]
                progress.advance(*((0, 0) if alone else (rows, todo[place].n_bytes)), files=1)
                outcomes.append(outcome)

            jobs = [(asked, shard, progress.advance) if alone else (asked, shard) for shard in todo]
            run_jobs(_one_shard, jobs, n_jobs, threads=None, done=finish)
    except KeyboardInterrupt:
        so_far = f"{sum(not isinstance(one, DataError) for one in outcomes)} of {len(todo)} files were done"
        raise KeyboardInterrupt(f"interrupted; {so_far}; the same command resumes with the others") from None
    finally:
        _loaded_once.cache_clear()
    failed = [one for one in outcomes if isinstance(one, DataError)]
    if failed:
        count = f"{len(failed)} of {len(todo)} files {'has' if len(failed) == 1 else 'have'} no labels, the others have"
        if len(failed) == len(todo):
            count = f"none of {len(todo)} files has labels" if len(todo) > 1 else "the file that was left has no labels"
        raise DataError(f"{count}: {failed[0]}; then the same command resumes with what is left")
    return [one for one in outcomes if not isinstance(one, DataError)]


@dataclass
class Placed:
    """What was found in samples, all together.

    Attributes
    ----------
    cluster_sizes : int64 array of shape (clusters,)
    uncertain : samples that could be in more than one cluster
    outliers, novel : samples that lie far from all training samples, and farther than 95 % of these from each other
    out_of_range : samples far outside of what the model was fitted on
    """

    cluster_sizes: NDArray[np.int64]
    filled: Filled
    samples: int = 0
    uncertain: int = 0
    outliers: int = 0
    out_of_range: int = 0
    novel: int = 0

    def add(self, judged: Judged) -> None:
        """Count some more samples."""
        inside = judged.labels[judged.labels != OUTLIER]
        self.cluster_sizes += np.bincount(inside, minlength=len(self.cluster_sizes))
        self.samples += len(judged.labels)
        self.uncertain += int(judged.uncertain.sum())
        self.outliers += int(judged.outlier.sum())
        self.out_of_range += int(judged.far.sum())
        self.novel += int((judged.novelty > USUAL).sum())

    def facts(self) -> dict[str, Any]:
        """In a form that JSON can hold, without what was filled."""
        return {**{name: getattr(self, name) for name in _COUNTED}, "cluster_sizes": self.cluster_sizes.tolist()}


def predict_parts(fitted: Any, parts: Iterable[Views], out: Path, alpha: float) -> Placed:
    """Write the labels of samples to the CSV file `out`, as a whole or not at all.

    Parameters
    ----------
    fitted : a fitted estimator
    parts : samples, a few at a time
    alpha : see `MultiViewClusterer.uncertain`
    """
    placed = Placed(np.zeros(len(fitted.cluster_centers_), dtype=np.int64), Filled(fitted))

    def place(views: Views) -> tuple[Views, Judged]:
        judged = fitted.judge(placed.filled.complete(views), alpha)
        placed.add(judged)
        return views, judged

    write_predictions(out, map(place, parts), fitted.cluster_names_)
    return placed


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
