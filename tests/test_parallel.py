"""Jobs: in turn, in workers, on Ray; whoever runs them, results, order, warnings and errors are the same."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import parallel_jobs as known
import viewfuse
from conftest import make_blobs
from viewfuse import URRL, parallel
from viewfuse.cli import main
from viewfuse.engine import checkpoint
from viewfuse.engine.progress import Progress
from viewfuse.errors import MissingPackage, SettingError, WorkerLost
from viewfuse.parallel import Job, cores, threads_for, worker, workers
from viewfuse.parallel import jobs as jobs_module
from viewfuse.parallel.jobs import Outcome, limited
from viewfuse.parallel.parcels import Parcel, unpacked
from viewfuse.parallel.workers import Workers

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 20, "random_state": 0, "device": "cpu"}
TWICE = {"n_init": 2, "scaling": "standard", "pretrain_epochs": 4, "joint_epochs": 3, **TINY}


@pytest.fixture(scope="module")
def two():
    """Two workers for the rest of this module: each takes a while to start."""
    with parallel.use("local", jobs=2):
        yield


def in_turn(jobs, **ways):
    with parallel.use(jobs=1):
        return parallel.run(jobs, **ways)


# --- lists of jobs


def test_results_come_in_the_order_of_the_jobs(two):
    jobs = [Job(known.late_power, (2, exponent)) for exponent in range(5)]
    assert parallel.run(jobs) == in_turn(jobs) == [1, 2, 4, 8, 16]


def test_jobs_run_in_other_processes_which_stay(two):
    seen = parallel.run([Job(known.process)] * 4) + parallel.run([Job(known.process)] * 4)
    assert 1 <= len({pid for pid, _ in seen}) <= 2
    assert all(apart and pid != os.getpid() for pid, apart in seen)
    assert in_turn([Job(known.process)] * 2) == [(os.getpid(), False)] * 2


def test_an_interruption_at_the_terminal_reaches_no_worker(two):
    groups = parallel.run([Job(os.getpgid, (0,)), Job(os.getpgid, (0,))])
    assert os.getpgid(0) not in groups


def test_what_jobs_report_is_heard(two):
    heard, heard_in_turn = [], []
    jobs = [Job(known.power, (2, exponent)) for exponent in range(4)]
    parallel.run(jobs, listener=heard.append)
    in_turn(jobs, listener=heard_in_turn.append)
    assert sorted(heard) == heard_in_turn == [0, 1, 2, 3]


def test_large_arrays_reach_all_jobs_and_stay_as_they_are(two):
    array, tensor = np.arange(40_000.0), torch.arange(50_000, dtype=torch.float32)
    jobs = [Job(known.scaled, (array, tensor, factor)) for factor in (1.0, 2.0, 3.0)]
    sums = (np.arange(40_000.0).sum(), torch.arange(50_000, dtype=torch.float32).sum().item())
    found = parallel.run(jobs)
    assert [one[0] for one in found] == [factor * sums[0] for factor in (1, 2, 3)]
    assert [one[1] for one in found] == pytest.approx([factor * sums[1] for factor in (1, 2, 3)])
    assert array[1] == 1.0
    assert tensor[1] == 1.0


def test_an_array_of_several_jobs_is_written_once():
    parcel, array = Parcel(), np.arange(40_000.0)
    (text, places), (_, others) = (parcel.packed((array, number)) for number in range(2))
    assert places == others
    back, number = unpacked(text, places, parcel.handle)
    parcel.close()
    assert np.array_equal(back, array)
    assert number == 0
    assert back.ctypes.data % 64 == 0  # where products of matrices round as they do elsewhere


@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_has_its_own_number_of_threads_whoever_runs_it(two, threads):
    before = torch.get_num_threads()
    jobs = [Job(torch.get_num_threads, threads=threads)] * 2
    assert parallel.run(jobs) == in_turn(jobs) == [threads] * 2
    assert torch.get_num_threads() == before


def test_the_error_of_the_first_job_that_fails_is_raised(two):
    jobs = [Job(known.root, (number,)) for number in (4, -1, -2, 9)]
    for run in (parallel.run, in_turn):
        with pytest.raises(ZeroDivisionError, match=r"^no root of -1(\n|$)"):
            run(jobs)
    assert parallel.run(jobs[:1] * 2) == [2.0, 2.0]  # others are there for those that were ended


def test_warnings_of_jobs_reach_the_user(two):
    with pytest.warns(RuntimeWarning) as noticed:
        assert parallel.run([Job(known.warned, (text,)) for text in "ab"]) == ["a", "b"]
    assert sorted(str(one.message) for one in noticed) == ["a", "b"]


def test_what_only_this_process_knows_is_done_here(two, monkeypatch):
    assert parallel.run([Job(lambda: os.getpid()), Job(lambda: os.getpid())]) == [os.getpid()] * 2
    of_the_script = type(known)("__main__")
    monkeypatch.setattr(known.process, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "process", known.process, raising=False)
    assert of_the_script
    assert parallel.run([Job(known.process)] * 2) == [(os.getpid(), False)] * 2


# --- who runs them


def test_workers_are_started_where_they_pay(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 16)
    count, long = Workers().count, Job(pow, threads=2, seconds=60.0)
    assert count([long] * 3) == 3
    assert count([long] * 30) == 8
    assert count([long]) == 1
    assert count([Job(pow, threads=2, seconds=4.9)] * 3) == 1  # three workers would save 9.8 s
    assert count([Job(pow, threads=2, seconds=4.9)] * 9) == 8
    assert count([Job(pow)] * 9) == 9
    assert count([long, Job(pow, threads=2, gpus=1)]) == 1
    assert count([Job(pow, threads=None)] * 3) == 1
    assert Workers(5).count([Job(pow, threads=2, seconds=5.0)] * 9) == 5
    monkeypatch.setattr(workers.memory, "available", lambda: 3 * 2**30)
    assert count([Job(pow, seconds=60.0, n_bytes=2**30)] * 9) == 2
    monkeypatch.setattr(workers.memory, "available", lambda: 2**30)
    assert Workers(5).count([Job(pow, n_bytes=2**30)] * 9) < 2


def test_threads_of_a_training_depend_on_cores_and_starts_alone(monkeypatch):
    found = {}
    monkeypatch.setattr(cores, "_quota", lambda: 99)
    for n_cores in (1, 2, 4, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_cores: n)
        found[n_cores] = [threads_for(n) for n in (1, 3, 10)]
    assert found == {1: [1, 1, 1], 2: [2, 1, 1], 4: [2, 1, 1], 16: [2, 2, 1]}


@pytest.mark.parametrize(
    ("file", "text", "whole"), [("cpu.max", "250000 100000", 2), ("cpu.max", "max 100000", 2**31), (None, "", 2**31)]
)
def test_a_container_with_few_cores_gets_few_workers(tmp_path, file, text, whole):
    if file:
        (tmp_path / file).write_text(text)
    assert cores._quota(tmp_path) == whole


def test_older_containers_say_it_elsewhere(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    for limit, whole in ((400000, 4), (-1, 2**31)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(str(limit))
        assert cores._quota(tmp_path) == whole


def test_threads_are_given_back_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), limited(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_a_thread_that_meets_torch_while_another_one_limits_it_takes_no_threads_away():
    before, known_by = torch.get_num_threads(), []
    torch.set_num_threads(3)
    met = threading.Event()

    def other():
        known_by.append(torch.get_num_threads())
        met.set()
        with limited(1):  # as soon as it may
            pass
        known_by.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=other)
        with limited(1):
            thread.start()
            assert met.wait(20)
        thread.join(20)
        newcomer = threading.Thread(target=lambda: known_by.append(torch.get_num_threads()))
        newcomer.start()
        newcomer.join()
    finally:
        torch.set_num_threads(before)
    assert known_by == [1, 3, 3]


def test_libraries_are_looked_for_again_where_modules_were_imported(monkeypatch):
    looked, look = [], jobs_module.ThreadpoolController
    monkeypatch.setattr(jobs_module, "ThreadpoolController", lambda: looked.append(look()) or looked[-1])
    jobs_module._libraries.cache_clear()
    for name in (None, None, "of_a_library_with_threads"):
        if name:
            monkeypatch.setitem(sys.modules, name, known)
        with limited(1):
            assert {one["num_threads"] for one in look().info()} == {1}
    assert len(looked) == 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"engine": "dask"}, r"engine must be one of local, ray; got 'dask'"),
        ({"jobs": 0}, r"jobs must be an integer of at least 1, or None; got 0"),
        ({"jobs": True}, r"jobs must be an integer"),
        ({"address": "auto"}, r"address names a Ray cluster; add engine='ray'"),
        ({"engine": "ray", "jobs": 2}, r"jobs counts local workers"),
    ],
)
def test_what_cannot_be_is_refused(asked, message):
    with pytest.raises(SettingError, match=message), parallel.use(**asked):
        pass


def test_without_ray_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = "engine='ray' needs the package ray, which is not installed; pip install ray, or in a checkout of viewfuse"
    with pytest.raises(MissingPackage, match=line), parallel.use("ray"):
        pass
    asked = ["bench", "table2", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o"), "--engine", "ray"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 2
    assert line in result.output
    assert len(result.output.splitlines()) == 1


# --- fits, comparisons


@pytest.fixture(scope="module")
def views():
    return make_blobs(60, 3)[0]


def without_time(history):
    return {name: column for name, column in history.items() if name != "seconds"}


def same(model, other):
    return (
        np.array_equal(model.embedding_, other.embedding_)
        and np.array_equal(model.soft_labels_, other.soft_labels_)
        and without_time(model.history_) == without_time(other.history_)
        and model.decisions_ == other.decisions_
        and model.objectives_ == other.objectives_
    )


@pytest.fixture(scope="module")
def whole(views):
    """A fit whose trainings ran in turn."""
    with parallel.use(jobs=1):
        return URRL(3, **TWICE).fit(views)


def test_a_fit_is_the_same_with_workers(two, views, whole, monkeypatch):
    heard = []
    monkeypatch.setattr(Progress, "advance", lambda self, loss: heard.append(loss))
    assert same(URRL(3, **TWICE).fit(views), whole)
    assert len(heard) == 2 * (4 + 3)


def test_ctrl_c_lets_all_workers_keep_their_epoch(two, views, whole, tmp_path, monkeypatch):
    settings = {**TWICE, "checkpoint": tmp_path}
    asked = [False] * 99 + [True]  # once: the second one would end all at once
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", lambda self, loss: asked.pop() and signal.raise_signal(signal.SIGINT))
        patch.setattr(checkpoint, "_SECONDS_BETWEEN", 1e9)
        with pytest.raises(KeyboardInterrupt):
            URRL(3, **settings).fit(views)
    assert list(tmp_path.glob("pretraining-*.safetensors"))
    with parallel.use(jobs=1):
        assert same(URRL(3, **settings).fit(views), whole)


def test_what_cannot_travel_back_is_told(two):
    """The last one that asks the two workers: the one that is ended need not be replaced, which takes seconds."""
    with pytest.raises(RuntimeError, match=r"a worker cannot hand back a .* \(cannot pickle"):
        parallel.run([Job(known.unreadable)] * 2)


@pytest.mark.slow
def test_a_list_of_fits_may_be_jobs(two, views):
    models = [URRL(k, scaling="standard", pretrain_epochs=2, joint_epochs=0, **TINY) for k in (2, 3)]
    jobs = [Job(model.fit, (views,)) for model in models]
    assert all(same(*pair) for pair in zip(parallel.run(jobs), in_turn(jobs), strict=True))


@pytest.mark.slow
def test_a_comparison_is_the_same_with_workers(two, views):
    asked = {"n_clusters": 3, "rates": (0, 0.5), "seeds": 2, "device": "cpu"}
    side_by_side = viewfuse.compare(views, ("kmeans-mean", "kmeans-knn"), **asked)
    with parallel.use(jobs=1):
        one_by_one = viewfuse.compare(views, ("kmeans-mean", "kmeans-knn"), **asked)
    for run, other in zip(side_by_side.runs, one_by_one.runs, strict=True):
        assert (run.method, run.missing_rate, run.seed, run.evidence) == (
            other.method,
            other.missing_rate,
            other.seed,
            other.evidence,
        )
        assert np.array_equal(run.labels, other.labels)


@pytest.mark.fault
def test_a_lost_worker_is_replaced_and_its_job_begun_again(two, tmp_path):
    (tmp_path / "once").mkdir()
    jobs = [Job(known.dies, (tmp_path / "once", 1, result)) for result in (5, 6)]
    assert parallel.run(jobs) == [5, 6]


@pytest.mark.fault
def test_a_job_whose_workers_are_always_lost_is_given_up(two, tmp_path):
    with pytest.raises(WorkerLost, match=r"lost 3 times \(SIGKILL\), perhaps for want of memory; use fewer jobs"):
        parallel.run([Job(known.dies, (tmp_path, 9, 1)), Job(math.sqrt, (4,))])


@pytest.mark.fault
def test_where_no_worker_starts_jobs_are_done_here(monkeypatch):
    monkeypatch.setattr(workers, "_PROGRAM", "import nothing_of_that_name")
    with parallel.use(jobs=2):
        assert parallel.run([Job(known.process)] * 2) == [(os.getpid(), False)] * 2
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with parallel.use(jobs=2):
        assert parallel.run([Job(known.process)] * 2) == [(os.getpid(), False)] * 2


PARENT = """
import signal
import sys
from pathlib import Path
import parallel_jobs as known
from viewfuse import parallel
signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
with parallel.use(jobs=2):
    parallel.run([parallel.Job(known.forever, (Path(sys.argv[1]),))] * 2)
"""


@pytest.mark.fault
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent(tmp_path, signal_number):
    path = os.pathsep.join([str(Path(known.__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.send_signal(signal_number)
    assert parent.wait(60) != 0
    pids = [int(mark.name) for mark in tmp_path.iterdir()]
    wait_for(lambda: not any(is_running(pid) for pid in pids), seconds=10)


def wait_for(whether, seconds=120):
    ends = time.monotonic() + seconds
    while not whether():
        assert time.monotonic() < ends
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- Ray


@pytest.fixture(scope="module")
def on_ray():
    pytest.importorskip("ray", reason="needs Ray, which is not installed: pip install -e '.[ray]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray has some of its own
        with parallel.use("ray"):
            yield


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_ray_gives_the_same(on_ray, views, whole):
    assert same(URRL(3, **TWICE).fit(views), whole)
    jobs = [Job(known.root, (number,)) for number in (4, -1, -2, 9)]
    with pytest.raises(ZeroDivisionError, match=r"^no root of -1(\n|$)"):
        parallel.run(jobs)
    heard = []
    assert parallel.run([Job(known.power, (2, k)) for k in range(3)], listener=heard.append) == [1, 2, 4]
    assert sorted(heard) == [0, 1, 2]
    array, tensor = np.arange(40_000.0), torch.arange(9.0)
    assert [one[2] for one in parallel.run([Job(known.scaled, (array, tensor, 2.0), threads=2)] * 2)] == [2, 2]
    assert array[1] == 1.0


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_ray_begins_a_lost_job_again(on_ray, tmp_path):
    (tmp_path / "once").mkdir()
    (tmp_path / "always").mkdir()
    assert parallel.run([Job(known.dies, (tmp_path / "once", 1, result)) for result in (5, 6)]) == [5, 6]
    with pytest.raises(WorkerLost, match="a worker of Ray was lost 3 times"):
        parallel.run([Job(known.dies, (tmp_path / "always", 9, 1))])


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_ctrl_c_on_ray_leaves_what_can_be_gone_on_with(on_ray, views, whole, tmp_path):
    settings = {**TWICE, "checkpoint": tmp_path}
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            URRL(3, **settings).fit(views)
    finally:
        signal.signal(signal.SIGALRM, before)
    with parallel.use(jobs=1):
        assert same(URRL(3, **settings).fit(views), whole)


class Fleeting:
    """Its array exists only while it is pickled."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return known.first, (np.full(40_000, self.value),)


def test_arrays_that_exist_only_while_they_are_packed_do_not_mix():
    parcel = Parcel()
    packed = [parcel.packed(Fleeting(value)) for value in (1.0, 2.0, 3.0)]
    assert [unpacked(*one, parcel.handle) for one in packed] == [1.0, 2.0, 3.0]
    parcel.close()


def test_a_worker_has_no_names_that_a_script_may_have():
    code = workers._PROGRAM.split(".main(")[0]
    scope = {}
    exec(code, scope)
    assert set(scope) == {"__builtins__"}


class Unreadable(Exception):
    """Can be pickled, but not be read again: its argument is not what it was made of."""

    def __init__(self, one, other):
        super().__init__(one)


@pytest.mark.parametrize(
    "outcome", [Outcome(error=Unreadable(1, 2)), Outcome(notices=((Unreadable(1, 2), UserWarning, "a", 1),))]
)
def test_what_cannot_be_read_again_is_told_by_the_worker(outcome):
    found = pickle.loads(worker._pickled(outcome)).error
    assert isinstance(found, RuntimeError)
    assert str(found).startswith("a worker cannot hand back ")


def test_what_can_travel_does():
    outcome = Outcome(3, notices=(("careful", UserWarning, "a.py", 1),), news=("news",))
    assert pickle.loads(worker._pickled(outcome)) == outcome
