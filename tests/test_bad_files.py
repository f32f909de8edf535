"""Every bad file of the corpus is answered by one line that names it; nothing runs, hangs or swells."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from bad_files.corpus import BAD, BOMBS
from viewfuse.cli import main

PEAK = """
import resource, sys
from click.testing import CliRunner
import h5py, numpy, pyarrow.parquet, scipy.io, scipy.sparse
try:
    import anndata.io
except ImportError:
    pass
from viewfuse.cli import inspect, main
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
codes = [CliRunner().invoke(main, ["inspect", path]).exit_code for path in sys.argv[1:]]
print(set(codes), peak() - before)
"""


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """The bombs, written once: they take seconds to pack."""
    folder = tmp_path_factory.mktemp("bombs")
    for name in BOMBS:
        BAD[name][0](folder / name)
    return folder


def test_the_corpus_is_large():
    assert len(BAD) >= 60
    assert len(BOMBS) >= 8


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_answered_in_one_line(name, tmp_path, bombs, monkeypatch):
    folder = bombs if name in BOMBS else tmp_path
    monkeypatch.chdir(folder)
    write, words = BAD[name]
    if name not in BOMBS:
        write(folder / name)
    before = sorted(folder.iterdir())
    result = CliRunner().invoke(main, ["inspect", name])
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    assert line.startswith("viewfuse: ")
    assert name in line
    assert words in line, line
    assert "; " in line  # what is wrong; what to do
    assert sorted(folder.iterdir()) == before  # no code ran, nothing was left behind


def test_bombs_take_little_memory(bombs):
    command = [sys.executable, "-c", PEAK, *(str(bombs / name) for name in BOMBS)]
    codes, swelled = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rsplit(" ", 1)
    assert codes == "{2}"
    assert int(swelled) <= 150
