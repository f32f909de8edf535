"""Puts one defect after another into copies of the code, and tells which ones the tests notice: `make mutants`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.defects import ROOT, Defect, all_defects

LEAST_SHARE = 0.95
"""Of the defects that must be noticed."""
COPIED = ("src", "tests", "pyproject.toml")
FAILED = 1
"""What pytest ends with where a test failed; 2 where a module could not even be imported."""


def cores() -> int:
    """How many processes can run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def copy_tree(target: Path) -> Path:
    """A copy of what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target / name)
    return target


def environment(tree: Path) -> dict[str, str]:
    """In which Python finds the copy, and leaves no compiled files that would outlive a defect."""
    own = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def run_tests(tree: Path, tests: Sequence[str], limit: float, output: int | None = subprocess.DEVNULL) -> int | None:
    """What pytest ends with; None where it takes too long."""
    names = [f"tests/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *names]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def outcome(tree: Path, defect: Defect, limit: float) -> str:
    """Whether a defect was "caught", "timed out" or "survived"."""
    path = tree / defect.path
    sound = path.read_text(encoding="utf-8")
    path.write_text(defect.applied(sound), encoding="utf-8")
    try:
        code = run_tests(tree, defect.tests, limit)
    finally:
        path.write_text(sound, encoding="utf-8")
    if code not in (None, 0, FAILED, 2):
        raise SystemExit(f"pytest ended with {code}: {' '.join(defect.tests)}")
    return {None: "timed out", 0: "survived"}.get(code, "caught")


def check_sound(tree: Path, defects: Sequence[Defect]) -> None:
    """Stop unless the copy is what is tested, and passes without a defect."""
    command = [sys.executable, "-c", "import viewfuse; print(viewfuse.__file__)"]
    found = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_relative_to(tree):
        raise SystemExit(f"the tests would test {found.strip()}")
    if code := run_tests(tree, sorted({test for one in defects for test in one.tests}), 3600, None):
        raise SystemExit(f"pytest ends with {code} without any defect; run the tests first")


def run_all(defects: Sequence[Defect], trees: Sequence[Path], limit: float) -> list[str]:
    """The outcome of each defect; as many run at a time as there are copies."""
    free: Queue[Path] = Queue()
    for tree in trees:
        free.put(tree)

    def one(defect: Defect) -> str:
        tree, began = free.get(), time.perf_counter()
        try:
            found = outcome(tree, defect, limit)
        finally:
            free.put(tree)
        print(f"{found:9} {time.perf_counter() - began:5.1f} s  {defect.file}: {defect.breaks}", flush=True)
        return found

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, defects))


def verdict(defects: Sequence[Defect], outcomes: Sequence[str]) -> tuple[str, bool]:
    """What is said at the end, and whether it is good enough."""
    missed = [one for one, found in zip(defects, outcomes, strict=True) if found == "survived"]
    share = 1 - len(missed) / len(defects)
    lines = [f"{len(defects) - len(missed)} of {len(defects)} defects were caught ({share:.1%})"]
    lines += [f"survived: {one.file}: {one.breaks}: {one.survives or 'NO REASON GIVEN'}" for one in missed]
    stale = [one for one in defects if one.survives and one not in missed]
    lines += [f"caught after all, so its reason is wrong: {one.file}: {one.breaks}" for one in stale]
    return "\n".join(lines), share >= LEAST_SHARE and all(one.survives for one in missed) and not stale


def main() -> int:
    """Run those that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="defects in whose file or description this stands")
    parser.add_argument("--jobs", type=int, default=cores(), help="how many at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each")
    asked = parser.parse_args()
    defects = [one for one in all_defects() if asked.only in f"{one.file}: {one.breaks}"]
    for one in all_defects():
        one.applied((ROOT / one.path).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(asked.jobs)]
        check_sound(trees[0], defects)
        words, is_good = verdict(defects, run_all(defects, trees, asked.limit))
    print(words)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
