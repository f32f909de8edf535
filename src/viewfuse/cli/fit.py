"""viewfuse fit and fit-large."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from viewfuse.cli import options
from viewfuse.cli.options import option
from viewfuse.data.checks import data_warnings
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, CheckpointDiffers, NotEnoughMemory, SettingError, ViewfuseError
from viewfuse.fitted.clusters import representatives
from viewfuse.io.labels import read_labels, read_pairs
from viewfuse.io.writers import OUTLIER, Results, as_json, write_annotated, write_embedding, write_history, write_labels
from viewfuse.methods.urrl.config import Config
from viewfuse.plots.layout import Places, place_samples
from viewfuse.plots.pictures import draw_choice, draw_map, why_not_drawn
from viewfuse.plots.style import FORMATS, PictureStyle
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import read_run, write_evidence
from viewfuse.report.tables import count
from viewfuse.selection.decision_texts import label, restored, words
from viewfuse.utils.atomic import parsed, write_file
from viewfuse.utils.console import plain, tell
from viewfuse.utils.settings import named_values

if TYPE_CHECKING:
    from viewfuse import URRL


_NOT_SHORT = ("params", "names", "decisions", "remarks", "alpha", "command", "files")
_SUMMARY, _CHECKPOINT = "summary.json", "checkpoint"
_RESULTS = (
    "labels.csv", "embedding.npy", "history.csv", "map.csv", "explanation",
    *(f"{name}.{kind}" for name in ("map", "k") for kind in FORMATS),
    "report.html", "report_data", "model", _SUMMARY, _CHECKPOINT,
)  # fmt: skip
"""What every run writes; `summary.json` lists what else it wrote."""
_LONG = ("decisions", "fit", "offset", "contents")
"""What `fit-large` does not print of its summary."""
_SETTINGS = {
    "--pretrain-epochs INTEGER|auto": "Epochs without the clustering loss; auto: by the number of samples.",
    "--joint-epochs INTEGER|auto": "Epochs with the clustering loss; auto: by the number of samples.",
    "--n-neighbors INTEGER": "Length of every neighbour list, the sample itself included.",
    "--embedding-dim INTEGER|auto": "Width of the embedding; auto: by the number of samples.",
    "--hidden-dim INTEGER|auto": "Width of the hidden layers; auto: by the numbers of samples and clusters.",
    "--batch-size INTEGER": "Samples per step.",
    "--learning-rate FLOAT|auto": "Learning rate of Adam; auto: by the number of samples.",
    "--weight-decay FLOAT": "Weight decay of Adam.",
    "--view-dropout FLOAT|auto": "Chance that a view is hidden in training; auto: by the share that is missing.",
    "--noise FLOAT": "Deviation of the noise added in training.",
    "--feature-dropout FLOAT": "Share of the values set to zero in training.",
    "--robustness-weight FLOAT": "Weight of the loss that keeps a sample in place when views are hidden.",
    "--clustering-weight FLOAT|auto": "Weight of the clustering loss; auto: by the reconstruction loss.",
    "--imputed-bias FLOAT": "Attention bias of views that are filled from donors.",
    "--schedule default|paper": "What auto means for epochs: default or paper.",
}
"""Options for the fields of `Config` that users may need, under their names and with their defaults."""
_FIELDS = {spelt: spelt.split()[0][2:].replace("-", "_") for spelt in _SETTINGS}


def _known(hints: Path | None, must_link: Path | None, cannot_link: Path | None, sample_weight: Path | None,
           view_weights: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    id_column = click.get_current_context().params["id_column"]
    return {
        "y": None if hints is None else read_labels(hints, id_column=id_column),
        "must_link": None if must_link is None else read_pairs(must_link),
        "cannot_link": None if cannot_link is None else read_pairs(cannot_link),
        "sample_weight": None if sample_weight is None else read_labels(sample_weight, "weight", id_column),
        "view_weights": named_values("--view-weights", view_weights),
    }


@options.verb(
    options.inputs,
    option("--clusters INTEGER|auto", "Number of clusters; auto: what is found again, more than in data without "
           "structure.", names=["n_clusters"]),
    options.cluster_range,
    options.out("Folder for the results.", required=False),
    option("--resume DIR", "In place of --out: resume a fit that was interrupted. Give the same files and options.",
           type=click.Path(file_okay=False, path_type=Path)),
    options.as_one(
        "known",
        _known,
        option("--hints FILE", "CSV with ids and a column label: classes of some samples, which their clusters "
               "follow. Empty: not known."),
        option("--must-link FILE", "CSV of two columns: ids that belong together."),
        option("--cannot-link FILE", "CSV of two columns: ids that do not."),
        option("--sample-weight FILE",
               "CSV with ids and a column weight: 2 counts like two samples, 0 is not learned from."),
        option("--view-weights VIEW=NUMBER ...", "How much a view counts; 1 by default. Once per view."),
    ),
    options.preparation_or_log1p,
    option("--effort", "quick (about half the time), auto (stops where nothing more is gained) or thorough (three "
           "trainings, and all of it five times again, to validate it).", default="auto"),
    option("--outliers", "Samples far from all others: mark (they keep their cluster) or label (their label is -1).",
           default="mark"),
    options.device,
    options.random_state,
    option("--n-init INTEGER|auto", "Trainings, of which the best is kept; auto: one, three if thorough."),
    options.jobs,
    option("--like RUN",
           "A former run, or a model: clusters that are the same have its numbers, others have new ones."),
    options.alpha,
    option("--keep INTEGER", "Training samples that the saved model keeps; all by default."),
    *(option(spelt, text, default=getattr(Config, _FIELDS[spelt])) for spelt, text in _SETTINGS.items()),
    options.pictures,
    options.force,
)  # fmt: skip
def fit(inputs: options.Inputs, out: Path | None, resume: Path | None, force: bool, style: PictureStyle,
        **asked: Any) -> tuple[options.Facts, options.Facts]:  # fmt: skip
    from viewfuse.engine.checkpoint import is_ours
    from viewfuse.fitted.persistence import check_model_folder

    if resume is not None and (not (resume / _CHECKPOINT).is_dir() or out not in (None, resume)):
        raise SettingError(f"there is no interrupted fit in {resume}; begin one with --out")
    out = resume or out
    if out is None:
        raise click.UsageError("Missing option '--out'")
    checkpoint = out / _CHECKPOINT
    unfinished = out.is_dir() and {path.name for path in out.iterdir()} == {_CHECKPOINT} and is_ours(checkpoint)
    may_exist = force or resume is not None or unfinished
    with options.new_folder(out, may_exist, inputs, is_stale=results_in(out)) as folder:
        check_model_folder(out / "model")  # which may be something else: before hours of training
        with _kept(checkpoint, force, is_ours):
            summary = _fit(folder, out, inputs, style, **asked)
    page = {"report": str(out / "report.html")} if "report.html" in summary["files"] else {}
    written = {"written to": str(out)}
    return {**page, **summary, **written}, {**page, **_in_short(summary), **written}


@contextmanager
def _kept(checkpoint: Path, force: bool, is_ours: Callable[[Path], bool]) -> Iterator[None]:
    """Keep a fit in a checkpoint until it ends, or fails with an error that would come again."""
    if checkpoint.is_dir() and not is_ours(checkpoint):
        raise CannotWrite(f"{checkpoint} is no checkpoint of a fit; move it, or give another --out")
    if force and checkpoint.is_dir():
        rmtree(checkpoint)
    try:
        yield
    except KeyboardInterrupt:
        if not checkpoint.is_dir():
            raise
        how = f"to resume, give the same files and options and --resume {checkpoint.parent}"
        raise KeyboardInterrupt(f"interrupted; {how}") from None
    except CheckpointDiffers:
        raise
    except ViewfuseError:
        rmtree(checkpoint, ignore_errors=True)
        with suppress(OSError):
            checkpoint.parent.rmdir()
        raise


def results_in(out: Path) -> Callable[[str], bool]:
    """Which names an earlier run gave, so that nothing of it is left beside the new results."""
    try:
        own = {str(name) for name in parsed((out / _SUMMARY).read_bytes())["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    return {*_RESULTS, *own}.__contains__


def _fit(out: Path, place: Path, inputs: options.Inputs, style: PictureStyle, *, known: dict[str, Any],
         like: Path | None, alpha: float, keep: int | None, **params: Any) -> dict[str, Any]:  # fmt: skip
    """Read, train, and write all results into a new folder, which will be at `place`."""
    from viewfuse import URRL, load

    config = Config(**{name: params[name] for name in _FIELDS.values()})
    former = None if like is None else load(options.model_in(like), device=params["device"])
    views = inputs.open().read()
    representatives(np.zeros(len(views), dtype=np.int64), views.mask, keep)  # a bad --keep must not cost a training
    began = time.perf_counter()
    own = {name: value for name, value in params.items() if name not in _FIELDS.values()}
    model = URRL(**own, config=config, verbose=True, checkpoint=place / _CHECKPOINT).fit(views, like=former, **known)
    facts = {
        "epochs": len(model.history_["epoch"]),
        "seconds": round(time.perf_counter() - began, 1),
        "remarks": data_warnings(views),
        "params": params,
        "alpha": alpha,
        "command": options.typed(),
    }
    places = place_samples(model.embedding_)
    write_evidence(out, model, views, places)
    write_embedding(out / "embedding.npy", len(views), model.embedding_.shape[1], [(views, model.embedding_)])
    write_history(out / "history.csv", model.history_)
    for file in inputs.files:
        if file.suffix.lower() in (".h5mu", ".h5ad"):
            results = Results(views.ids, model.soft_labels_, model.embedding_, model.labels_, places.table())
            write_annotated(file, out / file.name, results, trusted=inputs.reading.trusted)
    summary = write_run(out, model, views, facts, title=place.resolve().name, keep=keep)
    _draw(out, model, style)
    return listed(out, summary)


def write_run(
    folder: Path, model: URRL, views: Views, facts: Mapping[str, Any], *, title: str, keep: int | None = None
) -> dict[str, Any]:
    """Write labels, model, summary and page of a run, or write them again; `facts` are what else its summary says."""
    from viewfuse.methods.clusterer import trust_in
    from viewfuse.selection.confidence import ALPHA

    judged, trust = model.judge(alpha=facts.get("alpha", ALPHA)), trust_in(model.decisions_)
    found: dict[str, Any] = {
        "samples": len(views),
        "views": list(views.names),
        "cluster_sizes": np.bincount(judged.labels[judged.labels != OUTLIER], minlength=model.n_clusters_).tolist(),
        **({} if trust is None else {"found_again": [round(one["again"], 3) for one in trust.clusters]}),
        "uncertain": int(judged.uncertain.sum()),
    }
    summary = {**found, **facts, **found, "decisions": model.decisions_}
    if model.cluster_names_:
        summary["names"] = {str(label): name for label, name in model.cluster_names_.items()}
    write_labels(folder / "labels.csv", views, judged, model.cluster_names_)
    model.save(folder / "model", keep=keep)
    write_summary(folder, summary)
    _write_report(folder, title)
    return summary


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write what a run says of itself."""
    write_file(folder / _SUMMARY, as_json(summary, indent=1).encode())


def listed(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary of a new folder with the names of all of its files."""
    summary["files"] = sorted(path.name for path in folder.iterdir())
    write_summary(folder, summary)
    return summary


def _write_report(out: Path, name: str) -> None:
    """The page; what was fitted is safe by now, and must not be lost to a page that is too large to make."""
    try:
        write_report([out], out / "report.html", spell=options.spelling(fit), title=name)
    except NotEnoughMemory as error:
        click.echo(f"report.html is not there: {error}", err=True)


def _in_short(summary: dict[str, Any]) -> dict[str, Any]:
    """For people: decisions in words, no parameters, and remarks last, where they are seen."""
    facts = {name: value for name, value in summary.items() if name not in _NOT_SHORT}
    if len(facts.get("found_again", ())) == 1:  # one cluster is there again in any case
        del facts["found_again"]
    remarked = {"look at": "; ".join(summary["remarks"])} if summary["remarks"] else {}
    spell = options.spelling(fit)
    return facts | {label(one): words(one, spell) for one in restored(summary["decisions"]).values()} | remarked


def _draw(out: Path, model: URRL, style: PictureStyle) -> None:
    lacking = {"map.png": why_not_drawn(draw_run, out, style)}
    if "n_clusters" in model.decisions_:
        lacking["k.png"] = why_not_drawn(draw_choice, out / "k.png", model.decisions_["n_clusters"], style)
    for why in dict.fromkeys(filter(None, lacking.values())):
        names = " and no ".join(name for name, reason in lacking.items() if reason == why)
        tell(f"there is no {names}: {plain(why)}")


def draw_run(folder: Path, style: PictureStyle) -> None:
    """Draw the map of a run from its files, with the names of its clusters; a run without places has none."""
    run = read_run(folder)
    if run.map is None:
        return
    row = {name: place for place, name in enumerate(run.ids)}
    xy = np.stack([run.map.numbers("x"), run.map.numbers("y")]).astype(np.float32)
    places = Places(np.array([row[name] for name in run.map.ids()]), xy, len(run.ids))
    counts = (len(run.ids), "sample"), (len(run.views), "view"), (run.n_clusters, "cluster")
    title = ", ".join(count(*one) for one in counts)
    tags = {label: run.cluster_names.get(label, str(label)) for label in range(run.n_clusters)}
    draw_map(folder / "map.png", places, run.labels, run.present, run.views, title=title, tags=tags, style=style)


@options.verb(
    click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="FOLDER|FILE..."),
    option("--clusters INTEGER|auto", "Number of clusters; auto: chosen on the bank.", names=["n_clusters"]),
    options.cluster_range,
    options.out("Folder for the results, on a file system that all processes see; a run that was begun there resumes."),
    option("--id-column NAME", "Column of ids; the first one by default."),
    option("--block VIEW=PATTERN ...",
           "The columns of a view, where they are neither lists nor called VIEW.COLUMN. Once per view."),
    option("--bank INTEGER|auto", "Rows that every process holds; auto: 100,000 on a GPU, 20,000 on a CPU."),
    option("--steps INTEGER|auto", "Batches of the joint stage on all rows; auto: 2,500 on a GPU, 250 on a CPU."),
    option("--batch-size INTEGER|auto",
           "Rows per batch, over all processes; auto: 4,096 on a GPU, 1,024 on a CPU."),
    option("--embedding/--no-embedding", "Whether the label files hold the embedding as well.", default=True),
    options.preparation,
    option("--effort", "Of the fit on the bank: quick, auto or thorough.", default="auto"),
    options.device, options.random_state, options.force, options.trust_unchanged,
)  # fmt: skip
def fit_large(block: tuple[str, ...], **given: Any) -> Any:
    from viewfuse.distributed import fit_large as distributed

    is_first = os.environ.get("RANK", "0") == "0"
    try:
        options.check_not_read(given["out"], options.Inputs(()))
        summary = distributed.fit_large(**given, blocks=named_values("--block", block), verbose=True)
    except ViewfuseError:
        if not is_first:  # who says the same
            sys.exit(2)
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command resumes from here") from None
    if not is_first:
        sys.exit()
    short = {name: value for name, value in summary.items() if name not in _LONG}
    written = {"written to": str(given["out"])}
    return {**summary, **written}, {**short, **written}
