"""viewfuse serve."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from viewfuse.cli import options
from viewfuse.cli.options import NumberRange, WholeRange, option
from viewfuse.errors import MissingPackage, SettingError
from viewfuse.serve.limits import Limits
from viewfuse.utils.console import how_to_install

_TOKEN = "VIEWFUSE_TOKEN"


@click.command()
@click.argument("model", type=options.PATH, metavar="MODEL|RUN")
@option("--host", "Where to listen; by default this machine alone.", default="127.0.0.1")
@option("--port", "0 takes a free one.", type=WholeRange(0, 65535), default=8000)
@option("--max-rows", "Per request.", type=WholeRange(1), default=Limits.rows)
@option("--max-bytes", "Per request.", type=WholeRange(1), default=Limits.bytes)
@option("--queue", "Requests that may wait; others are answered with 503.", type=WholeRange(1), default=Limits.places)
@option(
    "--max-seconds", "Of computing, per request.", type=NumberRange(0, 86_400, min_open=True), default=Limits.seconds
)
@options.device
def command(
    model: Path, host: str, port: int, max_rows: int, max_bytes: int, queue: int, max_seconds: float, device: str
) -> None:
    """Filled in by the group."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        cure = how_to_install(" ".join(missing), "serve")
        raise MissingPackage(f"viewfuse serve needs {' and '.join(missing)}, which are not installed; {cure}")
    if not hasattr(os, "fork"):
        raise SettingError("viewfuse serve needs a system whose processes can fork; use Linux or macOS, or a container")
    from viewfuse.cli.fit import command as fit
    from viewfuse.serve.app import create_app
    from viewfuse.serve.gate import is_local
    from viewfuse.serve.replies import open_folder
    from viewfuse.serve.server import listen, run

    reopen = partial(open_folder, model, device, spell=options.spelling(fit))
    opened, token = reopen(), os.environ.get(_TOKEN) or None
    sock = listen(host, port)
    address = str(sock.getsockname()[0])
    if token is None and not is_local(address):
        click.echo(f"viewfuse: warning: any program can use the model at {host}; set {_TOKEN} to a secret", err=True)
    limits = Limits(max_rows, max_bytes, queue, max_seconds)
    app = create_app(opened, limits, token=token, host=address, reopen=reopen)
    run(app, sock, limits, say=lambda address: click.echo(f"serving {model} at {address}; Ctrl-C stops"))
