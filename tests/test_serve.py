"""The service: its answers are the model's, nobody sees another's rows, and what it cannot take is told."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time

import numpy as np
import pandas as pd
import pytest

from asgi_client import PARQUET, Client, ask
from run_folders import write_run
from served_models import body, frames, save_model
from viewfuse.errors import BadModelFile
from viewfuse.report.html import filled
from viewfuse.serve.app import create_app
from viewfuse.serve.inference import open_folder, reply
from viewfuse.serve.limits import Limits
from viewfuse.serve.middleware import Metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def opened(folder):
    return open_folder(folder, "cpu")


@pytest.fixture(scope="module")
def client(opened):
    return Client(create_app(opened))


def few(*names, rows=slice(0, 3)):
    return {name: frame[rows] for name, frame in frames().items() if name in names}


def parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize("names", [("rna", "protein"), ("rna",), ("protein",)], ids="+".join)
def test_answers_are_those_of_the_model(client, opened, names):
    samples = few(*names)
    placed = client.post("/predict", body(samples)).json()
    known = opened.fitted.predict_proba(samples)
    assert placed["ids"] == ["p0", "p1", "p2"]
    assert np.array_equal(np.float32(placed["probabilities"]), known)
    assert placed["labels"] == known.argmax(axis=1).tolist()
    assert placed["warnings"] == []
    whole, filled = client.post("/impute", body(samples)).json()["views"], opened.fitted.impute(samples)
    for name, view in whole.items():
        assert np.array_equal(np.float32(view["values"]), filled[name])
        assert view["columns"] == list(frames()[name].columns)
        assert view["imputed"] == [name not in names] * 3
    why, known = client.post("/explain", body(samples)).json(), opened.fitted.explain(samples)
    assert why["donors"]["protein"] == [list(ids) for ids in known.donors[:, 1]]
    assert np.array_equal(np.float32(why["weights"]["rna"]), known.weights[:, 0])


def test_rows_of_plain_numbers_and_missing_rows(client, opened):
    rna, protein = (frame.to_numpy(float).tolist() for frame in few("rna", "protein").values())
    sent = {"views": {"rna": [rna[0], None, rna[2]], "protein": [None, protein[1], protein[2]]}}
    placed = client.post("/predict", sent).json()
    lacking = few("rna", "protein")
    lacking["rna"].iloc[1], lacking["protein"].iloc[0] = np.nan, np.nan
    assert placed["ids"] == [0, 1, 2]
    assert np.array_equal(np.float32(placed["probabilities"]), opened.fitted.predict_proba(lacking))


def test_warnings_of_the_package_are_in_the_answer(client):
    odd = few("rna")
    odd["rna"] = odd["rna"].assign(other=1.0).rename(columns={"rna1": "misspelt"})
    placed = client.post("/predict", body(odd)).json()
    assert any("'other'" in line and "'misspelt'" in line for line in placed["warnings"])
    assert placed["filled_cells"]["rna"]["cells"] == 3
    for verb in ("/predict", "/impute", "/explain"):
        assert "empty cells were filled: rna: 3 cells" in " ".join(client.post(verb, body(odd)).json()["warnings"])
    far = few("rna", rows=slice(0, 1))
    far["rna"] *= 1e4
    placed = client.post("/predict", body(far)).json()
    assert placed["out_of_range"] == [True]
    assert "far outside" in placed["warnings"][0]


def test_parquet_holds_one_view_lists_or_blocks(client, opened):
    both = few("rna", "protein")
    known = opened.fitted.predict_proba(both).tolist()
    wide = pd.concat(both.values(), axis=1).rename_axis("patient")
    lists = pd.DataFrame({name: list(frame.to_numpy()) for name, frame in both.items()}, index=wide.index)
    blocks = "/predict?block=rna=rna*&block=protein=protein*"
    for address, table in (("/predict", lists), (f"{blocks}&id_column=patient", wide)):
        placed = client.post(address, parquet(table), PARQUET).json()
        assert placed["ids"] == ["p0", "p1", "p2"]
        assert np.float32(placed["probabilities"]).tolist() == np.float32(known).tolist()
    one = client.post("/predict?view=protein", parquet(both["protein"].rename_axis("id")), PARQUET).json()
    assert np.array_equal(np.float32(one["probabilities"]), opened.fitted.predict_proba(few("protein")))


def test_parquet_that_cannot_be_read_is_told_without_a_path(client, tmp_path):
    table = parquet(few("rna")["rna"].rename_axis("id"))
    cases = {
        "/predict": (table, "say which view it is with ?view=NAME; the model has rna, protein"),
        "/predict?view=rna&id_column=x": (table, "the body has no column 'x'"),
        "/predict?view=rna": (table[:-9], "the body is no readable .parquet file"),
        "/predict?block=rna": (table, "write NAME=VALUE"),
        "/explain?view=protein": (table, "view 'protein'"),
    }
    for address, (content, words) in cases.items():
        answer = client.post(address, content, PARQUET)
        assert answer.status == 422
        assert words in answer.json()["detail"]
        assert "/" not in answer.json()["detail"].replace("docs/serve.md", "")


def test_too_much_is_refused(opened):
    client = Client(create_app(opened, Limits(rows=3, bytes=20_000)))
    assert client.post("/predict", body(few("rna", "protein"))).status == 200
    answers = [
        client.post("/predict", body(few("rna", rows=slice(0, 4)))),
        client.post("/predict", b" " * 20_001),
        client.post("/predict?view=rna", parquet(few("rna", rows=slice(0, 4))["rna"]), PARQUET),
        Client(create_app(opened, Limits(bytes=500))).post("/impute", body(few("protein"), ids=False)),
    ]
    assert [answer.status for answer in answers] == [413] * 4
    assert "4 samples are more than the 3 of one request" in answers[0].json()["detail"]
    assert "the body has more than 20,000 bytes" in answers[1].json()["detail"]
    assert "the answer would have" in answers[3].json()["detail"]


def test_a_small_file_that_becomes_large_is_not_used(opened):
    table = pd.DataFrame({f"c{i}": np.zeros(1000) for i in range(20)}, index=[f"p{i}" for i in range(1000)])
    content = parquet(table)
    client = Client(create_app(opened, Limits(bytes=100_000)))
    assert len(content) < 100_000
    assert client.post("/predict?view=rna", content, PARQUET).status == 413


def test_who_finds_no_place_is_sent_away_and_others_are_answered(opened, monkeypatch):
    app, quick = create_app(opened, Limits(places=2)), opened.fitted.judge
    monkeypatch.setattr(opened.fitted, "judge", lambda views: time.sleep(0.2) or quick(views))
    content = json.dumps(body(few("rna"))).encode()

    async def crowd():
        slow = [asyncio.create_task(ask(app, "POST", "/predict", content, content_type="application/json"))
                for _ in range(2)]  # fmt: skip
        await asyncio.sleep(0.05)
        away = await ask(app, "POST", "/predict", content, content_type="application/json")
        ready, health = await ask(app, "GET", "/ready"), await ask(app, "GET", "/health")
        return away, ready, health, await asyncio.gather(*slow), await ask(app, "GET", "/ready")

    away, ready, health, answered, later = asyncio.run(crowd())
    assert (away.status, ready.status, health.status, later.status) == (503, 503, 200, 200)
    assert away.headers["retry-after"] == "1"
    assert [one.status for one in answered] == [200, 200]


def test_a_body_that_does_not_come_is_not_waited_for(opened):
    client = Client(create_app(opened, Limits(body_seconds=0.05)))
    assert client.post("/predict", body(few("rna")), pause=0.5).status == 408
    assert client.post("/predict", body(few("rna"))).status == 200


def test_clients_get_their_own_rows(client, opened):
    subsets = (("rna",), ("protein",), ("rna", "protein"))
    parts = [few(*subsets[i % 3], rows=slice(i, i + 1)) for i in range(30)]

    async def crowd():
        contents = [json.dumps(body(part)).encode() for part in parts]
        return await asyncio.gather(
            *(ask(client.app, "POST", "/predict", one, content_type="application/json") for one in contents)
        )

    for part, answer in zip(parts, asyncio.run(crowd()), strict=True):
        found = answer.json()
        assert found["ids"] == list(next(iter(part.values())).index)
        assert np.array_equal(np.float32(found["probabilities"]), opened.fitted.predict_proba(part))


BAD = {
    b"": "no JSON",
    b"\xff\xfe\x00": "no JSON",
    b"[" * 50_000: "nested too deeply",
    b"9" * 5000: "too many digits",
    b"[]": "names no views",
    b'{"views": {}}': "names no views",
    b'{"views": {"rna": [[1]]}, "rows": 1}': "'rows', which means nothing",
    b'{"views": {"rna": 5}}': "no list of rows",
    b'{"views": {"rna": [null, 5]}}': "no list of rows",
    b'{"views": {"rna": [[[1]]]}}': "holds a list or an object",
    b'{"views": {"rna": {"values": [[1]]}}}': "'columns' and 'values'",
    b'{"views": {"rna": {"values": [[1]], "columns": [[]]}}}': "no list of names",
    b'{"views": {"rna": {"values": [[1]], "columns": ["a", "b"]}}}': "2 names of columns, but rows of 1 numbers",
    b'{"views": {"rna": [[1, 2], [1]]}}': "rows of different lengths",
    b'{"views": {"rna": [["a"]]}}': "not real numbers",
    b'{"views": {"rna": [[NaN]]}}': "write null",
    b'{"views": {"rna": [[1]], "rna": [[2]]}}': "'rna' stands twice",
    b'{"views": {"rna": [null]}}': "no view has a row",
    b'{"views": {"\\ud800": [[1]]}}': "are unknown",
    b'{"views": {"rna": [[1,1,1,1,1,1,1,1,1,1e999]]}}': "the value is inf",
    b'{"views": {"rna": [[1], [2]]}, "ids": ["a"]}': "the numbers of samples differ",
    b'{"views": {"rna": [[1], [2]]}, "ids": ["a", "a"]}': "appears",
    b'{"views": {"rna": [[1]]}, "ids": [[1]]}': "ids are no list",
    b'{"views": {"rna": [[1]]}, "ids": [true]}': "ids are no list",
}


@pytest.mark.parametrize(("content", "words"), BAD.items(), ids=[f"{one[:30]!r}" for one in BAD])
def test_bad_bodies_are_told_in_a_sentence(client, content, words):
    answer = client.post("/predict", content)
    assert answer.status == 422
    assert words in answer.json()["detail"]


def test_other_kinds_of_bodies_and_addresses(client):
    assert client.post("/predict", b"a,b", "text/csv").status == 415
    assert client.post("/predict?view=rna", body(few("rna"))).status == 422
    assert (client.get("/predict").status, client.get("/nothing").status) == (405, 404)


def asked_together():
    """Requests of one caller each: whole and lacking samples, the same ids, and what is wrong or warned of."""
    rows = [few("rna", "protein", rows=slice(i, i + 1 + i % 2)) for i in range(5)]
    bodies = [body(one) for one in rows] + [body(few("protein")), body(few("rna"), ids=False)]
    wrong = [{"views": {}}, {"views": {"other": [[1.0]]}}, {"views": {"rna": [["x"] * 10]}}]
    extra = few("rna", "protein")
    extra["rna"] = extra["rna"].assign(more=1.0)
    return [json.dumps(one).encode() for one in [*bodies, *wrong, body(extra)]] + [b"{", b""]


@pytest.mark.parametrize("far", [False, True], ids=["", "one far out"])
def test_requests_that_are_asked_together_get_the_answers_that_each_would_get_alone(opened, far, monkeypatch):
    contents, facts = asked_together(), {"kind": "application/json", "asked": {}}
    if far:
        frame = few("rna", rows=slice(7, 8))
        contents.append(json.dumps(body({"rna": 1e6 * frame["rna"]})).encode())
    kinds = ["predict"] * (len(contents) - 1) + ["predict" if far else "explain"]
    several = [({**facts, "question": kind}, bytearray(one)) for kind, one in zip(kinds, contents, strict=True)]
    alone = [answer for one in several for answer in reply(opened, Limits(), [one])]
    calls, judge = [], opened.fitted.judge
    monkeypatch.setattr(opened.fitted, "judge", lambda views: calls.append(len(views)) or judge(views))
    assert reply(opened, Limits(), several) == alone
    assert calls[0] == 16 + far
    assert len(calls) == (10 if far else 1)
    warned = [json.loads(text).get("warnings", []) for _, text in alone]
    assert sum("p7" in str(one) for one in warned) == far  # of another's samples no caller hears


def test_a_mistake_of_ours_shows_nothing(opened, monkeypatch, caplog):
    app = create_app(opened)
    monkeypatch.setattr(opened.fitted, "judge", lambda _: 1 / 0)
    answer = Client(app).post("/predict", body(few("rna")))
    assert answer.status == 500
    assert b"internal error" in answer.body
    assert b"division" not in answer.body
    facts = {"question": "predict", "kind": "application/json"}
    assert reply(opened, Limits(), [(facts, json.dumps(body(few("rna"))).encode())])[0][0]["status"] == 500
    assert "ZeroDivisionError" in caplog.text  # of this process; that of the service has its own


def test_the_token_opens_all_but_health(opened):
    client = Client(create_app(opened, token="s3cret"))
    assert [client.get(path).status for path in ("/health", "/ready", "/", "/model", "/metrics", "/openapi.json")] == [
        200, 200, 401, 401, 401, 401,
    ]  # fmt: skip
    assert client.post("/predict", body(few("rna"))).status == 401
    password = base64.b64encode(b"anyone:s3cret").decode()
    for given_token, status in {
        "Bearer s3cret": 200, "bearer s3cret": 200, f"Basic {password}": 200, "Bearer s3cre": 401, "s3cret": 401,
        "Basic s3cret": 401, "Basic \xff": 401, "Bearer \xff": 401, "": 401,
    }.items():  # fmt: skip
        assert client.get("/model", authorization=given_token).status == status, given_token
    assert client.get("/model").headers["www-authenticate"].startswith("Basic")


def test_a_service_for_this_machine_answers_to_its_own_names(opened):
    here, anywhere = Client(create_app(opened)), Client(create_app(opened, host="0.0.0.0"))
    for name in ("127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"):
        assert here.get("/model", host=name).status == 200
    assert here.get("/model", host="evil.example:8000").status == 400
    assert anywhere.get("/model", host="models.example").status == 200


def test_counts_for_prometheus(opened):
    client = Client(create_app(opened))
    client.post("/predict", body(few("rna")))
    client.post("/predict", b"")
    for i in range(3):
        client.get(f"/nothing/{i}")
    answer = client.get("/metrics")
    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'viewfuse_requests_total{path="/predict",status="200"} 1',
        'viewfuse_requests_total{path="/predict",status="422"} 1',
        'viewfuse_requests_total{path="other",status="404"} 3',
        'viewfuse_request_seconds_bucket{path="/predict",le="+Inf"} 2',
        'viewfuse_request_seconds_count{path="/predict"} 2',
        "viewfuse_rows_total 3",
        "viewfuse_places_taken 0",
    ):
        assert line in lines
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)


def test_what_is_said_of_samples_is_counted(opened):
    client = Client(create_app(opened))
    answers = [client.post("/predict", body(few(*names))).json() for names in (("rna",), ("rna", "protein"))]
    client.post("/explain", body(few("rna")))
    lines = client.get("/metrics").body.decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = [label for answer in answers for label in answer["labels"]]
    for label in set(labels):
        assert found[f'viewfuse_predicted_total{{label="{label}"}}'] == str(labels.count(label))
    assert found['viewfuse_missing_total{views="protein"}'] == found['viewfuse_missing_total{views=""}'] == "3"
    sure, novel = ([one for answer in answers for one in answer[name]] for name in ("confidence", "novelty"))
    assert float(found["viewfuse_confidence_total"]) == pytest.approx(sum(sure), rel=1e-4)
    assert float(found["viewfuse_novel_total"]) == sum(one > 0.95 for one in novel)
    version = client.get("/model").json()["version"]
    assert {answer["model"] for answer in answers} == {version}
    assert f'model="{version}"' in next(name for name in found if name.startswith("viewfuse_info"))


def test_many_patterns_of_missing_views_do_not_make_many_counters():
    metrics = Metrics(frozenset())
    metrics.count_rows(100, {"missing": {f'view "{i}"': 1 for i in range(100)}})
    lines = [line for line in metrics.text(0, 1, "").splitlines() if line.startswith("viewfuse_missing_total")]
    assert len(lines) == 65
    assert 'viewfuse_missing_total{views="other"} 36' in lines
    assert 'viewfuse_missing_total{views="view \\"7\\""} 1' in lines


def test_another_model_takes_over_without_a_lost_request(folder, opened, tmp_path):
    other = opened.fitted.load(folder, device="cpu").rename({0: "renamed"})
    other.save(tmp_path / "new")
    app, given = create_app(opened), json.dumps(body(few("rna"))).encode()
    serving, former = app.state.serving, app.state.serving.queues

    async def story():
        serving.start()
        asked = [asyncio.create_task(ask(app, "POST", "/predict", given, content_type="application/json"))]
        while not former[0].taken:
            await asyncio.sleep(0.001)
        serving.reload(lambda: open_folder(tmp_path / "new", "cpu"))
        asked += [asyncio.create_task(ask(app, "POST", "/predict", given, content_type="application/json"))]
        assert (former[0].places, former[1].places) == (64, 0)  # one of them has nothing left to answer
        answers = await asyncio.gather(*asked)
        for queue in former:
            assert (queue.places, queue._process.is_alive) == (0, False)
        return answers

    first, second = asyncio.run(story())
    assert (first.status, second.status) == (200, 200)
    assert first.json()["model"] == opened.facts["version"] != second.json()["model"]
    assert second.json()["names"].count("renamed") == second.json()["labels"].count(0)
    assert serving.opened.facts["version"] == second.json()["model"]
    serving.stop()


def test_a_model_that_cannot_be_opened_changes_nothing(opened, tmp_path, caplog):
    serving = create_app(opened).state.serving
    serving.reload(lambda: open_folder(tmp_path, "cpu"))
    assert serving.opened is opened
    assert "the model stays as it is" in caplog.text


def test_the_page_is_the_report_of_a_run_or_a_few_words(folder, opened, tmp_path):
    run = write_run(tmp_path / "run", n=30)
    (run / "model").symlink_to(folder)
    page = Client(create_app(open_folder(run, "cpu"))).get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert b'id="decisions"' in page.body
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "A model of 2 clusters" in opened.page
    hostile = {**opened.facts, "views": {"<script>": ["a"]}}
    assert "<script>" not in filled("model.html", **hostile)


def test_facts_of_the_model(client):
    facts = client.get("/model").json()
    assert facts["views"]["protein"] == [f"protein{c}" for c in range(5)]
    assert (facts["clusters"], facts["samples"], facts["limits"]["rows"]) == (2, 40, 10_000)
    assert set(client.get("/openapi.json").json()["paths"]) >= {"/predict", "/impute", "/explain"}


def test_a_stopped_service_lets_nobody_in(opened):
    app = create_app(opened)

    async def life():
        async with app.router.lifespan_context(app):
            first = await ask(app, "GET", "/ready")
        return first, await ask(app, "GET", "/ready")

    assert [answer.status for answer in asyncio.run(life())] == [200, 503]
    assert Client(app).post("/predict", body(few("rna"))).status == 503


def test_what_is_no_model_is_told(tmp_path):
    with pytest.raises(BadModelFile, match="holds no manifest"):
        open_folder(tmp_path, "cpu")
