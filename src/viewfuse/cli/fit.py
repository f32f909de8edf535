"""viewfuse fit."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from viewfuse.atomic import write_file
from viewfuse.cli import options
from viewfuse.errors import MissingPackage
from viewfuse.maps import draw_map
from viewfuse.readers.h5mu import write_results
from viewfuse.results import history_csv, labels_csv
from viewfuse.settings import Settings
from viewfuse.views import Views

if TYPE_CHECKING:
    from viewfuse import URRL

_WHOLE = ("n_neighbors", "embedding_dim", "hidden_dim", "batch_size")
_WHOLE_OR_AUTO = ("pretrain_epochs", "joint_epochs")
_REAL = ("learning_rate", "weight_decay", "noise", "feature_dropout", "robustness_weight", "clustering_weight",
         "imputed_bias")  # fmt: skip


class OrAuto(click.ParamType[Any]):
    """A number or the word auto."""

    name = "number or auto"

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Text as a number; the estimator says what else is wrong."""
        try:
            return self.kind(value)
        except ValueError:
            return value


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    """One option per parameter of the estimator, under its name and with its default."""
    kinds: dict[str, Any] = {
        **dict.fromkeys(_REAL, float),
        "view_dropout": OrAuto(float),
        **dict.fromkeys(_WHOLE, int),
        **dict.fromkeys(_WHOLE_OR_AUTO, OrAuto(int)),
    }
    for name, kind in kinds.items():
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, type=kind, default=getattr(Settings, name), show_default=True)(function)
    return function


@click.command()
@options.inputs
@click.option("--clusters", "n_clusters", type=int, required=True, help="Number of clusters.")
@options.out("Folder for the results.")
@click.option("--scaling", default="minmax", show_default=True, help="minmax, standard or none.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, ...; auto takes a GPU if there is one.")
@click.option("--random-state", type=int, default=0, show_default=True, help="Seed.")
@click.option("--keep", type=int, help="Training samples that the saved model keeps; all by default.")
@_settings
@options.force
@options.as_json
def command(inputs: options.Inputs, out: Path, keep: int | None, force: bool, as_json: bool, **params: Any) -> None:
    """Filled in by the group."""
    options.refuse_existing(out, force)
    views = inputs.open().read()
    from viewfuse import URRL

    began = time.perf_counter()
    model = URRL(**params, verbose=True).fit(views)
    sizes = np.bincount(model.labels_, minlength=model.n_clusters).tolist()
    summary = {"samples": len(views), "views": list(views.names), "cluster_sizes": sizes,
               "seconds": round(time.perf_counter() - began, 1), "params": params}  # fmt: skip
    model.save(out / "model", keep=keep)
    _write_results(out, model, views, inputs.h5mu())
    write_file(out / "summary.json", json.dumps(summary, indent=1).encode())
    shown = {name: value for name, value in summary.items() if as_json or name != "params"}
    options.show({**shown, "written to": str(out)}, as_json)


def _write_results(out: Path, model: URRL, views: Views, h5mu: Path | None) -> None:
    embedding = io.BytesIO()
    np.save(embedding, model.embedding_)
    write_file(out / "labels.csv", labels_csv(views, model.soft_labels_))
    write_file(out / "embedding.npy", embedding.getvalue())
    write_file(out / "history.csv", history_csv(model.history_))
    if h5mu is not None:
        columns = {"viewfuse": model.labels_, "viewfuse_confidence": model.soft_labels_.max(axis=1)}
        write_results(h5mu, out / h5mu.name, views.ids.tolist(), columns, model.embedding_)
    try:
        whole = np.asarray(views.mask.all(axis=1))
        title = f"{len(views):,} samples, {len(views.names)} views, {model.n_clusters} clusters"
        draw_map(out / "map.png", model.embedding_, model.labels_, whole, title=title)
    except MissingPackage as missing:
        click.echo(f"map.png is not there: {missing}", err=True)
