"""viewfuse score."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse import metrics
from viewfuse.cli import options
from viewfuse.data.alignment import warn_of_few
from viewfuse.errors import DataError
from viewfuse.io.labels import read_labels


@click.command()
@click.argument("labels", type=options.PATH)
@click.argument("truth", type=options.PATH)
@options.as_json
def command(labels: Path, truth: Path, as_json: bool) -> None:
    """Filled in by the group."""
    found, known = read_labels(labels), read_labels(truth)
    both = [name for name in found if name in known]
    if not both:
        raise DataError(f"{labels} and {truth} share no id; both need the columns id and label")
    warn_of_few(len(both), found, known, "files")
    pair = [known[name] for name in both], [found[name] for name in both]
    scores = {"accuracy": metrics.clustering_accuracy(*pair), "NMI": metrics.nmi(*pair), "ARI": metrics.ari(*pair)}
    left_out = len(set(found) ^ set(known))
    options.show(
        {
            "samples": len(both),
            "without a partner": left_out,
            **{name: round(score, 4) for name, score in scores.items()},
        },
        as_json,
    )
