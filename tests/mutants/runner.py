"""Runs tests in forks of a process that has imported what takes long, each in its own copy of the code."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutants.defects import ROOT

COPIED = (
    "src", "benchmarks", "tests", "docs", "results", "Makefile", "pyproject.toml", "requirements.lock", "CITATION.cff",
)  # fmt: skip
HEAVY = (
    "numpy", "scipy.stats", "scipy.sparse.linalg", "scipy.spatial", "scipy.optimize", "sklearn.cluster",
    "sklearn.manifold", "sklearn.metrics", "sklearn.utils.estimator_checks", "torch", "torch.distributed",
    "torch.func", "torch.utils.data", "pandas", "pyarrow.parquet", "h5py", "faiss", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "hypothesis.strategies", "hypothesis.extra.numpy", "click.testing", "fastapi",
    "safetensors.torch", "tqdm", "anndata", "mudata", "scipy.cluster.hierarchy", "uvicorn", "threadpoolctl",
    "coverage",
)  # fmt: skip
"""What takes seconds to import; nothing of the package, whose code differs from run to run."""
NO_TESTS = 5
"""What pytest ends with where it has nothing to run: all tests of a file may be slow ones."""
CAUGHT_CODES = (1, 2)
"""What pytest ends with where a test failed, and where a module could not even be imported."""


@dataclass(frozen=True)
class Job:
    """Tests to run on a changed file.

    Attributes
    ----------
    tests : names of files or of single tests, in the order in which they run
    path, text : the file from the root, and what it holds instead
    seconds : what each test takes on sound code; one that takes far longer fails
    limit : seconds for all
    coverage : where to write which lines ran, if anywhere
    """

    tests: tuple[str, ...]
    path: Path | None = None
    text: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    limit: float = 600.0
    coverage: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes
    ----------
    is_caught : whether a test failed or took too long
    by : the test
    seconds : how long the job took
    passed : processor seconds of each test that passed
    """

    is_caught: bool
    by: str
    seconds: float
    passed: dict[str, float]


class Watch:
    """A plugin of pytest: keeps the order, limits each test, and notes what passed, failed and ran.

    Limits and costs are in processor seconds, which are about the same on a busy machine.
    """

    def __init__(self, job: Job, coverage: Any) -> None:
        self._rank = {name: place for place, name in enumerate(job.tests)}
        self._job, self._coverage = job, coverage
        signal.signal(signal.SIGPROF, lambda *_: pytest.fail("takes far longer than on sound code"))
        self.passed: dict[str, float] = {}
        self.failed, self._began = "", 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out and sort, unless whole files were asked for."""
        if any("::" in name for name in self._rank):
            items[:] = sorted(
                (one for one in items if one.nodeid in self._rank), key=lambda one: self._rank[one.nodeid]
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Lines that run from now on belong to this test."""
        self._began = _processor_seconds()
        signal.setitimer(signal.ITIMER_PROF, 10 + 5 * self._job.seconds.get(nodeid, 100.0))
        if self._coverage:
            self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first failure; a test that was skipped tells nothing."""
        if report.failed:
            self.failed = self.failed or report.nodeid
        elif report.when == "call" and not report.skipped:
            self.passed[report.nodeid] = 0.0

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note what a test took."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        if nodeid in self.passed:
            self.passed[nodeid] = _processor_seconds() - self._began


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def copy_tree(target: Path) -> Path:
    """A copy of what the tests need; beside it the folder of real data and golden numbers, where there is one."""
    beside = ROOT.parent / "shared"
    if beside.is_dir() and not (target.parent / "shared").exists():
        target.parent.mkdir(exist_ok=True)
        (target.parent / "shared").symlink_to(beside)
    for source in [*(ROOT / name for name in COPIED), *ROOT.glob("*.md")]:
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, target / source.name)
    return target


def preload() -> None:
    """Import what takes long, so that forks need not."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


def run_all(jobs: Sequence[Job], trees: Sequence[Path]) -> Iterator[tuple[int, Outcome]]:
    """The number and the outcome of each job, as they end; as many run at a time as there are copies."""
    waiting, running, free = list(enumerate(jobs))[::-1], dict[int, _Run](), list(trees)
    try:
        yield from _run_all(waiting, running, free)
    finally:
        for left in running.values():
            left.end()


def _run_all(
    waiting: list[tuple[int, Job]], running: dict[int, _Run], free: list[Path]
) -> Iterator[tuple[int, Outcome]]:
    while waiting or running:
        while waiting and free:
            run = _Run(*waiting.pop(), free.pop())
            running[run.pid] = run
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.02)
            for late in running.values():
                late.end_if_late()
        elif pid in running:
            run = running.pop(pid)
            free.append(run.tree)
            yield run.number, run.outcome(os.waitstatus_to_exitcode(status))


class _Run:
    """A job in a fork."""

    def __init__(self, number: int, job: Job, tree: Path) -> None:
        self.number, self._job, self.tree, self._began = number, job, tree, time.perf_counter()
        self._notes, self._saved = tree.with_suffix(".json"), tree.with_suffix(".sound")
        self._notes.unlink(missing_ok=True)
        self._put()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _run_tests(job, tree, self._notes)

    def _put(self) -> None:
        """Change the file; its age tells Python that the compiled one is another."""
        if self._job.path:
            path = self.tree / self._job.path
            shutil.copy2(path, self._saved)
            path.write_text(self._job.text, encoding="utf-8")
            os.utime(path, (1, 1))

    def end(self) -> None:
        """End it, and what its tests started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end_if_late(self) -> None:
        if time.perf_counter() - self._began > self._job.limit:
            self.end()

    def outcome(self, code: int) -> Outcome:
        self.end()
        if self._job.path:
            shutil.copy2(self._saved, self.tree / self._job.path)
        is_empty = code == NO_TESTS and not self._job.path
        if code > 0 and code not in CAUGHT_CODES and not is_empty:
            log = self.tree.with_suffix(".log").read_text(errors="replace")
            raise SystemExit(f"pytest ended with {code}: {' '.join(self._job.tests)}\n{log[-3000:]}")
        notes: Any = json.loads(self._notes.read_text()) if self._notes.exists() else {"passed": {}, "failed": ""}
        is_caught = code != 0 and not is_empty
        by = notes["failed"] or ("a module that cannot be imported" if code > 0 else "a crash or the time limit")
        return Outcome(is_caught, by if is_caught else "", time.perf_counter() - self._began, notes["passed"])


def _run_tests(job: Job, tree: Path, notes: Path) -> None:
    """Run pytest in this process, and end it."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background
        log = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = _pytest(job, tree, notes)
    except BaseException:  # this process must not go on as its parent would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pytest(job: Job, tree: Path, notes: Path) -> int:
    """Compiled files are written on sound code only, and read by all."""
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree), str(tree / "tests")]
    for name in [name for name in sys.modules if name.split(".")[0] in ("benchmarks", "mutants", "viewfuse")]:
        del sys.modules[name]
    sys.dont_write_bytecode = job.path is not None
    own = {"PYTHONPATH": f"{tree / 'src'}", "PYTHONDONTWRITEBYTECODE": "1" if job.path else ""}
    os.environ.update(own)
    coverage = _coverage(job.coverage)
    watch = Watch(job, coverage)
    files = list(dict.fromkeys(name.partition("::")[0] for name in job.tests))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tree.with_suffix('.tmp')}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # that hypothesis is imported already
    code = pytest.main([*options, *(["-x"] if job.path else []), *files], plugins=[watch])
    if coverage:
        coverage.stop()
        coverage.save()
    notes.write_text(json.dumps({"passed": watch.passed, "failed": watch.failed}))
    return int(code)


def _coverage(path: Path | None) -> Any:
    """What notes the lines that run, already started."""
    if path is None:
        return None
    from coverage import Coverage

    found = Coverage(data_file=str(path), source=["src/viewfuse"], config_file=False)
    found.set_option("run:relative_files", True)
    found.start()
    return found
