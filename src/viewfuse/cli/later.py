"""viewfuse rename and viewfuse drift: what is done with a run later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from viewfuse.cli import options
from viewfuse.errors import DataError
from viewfuse.io.writers import Sheet, named_rows, write_sheets
from viewfuse.io.writers import as_json as json_text
from viewfuse.plots.pictures import draw_map, why_not_drawn
from viewfuse.plots.places import Places
from viewfuse.plots.style import FORMATS, PictureStyle
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import read_run, read_table
from viewfuse.selection.messages import p_value
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import plain, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from viewfuse.report.run_folder import FinishedRun


@click.command()
@click.argument("run", type=options.PATH, metavar="RUN")
@click.argument("names", type=options.PATH, metavar="NAMES")
@options.as_json
def rename(run: Path, names: Path, as_json: bool) -> None:
    """Filled in by the group."""
    given = _read_names(names)
    place = options.model_in(run)
    if place != run:
        read_run(run)  # complains before anything is written
    from viewfuse import load

    fitted = load(place, device="cpu").rename(given)
    fitted.save(place)
    if place != run:
        _write(run, fitted.cluster_names_)
    shown = {str(label): name for label, name in fitted.cluster_names_.items()}
    options.show({"names": shown, "written to": str(run)}, as_json)


def _read_names(path: Path) -> dict[int, str]:
    """The columns label and name of a CSV file."""
    table = read_table(path)
    labels = table.whole_numbers("label").tolist()
    if len(set(labels)) < len(labels):
        raise DataError(f"{path} names a cluster twice; give each label one line")
    return dict(zip(labels, table.column("name"), strict=True))


def _write(run: Path, names: Mapping[int, str]) -> None:
    """Write the names into the files of a run."""
    from viewfuse.cli.fit import command as fit

    labels = {name: cells for name, cells in read_table(run / "labels.csv").columns.items() if name != "name"}
    header, rows = tuple(labels), zip(*labels.values(), strict=True)
    write_sheets(run, {"labels.csv": Sheet(*named_rows(header, rows, names))})
    summary = {**read_run(run).summary, "names": {str(label): name for label, name in names.items()}}
    write_file(run / "summary.json", json_text(summary, indent=1).encode())
    finished = read_run(run)
    if (why := why_not_drawn(_draw, finished)) is not None:
        tell(f"map.png has the former names: {plain(why)}")
    write_report([run], run / "report.html", spell=options.spelling(fit))


def _draw(run: FinishedRun) -> None:
    """The map again, where there is one."""
    if run.map is None:
        return
    row = {name: place for place, name in enumerate(run.ids)}
    xy = np.stack([run.map.numbers("x"), run.map.numbers("y")]).astype(np.float32)
    places = Places(np.array([row[name] for name in run.map.ids()]), xy, len(run.ids))
    title = f"{len(run.ids):,} samples, {len(run.views)} views, {run.n_clusters} clusters"
    tags = {label: run.cluster_names.get(label, str(label)) for label in range(run.n_clusters)}
    kinds = tuple(kind for kind in FORMATS if (run.folder / f"map.{kind}").exists()) or FORMATS[:1]
    shown = places, run.labels, run.present, run.views
    draw_map(run.folder / "map.png", *shown, title=title, tags=tags, style=PictureStyle(kinds))


@click.command()
@click.argument("run", type=options.PATH, metavar="RUN")
@options.inputs
@options.device
@options.as_json
def drift(run: Path, inputs: options.Inputs, device: str, as_json: bool) -> None:
    """Filled in by the group."""
    from viewfuse import load

    fitted = load(options.model_in(run), device=device)
    found = fitted.drift(inputs.open_for(fitted).read())
    sheet = found.sheet()
    rows = [tuple(row) for row in sheet.rows]
    if as_json:
        tests = [dict(zip(sheet.header, row, strict=True)) for row in rows]
        click.echo(json_text({"samples": found.n_samples, "alarms": list(found.alarms), "tests": tests}))
        return
    shown = [(*row[:2], *(f"{value:.3f}" for value in row[2:5]), *map(p_value, row[5:7])) for row in rows]
    click.echo(options.table(sheet.header[:-1], shown, text=(0, 1)))
    click.echo("\n" + "\n".join(found.alarms or ["no alarm: the samples are like those of training"]))
