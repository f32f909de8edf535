"""viewfuse embed."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.cli import options
from viewfuse.data.empty_cells import Filled
from viewfuse.io.writers import write_embedding


@click.command()
@options.model
@options.inputs
@options.out("File for the embedding: .npy (rows in the order of the samples), .csv or .parquet (with ids).")
@options.device
@options.force
@options.as_json
def command(model: Path, inputs: options.Inputs, out: Path, device: str, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    options.check_new_path(out, force, inputs)
    from viewfuse import load

    fitted = load(model, device=device)
    source = inputs.open_for(fitted)
    width = fitted.cluster_centers_.shape[1]
    filled = Filled(fitted)
    chunks = map(filled.complete, options.chunks(source, "embedding"))
    write_embedding(out, len(source), width, ((views, fitted.transform(views)) for views in chunks))
    facts = {"samples": len(source), "columns": width, **filled.facts(as_json)}
    options.show({**facts, "written to": str(out)}, as_json)
