"""Every bad file of the corpus is answered by one line that names it; nothing runs, hangs or swells."""

from __future__ import annotations

import lzma
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from bad_files.corpus import BAD, BOMBS
from bad_files.traps import found_files
from viewfuse.cli import main
from viewfuse.io.isolated import jobs, process

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
codes = [CliRunner().invoke(main, ["inspect", "--trusted", path]).exit_code for path in sys.argv[1:]]
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
    assert len(BAD) >= 150
    assert len(BOMBS) >= 20
    assert len(found_files()) >= 19


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_answered_in_one_line(name, tmp_path, bombs, monkeypatch):
    folder = bombs if name in BOMBS else tmp_path
    monkeypatch.chdir(folder)
    if name.startswith("one_long_"):  # what fills the memory is ended the sooner
        monkeypatch.setattr(jobs, "_MEMORY", 2**26)
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


@pytest.mark.slow
def test_bombs_take_little_memory(bombs):
    command = [sys.executable, "-c", PEAK, *(str(bombs / name) for name in BOMBS)]
    codes, swelled = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rsplit(" ", 1)
    assert codes == "{2}"
    assert int(swelled) <= 150


def answer(path, folder, monkeypatch) -> str:
    """What is said about a file that was found by `make fuzz`."""
    monkeypatch.chdir(folder)
    (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    result = CliRunner().invoke(main, ["inspect", path.stem])
    assert result.exit_code in (0, 2), result.output  # other versions of a library may well read it
    (line, *_) = result.output.splitlines()
    return line


@pytest.mark.skipif(not process.POSSIBLE, reason="on this system files are read in place")
@pytest.mark.parametrize("path", [path for path in found_files() if ".h5" not in path.name], ids=lambda path: path.stem)
def test_what_crashed_a_library_is_one_line(path, tmp_path, monkeypatch):
    line = answer(path, tmp_path, monkeypatch)
    assert "crash, SIG" in line or "is no readable" in line


@pytest.mark.slow
@pytest.mark.skipif(not process.POSSIBLE, reason="on this system files are read in place")
def test_what_never_ends_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_SECONDS", 1)
    path = next(path for path in found_files() if ".h5ad" in path.name)
    assert "was not read in 1 s of computing" in answer(path, tmp_path, monkeypatch)


@pytest.mark.fault
@pytest.mark.skipif(not process.POSSIBLE, reason="on this system files are read in place")
@pytest.mark.parametrize("path", found_files(), ids=lambda path: path.stem)
def test_everything_that_was_found_is_answered_in_five_seconds(path, tmp_path, monkeypatch):
    process.start([".h5ad", ".parquet", ".mat"])
    began = time.monotonic()
    answer(path, tmp_path, monkeypatch)
    assert time.monotonic() - began <= 5
