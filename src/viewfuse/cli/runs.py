"""viewfuse report, rename, drift, update and validate: what is done with a finished run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viewfuse.cli import options
from viewfuse.cli.fit import draw_run, fit, listed, results_in, write_run, write_summary
from viewfuse.cli.options import option
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, DataError, SettingError
from viewfuse.fitted.manifest import TENSORS
from viewfuse.io.labels import read_table
from viewfuse.io.writers import (
    Results,
    Sheet,
    named_rows,
    write_annotated,
    write_embedding,
    write_history,
    write_sheets,
)
from viewfuse.plots.layout import place_samples
from viewfuse.plots.pictures import why_not_drawn
from viewfuse.plots.style import FORMATS, PictureStyle
from viewfuse.report.page import tables_beside, write_report
from viewfuse.report.run_folder import read_run, write_evidence_again, write_places
from viewfuse.selection.decision_texts import p_value, words
from viewfuse.utils.atomic import keep_version, replacing
from viewfuse.utils.console import plain, tell

if TYPE_CHECKING:
    from viewfuse import URRL
    from viewfuse.report.run_folder import FinishedRun


@options.verb(
    click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN [RUN]"),
    options.out("The page (.html); its tables go into a folder beside it."),
    option("--known FILE", "CSV file with ids and what else is known of the samples, such as classes: compared with "
           "the clusters."),
    option("--batch COLUMN", "The column of --known that clusters should not follow, such as a plate."),
    option("--survival TIME EVENT", "Columns of --known: times, and 1 where the event was seen then, else 0. Gives a "
           "log-rank test and curves.", type=(str, str)),
    options.force,
)  # fmt: skip
def report(runs: tuple[Path, ...], out: Path, known: Path | None, force: bool, batch: str | None,
           survival: tuple[str, str] | None) -> options.Facts:  # fmt: skip
    if out.suffix.lower() not in (".html", ".htm"):
        raise CannotWrite(f"{out}: the report is a page; give the ending .html")
    inputs, tables = options.Inputs((*runs, *([known] if known else []))), tables_beside(out)
    options.check_new_path(out, force, inputs)
    if not force and tables.is_dir() and any(tables.iterdir()):
        why = f"{tables} exists already, and the tables of the page go there"
        raise CannotWrite(f"{why}; give another --out, or --force to overwrite them")
    options.check_new_folder(tables, True, inputs)
    tables = write_report(runs, out, known, spell=options.spelling(fit), batch=batch or "", survival=survival or ())
    return {"written to": str(out), "tables": str(tables), "bytes": out.stat().st_size}


@options.verb(options.run, click.argument("names", type=options.PATH, metavar="NAMES"))
def rename(run: Path, names: Path) -> options.Facts:
    table = read_table(names)
    labels = table.whole_numbers("label").tolist()
    if len(set(labels)) < len(labels):
        raise DataError(f"{names} names a cluster twice; give each label one line")
    place = options.model_in(run)
    former = None if place == run else read_run(run)  # complains before anything is written
    from viewfuse import load

    fitted = load(place, device="cpu").rename(dict(zip(labels, table.column("name"), strict=True)))
    fitted.save(place)
    shown = {str(label): name for label, name in fitted.cluster_names_.items()}
    if former is not None:
        cells = {name: cells for name, cells in read_table(run / "labels.csv").columns.items() if name != "name"}
        rows = zip(*cells.values(), strict=True)
        write_sheets(run, {"labels.csv": Sheet(*named_rows(tuple(cells), rows, fitted.cluster_names_))})
        write_summary(run, {**former.summary, "names": shown})
        if (why := _why_not_drawn_again(run, run)) is not None:
            tell(f"map.png has the former names: {plain(why)}")
        write_report([run], run / "report.html", spell=options.spelling(fit))
    return {"names": shown, "written to": str(run)}


def _why_not_drawn_again(folder: Path, former: Path) -> str | None:
    there = tuple(one for one in FORMATS if (former / f"map.{one}").exists())
    return why_not_drawn(draw_run, folder, PictureStyle(there or FORMATS[:1]))


@options.verb(options.run, options.inputs, options.device)
def drift(run: Path, inputs: options.Inputs, device: str) -> tuple[options.Facts, str]:
    fitted, source = options.opened(run, inputs, device)
    found = fitted.drift(source.read())
    sheet = found.sheet()
    rows = [tuple(row) for row in sheet.rows]
    tests = [dict(zip(sheet.header, row, strict=True)) for row in rows]
    shown = [(*row[:2], *(f"{value:.3f}" for value in row[2:5]), *map(p_value, row[5:7])) for row in rows]
    said = "\n".join(map(plain, found.alarms or ["no alarm: the samples are like those of training"]))
    facts = {"samples": found.n_samples, "alarms": list(found.alarms), "tests": tests}
    return facts, f"{options.table(sheet.header[:-1], shown, text=(0, 1))}\n\n{said}"


def _whole(place: Path, former: FinishedRun | None, device: str, what: str) -> URRL:
    """The model of a run, which is of URRL and holds all samples of the run."""
    from viewfuse import URRL, load

    fitted = load(place, device=device)
    if not isinstance(fitted, URRL):
        raise SettingError(f"only models of URRL can be {what}; fit again")
    if former is not None and len(fitted.ids_) != len(former.ids):
        raise DataError(f"{place} keeps {len(fitted.ids_):,} of its samples; fit again without --keep")
    return fitted


def _views_of(fitted: URRL) -> Views:
    """The training samples of a model, as they were before they were scaled."""
    from viewfuse.methods.urrl.refits import source_of

    return source_of(fitted._model, fitted.ids_).reduced


@options.verb(options.run, options.inputs, options.device)
def update(run: Path, inputs: options.Inputs, device: str) -> tuple[options.Facts, options.Facts]:
    place = options.model_in(run)
    former = None if place == run else read_run(run)  # complains before anything is trained
    fitted = _whole(place, former, device, "updated")
    new = inputs.open_for(fitted).read()
    results, tensors = results_in(run), TENSORS.partition("*")[0]
    with replacing(run, is_stale=lambda name: results(name) or name.startswith(tensors)) as folder:
        began = time.perf_counter()
        made = fitted.update(new)
        if former is None:
            fitted.save(folder)  # before the table: a model is saved into an empty folder
        write_sheets(folder, {"moved.csv": Sheet(("id", "before", "after"), [tuple(row) for row in made.moved])})
        if former is not None:
            _write_update(folder, run, fitted, former, time.perf_counter() - began)
        there = {path.name for path in folder.iterdir()}
        gone = sorted(path.name for path in run.iterdir() if results(path.name) and path.name not in there)
        version = keep_version(run, folder)
        written = {"former version": str(version)}
        # They need what was read, and the old samples' files are not at hand.
        written |= {"only there": f"{', '.join(gone)}; viewfuse explain makes an explanation anew"} if gone else {}
        written["written to"] = str(run)
    facts = {"samples": len(fitted.ids_), "new": made.chosen, "moved": len(made.moved), "empty": list(made.empty)}
    facts |= {"founded": [one["label"] for one in made.founded], "waiting": len(made.waiting)}
    return {**facts, **written}, {"update": words(made), **written}


def _write_update(folder: Path, run: Path, fitted: URRL, former: FinishedRun, seconds: float) -> None:
    """The files of a run again, for all of its samples, in a new folder."""
    places, views = place_samples(fitted.embedding_), _views_of(fitted)
    write_places(folder, fitted.ids_, places)
    write_embedding(folder / "embedding.npy", len(views), fitted.embedding_.shape[1], [(views, fitted.embedding_)])
    write_history(folder / "history.csv", fitted.history_)
    changed = {"seconds": round(seconds, 1), "command": options.typed(), "remarks": []}
    facts = {**former.summary, **changed, "epochs": len(fitted.history_["epoch"])}
    summary = write_run(folder, fitted, views, facts, title=run.resolve().name)
    if (why := _why_not_drawn_again(folder, run)) is not None:
        tell(f"there is no map.png: {plain(why)}")
    listed(folder, summary)


_VALIDATION = "validation"


@options.verb(
    options.run,
    option("--refits", "Whole fits on 80 % of the samples.", type=options.WholeRange(2), default=5),
    options.device,
)
def validate(run: Path, refits: int, device: str) -> Any:
    finished = read_run(run)
    fitted = _whole(run / "model", finished, device, "validated")
    fitted.checkpoint, fitted.verbose = run / _VALIDATION, True
    fitted.validate(refits)
    fitted.checkpoint, fitted.verbose = None, False
    write_evidence_again(run, fitted)
    results = Results(fitted.ids_, fitted.soft_labels_, fitted.embedding_, fitted.labels_)
    for path in run.iterdir():  # copies of what was read, with the results in them
        if path.suffix.lower() in (".h5mu", ".h5ad") and path.name in (finished.summary.get("files") or ()):
            write_annotated(path, path, results)
    summary = write_run(run, fitted, _views_of(fitted), finished.summary, title=run.resolve().name)
    shutil.rmtree(run / _VALIDATION, ignore_errors=True)
    return {"found_again": summary["found_again"], "trust": words(fitted.trust_), "written to": str(run)}
