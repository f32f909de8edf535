"""Real limits on memory: whatever is asked for, the answer is a result, or one error that says so, and Python lives."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
import warnings
from multiprocessing import Pipe, get_context
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from viewfuse import URRL
from viewfuse.cli import main
from viewfuse.errors import NotEnoughMemory
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.network import fit_bytes
from viewfuse.utils import memory
from viewfuse.utils.memory import memory_errors

SHAPES = {
    (200, (10, 10)): 69, (500, (50,) * 6): 116, (1_000, (1_000, 500)): 306, (2_000, (1_000, 500)): 334,
    (2_000, (76, 216, 64)): 143, (300, (2_000,)): 699, (3_000, (20,)): 109, (10_000, (200, 100)): 164,
    (20_000, (30, 20)): 347, (20_000, (300,)): 245, (12_000, (30, 20)): 144,
}  # fmt: skip
"""Megabytes that a fit took after its memory had been estimated, by samples and columns: the most of two to three runs
with one and two threads, three scalings, one epoch of each stage (none from 10,000 samples on)."""


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_is_not_below_what_was_taken(shape):
    n, widths = shape
    assert fit_bytes(n, widths, Config(), n_waiting=2) >= 0.9e6 * SHAPES[shape]


def limited_call(n, widths, extra, call, said):
    """Ask a fitted model for something with `extra` megabytes more than there are; `said` is told what came of it."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(n, width)) + 5.0 * (np.arange(n) % 3)[:, None] for width in widths]
    quick = {
        "config": Config(pretrain_epochs=1, joint_epochs=1),
        "scaling": "standard",
        "reduction": "none",
        "device": "cpu",
    }
    model = URRL(3, **quick, random_state=0).fit([view[:60] for view in views])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        model.fit(views) if call == "fit" else getattr(model, call)(views)
        answer = "done"
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        answer = f"{type(error).__name__} {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    said.send((answer, call == "fit" or model.predict([view[:5] for view in views]).shape == (5,)))


def asked(*args):
    """What a process says that may have little more memory than it has: a fork, which has nothing to import."""
    ours, theirs = Pipe(duplex=False)
    process = get_context("fork").Process(target=limited_call, args=(*args, theirs))
    process.start()
    theirs.close()
    answer, lives = ours.recv()
    process.join()
    assert lives
    return answer


def check(said):
    assert said == "done" or said.startswith("NotEnoughMemory "), said
    assert "\n" not in said
    if said != "done":
        assert "are free" in said
        assert ";" in said, "the cure"


def test_a_fit_without_memory_says_so_in_one_line():
    check(asked(400, [300, 200], 12, "fit"))


@pytest.mark.fault
@pytest.mark.parametrize("extra", [2, 12, 40, 100, 200, 400])
@pytest.mark.parametrize(
    ("n", "widths", "call"),
    [(3000, [200, 100], "fit"), (300, [1500], "fit"), (20_000, [40, 40], "predict"), (20_000, [300], "impute"),
     (5_000, [60, 40], "explain")],
)  # fmt: skip
def test_limits_are_answered_in_one_line(n, widths, call, extra):
    check(asked(n, widths, extra, call))


@pytest.mark.fault
@pytest.mark.parametrize("extra", [50, 300, 500, 900, 1200, 1800])
def test_the_command_line_answers_limits_in_one_line(tmp_path, extra):
    """From a limit under which not even torch can be imported."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", a=rng.normal(size=(2000, 300)), b=rng.normal(size=(2000, 200)))
    words = ["fit", str(tmp_path / "data.npz"), "--clusters", "3", "--pretrain-epochs", "1", "--joint-epochs", "1",
             "--scaling", "standard", "--trusted", "--out", str(tmp_path / "run")]  # fmt: skip
    program = (
        "import resource, sys; from viewfuse.cli import main; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({extra} * 10**6,) * 2); main({words!r})"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=280)
    if said.returncode != 0:
        assert said.returncode == 2, said.stderr[-2000:]
        last = said.stderr.strip().splitlines()[-1]
        assert last.startswith("viewfuse: ")
        assert "Traceback" not in said.stderr
        assert "memory" in last or "bytes" in last, last
        assert not (tmp_path / "run").exists()


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 7 GiB for an array"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nMore words"),
        OSError(12, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_every_library_that_runs_out_of_memory_is_understood(error):
    words = r"there is not enough memory, [\d,]+ bytes are free \(.*\); use"
    with pytest.raises(NotEnoughMemory, match=words) as said, memory_errors():
        raise error
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory"), NotEnoughMemory("mine")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as said, memory_errors():
        raise error
    assert said.value is error


def test_every_public_method_answers_a_lack_of_memory_in_one_line():
    class Full(URRL):
        def anything(self):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with pytest.raises(NotEnoughMemory, match="are free"):
        Full(3).anything()
    for name in ("fit", "predict", "judge", "update", "drift", "novelty", "predict_set", "uncertain", "save"):
        assert hasattr(getattr(URRL, name), "__wrapped__"), name


def test_a_limit_under_which_libraries_end_the_process_is_refused_before_they_are_loaded(monkeypatch):
    monkeypatch.setattr(memory, "_left_to_process", lambda: 10**9 - 1)
    said = CliRunner().invoke(main, ["inspect", "nowhere.npz"])
    assert said.exit_code == 2
    assert "needs 1,000,000,000 bytes of address space, but only 999,999,999 are free; raise the limit" in said.output
    monkeypatch.setattr(memory, "_left_to_process", lambda: 10**9)
    assert "address space" not in CliRunner().invoke(main, ["inspect", "nowhere.npz"]).output
