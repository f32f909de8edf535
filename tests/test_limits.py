"""Limits by size and time, and what follows from them, as numbers: memory, cores, threads, files."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch

from viewfuse.errors import CannotWrite, NotEnoughMemory, SettingError
from viewfuse.utils import atomic, console, jobs, memory
from viewfuse.utils.jobs import chosen_device, limited

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
    assert memory.memory_now() == 3000 * 1024 / 1e6
    assert memory.memory_peak() == 4000 * 1024 / 1e6
    reads(monkeypatch, {"/proc/self/status": "Name: none\n"})
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5000))
    for platform, unit in (("linux", 1024), ("darwin", 1)):
        monkeypatch.setattr(sys, "platform", platform)
        assert memory.memory_now() == memory.memory_peak() == 5000 * unit / 1e6


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot forget a peak")
def test_a_peak_is_forgotten():
    held = np.ones(8_000_000)  # 64 MB
    before = memory.memory_peak()
    del held
    assert memory.forget_peak()
    assert memory.memory_peak() < before - 30


# --- cores and threads


def test_threads_of_a_training_depend_on_cores_and_starts_alone(monkeypatch):
    found = {}
    monkeypatch.setattr(joblib, "cpu_count", lambda: 99)
    for n_cores in (1, 2, 4, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_cores: n)
        found[n_cores] = [jobs.threads_for(n, 1000) for n in (1, 3, 10)]
    assert found == {1: [1, 1, 1], 2: [2, 1, 1], 4: [2, 1, 1], 16: [2, 2, 1]}
    assert jobs.threads_for(1, 999) == 1


def test_a_container_may_have_fewer_cores_than_torch_has_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    assert jobs.usable_cores() == 3


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
    looked, look = [], jobs.ThreadpoolController
    monkeypatch.setattr(jobs, "ThreadpoolController", lambda: looked.append(look()) or looked[-1])
    jobs._libraries.cache_clear()
    for name in (None, None, "of_a_library_with_threads"):
        if name:
            monkeypatch.setitem(sys.modules, name, sys)
        with limited(1):
            assert {one["num_threads"] for one in look().info()} == {1}
    assert len(looked) == 2


@pytest.mark.parametrize(("share", "expected"), [(1, (5, 1)), (2, (2, 2)), (4, (1, 5)), (9, (1, 5))])
def test_threads_left_to_torch_are_those_that_items_do_not_take(monkeypatch, share, expected):
    asked = []
    monkeypatch.setattr(jobs, "usable_cores", lambda: 5)
    monkeypatch.setattr(jobs, "limited", lambda n: asked.append(n) or limited(1))
    pool = jobs.ThreadPoolExecutor
    monkeypatch.setattr(jobs, "ThreadPoolExecutor", lambda n, **named: asked.append(n) or pool(n, **named))
    assert list(jobs.side_by_side(str, range(7), share=share)) == list("0123456")
    assert (asked[1], asked[0]) == expected


def test_no_more_items_are_taken_than_are_worked_on(monkeypatch):
    monkeypatch.setattr(jobs, "usable_cores", lambda: 2)
    taken = []
    results = jobs.side_by_side(lambda item: item, (taken.append(i) or i for i in range(9)))
    assert next(results) == 0
    assert len(taken) <= 3
    results.close()
    made = []
    coming = jobs.ahead(made.append(i) or i for i in range(9))
    assert next(coming) == 0
    time.sleep(0.01)
    assert len(made) <= 2
    coming.close()


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
    names["of another user"] = f"{atomic.TEMPORARY}{mine}-77-{'e' * 16}"
    names["nobody's"] = f"{atomic.TEMPORARY}left"
    now, ask = int(time.time()), os.kill

    def refused(process, signal):
        if process == 77:
            raise PermissionError
        ask(process, signal)

    monkeypatch.setattr(atomic.os, "kill", refused)
    monkeypatch.setattr(atomic.time, "time", lambda: float(now))  # a day is over to the second
    for kind, name in names.items():
        (tmp_path / name).write_text(kind)
        os.utime(tmp_path / name, (now - 86_400,) * 2 if kind == "old" else (now - 86_399,) * 2)
    (tmp_path / f"{names['dead'][:-1]}f").mkdir()
    (tmp_path / f"{names['dead'][:-1]}f" / "part").write_text("half")
    (tmp_path / f"{atomic.TEMPORARY}folder").mkdir()  # of somebody else
    atomic.write_file(tmp_path / "a.txt", b"text")
    kept = {names[kind] for kind in ("alive", "young", "of another user")}
    assert {path.name for path in tmp_path.iterdir()} == {*kept, f"{atomic.TEMPORARY}folder", "a.txt"}
    assert not atomic.is_young(tmp_path / "gone")
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
    with atomic.replacing(place, lambda name: name.startswith("stale")) as new:
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
