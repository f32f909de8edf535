"""viewfuse predict, embed, explain, impute, info, score and serve: a saved model, and what it says of samples."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viewfuse import metrics
from viewfuse.cli import options
from viewfuse.cli.options import WholeRange, option
from viewfuse.data.alignment import warn_of_few
from viewfuse.data.categories import category_of
from viewfuse.data.filling import Filled
from viewfuse.errors import CannotWrite, DataError, MissingPackage, SettingError
from viewfuse.io.labels import read_classes
from viewfuse.io.writers import write_embedding, write_sheets, write_views
from viewfuse.report.tables import percent
from viewfuse.serve.limits import Limits
from viewfuse.utils.console import how_to_install
from viewfuse.utils.settings import Setting

if TYPE_CHECKING:
    from viewfuse.fitted.clusters import Merge
    from viewfuse.fitted.explanation import Explanation

_TOKEN = "VIEWFUSE_TOKEN"
_MERGES = 3


@options.verb(
    options.model, options.inputs,
    options.out("File for the labels (.csv); a folder where FILE is a pattern, such as 'shards/*.parquet'."),
    options.alpha, options.engine, options.device, options.force, options.trust_unchanged,
)  # fmt: skip
def predict(model: Path, inputs: options.Inputs, out: Path, force: bool, engine: str, address: str | None,
            n_jobs: int | None, trust_unchanged: bool, device: str, alpha: float) -> Any:  # fmt: skip
    written = {"written to": str(out)}
    if any(map(_is_pattern, inputs.files)):
        if inputs.batch is not None:
            raise SettingError(Setting("batch"), " is for one set of samples; give its files without a pattern")
        from viewfuse.distributed.sharded_predict import DONE, predict_shards

        inputs = _matched(inputs)
        options.check_new_folder(out, force or (out / DONE).is_dir(), inputs)
        ways: dict[str, Any] = {"alpha": alpha, "device": device, "n_jobs": n_jobs, "trust_unchanged": trust_unchanged}
        ways |= {"view": inputs.names[0], "reading": vars(inputs.reading)}
        with options.on_engine(engine, address, device):
            return {**predict_shards(model, inputs.files, out, again=force, verbose=True, **ways), **written}
    if engine != "local" or n_jobs is not None:
        what = Setting("engine", engine) if engine != "local" else Setting("n_jobs", n_jobs)
        raise SettingError(what, " is for many files; give a quoted pattern, such as 'shards/*.parquet'")
    options.check_new_path(out, force, inputs)
    if out.suffix != ".csv":
        many = "; a quoted pattern, such as 'shards/*.parquet', gives each file its own in a folder"
        raise CannotWrite(f"{out}: labels are written as .csv; give this ending{many if len(inputs.files) > 1 else ''}")
    from viewfuse.distributed.sharded_predict import predict_parts
    from viewfuse.fitted.drift import in_short

    fitted, source = options.opened(model, inputs, device)
    placed = predict_parts(fitted, options.chunks(source, "predicting"), out, alpha)
    facts = {**placed.facts(), "drift": in_short(placed.counts["novel"], placed.counts["samples"])}
    return _with_filled(facts, placed.filled, out)


def _with_filled(facts: options.Facts, filled: Filled, out: Path) -> tuple[options.Facts, ...]:
    """Facts for machines and for people, with what was filled in empty cells."""
    return tuple({**facts, **filled.facts(as_json), "written to": str(out)} for as_json in (True, False))


def _is_pattern(file: Path) -> bool:
    return glob.has_magic(str(file)) and not file.exists()


def _matched(inputs: options.Inputs) -> options.Inputs:
    if len(set(inputs.names)) > 1:
        named = " and ".join(str(name) for name in dict.fromkeys(inputs.names) if name)
        raise DataError(
            f"{named}: files of a pattern are predicted one by one, so each must hold all views of its samples; "
            "put them into one file and name them by --block"
        )
    files: list[Path] = []
    for pattern in inputs.files:
        found = sorted(Path(name) for name in glob.glob(str(pattern), recursive=True)) or [pattern]
        if found == [pattern] and _is_pattern(pattern):
            raise DataError(f"{pattern} means no file; check the pattern")
        files += [file for file in found if not file.is_dir()]
    return replace(inputs, files=tuple(dict.fromkeys(files)), names=inputs.names[:1])


@options.verb(
    options.model, options.inputs,
    options.out("File for the embedding: .npy (rows in the order of the samples), .csv or .parquet (with ids)."),
    options.device, options.force,
)  # fmt: skip
def embed(model: Path, inputs: options.Inputs, out: Path, device: str, force: bool) -> tuple[options.Facts, ...]:
    options.check_new_path(out, force, inputs)
    fitted, source = options.opened(model, inputs, device)
    width, filled = fitted.cluster_centers_.shape[1], Filled(fitted)
    chunks = map(filled.complete, options.chunks(source, "embedding"))
    write_embedding(out, len(source), width, ((views, fitted.transform(views)) for views in chunks))
    return _with_filled({"samples": len(source), "columns": width}, filled, out)


@options.verb(
    options.model, options.inputs, options.out("Folder for the filled views: one CSV file each."), options.device,
    options.force,
)  # fmt: skip
def impute(model: Path, inputs: options.Inputs, out: Path, device: str, force: bool) -> tuple[options.Facts, ...]:
    with options.new_folder(out, force, inputs) as folder:
        fitted, source = options.opened(model, inputs, device)
        filled = Filled(fitted)
        parts = map(filled.complete, options.chunks(source, "imputing"))
        write_views(folder, fitted.view_names_, map(fitted.impute, parts))
    return _with_filled({"samples": len(source), "views": fitted.view_names_}, filled, out)


@options.verb(options.model)
def info(model: Path) -> options.Facts:
    from viewfuse.fitted.persistence import check

    manifest = check(model)
    return {
        "method": manifest["method"]["name"],
        "clusters": manifest["method"]["config"]["n_clusters"],
        "views": [f"{view['name']} ({view['width']} columns)" for view in manifest["views"]],
        "samples": manifest["n_samples"],
        "scaling": manifest["scaling"],
        "format": manifest["format"],
        "written by": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        "bytes": sum(file["bytes"] for file in manifest["files"].values()),
    }


@options.verb(click.argument("labels", type=options.PATH), click.argument("truth", type=options.PATH))
def score(labels: Path, truth: Path) -> options.Facts:
    (found, _), (known, _) = files = read_classes(labels), read_classes(truth)
    ours, theirs = (dict.fromkeys([*labelled, *unknown]) for labelled, unknown in files)
    if not (shared := ours.keys() & theirs):
        raise DataError(f"{labels} and {truth} share no id; both need ids, in id or the first column, and a label")
    both = [name for name in found if name in known]
    if not both:
        raise DataError(f"{labels} and {truth} share no id whose label is known in both; give labels of the same ids")
    warn_of_few(len(shared), ours, theirs, "files")
    pair = [known[name] for name in both], [found[name] for name in both]
    measured = {"accuracy": metrics.clustering_accuracy, "NMI": metrics.nmi, "ARI": metrics.ari}
    scores = {name: round(measure(*pair), 4) for name, measure in measured.items()}
    return {"samples": len(both), "without a partner": len(ours.keys() ^ theirs), **scores}


@options.verb(
    options.model, options.inputs, options.out("Folder for the tables."),
    option("--top N", "Show N features per cluster, and write N per cluster and view to features.csv; by "
                   "default 1 and 5. effects.csv has all of them.", type=WholeRange(1)),
    options.device, options.force,
)  # fmt: skip
def explain(model: Path, inputs: options.Inputs, out: Path, top: int | None, device: str, force: bool) -> Any:
    with options.new_folder(out, force, inputs) as folder:
        from viewfuse.fitted.explanation import TOP, sheets

        fitted, source = options.opened(model, inputs, device)
        explanation = fitted.explain(source.read())
        write_sheets(folder, sheets(explanation, top or TOP))
    clusters = describe(explanation, top or 1)
    facts = {"samples": len(explanation.ids), "clusters": clusters}
    facts |= {"merges": [one._asdict() for one in explanation.merges], "written to": str(out)}
    rows: list[tuple[Any, ...]] = []
    for cluster in clusters:  # one line per feature, and the facts of the cluster on the first
        words = [_in_words(feature) for feature in cluster["features"]] or ["-"]
        steady = "" if isnan(cluster["stability"]) else f", {cluster['stability']:.2f}"
        typical = " ".join(map(str, cluster["typical"]))
        rows.append((cluster["label"], cluster["size"], f"{cluster['again']}{steady}", typical, words[0]))
        rows += [("", "", "", "", line) for line in words[1:]]
    title = "most distinguishing feature" + ("s" if (top or 1) > 1 else "")
    said = options.table(("label", "size", "found again", "typical samples", title), rows, text=(0, 2, 3, 4))
    if explanation.merges:
        said += f"\n\nfor fewer clusters, join {in_order(explanation.merges)}"
    return facts, f"{said}\n\nwritten to {out}"


def describe(explanation: Explanation, top: int) -> list[dict[str, Any]]:
    """Per cluster its size, its stability, its typical samples and most distinguishing features, over all views."""
    from viewfuse.fitted.clusters import in_a_word

    found = []
    facts = zip(explanation.sizes.tolist(), explanation.stability.tolist(), explanation.typical, strict=True)
    for label, (size, steady, typical) in enumerate(facts):
        rows = [row for view in explanation.effects for row in view.of_cluster(label, top)]
        best = [row._asdict() for row in sorted(rows, key=lambda row: -abs(row.difference))[:top]]
        cluster = {"label": label, "size": size, "stability": steady, "again": in_a_word(steady)}
        found.append({**cluster, "typical": list(typical), "features": best})
    return found


def in_order(merges: Sequence[Merge]) -> str:
    """The first merges in words."""
    shown = [f"{'+'.join(map(str, one.first))} and {'+'.join(map(str, one.second))}" for one in merges[:_MERGES]]
    return ", then ".join(shown) + (f" (merges.csv has all {len(merges)})" if len(merges) > _MERGES else "")


def _in_words(feature: dict[str, Any]) -> str:
    means = feature["mean"], feature["mean_of_others"]
    here, others = (f"{one:.4g}" if category_of(feature["feature"]) is None else percent(one) for one in means)
    return f"{feature['view']} {feature['feature']}: {here}, others {others} ({feature['difference']:+.1f} deviations)"


@click.command()
@options.together(
    click.argument("model", type=options.PATH, metavar="MODEL|RUN"),
    option("--host", "Where to listen; by default this machine alone.", default="127.0.0.1"),
    option("--port", "0 takes a free one.", type=WholeRange(0, 65535), default=8000),
    option("--max-rows", "Per request.", type=WholeRange(1), default=Limits.rows),
    option("--max-bytes", "Per request.", type=WholeRange(1), default=Limits.bytes),
    option("--queue", "Requests that may wait; others are answered with 503.", type=WholeRange(1),
           default=Limits.places),
    option("--max-seconds", "Of computing, per request.", type=options.NumberRange(0, 86_400, min_open=True),
           default=Limits.seconds),
    options.device,
)  # fmt: skip
def serve(model: Path, host: str, port: int, max_rows: int, max_bytes: int, queue: int, max_seconds: float,
          device: str) -> None:  # fmt: skip
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        cure = how_to_install(" ".join(missing), "serve")
        raise MissingPackage(f"viewfuse serve needs {' and '.join(missing)}, which are not installed; {cure}")
    if not hasattr(os, "fork"):
        raise SettingError("viewfuse serve needs a system whose processes can fork; use Linux or macOS, or a container")
    from viewfuse.cli.fit import fit
    from viewfuse.serve.app import create_app
    from viewfuse.serve.inference import open_folder
    from viewfuse.serve.middleware import is_local
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
