"""Workers of torchrun are killed at random moments: a run ends with the labels of an unbroken one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sharded_data import rows, write_shards, written

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("VIEWFUSE_KILLS", "20"))
SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from sharded_data import quick_fit
from viewfuse import Config
quick_fit(sys.argv[1], sys.argv[2], batch_size=2 * Config.batch_size)
"""


def start(script, data, out):
    """Two workers, which are started again when one is lost."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=5", "--monitor-interval=0.1", str(script), str(data), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def workers(launcher):
    """The processes that the launcher started, where it still runs."""
    try:
        return [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
    except OSError:
        return []


def ended(launcher):
    _, told = launcher.communicate()
    assert launcher.returncode == 0, told[-3000:]


def test_labels_are_those_of_an_unbroken_run(tmp_path):
    script, rng = tmp_path / "worker.py", np.random.default_rng(0)
    script.write_text(SCRIPT)
    data = write_shards(tmp_path / "rows", rows()[0], 5)
    began = time.monotonic()
    ended(start(script, data, tmp_path / "unbroken"))
    lasts, expected = time.monotonic() - began, written(tmp_path / "unbroken")
    n_killed = attempt = 0
    while n_killed < KILLS:
        attempt += 1
        out = tmp_path / f"run{attempt}"
        launcher = start(script, data, out)
        time.sleep(float(rng.uniform(0.3, 1.0) * lasts))
        found = workers(launcher)
        if found:
            os.kill(found[int(rng.integers(len(found)))], signal.SIGKILL)
            n_killed += 1
        ended(launcher)
        assert written(out).equals(expected)
        assert not (out / "checkpoint").exists()
    print(f"fit-large: {n_killed} of {attempt} runs lost a worker")
