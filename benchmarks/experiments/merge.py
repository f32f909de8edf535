"""`python -m benchmarks.experiments.merge PATH ... --out DIR` joins what several processes found in parts of a plan.

A path is a folder of runs or a results.csv. It writes results.csv and the tables, without figures, and needs no package
of the command line; `python -m benchmarks tables` takes the same paths and draws as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.experiments.launch import RESULTS
from benchmarks.experiments.plans import NAMES, read_plan
from benchmarks.experiments.records import Record, read_records, write_records
from benchmarks.experiments.tables import write_tables
from viewfuse.errors import ViewfuseError


def merged(paths: Sequence[Path]) -> list[Record]:
    """The runs of all paths, in the order of their plans; a run that is in several is taken from the last."""
    found = {_run_of(one): one for path in paths for one in read_records(path)}
    return sorted(found.values(), key=_place) if len(paths) > 1 else list(found.values())


def _run_of(one: Record) -> tuple[object, ...]:
    return one.plan, one.dataset, one.method, one.setting, one.condition, one.missing_rate, one.seed


def _place(one: Record) -> tuple[object, ...]:
    """As the package's plans have it; what they do not have stands at the end."""
    names = [(own.method, own.name) for own in read_plan(one.plan).conditions] if one.plan in NAMES else []
    return (
        one.plan,
        _index(list(CATALOGUE), one.dataset),
        _index(names, (one.method, one.condition)),
        one.setting,
        one.missing_rate,
        one.seed,
    )


def _index(known: Sequence[object], one: object) -> int:
    return known.index(one) if one in known else len(known)


def main(arguments: Sequence[str] | None = None) -> int:
    """The thin command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.merge", description="Join parts of a plan that were run apart."
    )
    parser.add_argument("paths", type=Path, nargs="+", help="folders of runs, or their results.csv")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    try:
        records = merged(asked.paths)
    except ViewfuseError as error:
        print(f"viewfuse: {error}", file=sys.stderr)
        return 2
    write_records(asked.out / RESULTS, records)
    write_tables(asked.out / "tables", records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
