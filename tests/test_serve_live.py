"""The service as a process, under load and under fire: `make faults`."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_client import Client
from served_models import body, frames, save_model
from viewfuse import load
from viewfuse.serve.app import create_app
from viewfuse.serve.inference import open_folder

pytestmark = pytest.mark.fault
SOAK_MINUTES = float(os.environ.get("VIEWFUSE_SOAK_MINUTES", "0.3"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def client(folder):
    return Client(create_app(open_folder(folder, "cpu")))


@contextmanager
def serving(folder, *more, before=(), may_speak=False):
    """A service, and the port at which it listens; it must end well, and say little, or no word of trouble at all.

    `before` is a command that starts it.
    """
    command = [*before, sys.executable, "-m", "viewfuse", "serve", str(folder), "--port", "0", *map(str, more)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield process, int(re.search(r":(\d+);", line).group(1))
    finally:
        stop(process)
        _, trouble = process.communicate(timeout=60)
    assert (process.returncode, "" if may_speak else trouble) == (0, "")
    assert len(trouble) < 10_000


def stop(process):
    """Ask the service to stop, once."""
    if not hasattr(process, "told"):
        process.told = True
        process.send_signal(signal.SIGTERM)


async def post(port: int, content: bytes, path: str = "/predict", kind: str = "application/json"):
    """The status and the body of an answer over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    try:
        whole = f"{head}Connection: close\r\n\r\n".encode() + content
        for start in range(0, len(whole), 2**17):  # asyncio takes its time with long ones
            writer.write(whole[start : start + 2**17])
            await writer.drain()
        found = await reader.read()
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
    return int(found.split(b" ", 2)[1]), found.partition(b"\r\n\r\n")[2]


def one_row(i: int) -> bytes:
    given_views = {name: frame[i % 40 : i % 40 + 1] for name, frame in FRAMES.items()}
    return json.dumps(body(given_views, ids=False) | {"ids": [f"client{i}"]}).encode()


FRAMES = frames()


async def crowd(port: int, n: int):
    return await asyncio.gather(*(post(port, one_row(i)) for i in range(n)))


@pytest.mark.parametrize("places", [64, 1000])
def test_a_thousand_at_once_are_answered_or_sent_away(folder, places):
    known = load(folder).predict(FRAMES)
    with serving(folder, "--queue", places) as (_, port):
        start = time.perf_counter()
        answers = asyncio.run(crowd(port, 1000))
        seconds = time.perf_counter() - start
    statuses = [status for status, _ in answers]
    print(
        f"\n{places} places: {statuses.count(200)} of 1000 answered in {seconds:.1f} s, {statuses.count(503)} times 503"
    )
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= places
    for i, (status, content) in enumerate(answers):
        if status == 200:
            found = json.loads(content)
            assert (found["ids"], found["labels"]) == ([f"client{i}"], [known[i % 40]])


def test_one_row_takes_no_more_than_twice_a_direct_predict(folder):
    model, bodies = load(folder), [one_row(i) for i in range(40)]
    rows = [{name: frame[i : i + 1] for name, frame in FRAMES.items()} for i in range(40)]
    with serving(folder) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        served, direct = [], []
        for i in range(240):  # in turn, as the machine may be busy for a while
            start = time.perf_counter()
            connection.request("POST", "/predict", bodies[i % 40], {"Content-Type": "application/json"})
            assert connection.getresponse().read()
            middle = time.perf_counter()
            model.predict(rows[i % 40])
            if i >= 40:
                served.append(middle - start)
                direct.append(time.perf_counter() - middle)
        connection.close()
    print(f"\np50: served {1000 * np.median(served):.1f} ms, direct {1000 * np.median(direct):.1f} ms")
    assert np.median(served) <= 2 * np.median(direct)


def test_who_is_being_answered_when_the_service_stops_gets_the_answer(folder):
    rows = {name: frame.iloc[np.arange(8000) % 40] for name, frame in FRAMES.items()}
    content = json.dumps(body(rows, ids=False)).encode()

    async def stopped(process, port):
        asked = asyncio.create_task(post(port, content))
        await asyncio.sleep(0.7)
        stop(process)
        return await asked

    with serving(folder) as (process, port):
        status, found = asyncio.run(stopped(process, port))
    assert (status, len(json.loads(found)["labels"])) == (200, 8000)


def test_five_hundred_malformed_bodies_over_the_wire(folder):
    rng, whole = np.random.default_rng(0), one_row(0)
    kinds = ("application/json", "application/vnd.apache.parquet", "text/plain")
    bodies = [bytes(rng.integers(256, size=rng.integers(200), dtype=np.uint8)) for _ in range(200)]
    for _ in range(300):
        broken = bytearray(whole)
        for place in rng.integers(len(broken), size=rng.integers(1, 4)):
            broken[place] = rng.integers(32, 127)
        bodies.append(bytes(broken[: rng.integers(1, len(broken) + 1)]))

    async def all_of_them(port):
        return [await post(port, one, "/impute?view=rna" * (i % 3 == 1) or "/impute", kinds[i % 3])
                for i, one in enumerate(bodies)]  # fmt: skip

    with serving(folder) as (_, port):
        answers = asyncio.run(all_of_them(port))
    statuses = [status for status, _ in answers]
    print({status: statuses.count(status) for status in set(statuses)})
    assert set(statuses) <= {200, 415, 422}
    assert all("detail" in json.loads(content) for status, content in answers if status != 200)
    assert not any(b"Traceback" in content for _, content in answers)


CELLS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
)
ROWS = st.lists(st.none() | st.lists(CELLS, max_size=11), max_size=3) | CELLS
NAMED = st.fixed_dictionaries({"values": ROWS, "columns": st.lists(CELLS, max_size=11) | CELLS})
BODIES = st.fixed_dictionaries(
    {"views": st.dictionaries(st.sampled_from(["rna", "protein"]) | st.text(max_size=3), ROWS | NAMED, max_size=3)},
    optional={"ids": st.lists(CELLS, max_size=3) | CELLS},
)


@settings(max_examples=500)
@given(content=BODIES)
def test_no_body_is_a_mistake_of_the_service(client, content):
    assert client.post("/impute", content).status in (200, 422)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.timeout(60 * SOAK_MINUTES + 300)
def test_memory_stays_flat(folder):
    def resident(process):
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()).group(1)) / 1024

    async def ask_for(port, seconds):
        end, asked = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            await crowd(port, 20)
            await post(port, b"{")
            asked += 21
        return asked

    with serving(folder, "--queue", 100) as (process, port):
        asyncio.run(ask_for(port, 60 * SOAK_MINUTES / 3))
        before = resident(process)
        asked = asyncio.run(ask_for(port, 60 * SOAK_MINUTES * 2 / 3))
        after = resident(process)
    print(f"\n{asked} requests in {SOAK_MINUTES * 2 / 3:g} minutes: {before:.1f} MB before, {after:.1f} MB after")
    assert after - before <= 8 + 0.02 * before
