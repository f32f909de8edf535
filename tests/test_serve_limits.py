"""The service where somebody leans on it: time, memory and connections are limited, and others are answered."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from asgi_client import PARQUET, Client, ask
from served_models import save_model
from test_serve import few, parquet
from viewfuse.errors import DataError
from viewfuse.serve import worker
from viewfuse.serve import worker as process
from viewfuse.serve.app import _read, create_app
from viewfuse.serve.bodies import read_json
from viewfuse.serve.inference import open_folder
from viewfuse.serve.limits import Busy, Limits, Signs, TooLarge, TooLong
from viewfuse.serve.server import Counted, connections
from viewfuse.serve.worker import Process

JSON = {"content_type": "application/json"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return open_folder(save_model(tmp_path_factory.mktemp("served") / "model"), "cpu")


@pytest.fixture
def napping(opened, monkeypatch, tmp_path):
    """A model that sleeps as many seconds as the first value of the first row says, where that is above 100.

    The process that sleeps makes the file "asleep", and is awake as soon as there is a file "awake".
    """
    quick = opened.fitted.judge

    def slow(views):
        seconds = float(views.arrays[0][0, 0]) - 100
        if seconds > 0:
            (tmp_path / "asleep").touch()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not (tmp_path / "awake").exists():
                time.sleep(0.01)
        return quick(views)

    monkeypatch.setattr(opened.fitted, "judge", slow)
    return opened


async def until(is_so, seconds: float = 5.0) -> None:
    """Wait until something is so, at most for some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_so():
        await asyncio.sleep(0.01)


def one(seconds: float = 0.0, rows: int = 1) -> bytes:
    """A request that takes so long."""
    values = np.ones((rows, 10))
    values[0, 0] = 100 + seconds if seconds else 1
    return json.dumps({"views": {"rna": values.tolist()}}).encode()


# One request: what is in a body costs time and memory in proportion to its length.


def test_a_doubled_key_is_found_in_time_that_grows_with_the_body_alone():
    n = 30_000
    content = ("{" + ",".join(f'"k{i}":0' for i in range(n)) + f',"k{n - 1}":1}}').encode()
    start = time.process_time()
    with pytest.raises(DataError, match=f"'k{n - 1}' stands twice"):
        read_json(content, Limits(), ["rna"])
    assert time.process_time() - start < 2  # 23 s when each key was compared with all


def test_columns_with_names_are_read_in_time_that_grows_with_their_number_alone():
    n = 20_000
    view = {"columns": [f"c{i}" for i in range(n)], "values": [[1.0] * n]}
    start = time.process_time()
    assert read_json(json.dumps({"views": {"rna": view}}).encode(), Limits(), ["rna"]).widths == (n,)
    assert time.process_time() - start < 1.5  # 6 s when each name was copied with all before it


@pytest.mark.parametrize(("sign", "needed"), [("[", 5 * 3), ("{", 2), (":", 4 * 2), (",", 5 * (7 + 2 + 1))])
def test_twice_what_samples_and_names_need_is_the_most(sign, needed):
    """Four samples and a line of names, of two views with seven columns; names may hold a hundred signs more."""
    most = 2 * (needed + 4 + 7 + 100)
    signs = Signs(Limits(rows=4), 2, 7)
    signs.add(sign.encode() * (most - 1))
    signs.add(sign.encode())
    with pytest.raises(TooLarge, match=f"the body has more than {most} times '\\{sign}', far more than 4 samples"):
        signs.add(sign.encode())


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,", b'"":', b'"ab",', b"[1],"], ids=bytes.decode)
def test_what_cannot_be_samples_is_refused_as_it_arrives(opened, monkeypatch, part):
    client, taken = Client(create_app(opened)), []
    monkeypatch.setattr("viewfuse.serve.app._read", partial(noting, _read, taken))
    answer = client.post("/predict", b'{"views":{"rna":[' + part * 1_000_000, parts=100)
    assert answer.status == 413
    assert "far more than 10,000 samples of this model need; send" in answer.json()["detail"]
    assert len(taken[0]) < 0.45 * len(part) * 1_000_000


async def noting(read, taken, body, *rest):
    taken.append(body)
    return await read(body, *rest)


def test_samples_with_other_columns_and_signs_in_their_names_are_not_refused():
    ids = [f"a[{{,:{i}" for i in range(1000)]
    content = json.dumps({"views": {"rna": [[1.0] * 30] * 1000}, "ids": ids}).encode()
    Signs(Limits(rows=1000), 2, 15).add(content)
    assert len(read_json(content, Limits(rows=1000), ["rna", "protein"])) == 1000


def test_names_of_any_length_are_cut_in_answers(opened):
    answer = Client(create_app(opened)).post("/predict", b'{"%s": 1, "%s": 2}' % (b"a" * 9000, b"a" * 9000))
    assert (answer.status, len(answer.json()["detail"])) == (422, 2004)


def test_answers_have_neither_paths_nor_advice_for_python(opened):
    client = Client(create_app(opened))
    rna = few("rna")["rna"].rename_axis("id")
    holey = rna.copy()
    holey.loc["p1"] = np.nan
    placed = client.post("/predict?view=rna", parquet(holey), PARQUET).json()
    assert placed["ids"] == ["p0", "p2"]
    assert placed["warnings"] == ["the body: sample 'p1' has no view at all and is left out"]
    unknown = client.post("/predict", b'{"views": {"x": [[1]]}}').json()["detail"]
    assert unknown.endswith("rename them or leave them out")
    digits = client.post("/predict", b'{"views": {"rna": [[' + b"1" * 5000 + b"]]}}").json()["detail"]
    assert "a whole number with too many digits; write" in digits
    both = client.post("/predict?view=rna&block=rna=*", parquet(rna), PARQUET).json()["detail"]
    assert both == "give view for a table that is one view, or block for one that holds several, not both"


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.1", "::1"])
def test_a_service_answers_to_the_address_that_it_was_given(opened, host):
    client = Client(create_app(opened, host=host))
    called = f"[{host}]:80" if ":" in host else f"{host}:80"
    assert client.get("/model", host=called).status == 200
    assert client.get("/model", host="127.evil.example").status == 400


# The process that asks the model.


def test_a_request_that_takes_too_long_is_ended_and_the_next_one_answered(napping):
    client = Client(create_app(napping, Limits(seconds=1)))
    assert client.post("/predict", one()).status == 200
    start = time.perf_counter()
    late = client.post("/predict", one(60))
    assert (late.status, time.perf_counter() - start < 20) == (504, True)
    assert late.json()["detail"] == "the request took more than 1 s of computing; send fewer samples"
    assert client.post("/predict", one()).status == 200


def test_a_process_that_waits_for_a_lost_lock_is_replaced(monkeypatch):
    """Locks that another thread holds at the moment of a fork are never released in the forked process."""
    lock, holds, may_end = threading.Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            holds.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    stuck = Process(lock.acquire, list, 0.1)
    may_end.set()
    thread.join()
    with monkeypatch.context() as patch:
        patch.setattr(process, "_PATIENCE", 0.1)
        with pytest.raises(Busy, match="another one is there; try again"):
            asyncio.run(stuck.ask([({}, bytearray())]))
    assert not stuck.is_alive
    free = Process(lock.acquire, list, 0.1)
    assert asyncio.run(free.ask([({"n": 1}, bytearray())])) == [({"n": 1}, b"")]


def test_short_requests_do_not_wait_for_long_ones(napping, tmp_path):
    app = create_app(napping, Limits(seconds=3))

    async def both():
        long = asyncio.create_task(ask(app, "POST", "/predict", one(60, rows=400), **JSON))
        await until((tmp_path / "asleep").exists)
        short = await ask(app, "POST", "/predict", one(), **JSON)
        was_done = long.done()
        (tmp_path / "awake").touch()
        return short, was_done, await long

    short, was_done, long = asyncio.run(both())
    assert (short.status, was_done, long.status) == (200, False, 200)


@pytest.fixture
def started(monkeypatch):
    """The ids of processes that are started."""
    pids, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.append(fork()) or pids[-1])
    return pids


def test_a_process_that_was_killed_is_replaced(napping, started, tmp_path):
    app = create_app(napping)

    async def killed():
        asked = asyncio.create_task(ask(app, "POST", "/predict", one(60), **JSON))
        await until((tmp_path / "asleep").exists)
        os.kill(started[0], signal.SIGKILL)
        at_work = await asked
        after = await ask(app, "POST", "/predict", one(), **JSON)
        os.kill(started[1], signal.SIGKILL)
        await until(lambda: not app.state.serving.queues[0]._process.is_alive)
        return at_work, after, await ask(app, "POST", "/predict", one(), **JSON)

    at_work, after, idle = asyncio.run(killed())
    assert (at_work.status, at_work.headers["retry-after"], after.status, idle.status) == (503, "1", 200, 200)
    assert "has ended, and another one is there; try again" in at_work.json()["detail"]
    assert len(started) == 3


def test_the_end_of_the_service_ends_what_runs(napping, started, tmp_path):
    app = create_app(napping)

    async def life():
        async with app.router.lifespan_context(app):
            asked = asyncio.create_task(ask(app, "POST", "/predict", one(60), **JSON))
            await until((tmp_path / "asleep").exists)
        return await asked

    start = time.perf_counter()
    assert asyncio.run(life()).status == 503
    assert time.perf_counter() - start < 10
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_request_that_is_given_up_says_so(napping, tmp_path):
    app = create_app(napping)

    async def cancelled():
        asked = asyncio.create_task(ask(app, "POST", "/predict", one(60), **JSON))
        await until((tmp_path / "asleep").exists)
        asked.cancel()
        return await asked

    assert asyncio.run(cancelled()).status == 503
    assert Client(app).post("/predict", one()).status == 200


def test_processes_end_with_what_started_them_and_hold_no_connections():
    async def echo():
        near, far = socket_pair()
        process = Process(lambda: None, list, seconds=5)
        near.close()
        far.settimeout(5)
        closed = far.recv(1) == b""  # the process holds no copy of the other end
        far.close()
        large = [({"n": n, "a": [1, "é"]}, bytearray(b"x" * size)) for n, size in enumerate((0, 3_000_000, 16_000))]
        expected = [(facts, bytes(body)) for facts, body in large]
        same = await process.ask(large) == expected
        return process, closed, same, [len(body) for _, body in large]

    process, closed, same, kept = asyncio.run(echo())
    assert (closed, same, process.is_alive) == (True, True, True)
    assert kept == [0, 0, 16_000]  # large ones are gone when they are sent
    end = process.end
    del process
    assert not end.alive


def socket_pair():
    import socket

    return socket.socketpair()


def test_long_bodies_wait_before_they_are_read(napping, monkeypatch):
    monkeypatch.setattr("viewfuse.serve.app._AT_ONCE", 1)
    app = create_app(napping, Limits(body_seconds=0.2))
    contents = [one(seconds) + b" " * 300_000 for seconds in (0.4, 0)]

    async def crowd():
        return await asyncio.gather(*(ask(app, "POST", "/predict", content, **JSON) for content in contents))

    assert [answer.status for answer in asyncio.run(crowd())] == [200, 200]  # the second waited longer than 0.2 s


# Connections.


@asynccontextmanager
async def serving(opened, limits: Limits, most: int = 100):
    """Connect to a service without its main loop, which would take the signals of the tests."""
    config = uvicorn.Config(create_app(opened, limits), http=connections(limits, most), log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    opened_here = []

    async def connect(content: bytes = b""):
        opened_here.append(await asyncio.open_connection(*server.sockets[0].getsockname()))
        opened_here[-1][1].write(content)
        return opened_here[-1]

    yield connect
    server.close()
    for _, writer in opened_here:
        writer.close()
    for one_of_them in list(state.connections):
        one_of_them.transport.abort()
    await asyncio.sleep(0)


HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def is_closed(reader, seconds: float = 5.0) -> bool:
    """Whether the service ends the connection in this time."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


async def trickle(writer, seconds: float) -> None:
    """A byte every now and then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("beginning", [b"", HEALTH + b"X-Slow: ", HEALTH + b"\r\nGET /h", b"POST /health HTTP/1.1\r\n"
    b"Host: 127.0.0.1\r\nContent-Length: 999\r\n\r\n"], ids=["nothing", "header", "second", "body"])  # fmt: skip
def test_who_does_not_finish_a_header_is_not_waited_for(opened, beginning):
    async def slow():
        async with serving(opened, Limits(header_seconds=0.1)) as connect:
            reader, writer = await connect(beginning)
            bytes_come = asyncio.create_task(trickle(writer, 3))
            closed = await is_closed(reader, 2.5)
            bytes_come.cancel()
            return closed

    assert asyncio.run(slow())


def test_a_body_may_take_longer_than_a_header(opened):
    content = one()
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"

    async def slow():
        async with serving(opened, Limits(header_seconds=0.1)) as connect:
            reader, writer = await connect(head + b"Content-Length: %d\r\n\r\n" % len(content))
            await asyncio.sleep(0.3)
            writer.write(content)
            return await reader.read()

    assert b" 200 OK" in asyncio.run(slow())


def test_of_too_many_connections_the_one_that_has_waited_longest_goes(opened):
    async def crowd():
        async with serving(opened, Limits(header_seconds=30), most=5) as connect:
            slow = [(await connect(HEALTH))[0] for _ in range(8)]
            reader, _ = await connect(HEALTH + b"Connection: close\r\n\r\n")
            answered = b" 200 OK" in await reader.read()
            return answered, await asyncio.gather(*(is_closed(one_of_them, 0.2) for one_of_them in slow))

    answered, closed = asyncio.run(crowd())
    assert answered
    assert closed == [True] * 4 + [False] * 4


def test_of_too_many_bytes_the_body_that_has_waited_longest_goes(opened):
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    slow_body = head + b"Content-Length: 9000\r\n\r\n" + b" " * 8000

    async def crowd():
        async with serving(opened, Limits(bytes=10_000, header_seconds=30)) as connect:
            slow = [(await connect(slow_body))[0] for _ in range(5)]
            await asyncio.sleep(0.2)
            reader, _ = await connect(HEALTH + b"Connection: close\r\n\r\n")
            answered = b" 200 OK" in await reader.read()
            return answered, await asyncio.gather(*(is_closed(one_of_them, 0.2) for one_of_them in slow))

    answered, closed = asyncio.run(crowd())
    assert answered
    assert closed == [True] * 2 + [False] * 3


class Deaf(asyncio.Transport):
    """To a caller who takes nothing of what is written."""

    def __init__(self, unread: int) -> None:
        super().__init__()
        self.unread, self.is_aborted = unread, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.is_aborted = True


def test_who_does_not_take_an_answer_is_not_waited_for(opened):
    limits = Limits(answer_seconds=0.1, bytes=1000)

    async def deaf():
        config = uvicorn.Config(create_app(opened), http=connections(limits, 9), log_config=None)
        config.load()
        callers = [Deaf(1400) for _ in range(3)]
        for transport in callers:
            connection = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
            connection.connection_made(transport)
            connection.pause_writing()
        connection.resume_writing()
        at_once = [one_of_them.is_aborted for one_of_them in callers]
        await asyncio.sleep(0.2)
        return at_once, [one_of_them.is_aborted for one_of_them in callers]

    at_once, later = asyncio.run(deaf())
    assert at_once == [True, False, False]  # 4,200 bytes were too many, and it had waited longest
    assert later == [True, True, False]  # the last one has taken its answer


# The log.


def test_repeated_lines_are_counted(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("viewfuse.serve.server.monotonic", lambda: now[0])
    log = logging.getLogger("uvicorn.error")
    counted = Counted()
    log.addFilter(counted)
    try:
        for second in (0, 1, 2, 59, 61):
            now[0] = second
            log.warning("Invalid request from %s", second)
            log.warning("something else")
    finally:
        log.removeFilter(counted)
    assert [record.getMessage() for record in caplog.records] == [
        "Invalid request from 0", "something else",
        "Invalid request from 61 (and 3 more like it)", "something else (and 3 more like it)",
    ]  # fmt: skip


@pytest.mark.parametrize(("most", "is_taken"), [(12, True), (11, False)])
def test_a_body_may_have_as_many_bytes_as_are_allowed(most, is_taken):
    """However it is cut."""

    async def parts():
        for part in (b"12345", b"", b"678", b"9abc"):
            yield part

    body = bytearray()
    with nullcontext() if is_taken else pytest.raises(TooLarge, match="more than 11 bytes"):
        assert asyncio.run(_read(body, parts(), Limits(bytes=most), None, most))
    assert body == b"123456789abc"


def test_a_body_is_read_on_where_reading_was_left():
    async def parts():
        for part in (b"12345", b"678", b"9"):
            yield part

    async def read():
        body, rest, signs = bytearray(), parts(), Signs(Limits(), 1, 1)
        first = await _read(body, rest, Limits(), signs, 4), bytes(body)
        return first, (await _read(body, rest, Limits(), signs, 99), bytes(body))

    assert asyncio.run(read()) == ((False, b"12345"), (True, b"123456789"))


def test_signs_of_a_short_request():
    for part, is_few in ((b"[" * 300 + b"," * 30_000, True), (b"[" * 301, False), (b"," * 30_001, False)):
        signs = Signs(Limits(), 2, 7)
        signs.add(part[:100])
        signs.add(part[100:])
        assert signs.are_few == is_few


def test_a_service_that_stops_starts_no_process_again():
    started = []
    queue = worker.Queue(lambda: started.append("one") or SimpleNamespace(is_alive=False, end=lambda: None), 3, 1)
    queue.process()
    queue.process()  # the first one has ended
    assert len(started) == 2
    queue.places = 0
    with pytest.raises(Busy, match="the service stops"):
        queue.process()
    assert len(started) == 2


class Recorder:
    """Stands for a process: notes what it is asked, and ends over bodies of "x"."""

    is_alive = True

    def __init__(self):
        self.asked = []

    async def ask(self, several):
        await asyncio.sleep(0)
        self.asked.append([one["n"] for one, _ in several])
        if any(body[:1] == b"x" for _, body in several):
            raise TooLong("it took too long")
        return [({"n": one["n"]}, bytearray(body[::-1])) for one, body in several]


def asked_at_once(bodies):
    """What each caller gets of one queue, and what its process was asked."""
    process_ = Recorder()

    async def all_at_once():
        queue = process.Queue(lambda: process_, 99, 99)
        asked = (queue.ask({"n": n}, bytearray(body)) for n, body in enumerate(bodies))
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(all_at_once()), process_.asked


def test_small_requests_that_wait_are_asked_together_and_do_not_wait_for_larger_ones():
    large = b"l" * 16_001
    found, asked = asked_at_once([b"ab", b"cd", large, b"ef", *[b"gh"] * 40])
    assert asked[0] == [0]  # when no other waited yet
    assert asked[1:] == [[1, *range(3, 34)], [2], [*range(34, 44)]]
    assert [(own["n"], bytes(text)) for own, text in found[:4]] == [(0, b"ba"), (1, b"dc"), (2, large), (3, b"fe")]
    assert [own["n"] for own, _ in found] == list(range(44))


def test_only_the_request_at_fault_is_refused():
    found, asked = asked_at_once([b"ab", b"cd", b"xx", b"ef"])
    assert asked == [[0], [1, 2, 3], [1], [2], [3]]
    assert [type(one) for one in found] == [tuple, tuple, TooLong, tuple]
    assert bytes(found[3][1]) == b"fe"


def test_who_is_asked_for_by_another_that_stops_waiting_may_try_again():
    class Slow(Recorder):
        async def ask(self, several):
            await asyncio.sleep(3)

    async def cancelled():
        queue = process.Queue(Slow, 99, 99)
        asked = [asyncio.create_task(queue.ask({"n": n}, bytearray(b"ab"))) for n in range(4)]
        await asyncio.sleep(0.01)
        asked[0].cancel()
        await asyncio.sleep(0.01)
        asked[1].cancel()  # which asks for 2 and 3 as well
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in asyncio.run(cancelled())] == [
        asyncio.CancelledError,
        asyncio.CancelledError,
        Busy,
        Busy,
    ]
