"""viewfuse predict."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from viewfuse.cli import options
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite
from viewfuse.io.writers import write_labels


@click.command()
@options.model
@options.inputs
@options.out("File for the labels (.csv).")
@options.force
@options.as_json
def command(model: Path, inputs: options.Inputs, out: Path, force: bool, as_json: bool) -> None:
    """Filled in by the group."""
    options.check_new_path(out, force, inputs)
    if out.suffix != ".csv":
        raise CannotWrite(f"{out}: labels are written as .csv; give this ending")
    from viewfuse import URRL

    fitted = URRL.load(model)
    source = inputs.open()
    sizes = np.zeros(len(fitted.cluster_centers_), dtype=np.int64)

    def place(views: Views) -> tuple[Views, NDArray[np.float32]]:
        chances = fitted.predict_proba(views)
        sizes[:] += np.bincount(chances.argmax(axis=1), minlength=len(sizes))
        return views, chances

    write_labels(out, map(place, options.chunks(source, "predicting")))
    options.show({"samples": int(sizes.sum()), "cluster_sizes": sizes.tolist(), "written to": str(out)}, as_json)
