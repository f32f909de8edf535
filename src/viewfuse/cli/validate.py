"""viewfuse validate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viewfuse.cli import options
from viewfuse.errors import DataError, SettingError
from viewfuse.io.writers import as_json as json_text
from viewfuse.io.writers import write_labels
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import read_run
from viewfuse.selection.messages import words
from viewfuse.utils.atomic import write_file

if TYPE_CHECKING:
    from viewfuse import URRL
    from viewfuse.report.run_folder import FinishedRun

_CHECKPOINT = "validation"


@click.command()
@click.argument("run", type=options.PATH, metavar="RUN")
@click.option(
    "--refits", type=options.WholeRange(2), default=5, show_default=True, help="Whole fits on 80 % of the samples."
)
@options.device
@options.as_json
def command(run: Path, refits: int, device: str, as_json: bool) -> None:
    """Filled in by the group."""
    finished = read_run(run)
    from viewfuse import URRL, load

    fitted = load(run / "model", device=device)
    if not isinstance(fitted, URRL):
        raise SettingError("only fits of URRL can be repeated")
    if len(fitted.ids_) != len(finished.ids):
        raise DataError(f"{run / 'model'} keeps {len(fitted.ids_):,} of its samples; fit again without --keep")
    fitted.checkpoint, fitted.verbose = run / _CHECKPOINT, True
    fitted.validate(refits)
    summary = _write(run, fitted, finished)
    shutil.rmtree(run / _CHECKPOINT, ignore_errors=True)
    facts: dict[str, Any] = {"found_again": summary["found_again"], "trust": words(fitted.trust_)}
    options.show({**facts, "written to": str(run)}, as_json)


def _write(run: Path, fitted: URRL, finished: FinishedRun) -> dict[str, Any]:
    """Write what was measured into the folder of the run; the content of its summary."""
    from viewfuse.cli.fit import command as fit
    from viewfuse.methods.urrl.validation import source_of

    fitted.checkpoint, fitted.verbose = None, False
    fitted.save(run / "model")
    views = source_of(fitted._model, fitted.ids_).reduced
    judged = fitted.judge(alpha=finished.alpha)
    write_labels(run / "labels.csv", views, judged, fitted.cluster_names_)
    uncertain = int(judged.uncertain.sum())
    again = [round(one["again"], 3) for one in fitted.trust_.clusters]
    summary = {**finished.summary, "decisions": fitted.decisions_, "found_again": again, "uncertain": uncertain}
    write_file(run / "summary.json", json_text(summary, indent=1).encode())
    write_report([run], run / "report.html", spell=options.spelling(fit))
    return summary
