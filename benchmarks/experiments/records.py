"""Results of runs as one table, one row per run: all that tables are made of."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from benchmarks.experiments.run_folders import done_folders, read_facts
from viewfuse.errors import DataError
from viewfuse.io.formulas import as_csv, unmarked
from viewfuse.io.writers import as_json
from viewfuse.utils.atomic import write_file

METRICS = ("acc", "macro", "nmi", "ari")


Row = TypeVar("Row")


@dataclass(frozen=True)
class Record:
    """A run and its scores in percent.

    Attributes
    ----------
    setting, condition : may be empty
    seconds : those of the runs that were trained together, over their number
    settings : hyperparameters as JSON
    macro : accuracy in which each class counts alike; None for runs that did not write it down
    chosen_scaling : the one that was kept; empty for methods that choose none, and for runs that did not write it down
    by_views : of a set whose gaps are real, by number of views how many samples have so many and their accuracy, as
        JSON
    n_views : how many views the method was given; 0 for runs that did not write it down
    """

    plan: str
    dataset: str
    missing_rate: float
    seed: int
    method: str
    setting: str
    condition: str
    acc: float
    nmi: float
    ari: float
    seconds: float
    settings: str
    macro: float | None = None
    chosen_scaling: str = ""
    by_views: str = ""
    n_views: int = 0


@dataclass(frozen=True)
class Score:
    """Mean and standard deviation in percent; the latter is NaN where it is not known."""

    value: float
    sd: float = nan

    def __str__(self) -> str:
        return f"{self.value:.2f}" if isnan(self.sd) else f"{self.value:.2f} ± {self.sd:.2f}"


def scores(records: Sequence[Record]) -> dict[str, Score]:
    """Per metric that all runs have; the deviation is that of a sample, and not known of a single run."""
    return {metric: found for metric in METRICS if (found := score(records, metric)) is not None}


def score(records: Sequence[Record], metric: str) -> Score | None:
    """By one metric; None where a run did not write it down."""
    values = [getattr(record, metric) for record in records]
    return None if None in values else Score(mean(values), stdev(values) if len(values) > 1 else nan)


def read_records(path: Path) -> list[Record]:
    """From a folder of runs, in the order of their plans, or from a CSV file that `write_records` wrote."""
    if path.is_dir():
        facts = [read_facts(folder) for folder in done_folders(path)]
        facts.sort(key=lambda one: (one["plan"], one["place"]))
        found = [_from_facts(one) for one in facts]
    elif path.is_file():
        found = _from_csv(path)
    else:
        raise DataError(f"{path} is neither a folder of runs nor a CSV file; check the path")
    if not found:
        raise DataError(f"{path} holds no run that is done; run `python -m benchmarks` first")
    return found


def _from_facts(facts: Mapping[str, Any]) -> Record:
    given = facts["settings"] or facts.get("params")
    settings = "" if given is None else as_json(given)
    chosen = facts.get("decisions", {}).get("scaling", {}).get("chosen", "")
    by_views = as_json(facts["by_views"]) if "by_views" in facts else ""
    derived = {
        "settings": settings,
        "macro": facts.get("macro"),
        "chosen_scaling": chosen,
        "by_views": by_views,
        "n_views": facts.get("n_views", 0),
    }
    return Record(**{f.name: facts[f.name] for f in fields(Record) if f.name not in derived}, **derived)


def _from_csv(path: Path) -> list[Record]:
    kinds: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "float | None": _number_or_none}
    numbers = {f.name: kinds.get(str(f.type), str) for f in fields(Record)}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                {"macro": "", "chosen_scaling": "", "by_views": "", "n_views": 0, **row} for row in csv.DictReader(file)
            ]  # older files do without
        found = [Record(**{name: kind(unmarked(str(row[name]))) for name, kind in numbers.items()}) for row in rows]
    except (KeyError, ValueError, TypeError, AttributeError, UnicodeDecodeError) as error:
        columns = ", ".join(numbers)
        raise DataError(f"{path} is no table of runs ({error}); it needs the columns {columns}") from None
    for i, (before, record) in enumerate(pairwise(found), 1):
        if not record.settings and _kind(before) == _kind(record):
            found[i] = replace(record, settings=found[i - 1].settings)
    return found


def _number_or_none(text: str) -> float | None:
    return float(text) if text else None


def _kind(record: Record) -> tuple[str, ...]:
    """Runs that differ in nothing else have the same settings."""
    return record.plan, record.dataset, record.method, record.setting, record.condition


def write_records(path: Path, records: Sequence[Record]) -> None:
    """One line per run; settings are empty where they are those of the run before, as they are long."""
    pairs = zip(records, [None, *records], strict=False)
    records = [replace(own, settings="") if _is_repeated(own, before) else own for own, before in pairs]
    write_rows(path, Record, records)


def write_rows(path: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Write a CSV file with a line per object of a dataclass."""
    lines = [list(asdict(row).values()) for row in rows]
    write_file(path, as_csv([[one.name for one in fields(kind)], *lines]).encode())


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Read what `write_rows` wrote."""
    kinds = {one.name: {"float": float, "int": int}.get(str(one.type), str) for one in fields(kind)}  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8") as file:
        return [kind(**{name: kinds[name](cell) for name, cell in row.items()}) for row in csv.DictReader(file)]


def _is_repeated(record: Record, before: Record | None) -> bool:
    return before is not None and _kind(before) == _kind(record) and before.settings == record.settings
