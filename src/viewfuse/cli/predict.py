"""viewfuse predict."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.cli import options
from viewfuse.results import write_labels


@click.command()
@options.model
@options.inputs
@options.out("File for the labels (.csv).")
@options.force
@options.as_json
def command(model: Path, inputs: options.Inputs, out: Path, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    options.refuse_existing(out, force)
    from viewfuse import URRL

    fitted = URRL.load(model)
    source = inputs.open()
    chunks = options.chunks(source, "predicting")
    write_labels(out, ((views, fitted.predict_proba(views)) for views in chunks))
    options.show({"samples": len(source), "written to": str(out)}, as_json)
