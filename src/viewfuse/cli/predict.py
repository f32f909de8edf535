"""viewfuse predict."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from viewfuse.cli import options
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite
from viewfuse.io.writers import write_predictions


@click.command()
@options.model
@options.inputs
@options.out("File for the labels (.csv).")
@options.uncertain_below
@options.device
@options.force
@options.as_json
def command(
    model: Path, inputs: options.Inputs, out: Path, uncertain_below: float, device: str, force: bool, as_json: bool
) -> None:
    """Filled in by the group."""
    options.check_new_path(out, force, inputs)
    if out.suffix != ".csv":
        raise CannotWrite(f"{out}: labels are written as .csv; give this ending")
    from viewfuse import load

    fitted = load(model, device=device)
    source = inputs.open()
    filled = options.Filled(fitted)
    sizes = np.zeros(len(fitted.cluster_centers_), dtype=np.int64)
    far_out: list[int] = []
    uncertain: list[int] = []

    def place(views: Views) -> tuple[Views, NDArray[np.float32], NDArray[np.bool_]]:
        complete = filled.complete(views)
        probabilities, far = fitted.predict_proba(complete), fitted.out_of_range(complete)
        sizes[:] += np.bincount(probabilities.argmax(axis=1), minlength=len(sizes))
        far_out.append(int(far.sum()))
        uncertain.append(int((probabilities.max(axis=1) < uncertain_below).sum()))
        return views, probabilities, far

    write_predictions(out, map(place, options.chunks(source, "predicting")), uncertain_below)
    facts = {"samples": int(sizes.sum()), "cluster_sizes": sizes.tolist()}
    facts |= {"uncertain": sum(uncertain), "out_of_range": sum(far_out)}
    options.show({**facts, **filled.facts(as_json), "written to": str(out)}, as_json)
