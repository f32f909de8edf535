"""Faults injected on purpose: `make faults`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from conftest import make_blobs
from viewfuse import URRL, Config
model = URRL(3, config=Config(pretrain_epochs=4, joint_epochs=4), random_state=0).fit(make_blobs(200, 3)[0])
print(hashlib.sha256(model.embedding_.tobytes() + model.labels_.tobytes()).hexdigest())
"""


@pytest.mark.fault
@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_two_processes_agree_to_the_bit(threads):
    command = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)]
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    found = {subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(5)}
    assert len(found) == 1
