"""viewfuse impute."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.cli import options
from viewfuse.data.empty_cells import Filled
from viewfuse.io.writers import write_views


@click.command()
@options.model
@options.inputs
@options.out("Folder for the filled views: one CSV file each.")
@options.device
@options.force
@options.as_json
def command(model: Path, inputs: options.Inputs, out: Path, device: str, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    with options.new_folder(out, force, inputs) as folder:
        from viewfuse import load

        fitted = load(model, device=device)
        source = inputs.open_for(fitted)
        filled = Filled(fitted)
        parts = map(filled.complete, options.chunks(source, "imputing"))
        write_views(folder, fitted.view_names_, map(fitted.impute, parts))
    facts = {"samples": len(source), "views": fitted.view_names_, **filled.facts(as_json)}
    options.show({**facts, "written to": str(out)}, as_json)
