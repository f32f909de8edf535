"""viewfuse fit-large."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from viewfuse.cli import kinds, options
from viewfuse.errors import ViewfuseError
from viewfuse.utils.settings import named_values

_LONG = ("decisions", "fit", "offset", "contents")


@options.verb(
    click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="FOLDER|FILE..."),
    click.option("--clusters", "n_clusters", **kinds.AUTO, help="Number of clusters; auto: chosen on the bank."),
    options.cluster_range,
    options.out("Folder for the results, on a file system that all processes see; a run that was begun there resumes."),
    click.option("--id-column", metavar="NAME", help="Column of ids; the first one by default."),
    click.option("--block", multiple=True, metavar="VIEW=PATTERN",
                 help="The columns of a view, where they are neither lists nor called VIEW.COLUMN. Once per view."),
    click.option("--bank", **kinds.AUTO,
                 help="Rows that every process holds; auto: 100,000 on a GPU, 20,000 on a CPU."),
    click.option("--steps", **kinds.AUTO,
                 help="Batches of the joint stage on all rows; auto: 2,500 on a GPU, 250 on a CPU."),
    click.option("--batch-size", **kinds.AUTO,
                 help="Rows per batch, over all processes; auto: 4,096 on a GPU, 1,024 on a CPU."),
    click.option("--embedding/--no-embedding", default=True,
                 help="Whether the label files hold the embedding as well."),
    options.preparation,
    click.option("--effort", default="auto", help="Of the fit on the bank: quick, auto or thorough."),
    options.device,
    options.random_state,
    options.force,
    options.trust_unchanged,
)  # fmt: skip
def command(block: tuple[str, ...], **given: Any) -> Any:
    """Filled in by the group."""
    from viewfuse.distributed.fit_large import fit_large

    is_first = os.environ.get("RANK", "0") == "0"
    try:
        options.check_not_read(given["out"], options.Inputs(()))
        summary = fit_large(**given, blocks=named_values("--block", block), verbose=True)
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
