"""Jobs: in turn, in workers of joblib, on its other back ends; results, order, warnings and errors are the same."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fake_ray
import job_functions as known
import viewfuse
from benchmarks.command import main as benchmarks
from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.cli.options import on_engine
from viewfuse.engine.training import Progress
from viewfuse.errors import MissingPackage, SettingError, WorkerLost
from viewfuse.utils import jobs as jobs_module
from viewfuse.utils.jobs import limited, run_jobs, worker_count

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 20, "random_state": 0, "device": "cpu"}
TWICE = {"n_init": 2, "scaling": "standard", "pretrain_epochs": 2, "joint_epochs": 1, **TINY}
BOTH = pytest.mark.parametrize("n_jobs", [None, 2])


# --- lists of jobs


@BOTH
def test_results_come_in_the_order_of_the_arguments(n_jobs, tmp_path):
    begun, done = [], []
    arguments = [(2, exponent, tmp_path if n_jobs else None) for exponent in range(5)]

    def keep(place, result):
        done.append((place, result))
        if place == 1:
            (tmp_path / "done").touch()

    found = run_jobs(known.late_power, arguments, n_jobs, begun=begun.append, done=keep)
    assert found == [1, 2, 4, 8, 16]
    assert begun == [0, 1, 2, 3, 4]
    assert sorted(done) == list(enumerate(found))
    if n_jobs is None:
        assert done == sorted(done)
    else:
        assert done.index((1, 2)) < done.index((0, 1))


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_no_process_is_started_unless_it_is_asked_for(n_jobs):
    assert run_jobs(known.process, [()] * 2, n_jobs) == [os.getpid()] * 2
    assert run_jobs(known.process, [()], 2) == [os.getpid()]  # a single one has nothing beside it
    assert run_jobs(known.process, [], 2) == []


def test_jobs_run_in_other_processes_which_stay():
    seen = run_jobs(known.process, [()] * 4, 2) + run_jobs(known.process, [()] * 4, 2)
    assert 1 <= len(set(seen)) <= 2
    assert os.getpid() not in seen
    assert os.getpid() not in run_jobs(lambda: os.getpid(), [()] * 2, 2)  # known in this process alone


def test_jobs_of_a_job_run_in_its_thread():
    for own, *inner in run_jobs(known.places_of_inner_jobs, [()] * 2, 2):
        assert inner == [own] * 2
        assert own[0] != os.getpid()


def test_large_arrays_reach_all_jobs_and_stay_as_they_are():
    array, tensor = np.arange(400_000.0), torch.arange(50_000, dtype=torch.float32)
    found = run_jobs(known.scaled, [(array, tensor, factor) for factor in (1.0, 2.0, 3.0)], 2)
    assert [one[0] for one in found] == [factor * array.sum() for factor in (1, 2, 3)]
    assert [one[1] for one in found] == pytest.approx([factor * tensor.sum().item() for factor in (1, 2, 3)])
    assert array[1] == 1.0
    assert tensor[1] == 1.0


@pytest.mark.parametrize("threads", [1, 2])
@BOTH
def test_a_job_has_its_own_number_of_threads_wherever_it_runs(n_jobs, threads):
    before = torch.get_num_threads()
    assert run_jobs(known.threads, [()] * 2, n_jobs, threads=threads) == [threads] * 2
    assert torch.get_num_threads() == before
    assert run_jobs(known.threads, [()], threads=None) == [before]


def test_jobs_in_threads_do_not_wait_for_the_limit_of_the_one_that_waits_for_them():
    with limited(1), joblib.parallel_config("threading", n_jobs=2):
        assert run_jobs(known.threads, [()] * 3, threads=1) == [1] * 3
        with limited(None):  # changes nothing, so that the limit around it holds
            assert run_jobs(known.threads, [()] * 3, threads=1) == [1] * 3


THREADS = pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
"""What ends workers is tried in threads: processes take seconds to be started again."""


@pytest.mark.parametrize("n_jobs", [None, 2])
@THREADS
def test_the_error_of_the_first_job_that_fails_is_raised(n_jobs, backend):
    done = []
    with (
        joblib.parallel_config(backend, n_jobs=n_jobs),
        pytest.raises(ZeroDivisionError, match=r"^no root of -1(\n|$)") as raised,
    ):
        run_jobs(
            known.root,
            [(4,), (-1,), (-2,), (9,)],
            threads=None,  # threads of one process that limit theirs take turns
            done=lambda place, result: done.append((place, result)),
        )
    assert (0, 2.0) in done
    notes = getattr(raised.value, "__notes__", [])  # what is raised elsewhere says where it happened
    assert [("in a worker:" in note, "job_functions.py" in note) for note in notes] == [(True, True)] * (n_jobs == 2)
    with joblib.parallel_config(backend, n_jobs=n_jobs):  # others take the place of workers that were ended
        assert run_jobs(known.root, [(4,)] * 2) == [2.0, 2.0]


@BOTH
def test_warnings_of_jobs_reach_the_user(n_jobs):
    with pytest.warns(RuntimeWarning) as noticed:
        assert run_jobs(known.warned_twice, [("a",), ("b",)], n_jobs) == ["a", "b"]
    assert sorted(str(one.message) for one in noticed) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_job_that_ends_its_process_is_not_called_lack_of_memory(n_jobs):
    message = r"a job called sys\.exit\(3\) before it was done"
    with pytest.raises(WorkerLost, match=message), joblib.parallel_config("threading"):
        run_jobs(known.ended, [(3,), (4,)], n_jobs)


def test_errors_that_cannot_be_read_again_are_named():
    message = r"^a worker cannot hand back Unreadable\(1\)"
    with pytest.raises(RuntimeError, match=message), joblib.parallel_config("threading"):
        run_jobs(known.raises_unreadable, [()] * 2, 2)


@pytest.mark.parametrize("n_jobs", [0, True, 1.5, "2"])
def test_numbers_of_jobs_that_cannot_be_are_refused(n_jobs):
    message = r"n_jobs must be None or an integer other than 0, -1 for one per core; got"
    with pytest.raises(SettingError, match=message):
        run_jobs(pow, [(2, 3)], n_jobs)
    with pytest.raises(SettingError, match=message):
        URRL(2, n_jobs=n_jobs).fit([np.ones((9, 2))])
    assert worker_count(-1) == joblib.cpu_count()


# --- faults


@pytest.mark.fault
def test_a_lost_worker_is_replaced_and_its_job_begun_again(tmp_path):
    assert run_jobs(known.dies, [(tmp_path, 1, result) for result in (5, 6, 7, 8)], 2) == [5, 6, 7, 8]


@pytest.mark.fault
def test_a_job_whose_workers_are_always_lost_is_given_up_and_those_before_it_are_done(tmp_path):
    done = []
    (tmp_path / "never").mkdir()
    jobs = [(tmp_path / "never", 0, 1), (tmp_path, 99, 2), (tmp_path / "never", 0, 3)]
    with pytest.raises(WorkerLost, match=r"^a worker process was lost 3 times, perhaps for want of memory; use fewer"):
        run_jobs(known.dies, jobs, 2, done=lambda place, result: done.append(place))
    assert 0 in done
    assert 1 not in done


PARENT = """
import signal
import sys
from pathlib import Path
import fake_ray
import job_functions as known
from viewfuse.utils.jobs import limited, run_jobs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program that was started in the background ignores it
run_jobs(known.forever, [(Path(sys.argv[1]),)] * 2, n_jobs=2)
"""


def started(code, *words):
    """A program in a process group of its own, as a shell starts it."""
    path = os.pathsep.join([str(Path(known.__file__).parent), *sys.path])
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.fault
@pytest.mark.parametrize(
    ("send", "number"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGTERM), (os.kill, signal.SIGKILL)],
)
def test_no_worker_outlives_its_parent(tmp_path, send, number):
    parent = started(PARENT, tmp_path)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    send(parent.pid, number)
    _, said = parent.communicate(timeout=60)
    assert parent.returncode != 0
    assert said.count("Traceback") == (number == signal.SIGINT)  # of the parent alone
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


# --- fits and comparisons


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
    return URRL(3, **flat(**TWICE)).fit(views)


@pytest.fixture(params=["ray", pytest.param("local", marks=pytest.mark.slow)])
def workers(request, monkeypatch):
    """Settings of a call whose jobs go to workers, which get copies: threads, or processes, which start slowly."""
    fake_ray.put(monkeypatch)
    with on_engine(request.param, None, "cpu"):
        yield {} if request.param == "ray" else {"n_jobs": 2}


def test_a_fit_is_the_same_for_every_number_of_jobs(views, whole, monkeypatch, workers):
    heard = []
    monkeypatch.setattr(Progress, "advance", lambda self, loss: heard.append(loss) or count(self))
    assert same(URRL(3, **flat(**TWICE), **workers).fit(views), whole)
    assert len(heard) == 2 * (2 + 1) * (1 if workers else 2)  # threads are heard, too


def count(progress):
    progress.epochs += 1


@pytest.mark.slow
def test_all_scalings_are_tried_side_by_side_with_the_same_result(views):
    rng = np.random.default_rng(0)
    noise = [view[:30] + 9 * rng.normal(size=view[:30].shape) for view in views]
    settings = {**TINY, "n_init": 2, "pretrain_epochs": 2, "joint_epochs": 1}
    model = URRL(3, **flat(**settings), n_jobs=2).fit(noise)
    assert len(model.decisions_["scaling"]["evidence"]) > 1
    assert same(model, URRL(3, **flat(**settings)).fit(noise))


INTERRUPTED = """
import pickle
import signal
import sys
from viewfuse import URRL
from viewfuse.engine import checkpoint
signal.signal(signal.SIGINT, signal.default_int_handler)
checkpoint._SECONDS_BETWEEN = 1e9
with open(sys.argv[1], "rb") as file:
    views, settings = pickle.load(file)
print("begins", file=sys.stderr, flush=True)
URRL(3, **settings, n_jobs=2, verbose=True).fit(views)
"""


@pytest.mark.fault
@pytest.mark.parametrize("send", [os.killpg, os.kill])
def test_ctrl_c_lets_all_workers_keep_their_epoch(views, tmp_path, send):
    """The signal reaches the workers as well (Ctrl-C at a terminal), or the process that waits for them alone."""
    settings = {**TWICE, "n_init": 3, "pretrain_epochs": 4000, "checkpoint": tmp_path / "checkpoint"}
    (tmp_path / "given").write_bytes(pickle.dumps((views, settings)))
    program = started(INTERRUPTED, tmp_path / "given")
    assert program.stderr.readline() == "begins\n"
    wait_for(lambda: len(children_at_work(program.pid)) == 2)
    time.sleep(1)
    send(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=120)
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    kept = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert kept[0] == "fit.json"
    assert len([name for name in kept if name.startswith("pre-training-4000")]) >= 2


def children_at_work(pid):
    """Processes below this one that have taken a second of computing."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            facts = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(facts[1]) == pid and int(facts[11]) > 6 * os.sysconf("SC_CLK_TCK"):
            found.append(int(place.name))
    return found


@pytest.mark.fault
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_fit_goes_on_from_a_checkpoint_with_another_number_of_jobs(views, whole, tmp_path, monkeypatch, n_jobs):
    """The first fit is interrupted after the first stage."""
    settings = {**TWICE, "checkpoint": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr("viewfuse.methods.urrl.fit.train_jointly", interrupt)
        with pytest.raises(KeyboardInterrupt):
            URRL(3, **flat(**settings), n_jobs=2 if n_jobs is None else None).fit(views)
    assert len(list(tmp_path.glob("pre-training-*.safetensors"))) == 2
    assert same(URRL(3, **flat(**settings), n_jobs=n_jobs).fit(views), whole)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_comparison_is_the_same_with_workers(views, workers):
    asked = {"n_clusters": 3, "rates": (0, 0.5), "seeds": 2, "device": "cpu"}
    lines = []
    side_by_side = viewfuse.compare(views, ("kmeans-mean", "kmeans-knn"), **asked, **workers, log=lines.append)
    with joblib.parallel_config("sequential"):
        one_by_one = viewfuse.compare(views, ("kmeans-mean", "kmeans-knn"), **asked)
    assert len(lines) == 8
    for run, other in zip(side_by_side.runs, one_by_one.runs, strict=True):
        assert (run.method, run.missing_rate, run.seed) == (other.method, other.missing_rate, other.seed)
        assert np.array_equal(run.labels, other.labels)


# --- other back ends of joblib


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_an_active_back_end_is_used(backend):
    """Loky is that of all tests above; threads run the jobs that fail and those of the Ray that is feigned."""
    with joblib.parallel_config(backend, n_jobs=2):
        seen = run_jobs(known.process, [()] * 4)
        assert (set(seen) == {os.getpid()}) is (backend == "threading")
        assert run_jobs(known.late_power, [(2, exponent) for exponent in range(5)]) == [1, 2, 4, 8, 16]
        with pytest.raises(ZeroDivisionError, match="no root of -1"):
            run_jobs(known.root, [(4,), (-1,), (-2,), (9,)])
        array = np.arange(400_000.0)
        assert run_jobs(known.scaled, [(array.copy(), torch.ones(3), 2.0)] * 2)[0] == (2 * array.sum(), 6.0)
    assert worker_count(None) == 1


@pytest.mark.parametrize(
    ("running", "address", "events"),
    [
        (False, None, [("init", None, False), "shutdown"]),
        (False, "auto", [("init", None, False), "shutdown"]),
        (False, "ray://there", [("init", "ray://there", False), "shutdown"]),
        (True, None, []),
    ],
)
def test_jobs_go_to_a_ray_cluster(monkeypatch, running, address, events):
    ray, done = fake_ray.put(monkeypatch, running=running), []
    with on_engine("ray", address, "cpu"):
        found = run_jobs(
            known.late_power, [(2, k) for k in range(5)], done=lambda place, result: done.append((place, result))
        )
    assert found == [1, 2, 4, 8, 16]
    assert done == list(enumerate(found))  # by portions, so that what is done is kept before all is done
    assert fake_ray.RayBackend.asked == {"n_jobs": -1, "max_restarts": 2, "max_task_retries": 2}
    assert ray.events == events
    assert worker_count(None) == 1


def test_jobs_on_a_gpu_of_a_ray_cluster_get_one_each(monkeypatch):
    monkeypatch.setattr("viewfuse.utils.jobs.chosen_device", lambda name: torch.device("cuda"))
    fake_ray.put(monkeypatch, gpus=3)
    with on_engine("ray", None, "auto"):
        run_jobs(known.process, [()] * 2)
    assert fake_ray.RayBackend.asked == {"n_jobs": 3, "max_restarts": 2, "max_task_retries": 2, "num_gpus": 1}
    fake_ray.put(monkeypatch)
    with pytest.raises(SettingError, match="no machine of the Ray cluster has a GPU"), on_engine("ray", None, "auto"):
        pass


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    fake_ray.put(monkeypatch, answers=False)
    message = r"^Ray at 'ray://there' does not answer \(nobody there\); see `ray status` there$"
    with pytest.raises(SettingError, match=message), on_engine("ray", "ray://there", "cpu"):
        pass
    with pytest.raises(SettingError, match="address names a Ray cluster"), on_engine("local", "auto", "cpu"):
        pass


def test_without_ray_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = "--engine ray needs the package ray, which is not installed; pip install ray, or in a checkout of viewfuse"
    with pytest.raises(MissingPackage, match=line), on_engine("ray", None, "cpu"):
        pass
    asked = ["table2", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o"), "--engine", "ray"]
    result = CliRunner().invoke(benchmarks, asked)
    assert result.exit_code == 2
    assert line in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_a_real_ray_gives_the_same(views, whole):
    pytest.importorskip("ray", reason="needs Ray, which is not installed: pip install -e '.[ray]'")
    with on_engine("ray", None, "cpu"):
        assert same(URRL(3, **flat(**TWICE)).fit(views), whole)
        with pytest.raises(ZeroDivisionError, match=r"^no root of -1(\n|$)"):
            run_jobs(known.root, [(4,), (-1,), (-2,), (9,)])
        array, tensor = np.arange(400_000.0), torch.arange(9.0)
        assert run_jobs(known.scaled, [(array, tensor, 2.0)] * 2)[0][0] == 2 * array.sum()
        assert array[1] == 1.0


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_a_real_ray_begins_a_lost_job_again(tmp_path):
    pytest.importorskip("ray", reason="needs Ray, which is not installed: pip install -e '.[ray]'")
    with on_engine("ray", None, "cpu"):
        assert run_jobs(known.dies, [(tmp_path, 1, result) for result in (5, 6)]) == [5, 6]


def test_a_lost_job_is_tried_three_times_in_all():
    assert jobs_module._TRIES_ALONE == 2


# --- what ends the workers, so that others would have to be started


@THREADS
def test_after_an_interruption_the_jobs_beside_it_end_and_no_other_begins(tmp_path, backend):
    with joblib.parallel_config(backend, n_jobs=2), pytest.raises(KeyboardInterrupt):
        run_jobs(known.interrupted, [(tmp_path, place) for place in range(9)], threads=None)
    ended = {path.name for path in tmp_path.iterdir()}
    assert "1" in ended
    assert "8" not in ended


def test_results_that_cannot_travel_are_an_error():
    with pytest.raises(TypeError, match="cannot pickle"):
        run_jobs(known.generator, [()] * 2, 2)
