"""viewfuse fit."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from viewfuse.atomic import write_file
from viewfuse.cli import options
from viewfuse.readers import read_views
from viewfuse.results import history_csv, labels_csv


def _epochs(_context: click.Context, _option: click.Parameter, value: str) -> int | str:
    return int(value) if value.isdecimal() else value


@click.command()
@options.files
@click.option("--clusters", "n_clusters", type=int, required=True, help="Number of clusters.")
@click.option("--out", type=options.PATH, required=True, metavar="DIR", help="Folder for the results.")
@options.id_column
@click.option("--scaling", default="minmax", show_default=True, help="minmax, standard or none.")
@click.option("--pretrain-epochs", default="auto", show_default=True, callback=_epochs)
@click.option("--joint-epochs", default="auto", show_default=True, callback=_epochs)
@click.option("--device", default="auto", show_default=True)
@click.option("--random-state", type=int, default=0, show_default=True, help="Seed.")
@options.force
@options.as_json
def command(
    files: tuple[Path, ...], out: Path, id_column: str | None, force: bool, as_json: bool, **params: Any
) -> None:
    """Filled in by the group."""
    options.refuse_existing(out, force)
    views = read_views(list(files), id_column=id_column)
    from viewfuse import URRL

    began = time.perf_counter()
    model = URRL(**params, verbose=True).fit(views)
    sizes = np.bincount(model.labels_, minlength=model.n_clusters).tolist()
    summary = {"samples": len(views), "views": list(views.names), "cluster_sizes": sizes,
               "seconds": round(time.perf_counter() - began, 1), "params": params}  # fmt: skip
    embedding = io.BytesIO()
    np.save(embedding, model.embedding_)
    model.save(out / "model")
    write_file(out / "labels.csv", labels_csv(views, model.soft_labels_))
    write_file(out / "embedding.npy", embedding.getvalue())
    write_file(out / "history.csv", history_csv(model.history_))
    write_file(out / "summary.json", json.dumps(summary, indent=1).encode())
    options.show({**summary, "written to": str(out)}, as_json)
