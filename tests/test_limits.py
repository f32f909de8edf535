"""Limits by size and time, and what follows from them, as numbers: memory, cores, workers, parcels, files."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from viewfuse.errors import CannotWrite, NotEnoughMemory, SettingError
from viewfuse.parallel import cores, jobs, parcels, threads, workers
from viewfuse.parallel.engines import InTurn, opened, run, use
from viewfuse.parallel.jobs import Job, Outcome, limited, perform, perform_apart, report
from viewfuse.parallel.on_ray import OnRay
from viewfuse.parallel.parcels import Parcel, unpacked
from viewfuse.parallel.workers import Workers, _Spread
from viewfuse.utils import atomic, console, folders, memory, process_memory
from viewfuse.utils.devices import chosen_device

GIGABYTE = 2**30


# --- memory


def test_rows_come_in_parts():
    ends = [(part.start, part.stop) for part in memory.parts(131_073)]
    assert ends == [(0, 65_536), (65_536, 131_072), (131_072, 196_608)]
    assert [len(range(*part.indices(65_537))) for part in memory.parts(65_537)] == [65_536, 1]
    assert not list(memory.parts(0))


@pytest.mark.parametrize(("free", "kind"), [(4 * 2**22, np.ndarray), (4 * 2**22 - 1, np.memmap)])
def test_a_quarter_of_the_memory_is_taken(monkeypatch, free, kind):
    monkeypatch.setattr(memory, "available", lambda: free)
    assert type(memory.room((2**18, 4))) is kind  # four bytes each


def test_a_megabyte_is_taken_without_asking(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 0)
    assert type(memory.room((2**18, 1))) is np.ndarray
    assert type(memory.room((2**18 + 1, 1))) is np.memmap


def test_what_has_no_room_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000)
    memory.require(1000, "it", "buy some")
    with pytest.raises(NotEnoughMemory, match="it needs 1,001 bytes, but only 1,000 are free; buy some"):
        memory.require(1001, "it", "buy some")


def test_the_least_of_all_limits_counts(monkeypatch):
    monkeypatch.setattr(memory, "_left_on_machine", lambda: 300)
    monkeypatch.setattr(memory, "_left_to_process", lambda: 200)
    monkeypatch.setattr(memory, "_left_in_groups", lambda: iter([500, 100]))
    assert memory.available() == 100
    monkeypatch.setattr(memory, "_left_in_groups", lambda: iter([500, -100]))
    assert memory.available() == 0


def reads(monkeypatch, texts):
    """Let files of the system say this."""
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **b: texts.get(str(self)) or read_text(self, *a, **b))


def test_the_machine_says_what_is_free(monkeypatch):
    reads(monkeypatch, {"/proc/meminfo": "MemTotal:  900 kB\nMemFree:  10 kB\nMemAvailable:  30 kB\n"})
    assert memory._left_on_machine() == 30 * 1024
    reads(monkeypatch, {"/proc/meminfo": "MemTotal:  900 kB\n"})
    assert memory._left_on_machine() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_limit_of_a_process_is_less_what_it_has(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1_000_000_000, resource.RLIM_INFINITY))
    reads(monkeypatch, {"/proc/self/statm": "1000 500 1 1 0 1 0"})
    assert memory._left_to_process() == 1_000_000_000 - 1000 * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory._left_to_process() == 2**62


def group(folder, most, used, cached, names=("memory.max", "memory.current", "inactive_file")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(str(most))
    (folder / names[1]).write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


def test_every_group_around_a_process_limits_it(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    group(tmp_path / "root", "max", 1, 1)
    group(tmp_path / "root" / "outer", 1000, 700, 50)
    group(tmp_path / "root" / "outer" / "inner", 5000, 100, 0)
    group(tmp_path, 1, 1, 0)  # above the root nothing is asked
    assert list(memory._left_in_groups(tmp_path / "root", own)) == [2**62, 4900, 350]
    older = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    own.write_text("4:cpu,cpuacct:/a\n7:memory,hugetlb:/a\n")
    group(tmp_path / "root" / "memory" / "a", 900, 400, 100, older)
    group(tmp_path / "root" / "memory", 2000, 100, 0, older)
    assert list(memory._left_in_groups(tmp_path / "root", own)) == [2**62, 600, 1900]
    assert list(memory._left_in_groups(tmp_path / "root", tmp_path / "nowhere")) == [2**62]


def test_memory_of_this_process_is_told_in_megabytes(monkeypatch):
    reads(monkeypatch, {"/proc/self/status": "VmPeak:  9 kB\nVmHWM:  4000 kB\nVmRSS:  3000 kB\n"})
    assert process_memory.memory_now() == 3000 * 1024 / 1e6
    assert process_memory.memory_peak() == 4000 * 1024 / 1e6
    reads(monkeypatch, {"/proc/self/status": "Name: none\n"})
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5000))
    for platform, unit in (("linux", 1024), ("darwin", 1)):
        monkeypatch.setattr(sys, "platform", platform)
        assert process_memory.memory_now() == process_memory.memory_peak() == 5000 * unit / 1e6


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot forget a peak")
def test_a_peak_is_forgotten():
    held = np.ones(8_000_000)  # 64 MB
    before = process_memory.memory_peak()
    del held
    assert process_memory.forget_peak()
    assert process_memory.memory_peak() < before - 30


# --- cores and threads


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"cpu.max": "250000 100000"}, 2), ({"cpu.max": "100000 100000"}, 1), ({"cpu.max": "50000 100000"}, 0),
        ({"cpu/cpu.cfs_quota_us": "0", "cpu/cpu.cfs_period_us": "100000"}, 2**31),
    ],
)  # fmt: skip
def test_whole_cores_of_a_container(tmp_path, texts, expected):
    (tmp_path / "cpu").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert cores._quota(tmp_path) == expected


def test_a_share_of_a_core_is_one(monkeypatch):
    monkeypatch.setattr(cores, "_quota", lambda: 0)
    assert (cores.usable_cores(), cores.threads_for(1)) == (1, 1)


@pytest.mark.parametrize(("share", "expected"), [(1, (5, 1)), (2, (2, 2)), (4, (1, 5)), (9, (1, 5))])
def test_threads_left_to_torch_are_those_that_items_do_not_take(monkeypatch, share, expected):
    asked = []
    monkeypatch.setattr(threads, "usable_cores", lambda: 5)
    monkeypatch.setattr(threads, "limited", lambda n: asked.append(n) or limited(1))
    pool = threads.ThreadPoolExecutor
    monkeypatch.setattr(threads, "ThreadPoolExecutor", lambda n, **named: asked.append(n) or pool(n, **named))
    assert list(threads.side_by_side(str, range(7), share=share)) == list("0123456")
    assert (asked[1], asked[0]) == expected


def test_no_more_items_are_taken_than_are_worked_on(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    taken = []
    results = threads.side_by_side(lambda item: item, (taken.append(i) or i for i in range(9)))
    assert next(results) == 0
    assert len(taken) <= 3
    results.close()
    made = []
    coming = threads.ahead(made.append(i) or i for i in range(9))
    assert next(coming) == 0
    time.sleep(0.01)
    assert len(made) <= 2
    coming.close()


def test_a_job_has_a_listener_only_while_it_runs(monkeypatch):
    told, asked = [], []
    monkeypatch.setattr(
        jobs, "_libraries", lambda n: SimpleNamespace(limit=lambda limits: asked.append(limits) or limited(None))
    )
    assert perform(Job(lambda: report("news"), threads=3), told.append) is None
    report("nobody hears it")
    assert (told, asked) == (["news"], [3])


def test_every_warning_of_a_job_is_kept(monkeypatch):
    monkeypatch.setattr(jobs, "_in_worker", False)

    def twice():
        for _ in range(2):
            jobs.warnings.warn("again", UserWarning, stacklevel=1)
        raise ValueError("broken")

    outcome = perform_apart(Job(twice))
    assert [str(notice[0]) for notice in outcome.notices] == ["again", "again"]
    assert isinstance(outcome.error, ValueError)
    assert jobs.in_worker()
    with pytest.warns(UserWarning, match="again"), pytest.raises(ValueError, match="broken"):
        outcome.unwrapped()


# --- workers


@pytest.mark.parametrize(
    ("n", "seconds", "n_bytes", "expected"),
    [
        (4, 3.4, 0, 4),  # 13.6 s in turn, 3.4 s with four workers
        (4, 3.3, 0, 1),
        (2, 10.0, 0, 2), (2, 9.9, 0, 1), (3, 60.0, 0, 3), (9, 60.0, 0, 8),
    ],
)  # fmt: skip
def test_workers_are_started_where_ten_seconds_are_saved(monkeypatch, n, seconds, n_bytes, expected):
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers.memory, "available", lambda: 100 * GIGABYTE)
    assert Workers().count([Job(pow, seconds=seconds, n_bytes=n_bytes)] * n) == expected


def test_workers_share_memory_and_cores(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers.memory, "available", lambda: 4 * 1400 * 2**20 + 5)
    large, small = Job(pow, n_bytes=1000 * 2**20), Job(pow)
    own = Workers()
    assert own.count([large] * 9) == 4
    assert own.count([small, large, small, small, small]) == 4  # the largest may be in each
    own._idle.append(SimpleNamespace())  # its memory is taken already
    assert own.count([large] * 9) == 5
    assert own.count([Job(pow, threads=3), *[small] * 8]) == 2


class Told:
    """Workers that nobody started, with what is done to them."""

    def __init__(self, code=-9):
        self.code, self.killed = code, 0

    def kill(self):
        self.killed += 1
        return self.code


def spread(n=6, **options):
    return _Spread([Job(pow, (2, k)) for k in range(n)], None, None, [], 2, **options)


def test_a_lost_job_is_begun_again_twice_and_first():
    own, told = spread(), []
    own._waiting = deque([3, 4])
    for lost in range(3):
        worker = Told()
        own._busy[worker] = 1
        told += list(own._lose(worker))
        assert worker.killed == 1
        assert list(own._waiting) == ([1, 3, 4] if lost < 2 else [])
        own._waiting = deque([3, 4])
    assert (told, own._error[0]) == ([], 1)
    assert "was lost 3 times (SIGKILL)" in str(own._error[1])
    own.close()


def test_the_error_of_the_first_job_counts_and_only_those_before_go_on():
    own, early, late = spread(), Told(), Told()
    own._waiting, own._busy = deque([0, 2, 5]), {early: 1, late: 4}
    own._fail(3, ValueError("third"))
    assert (list(own._waiting), own._busy, late.killed, early.killed) == ([0, 2], {early: 1}, 1, 0)
    own._fail(4, ValueError("fourth"))
    assert str(own._error[1]) == "third"
    own._fail(1, ValueError("first"))
    assert (own._error[0], list(own._waiting)) == (1, [0])
    assert list(own._settled(0, Outcome(7))) == [(0, 7)]
    own._parcel.close()


def test_no_more_jobs_are_begun_than_there_are_workers(monkeypatch):
    own, begun = spread(5), []

    def begin(place):
        begun.append(place)
        own._busy[Told()] = place
        return iter(())

    def ready(busy):
        raise StopAsyncIteration

    monkeypatch.setattr(own, "_begin", begin)
    monkeypatch.setattr(workers, "_ready", ready)
    with pytest.raises(StopAsyncIteration):
        list(own.results())
    assert begun == [0, 1]
    own.close()
    assert (workers.RETRIES, workers._OFTEN) == (2, 0.2)


def test_engines_are_given_back():
    closed, results = [], []

    class Kept(InTurn):
        def close(self):
            closed.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.parallel.engines._made", lambda *args: Kept())
        with use():
            with opened():
                results += run([Job(pow, (2, k)) for k in range(3)])
            assert not closed
        assert len(closed) == 1
        with opened():  # there is none any more
            pass
    assert (results, len(closed)) == ([1, 2, 4], 2)


def test_results_come_in_the_order_of_the_jobs_whoever_is_first(monkeypatch):
    class Backwards(InTurn):
        def as_done(self, jobs, listener, stopping):
            return reversed(list(super().as_done(jobs, listener, stopping)))

    monkeypatch.setattr("viewfuse.parallel.engines._made", lambda *args: Backwards())
    with use():
        assert run([Job(pow, (2, k)) for k in range(4)]) == [1, 2, 4, 8]


# --- Ray, of which only what it is asked for is looked at


class FakeRay:
    """Tasks end in the order that is given."""

    def __init__(self, ends, outcomes):
        self.events, self._ends, self._outcomes = [], list(ends), outcomes
        self.cloudpickle = SimpleNamespace(dumps=lambda what: what, loads=lambda what: what)
        self._begun = 0

    def put(self, what):
        self.events.append(("put", what))
        return ("shared", what)

    def remote(self, function):
        return self

    def options(self, **asked):
        self.events.append(("ask", *asked.values()))
        return SimpleNamespace(remote=self._task)

    def _task(self, facts, function, *args):
        self._begun += 1
        return self._begun - 1

    def wait(self, tasks, num_returns, timeout=None):
        done = [task for task in self._ends if task in tasks][:num_returns]
        return done, [task for task in tasks if task not in done]

    def cancel(self, task, force):
        self.events.append(("cancel", task, force))


def on_ray(ends, outcomes, cpus=4, gpus=0):
    own = OnRay.__new__(OnRay)
    own._ray, own._cpus, own._gpus, own._own = FakeRay(ends, outcomes), cpus, gpus, False
    own._outcome = lambda task: outcomes[task]
    return own


def test_tasks_of_ray_ask_for_what_they_need():
    table = "a large table"
    own = on_ray([1, 0, 2], [Outcome(i, news=(f"news {i}",)) for i in range(3)])
    given = [Job(pow, (table, 1), threads=2), Job(pow, (table, 2), threads=9), Job(pow, (table,), threads=None)]
    told = []
    assert list(own.as_done(given, told.append, None)) == [(1, 1), (0, 0), (2, 2)]
    assert own._ray.events == [
        ("put", table), ("put", 1), ("ask", 2, 0, 2), ("put", 2), ("ask", 4, 0, 2), ("ask", 1, 0, 2),
    ]  # fmt: skip
    assert told == ["news 1", "news 0", "news 2"]
    with pytest.raises(SettingError, match="no machine of the Ray cluster has a GPU"):
        list(own.as_done([Job(pow, gpus=1)], None, None))


def test_of_tasks_that_fail_the_first_is_raised_when_those_before_are_done():
    broken = [Outcome(error=ValueError(f"job {i}")) for i in range(5)]
    own = on_ray([3, 0, 1, 2, 4], [Outcome(0), broken[1], Outcome(2), broken[3], Outcome(4)])
    found = []
    with pytest.raises(ValueError, match="job 1"):
        found.extend(own.as_done([Job(pow)] * 5, None, None))
    assert [event for event in own._ray.events if event[0] == "cancel"] == [("cancel", 4, True), ("cancel", 2, True)]


def test_where_somebody_wants_to_stop_the_tasks_of_ray_come_to_a_good_end():
    own = on_ray([0, 1, 2], [Outcome(i) for i in range(3)])
    with pytest.raises(KeyboardInterrupt):
        list(own.as_done([Job(pow)] * 3, None, lambda: True))
    assert [event for event in own._ray.events if event[0] == "cancel"] == [("cancel", i, False) for i in range(3)]


# --- parcels


def test_large_arrays_lie_in_the_file_and_small_ones_in_the_pickle(monkeypatch):
    monkeypatch.setattr(parcels, "_LARGE", 80)
    parcel = Parcel()
    small, exact, odd, last = np.arange(9.0), np.arange(10.0), np.arange(11, dtype=np.float64), np.arange(50.0)
    text, places = parcel.packed([small, exact, odd, torch.from_numpy(last), odd])
    assert places == [(0, 80), (128, 88), (256, 400)]
    other = parcel.packed(np.ones(20))[1]
    assert other == [(704, 160)]  # behind all, at a multiple of 64
    back = unpacked(text, places, parcel.handle)
    for own, known in zip(back, (small, exact, odd, last, odd), strict=True):
        assert np.array_equal(own, known)
    parcel.close()
    assert (parcels._ALIGNED, workers._WORKER_BYTES) == (64, 400 * 2**20)


def test_an_array_counts_as_large_from_sixty_four_kilobytes():
    parcel = Parcel()
    assert parcel.packed(np.zeros(2**16 - 1, np.uint8))[1] == []
    assert parcel.packed(np.zeros(2**16, np.uint8))[1] == [(0, 2**16)]
    parcel.close()


# --- files


def test_a_file_is_durable_before_it_takes_its_place(tmp_path, monkeypatch):
    events, replace = [], os.replace
    monkeypatch.setattr(atomic.os, "fsync", lambda handle: events.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(atomic.os, "replace", lambda *args: events.append("replace") or replace(*args))
    atomic.write_file(tmp_path / "a.txt", b"text")
    assert events == [(tmp_path / "a.txt").stat().st_ino, "replace", tmp_path.stat().st_ino]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_no_folder_and_a_success_does(tmp_path):
    def fail():
        with atomic.writing(tmp_path / "new" / "a.txt"):
            raise OSError(28, "No space left on device")

    with pytest.raises(CannotWrite, match=r"a\.txt \(0 bytes\) cannot be written: No space left"):
        fail()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(CannotWrite), atomic.writing(tmp_path / "old" / "a.txt"):
        raise OSError(28, "No space left on device")
    assert (tmp_path / "old").exists()


def test_what_the_dead_left_is_swept_where_somebody_writes(tmp_path, monkeypatch):
    mine, others = atomic._machine(), "0" * 8
    names = {
        "dead": f"{atomic.TEMPORARY}{mine}-{2**40}-{'a' * 16}",
        "alive": f"{atomic.TEMPORARY}{mine}-{os.getpid()}-{'b' * 16}",
        "young": f"{atomic.TEMPORARY}{others}-1-{'c' * 16}",
        "old": f"{atomic.TEMPORARY}{others}-1-{'d' * 16}",
    }
    now = time.time()
    for kind, name in names.items():
        (tmp_path / name).write_text(kind)
        os.utime(tmp_path / name, (now - 86_500, now - 86_500) if kind == "old" else (now - 86_000, now - 86_000))
    atomic.write_file(tmp_path / "a.txt", b"text")
    assert {path.name for path in tmp_path.iterdir()} == {names["alive"], names["young"], "a.txt"}
    monkeypatch.setattr(atomic.os, "readlink", lambda path: "pid:[another container]")
    assert atomic._machine() != mine


def test_others_are_waited_for(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    now = [0.0]
    monkeypatch.setattr(atomic.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(atomic.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 1.0))
    with atomic.exclusive(tmp_path):
        for patience, waited in ((None, 61.0), (0, 1.0), (5.0, 6.0)):
            before = now[0]
            with (
                pytest.raises(CannotWrite, match="is being written by another process"),
                atomic.exclusive(tmp_path, patience=patience),
            ):
                pass
            assert now[0] - before == waited
    with atomic.exclusive(tmp_path) as held:
        assert held


def test_a_folder_of_results_takes_along_what_is_somebodys_own(tmp_path):
    place = tmp_path / "run"
    place.mkdir(mode=0o750)
    for name, text in (("result.txt", "old"), ("stale.txt", "old"), ("mine.txt", "mine")):
        (place / name).write_text(text)
    (place / f"{atomic.TEMPORARY}x").write_text("unfinished")
    (place / "deep").mkdir()
    (place / "deep" / "y").write_text("mine, too")
    (place / "link").symlink_to("mine.txt")
    inode = (place / "mine.txt").stat().st_ino
    with folders.replacing(place, lambda name: name.startswith("stale")) as new:
        (new / "result.txt").write_text("new")
    found = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert found == {"result.txt": "new", "mine.txt": "mine", "deep/y": "mine, too", "link": "mine"}
    assert os.readlink(place / "link") == "mine.txt"
    assert (place / "mine.txt").stat().st_ino == inode  # not a copy
    assert place.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- devices and the console


def test_a_device_keeps_its_number(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *args, device: None)
    assert [str(chosen_device(name)) for name in ("cpu", "cuda", "cuda:3")] == ["cpu", "cuda:0", "cuda:3"]
    with pytest.raises(SettingError, match="device 'meta' cannot be used here"):
        chosen_device("meta")
    for there, expected in ((True, "cuda:0"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert str(chosen_device("auto")) == expected


def test_a_bar_is_shown_where_it_can_be_seen(monkeypatch):
    found = []
    for terminal, notebook in ((True, False), (False, True), (False, False)):
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda terminal=terminal: terminal))
        if notebook:
            monkeypatch.setitem(sys.modules, "ipykernel", None)
        else:
            monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        found.append(console.is_live())
    assert found == [True, True, False]


def test_a_line_that_nobody_takes_costs_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    console.tell("a line")  # a ValueError inside


class Cluster:
    """A Ray that notes what it is asked for."""

    def __init__(self, running, answers=True):
        self.asked, self._running, self._answers = [], running, answers

    def is_initialized(self):
        return self._running

    def init(self, address, **ways):
        self.asked.append((address, ways))
        if address == "auto" and not self._answers:
            raise ConnectionError("nothing runs")

    def nodes(self):
        sizes = [({"CPU": 8.0, "GPU": 1.0}, True), ({"CPU": 16.0}, True), ({"CPU": 64.0, "GPU": 4.0}, False)]
        return [{"Resources": resources, "Alive": alive} for resources, alive in sizes]


@pytest.mark.parametrize(
    ("running", "answers", "address", "asked"),
    [(True, True, "auto", []), (False, True, None, ["auto"]), (False, False, None, ["auto", "local"]),
     (False, True, "ray://there", ["ray://there"])],
)  # fmt: skip
def test_a_ray_that_runs_is_used_and_another_is_started(monkeypatch, running, answers, address, asked):
    cluster = Cluster(running, answers)
    monkeypatch.setitem(sys.modules, "ray", cluster)
    own = OnRay(address)
    assert [where for where, _ in cluster.asked] == asked
    assert all(ways["log_to_driver"] is False for _, ways in cluster.asked)
    assert [ways["include_dashboard"] for where, ways in cluster.asked if where == "local"] == [False] * (
        "local" in asked
    )
    assert (own._own, own._cpus, own._gpus) == (not running, 16.0, 1.0)
