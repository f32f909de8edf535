"""`python -m benchmarks.experiments.launch NAME` runs a plan, or a part of it.

It needs none of the command line's packages, which a bare GPU machine lacks. Many processes can share a plan, each with
a folder of its own, as one set, one missing rate and one mask each; `benchmarks.experiments.merge` joins their results:

    python -m benchmarks.experiments.launch decisions --data-dir data --out runs/SET-RATE-MASK --data SET --rate RATE
        --mask MASK [--condition auto] [--method urrl] [--device cpu]
    python -m benchmarks.experiments.merge runs/*/decisions/results.csv --out merged
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.experiments.plans import ALL, METHODS, NAMES, SETTINGS, check_known, read_plan
from benchmarks.experiments.records import read_records, write_records
from benchmarks.experiments.runner import Log, SettingChoice, run_plan
from benchmarks.experiments.tables import write_tables
from viewfuse.errors import SettingError, ViewfuseError
from viewfuse.utils.jobs import chosen_device

RESULTS = "results.csv"


def bench(
    name: str | Path,
    data_dir: Path,
    out: Path,
    *,
    device: str = "auto",
    seeds: int | None = None,
    setting: str | None = None,
    methods: Sequence[str] = (),
    conditions: Sequence[str] = (),
    rates: Sequence[float] = (),
    masks: Sequence[int] = (),
    data: Sequence[str] = (),
    n_jobs: int | None = None,
    log: Log = print,
) -> Path:
    """Run a plan, or resume it; write its results and tables. Returns the folder of its runs.

    Parameters
    ----------
    name : of a plan, or a .toml file
    setting : "paper", "default" or "both"; None is what the plan says
    methods, conditions, data : only these
    rates, masks : missing rates, and seeds of masks and trainings, instead of those of the plan
    n_jobs : groups of runs side by side on a CPU, see `viewfuse.compare`
    """
    plan = read_plan(name)
    settings = SETTINGS if setting == "both" else (setting,) if setting else ()
    check_known("setting", settings, SETTINGS)
    check_known("method", methods, (*METHODS, ALL))
    check_known("condition", conditions, [one.name for one in plan.conditions])
    check_known("data set", data, plan.data)
    if seeds is not None and (seeds < 1 or masks):
        raise SettingError(f"seeds must be at least 1, and not be given beside masks; got {seeds}")
    part = {"settings": settings, "seeds": seeds, "methods": methods, "conditions": conditions, "rates": rates}
    chosen = chosen_device(device)
    choice = SettingChoice(data_dir, out, chosen, {**part, "masks": masks}, tuple(data), n_jobs)
    folder = run_plan(plan, choice, f"python -m benchmarks {plan.name} --device {chosen.type}", log)
    records = read_records(folder)
    write_records(folder / RESULTS, records)
    write_tables(folder / "tables", records)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """The thin command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.launch", description="Run a plan of the paper."
    )
    parser.add_argument("name", help=f"{', '.join(NAMES)}, or a .toml file")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--setting", choices=(*SETTINGS, "both"))
    parser.add_argument("--method", dest="methods", action="append", default=[], choices=(*METHODS, ALL))
    parser.add_argument("--condition", dest="conditions", action="append", default=[])
    parser.add_argument("--rate", dest="rates", type=float, action="append", default=[])
    parser.add_argument("--mask", dest="masks", type=int, action="append", default=[])
    parser.add_argument("--data", action="append", default=[], choices=tuple(CATALOGUE))
    parser.add_argument("--jobs", dest="n_jobs", type=int)
    asked = vars(parser.parse_args(arguments))
    try:
        bench(**asked, log=_log)
    except ViewfuseError as error:
        print(f"viewfuse: {error}", file=sys.stderr)
        return 2
    return 0


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
