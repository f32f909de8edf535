"""Puts one change after another into copies of the code, and says which ones the tests notice.

`kept` takes the defects that were written by hand, `random` draws changes: `make mutants`, `make mutants-random`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.defects import ROOT, Defect, all_defects
from mutants.mutations import Mutant, all_mutants, drawn, equivalents
from mutants.runner import Job, Outcome, copy_tree, preload, run_all
from mutants.selection import CACHE, Selection, measured

LEAST_KEPT, LEAST_RANDOM = 0.95, 0.85
"""Shares that must be noticed."""
MOST_SECONDS = 30.0
"""Of tests for a change drawn at random, measured on sound code."""


def cores() -> int:
    """How many processes can run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job(one: Defect | Mutant, selection: Selection) -> Job:
    """The tests that must notice a change, those first that run its lines."""
    text = (ROOT / one.path).read_text(encoding="utf-8")
    tests = _tests_of_defect(one, text, selection) if isinstance(one, Defect) else _tests_of_mutant(one, selection)
    seconds = {test: selection.seconds[test] for test in tests}
    return Job(tests, one.path, one.applied(text), seconds, limit=120.0 + 10 * sum(seconds.values()))


def _tests_of_mutant(one: Mutant, selection: Selection) -> tuple[str, ...]:
    about = f"{one.file} {one.place.where} {one.old}"
    return selection.ordered(selection.of_mutant(one), about, MOST_SECONDS)


def _tests_of_defect(one: Defect, text: str, selection: Selection) -> tuple[str, ...]:
    listed = selection.of_files(one.tests)
    first = text[: text.index(one.old)].count("\n") + 1
    covering = selection.of_lines(one.file, range(first, first + one.old.count("\n") + 1)) & listed
    found = selection.ordered(covering or listed, f"{one.file} {one.breaks} {one.old}", math.inf)
    if not found:
        raise SystemExit(f"no test passes without the defect: {' '.join(one.tests)}")
    return tuple(test for test in found if test in listed)


def run(changes: Sequence[Defect | Mutant], selection: Selection, trees: Sequence[Path]) -> list[Outcome]:
    """The outcome of each change."""
    found: dict[int, Outcome] = {}
    jobs = [job(one, selection) for one in changes]
    runnable = [number for number, one in enumerate(jobs) if one.tests]
    for place, outcome in run_all([jobs[number] for number in runnable], trees):
        number = runnable[place]
        found[number] = outcome
        word = "caught" if outcome.is_caught else "SURVIVED"
        print(f"{len(found):4} {word:8} {outcome.seconds:5.1f} s  {spoken(changes[number])}  {outcome.by}", flush=True)
    return [found.get(number, Outcome(False, "", 0.0, {})) for number in range(len(changes))]


def spoken(one: Defect | Mutant) -> str:
    """A change in one line."""
    if isinstance(one, Defect):
        return f"{one.file}: {one.breaks}"
    return f"{one.file}:{one.line}: {' '.join(one.old.split())} -> {' '.join(one.new.split())}"


def write_survivors(path: Path, changes: Sequence[Defect | Mutant], outcomes: Sequence[Outcome]) -> None:
    """List what survived, with the tests that did not notice."""
    survivors = [(one, found.passed) for one, found in zip(changes, outcomes, strict=True) if not found.is_caught]
    parts = ["\n".join([spoken(one), f"  was: {one.old}", f"  new: {one.new}", *passed]) for one, passed in survivors]
    path.write_text("\n\n".join(parts), encoding="utf-8")


def reasons(changes: Sequence[Defect | Mutant]) -> list[str]:
    """Why no test can notice each change; empty where one must."""
    known = equivalents()
    return [one.survives if isinstance(one, Defect) else known.get(one.key, "") for one in changes]


def verdict(
    changes: Sequence[Defect | Mutant], are_caught: Sequence[bool], why: Sequence[str], least: float
) -> tuple[str, bool]:
    """What is said at the end, and whether it is good enough.

    Parameters
    ----------
    why : per change why no test can notice it; empty where one must
    least : share of the changes without such a reason that must be caught
    """
    told = list(zip(changes, are_caught, why, strict=True))
    counted = [is_caught for _, is_caught, reason in told if is_caught or not reason]
    share = sum(counted) / max(1, len(counted))
    lines = [f"survived: {spoken(one)}" for one, is_caught, reason in told if not is_caught and not reason]
    stale = [
        f"caught after all, so its reason is wrong: {spoken(one)}" for one, caught, reason in told if caught and reason
    ]
    excused = len(told) - len(counted)
    lines.append(f"{sum(counted)} of {len(counted)} were caught ({share:.1%}); {excused} more cannot be noticed")
    return "\n".join([*lines, *stale]), share >= least and not stale


def main() -> int:
    """Run those that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("kept", "random"))
    parser.add_argument("--only", default="", help="changes in whose file or description this stands")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--count", type=int, default=300, help="how many are drawn")
    parser.add_argument("--jobs", type=int, default=cores(), help="how many at a time")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that no fork is left behind
    is_kept, began = asked.what == "kept", time.perf_counter()
    every = all_defects() if is_kept else drawn(all_mutants(), asked.count, asked.seed)
    changes = [one for one in every if asked.only in spoken(one)]
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(asked.jobs)]
        outcomes = run(changes, measured(trees), trees)
    write_survivors(CACHE / f"survivors-{asked.what}-{asked.seed}.txt", changes, outcomes)
    are_caught = [one.is_caught for one in outcomes]
    words, is_good = verdict(changes, are_caught, reasons(changes), LEAST_KEPT if is_kept else LEAST_RANDOM)
    print(words)
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
