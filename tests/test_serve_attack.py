"""The service as a process under attack, while honest callers are answered: `make faults`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from served_models import save_model
from test_serve_live import FRAMES, body, one_row, post, serving, stop

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]
SLOW, HOSTILE = (int(os.environ.get(f"VIEWFUSE_ATTACK_{name}", "1000")) for name in ("SLOW", "HOSTILE"))
SECONDS = float(os.environ.get("VIEWFUSE_ATTACK_SECONDS", "30"))
PER_SECOND = 50

HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
DOUBLED = ",".join(f'"k{i}":0' for i in range(40_000))
NAMES = ",".join(f'"c{i}"' for i in range(60_001))
BODIES = {
    "wide": b'{"views":{"rna":[' + b"[]," * 9_000_000 + b"[]]}}",
    "deep": b"[" * 1_000_000,
    "less deep": b"[" * 50_000,
    "doubled": f'{{{DOUBLED},"k39999":1}}'.encode(),
    "doubled, short": f'{{{DOUBLED[:190_000].rpartition(",")[0]},"k1":1}}'.encode(),
    "objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "values": b'{"views":{"rna":[[' + b"1," * 10_000_000 + b"1]]}}",
    "many names": f'{{"views":{{"rna":{{"columns":[{NAMES}],"values":[[{"1," * 60_000}1]]}}}}}}'.encode(),
    "one long row": b'{"views":{"rna":[[' + b"1," * 120_000 + b"1]]}}",
    "digits": b'{"views":{"rna":[[' + (b"1" * 4299 + b",") * 500 + b"1]]}}",
    "too long": b" " * 33_000_000,
    "nothing": b"",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("served") / "model")


def family(process) -> list[int]:
    """The process and all that come from it."""
    found = [process.pid]
    for pid in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def resident(process) -> float:
    """Memory of the whole family that no other process shares with it, in MB; what is shared counts in parts."""
    total = 0
    for pid in family(process):
        with suppress(OSError):
            total += int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M).group(1))
    return total / 1024


Going = Callable[[], bool]


def lasting(seconds: float) -> Going:
    """Whether less than so many seconds have passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


async def honest(port: int, going: Going, times: list[float], statuses: list[int]) -> None:
    """So many requests of one row a second, whatever becomes of the earlier ones."""

    async def timed(i):
        start = time.perf_counter()
        status, _ = await post(port, one_row(i))
        times.append(time.perf_counter() - start)
        statuses.append(status)

    asked, start = [], time.perf_counter()
    while going():
        asked.append(asyncio.create_task(timed(len(asked))))
        await asyncio.sleep(max(0.0, start + len(asked) / PER_SECOND - time.perf_counter()))
    await asyncio.gather(*asked)


async def slow_caller(port: int, i: int, going: Going) -> None:
    """Begin a header or a body, send a byte a second, and come back when the service has had enough."""
    beginnings = (b"", HEAD, HEAD + b"X-Slow: ", HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 50_000)
    while going():
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(beginnings[i % 4])
                while going() and not writer.is_closing():
                    writer.write(b" ")
                    await asyncio.sleep(1)
            finally:
                writer.transport.abort()
                await asyncio.sleep(0)
        await asyncio.sleep(0.5)


async def hostile_caller(port: int, turns: list[bytes], answered: list[int]) -> None:
    """Send hostile bodies; 0 stands for a connection that was closed before all was sent."""
    while turns:
        content = turns.pop()
        try:
            answered.append((await post(port, content))[0])
        except (OSError, IndexError):
            answered.append(0)


async def attack(process, port: int, seconds: float):
    """All at once, for so many seconds and until all hostile bodies are sent."""
    times, statuses, answered, memory = [], [], [], []
    turns, begun = list(islice(cycle(BODIES.values()), HOSTILE)), lasting(seconds)
    hostile = [asyncio.create_task(hostile_caller(port, turns, answered)) for _ in range(8)]

    def going() -> bool:
        return begun() or not all(task.done() for task in hostile)

    async def watch():
        while going():
            memory.append(await asyncio.to_thread(resident, process))
            await asyncio.sleep(1)

    slow = [slow_caller(port, i, going) for i in range(SLOW)]
    await asyncio.gather(watch(), honest(port, going, times, statuses), *slow, *hostile)
    return times, statuses, answered, memory


@pytest.mark.timeout(1_200)
def test_honest_callers_are_answered_while_others_attack(folder):
    with serving(folder, may_speak=True) as (process, port):
        asyncio.run(honest(port, lasting(3), [], []))
        with suppress(OSError):
            asyncio.run(post(port, BODIES["too long"][:30_000_000]))
        before = resident(process)
        began = time.monotonic()
        times, statuses, answered, memory = asyncio.run(attack(process, port, SECONDS))
        seconds = time.monotonic() - began
        asyncio.run(honest(port, lasting(3), [], []))
        after = resident(process)
        start = time.perf_counter()
        stop(process)
        process.wait(60)
        stopped = time.perf_counter() - start
    p50, p99 = np.percentile(times, [50, 99])
    counts = {status: answered.count(status) for status in sorted(set(answered))}
    print(
        f"\n{len(times)} honest requests in {seconds:.0f} s beside {SLOW} slow callers and {len(answered)} hostile "
        f"bodies {counts}: {statuses.count(200)} answered, p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms; memory "
        f"{before:.0f} MB before, {max(memory):.0f} MB at most, {after:.0f} MB after; stopped in {stopped:.1f} s"
    )
    assert set(statuses) == {200}
    assert p99 <= 1
    assert max(memory) - before <= 100
    assert len(answered) == HOSTILE
    assert set(answered) <= {0, 413, 422, 503}
    assert stopped <= 35


def test_few_file_handles_and_many_slow_headers_leave_the_service_alive(folder):
    async def crowd(port):
        slow = [asyncio.create_task(slow_caller(port, i, lasting(6))) for i in range(300)]
        await asyncio.sleep(1)
        statuses = [(await post(port, one_row(i)))[0] for i in range(20)]
        await asyncio.gather(*slow)
        return statuses

    with serving(folder, before=("prlimit", "--nofile=256:256"), may_speak=True) as (_, port):
        assert asyncio.run(crowd(port)) == [200] * 20


def worker_of(process) -> list[int]:
    return family(process)[1:]


def test_a_worker_that_is_killed_again_and_again_is_replaced(folder):
    with serving(folder) as (process, port):
        for _ in range(20):
            for pid in worker_of(process):
                os.kill(pid, signal.SIGKILL)
            assert asyncio.run(post(port, one_row(0)))[0] in (200, 503)  # it may have been taken by one that was dying
            assert asyncio.run(post(port, one_row(0)))[0] == 200
        assert len(worker_of(process)) <= 2


def test_it_stops_in_time_whatever_runs(folder):
    rows = {name: frame.iloc[np.arange(10_000) % 40] for name, frame in FRAMES.items()}
    heavy = json.dumps(body(rows, ids=False)).encode()

    async def stopped(process, port, wait):
        going = lasting(wait + 40)
        slow = [asyncio.create_task(slow_caller(port, i, going)) for i in range(50)]
        asked = [asyncio.create_task(post(port, heavy, "/explain")) for _ in range(30)]
        await asyncio.sleep(wait)
        start = time.monotonic()
        stop(process)
        await asyncio.to_thread(process.wait, 60)
        for task in (*slow, *asked):
            task.cancel()
        await asyncio.gather(*slow, *asked, return_exceptions=True)
        return time.monotonic() - start

    seconds = []
    for wait in (0.05, 1.0, 3.0):
        with serving(folder, may_speak=True) as (process, port):
            seconds.append(asyncio.run(stopped(process, port, wait)))
    print(f"\nstopped in {', '.join(f'{one:.1f}' for one in seconds)} s")
    assert max(seconds) <= 35


def test_a_request_beyond_its_time_is_ended_and_others_are_answered(folder):
    rows = {name: frame.iloc[np.arange(10_000) % 40] for name, frame in FRAMES.items()}
    heavy = json.dumps(body(rows, ids=False)).encode()
    with serving(folder, "--max-seconds", 0.2) as (_, port):
        assert asyncio.run(post(port, heavy, "/explain"))[0] == 504
        assert asyncio.run(post(port, one_row(0)))[0] == 200
