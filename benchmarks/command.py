"""The command line of the benchmarks: errors are one line, as those of viewfuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.experiments.plans import ALL, METHODS, NAMES, SETTINGS, read_plan
from viewfuse.cli import Verbs, options
from viewfuse.io.writers import as_json as as_json_text
from viewfuse.plots.pictures import why_not_drawn
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import is_live, plain, tell

if TYPE_CHECKING:
    from benchmarks.experiments.records import Record


class Measurements(Verbs):
    """The measurements, by name."""

    list_commands = click.Group.list_commands
    get_command = click.Group.get_command
    format_commands = click.Group.format_commands


@click.group(cls=Measurements, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Measure the speed of viewfuse, or run the tables and figures of the paper."""


@main.command(short_help="Time and memory, beside a plain reference.")
@options.out("Folder for speed.json and speed.png.")
@options.device
@click.option(
    "--full",
    is_flag=True,
    help="Also up to a fixed accuracy, up to a million samples, and a sparse view of 100,000; takes hours on a CPU.",
)
@options.force
@options.as_json
def speed(out: Path, device: str, full: bool, force: bool, as_json: bool) -> None:
    """Measure time and memory beside a plain reference that does the same work in the same run."""
    options.check_new_path(out, force, options.Inputs(()))
    from benchmarks.speed.measure import FULL, Size, measure
    from benchmarks.speed.picture import draw_speed
    from viewfuse.utils.jobs import chosen_device

    asked = f"python -m benchmarks speed --device {device}{' --full' if full else ''}"
    found = measure(chosen_device(device), FULL if full else Size(), asked, _log)
    write_file(out / "speed.json", as_json_text(found, indent=1).encode())
    _draw(draw_speed, out / "speed.png", found)
    click.echo(as_json_text(found) if as_json else f"{_table(found)}\n\n{_wide_table(found['wide'])}")


_DATA_DIR = click.option(
    "--data-dir", type=options.PATH, required=True, metavar="DIR", help="Folder of .npz and .mat files."
)


@main.command(short_help="How well missing views are filled.")
@_DATA_DIR
@options.out("Folder for impute.csv and impute.md.")
@options.device
@click.option("--seeds", type=options.WholeRange(1), help="Number of masks and trainings; 3 by default.")
@click.option("--data", multiple=True, metavar="NAME", help="Only this data set. Repeatable.")
@click.option(
    "--models", type=options.PATH, metavar="DIR", help="Folder for the models; those there are not fitted again."
)
@options.force
def impute(data_dir: Path, out: Path, force: bool, **asked: Any) -> None:
    """Hide views that are there, fill them, and compare with what they were; means of donors stand beside."""
    options.check_new_folder(out, force, options.Inputs(()))
    from benchmarks.experiments.imputation import bench_imputation, write_fillings
    from benchmarks.experiments.tables import as_text

    found = bench_imputation(data_dir, **asked, log=_tell)
    click.echo(as_text(write_fillings(out, found)), nl=False)


@main.command(short_help="Train once, predict under any mask.")
@_DATA_DIR
@options.out("Folder for patterns.csv, patterns.md and patterns.png.")
@options.device
@click.option("--seeds", type=options.WholeRange(1), help="Number of splits and trainings; 3 by default.")
@click.option("--data", multiple=True, metavar="NAME", help="Only this data set. Repeatable.")
@options.force
def patterns(data_dir: Path, out: Path, force: bool, **asked: Any) -> None:
    """Fit on a part of each set, and place the other samples under every pattern of missing views."""
    options.check_new_folder(out, force, options.Inputs(()))
    from benchmarks import patterns as bench
    from benchmarks.experiments.tables import as_text

    found = bench.bench_patterns(data_dir, **asked, log=_tell)
    click.echo(as_text(bench.write_patterns(out, found)), nl=False)
    _draw(bench.draw_patterns, out / "patterns.png", found)


@main.command(short_help="Which criterion finds the known number of clusters.")
@_DATA_DIR
@options.out("Folder for clusters.csv and clusters.md; results that it holds are kept.")
@options.device
@click.option("--masks", type=options.WholeRange(1), default=5, help="Masks per data set and rate.")
@click.option(
    "--rate", "rates", type=options.NumberRange(0, 1), multiple=True, help="Only this missing rate. Repeatable."
)
@click.option("--data", multiple=True, metavar="NAME", help="Only this data set, or synthetic. Repeatable.")
def clusters(data_dir: Path, out: Path, rates: Sequence[float], **asked: Any) -> None:
    """Choose the number of clusters of sets in which it is known: ours beside others, all on the same embedding."""
    options.check_writable(out)
    from benchmarks.clusters.experiment import RATES, bench_clusters
    from benchmarks.clusters.summary import write_summary
    from benchmarks.experiments.tables import as_text

    found = bench_clusters(data_dir, out, **asked, rates=rates or RATES, log=_tell)
    click.echo("\n".join(as_text(table) for table in write_summary(out, found)), nl=False)


def _plan_options(function: Callable[..., None]) -> Callable[..., None]:
    """What all plans can be asked for."""
    for option in reversed(_PLAN_OPTIONS):
        function = option(function)
    return function


_PLAN_OPTIONS = (
    _DATA_DIR,
    options.out("Folder for the runs; runs that it holds are not repeated."),
    options.device,
    options.engine,
    click.option("--seeds", type=options.WholeRange(1), help="Number of masks and trainings; by default the plan's."),
    click.option("--setting", type=click.Choice((*SETTINGS, "both")), help="By default the plan's."),
    click.option("--method", "methods", multiple=True, type=click.Choice((*METHODS, ALL)),
                 help="Only this one; all of them. Repeatable."),
    click.option("--condition", "conditions", multiple=True, metavar="NAME", help="Only this condition. Repeatable."),
    click.option("--rate", "rates", type=options.NumberRange(0, 1), multiple=True,
                 help="This missing rate instead of the plan's. Repeatable."),
    click.option("--mask", "masks", type=options.WholeRange(0), multiple=True,
                 help="This seed of masks and trainings instead of the first ones. Repeatable."),
    click.option("--data", multiple=True, metavar="NAME", help="Only this data set. Repeatable."),
)  # fmt: skip


def _add_plan(name: str) -> None:
    title = read_plan(name).title

    @main.command(name, short_help=f"{title}.", help=f"{title}. What is done already is left alone.")
    @_plan_options
    def plan(out: Path, **asked: Any) -> None:
        _run(name, out, **asked)


for _name in NAMES:
    _add_plan(_name)


@main.command("run", short_help="A plan of your own.")
@click.argument("plan", type=options.PATH)
@_plan_options
def run(plan: Path, out: Path, **asked: Any) -> None:
    """Run a plan that is written like those of the package. What is done already is left alone."""
    _run(plan, out, **asked)


def _run(name: str | Path, out: Path, *, engine: str, address: str | None, device: str, **asked: Any) -> None:
    from benchmarks.experiments.launch import bench
    from benchmarks.experiments.records import read_records

    with options.on_engine(engine, address, device):
        folder = bench(name, out=out, device=device, **asked, log=_tell)
    _report(folder / "tables", read_records(folder), folder)


@main.command(short_help="Tables and figures of runs that are done.")
@click.argument("paths", type=options.PATH, nargs=-1, required=True)
@options.out("Folder for the tables and figures.")
def tables(paths: Sequence[Path], out: Path) -> None:
    """Make the tables and figures again, from folders of runs or from their results.csv alone.

    A run that is in several of them is taken from the last.
    """
    from benchmarks.experiments.merge import merged

    _report(out, merged(paths), paths[0] if len(paths) == 1 and paths[0].is_dir() else None)


def _report(out: Path, records: Sequence[Record], runs: Path | None) -> None:
    from benchmarks.experiments.figures import draw_figures
    from benchmarks.experiments.tables import as_text, write_tables

    click.echo("\n".join(as_text(table) for table in write_tables(out, records)), nl=False)
    why = why_not_drawn(draw_figures, out, records, runs)
    if why is not None:
        _tell(f"the figures are not there: {why}")


def _tell(line: str) -> None:
    tell(plain(line))


def _log(what: str) -> None:
    """To those who wait, not to those who read the output."""
    if is_live():
        tell(f"measuring: {what}")


def _draw(draw: Callable[[Path, Any], None], path: Path, found: Any) -> None:
    why = why_not_drawn(draw, path, found)
    if why is not None:
        _tell(f"{path.name} is not there: {why}")


def _table(found: dict[str, Any]) -> str:
    from benchmarks.speed.picture import comparisons, number

    rows = [
        (line.what, line.unit, number(line.ours), number(line.plain), f"{line.ratio:.2f}")
        for line in comparisons(found)
    ]
    for point in found["scaling"]:
        ours, plain = (point.get(who, {}).get("seconds") for who in ("ours", "plain"))
        ratio = f"{plain / ours:.2f}" if ours and plain else "-"
        what = f"fit of {point['n']:,}, {point['epochs']} epoch(s) per stage"
        rows.append((what, "s", number(ours) if ours else "-", number(plain) if plain else "-", ratio))
    fit = found["default_fit"]
    rows.append(("default fit of Handwritten", "s", number(fit["seconds"]), "-", "-"))
    rows.append(("the same, in steps of the plain reference", "steps", number(fit["plain_steps"]), "-", "-"))
    bound = found["floor"]
    rows.append(("a step, beside its floor", "ms", number(bound["ours_ms"]), "-", "-"))
    rows.append(("the floor of a step", "ms", number(bound["floor_ms"]), "-", "-"))
    return options.table(("", "unit", "viewfuse", "plain", "times better"), rows, text=(0, 1))


def _wide_table(found: dict[str, Any]) -> str:
    """Wide and sparse views, with the most that each figure may be."""
    from benchmarks.speed.picture import number
    from benchmarks.speed.wide import lines

    rows = [
        (what, unit, number(value), "-" if bar is None else number(bar), "-" if bar is None else _yes(value <= bar))
        for what, unit, value, bar in lines(found)
    ]
    return options.table(("wide and sparse views", "unit", "measured", "at most", "kept"), rows, text=(0, 1))


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"
