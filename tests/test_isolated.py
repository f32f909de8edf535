"""Files that native libraries read are read by another process, whose end is one line in this one."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from fuzz.seeds import write_seeds
from viewfuse import DataError, NotEnoughMemory, SuspiciousDataWarning, read_chunks, read_views
from viewfuse.io import safety as spool
from viewfuse.io import writers
from viewfuse.io.isolated import client, jobs, process, server
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.isolated.process import ENDINGS
from viewfuse.io.readers import Reading, open_source
from viewfuse.io.safety import guarded
from viewfuse.io.source import Contents, FileView
from viewfuse.utils.settings import Advice, Setting

pytestmark = pytest.mark.skipif(not process.POSSIBLE, reason="this system cannot pass files between processes")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return write_seeds(tmp_path_factory.mktemp("seeds"))


def opened(path: Path, trusted: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata
        return open_source(path, Reading(trusted=trusted))


def test_what_another_process_reads_is_the_same_to_the_bit(seeds):
    assert {path.suffix for path in seeds} >= set(ENDINGS)
    for path in seeds:
        ours, theirs = opened(path, trusted=True), opened(path, trusted=False)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.ids.dtype == theirs.ids.dtype
        for one, other in zip(ours.views, theirs.views, strict=True):
            assert (one.name, one.columns, one.ids, one.path) == (other.name, other.columns, other.ids, other.path)
            assert one.values.dtype == other.values.dtype
            assert sparse.issparse(one.values) == sparse.issparse(other.values)
            a, b = (v.toarray() if sparse.issparse(v) else v for v in (one.values, other.values))
            assert np.array_equal(a, b)
            assert sparse.issparse(one.values) or one.values.flags.writeable == other.values.flags.writeable


def test_nothing_is_imported_here_and_chunks_go_the_same_way(seeds):
    (path,) = [path for path in seeds if path.name == "table.parquet"]
    asked: list[ReadJob] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.io.readers.parse", lambda job: pytest.fail("it was read in this process"))
        patch.setattr(client, "read_isolated", lambda job, real=client.read_isolated: asked.append(job) or real(job))
        parts = list(read_chunks(path, 5))
    assert [len(part) for part in parts] == [5, 5, 2]
    assert len(asked) == 1


def test_results_are_written_into_files_by_the_other_process(seeds, tmp_path, monkeypatch):
    path = next(path for path in seeds if path.suffix == ".h5ad")
    ids = opened(path, False).ids
    sure, embedding = np.eye(len(ids), 2, dtype=np.float32), np.ones((len(ids), 3), dtype=np.float32)
    results = writers.Results(ids, sure, embedding, sure.argmax(axis=1))
    writers.write_annotated(path, tmp_path / "here.h5ad", results, trusted=True)
    monkeypatch.setattr(writers, "annotate_copy", lambda job: pytest.fail("it was opened in this process"))
    writers.write_annotated(path, tmp_path / "there.h5ad", results)
    assert (tmp_path / "there.h5ad").read_bytes() == (tmp_path / "here.h5ad").read_bytes()
    damaged = tmp_path / "damaged.h5ad"
    damaged.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"damaged\.h5ad is no readable \.h5ad file"):
        writers.write_annotated(damaged, tmp_path / "there.h5ad", results)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged.h5ad", "here.h5ad", "there.h5ad"]


@pytest.mark.usefixtures("_forked")
def test_a_table_on_disk_travels_though_it_is_forgotten_there(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(spool, "_IN_MEMORY", 100)
    lists, columns = {"x": [[1.0] * 9, [2.0] * 9]}, {f"x{c}": [1.0, 2.0] for c in range(9)}
    for table in (lists, columns):
        pq.write_table(pa.table({"id": ["a", "b"], **table}), tmp_path / "a.parquet")
        (view,) = open_source(tmp_path / "a.parquet").views
        assert isinstance(view.values, spool.OnDisk)
        assert view.values.tolist() == [[1.0] * 9, [2.0] * 9]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, r"is no readable \.npz file \(it made the library .* crash, SIGSEGV\); write it again"),
        pytest.param(signal.SIGABRT, "crash, SIGABRT", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "crash, SIGKILL", marks=pytest.mark.slow),
        (signal.SIGXCPU, r"was not read in 2 s of computing.* or if it is in order, trusted=True"),
        (signal.SIGALRM, "was not read in 2 s"),
        (None, "crash, without a signal"),
    ],
)
@pytest.mark.usefixtures("_forked")
def test_the_end_of_a_reader_is_one_line(tmp_path, number, words, monkeypatch):
    """A server in this process whose readers come to an end."""
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    monkeypatch.setattr(server, "parse", lambda job: os._exit(1) if number is None else os.kill(os.getpid(), number))
    with pytest.raises(DataError, match=rf"a\.npz.*{words}"):
        read_views(tmp_path / "a.npz")


@pytest.fixture
def _forked(monkeypatch):
    """Files are read by processes that are forked from this one as it is, monkeypatches and all."""
    monkeypatch.setattr(process, "_server", None)  # the usual one waits: it takes a second to start
    monkeypatch.setattr(process, "_started", forked_server)
    yield
    process.stop()


def forked_server(soon):
    """A server that is this process as it is now, monkeypatches and all."""
    control, theirs = socket.socketpair()
    with theirs:
        pid = os.fork()
        if not pid:
            control.close()
            os.setsid()  # as a server that is a program of its own
            faulthandler.disable()  # what is done here on purpose is no news
            try:
                server.main(theirs.fileno())
            finally:
                os._exit(0)
    ended = []

    def wait(seconds=None):
        ended.append(ended[0] if ended else os.waitpid(pid, 0)[1])

    return control, SimpleNamespace(
        wait=wait, kill=lambda: os.kill(pid, signal.SIGKILL), poll=lambda: ended[0] if ended else None
    )


@pytest.mark.usefixtures("_forked")
def test_real_limits_end_a_reader(tmp_path, monkeypatch):
    def swell(job):
        with guarded(job.path):
            return bytearray(3 * 2**30)

    def hang(job):
        while True:
            pass

    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    monkeypatch.setattr(jobs, "_SECONDS", 1)
    monkeypatch.setattr(process, "_started", forked_server)
    for fault, error, words in (
        (swell, NotEnoughMemory, "trusted=True reads it without limits"),
        (hang, DataError, "1 s of computing"),
    ):
        process.stop()
        monkeypatch.setattr(server, "parse", fault)
        began = time.monotonic()
        with pytest.raises(error, match=words):
            read_views(tmp_path / "a.npz")
        assert time.monotonic() - began < 20


def test_warnings_come_along(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a"], "e": [[1.0, 2.0]], "price": [3.0]}), tmp_path / "a.parquet")
    with pytest.warns(SuspiciousDataWarning, match="1 column") as noticed:
        read_views(tmp_path / "a.parquet")
    assert noticed[0].filename == __file__


@pytest.mark.usefixtures("_forked")
def test_a_server_that_has_gone_is_started_again(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    read_views(tmp_path / "a.npz")
    process._server[1].kill()
    process._server[1].wait()
    assert read_views(tmp_path / "a.npz").widths == (2,)


@pytest.mark.usefixtures("_forked")
def test_nobody_works_on_when_somebody_waits_no_longer(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    read_views(tmp_path / "a.npz")
    reader = process._server[1]
    monkeypatch.setattr(client, "limits_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        read_views(tmp_path / "a.npz")
    assert process._server is None
    assert reader.poll() is not None


def test_threads_and_forked_processes_read_too(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    read_views(tmp_path / "a.npz")
    found: list[tuple[int, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(read_views(tmp_path / "a.npz").widths)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [(2,)] * 4
    pid = os.fork()
    if not pid:
        os._exit(read_views(tmp_path / "a.npz").widths != (2,))
    assert os.waitpid(pid, 0)[1] == 0
    assert read_views(tmp_path / "a.npz").widths == (2,)


def test_odd_names_and_folders(tmp_path, monkeypatch):
    odd = os.fsdecode(b"\xff\xfe name.npz")
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    try:
        (tmp_path / "a.npz").rename(tmp_path / odd)
    except OSError:
        pytest.skip("this file system has no such names")
    monkeypatch.chdir(tmp_path)
    assert read_views(odd).widths == (2,)


@pytest.mark.usefixtures("_forked")
def test_what_does_not_fit_together_is_the_files_fault(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.touch()
    broken = sparse.csr_array(np.ones((3, 2)))
    broken.data = broken.data[:-1]
    contents = Contents([FileView(path, "a", broken, range(2), ["x", "y", "z"])])
    monkeypatch.setattr(server, "parse", lambda job: contents)
    with pytest.raises(DataError, match=r"a\.parquet is no readable \.parquet file \(indices and data should have"):
        read_views(path)


@pytest.mark.parametrize(
    ("was", "lie"),
    [("<f8", "|O8"), ("(2, 2)", "(2, 2**40)"), ("(2, 2)", "(-1, 2)"), ("(2, 2)", f"(2, {2**40})"), ("<f8", "|V999")],
)
def test_what_comes_back_is_checked(was, lie):
    with jobs.new_file() as file:
        start, files = jobs.pack(file, {"found": np.ones((2, 2))})
        assert jobs.unpack(files, start)["found"].tolist() == [[1, 1], [1, 1]]
        header = os.pread(file.fileno(), 128, 0)
        os.pwrite(file.fileno(), header.replace(was.encode(), lie.encode())[:127] + b"\n", 0)
        with pytest.raises((DataError, ValueError, TypeError)):
            jobs.unpack(files, start)


def test_an_array_that_is_said_to_lie_elsewhere_is_refused():
    with jobs.new_file() as file:
        start, _ = jobs.pack(file, {"found": {"\0kind": "array", "start": 2**40}})
        with pytest.raises((DataError, ValueError)):
            jobs.unpack([file.fileno()], start)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (5,), ()])
def test_arrays_of_any_shape_and_order_come_back(order, shape):
    given = np.asarray(np.arange(np.prod(shape)).reshape(shape), order=order)
    several = {"first": np.array(["a", "bc"]), "given": given, "part": np.eye(4)[::2, 1:3], "empty": np.array([""])}
    with jobs.new_file() as file:
        start, files = jobs.pack(file, several)
        found = jobs.unpack(files, start)
    for name, array in several.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].ctypes.data % 8 == 0


def test_messages_arrive_in_parts_and_values_as_they_were():
    parts = ("use ", Setting("blocks", {"dtype": "start"}), Advice((" or ", Setting("header"))))
    view = FileView(Path("x"), "x", sparse.csr_array(np.eye(2)), ["a", 2], ["p", None])
    with jobs.new_file() as file:
        start, _ = jobs.pack(file, {"error": ["DataError", parts], "contents": view})
        facts = jobs.unpack([file.fileno()], start)
    error = client._message(*facts["error"])
    assert (type(error), error.parts) == (DataError, parts)
    found = facts["contents"]
    assert found["values"].toarray().tolist() == [[1, 0], [0, 1]]
    assert (found["columns"], found["ids"]) == (["a", 2], ["p", None])


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_the_command_line_says_what_it_can_do_without_numpy(words):
    code = "import sys; from viewfuse.cli import main; main(sys.argv[1:], standalone_mode=False)"
    code += "; sys.exit(bool({'numpy', 'pandas', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code, words], capture_output=True, check=False).returncode == 0


def test_a_reader_is_held_to_every_limit(monkeypatch):
    """Those that are lower already stay, and hard ones always do; time is that of the clock, too."""
    import resource as real

    none, asked = real.RLIM_INFINITY, {}
    before = {real.RLIMIT_AS: (none, none), real.RLIMIT_FSIZE: (50, 400), real.RLIMIT_CORE: (none, 9),
              real.RLIMIT_CPU: (none, 3)}  # fmt: skip
    monkeypatch.setattr(real, "getrlimit", before.__getitem__)
    monkeypatch.setattr(real, "setrlimit", asked.__setitem__)
    monkeypatch.setattr(real, "getpagesize", lambda: 0)
    monkeypatch.setattr(signal, "signal", lambda number, how: asked.setdefault("signals", []).append((number, how)))
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: asked.setdefault("timer", (which, seconds)))
    jobs.impose(jobs.ReadingLimits(100, 7, 11))
    assert asked == {
        real.RLIMIT_AS: (100, none), real.RLIMIT_FSIZE: (50, 400), real.RLIMIT_CORE: (0, 9), real.RLIMIT_CPU: (3, 3),
        "signals": [(signal.SIGALRM, signal.SIG_DFL)], "timer": (signal.ITIMER_REAL, 11),
    }  # fmt: skip
