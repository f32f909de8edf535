"""viewfuse serve: what is passed on, and one line where it cannot serve."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from asgi_client import Client
from viewfuse.cli import main, predict
from viewfuse.serve import server


def run(*arguments, **environment):
    return CliRunner().invoke(main, [str(one) for one in arguments], env={"VIEWFUSE_TOKEN": None, **environment})


@pytest.fixture
def folder():
    return Path(__file__).parent / "golden" / "format-1"


@pytest.fixture
def started(monkeypatch):
    """The applications that would be served."""
    apps = []

    def note(app, sock, limits, say):
        apps.append(app)
        say(f"http://{sock.getsockname()[0]}:1")
        sock.close()

    monkeypatch.setattr(server, "run", note)
    return apps


def test_limits_and_token_are_passed_on(folder, started):
    done = run(
        "serve",
        folder,
        "--port",
        0,
        "--max-rows",
        2,
        "--max-bytes",
        90,
        "--queue",
        5,
        "--max-seconds",
        7,
        VIEWFUSE_TOKEN="s3cret",
    )
    assert done.exit_code == 0, done.output
    assert done.output == f"serving {folder} at http://127.0.0.1:1; Ctrl-C stops\n"
    client = Client(started[0])
    assert client.get("/model").status == 401
    assert client.get("/model", authorization="Bearer s3cret").json()["limits"] == {
        "rows": 2, "bytes": 90, "places": 5, "seconds": 7.0,
    }  # fmt: skip


@pytest.mark.parametrize("option", [("--max-seconds", "inf"), ("--max-seconds", "nan"), ("--max-rows", "1_000")])
def test_limits_that_would_end_every_request_are_refused(folder, started, option):
    done = run("serve", folder, "--port", 0, *option)
    assert (done.exit_code, started) == (2, [])
    assert f"Invalid value for '{option[0]}'" in done.output


def test_an_open_door_is_warned_of(folder, started):
    alone, everybody = run("serve", folder, "--port", 0), run("serve", folder, "--port", 0, "--host", "0.0.0.0")
    assert "warning" not in alone.output
    assert "warning: any program can use the model at 0.0.0.0; set VIEWFUSE_TOKEN" in everybody.output
    assert "warning" not in run("serve", folder, "--port", 0, "--host", "0.0.0.0", VIEWFUSE_TOKEN="s").output


def test_a_port_that_is_taken_is_told_in_one_line(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", folder, "--port", port)
    assert done.exit_code == 2
    assert done.output.startswith(f"viewfuse: nothing can listen at 127.0.0.1, port {port} (")
    assert done.output.count("\n") == 1


def test_what_is_not_installed_is_told_in_one_line(folder, monkeypatch):
    monkeypatch.setattr(predict, "find_spec", lambda name: None)
    done = run("serve", folder)
    assert done.exit_code == 2
    assert "needs fastapi and uvicorn, which are not installed; pip install fastapi uvicorn" in done.output


def test_what_is_no_model_is_told_in_one_line(tmp_path):
    done = run("serve", tmp_path)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "holds no manifest.json" in done.output


def test_short_answers_are_not_held_back():
    with server.listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP  # asyncio turns Nagle's algorithm off for these only
