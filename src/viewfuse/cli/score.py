"""viewfuse score."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

import click

from viewfuse import metrics
from viewfuse.cli import options
from viewfuse.data.alignment import read_alike
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.escaping import unmarked
from viewfuse.io.readers import open_source
from viewfuse.io.source import check_ids
from viewfuse.io.utf8 import open_utf8


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
    if 2 * len(both) < min(len(found), len(known)):
        few = f"only {len(both)} of {len(found)} and {len(known)} ids are in both files"
        alike = [f"{one!r} and {other!r} read alike" for one, other in read_alike(found, known)[:1]]
        warnings.warn("; ".join([few, *alike, "spell ids alike in both"]), SuspiciousDataWarning, stacklevel=2)
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


def read_labels(path: Path) -> dict[str, str]:
    """Per id its label, from a table with these columns or from data that carry labels."""
    if not path.exists() or path.is_fifo() or path.is_char_device():
        raise DataError(f"{path} is no file; check the path")
    if path.is_dir() or path.suffix.lower() in (".npz", ".mat"):
        source = open_source(path)
        if source.labels is None:
            raise DataError(f"{path} holds no labels; give a CSV file with the columns id and label")
        return dict(zip(map(str, source.ids.tolist()), map(str, source.labels.tolist()), strict=True))
    try:
        with open_utf8(path) as file:
            lines = csv.DictReader(file)
            header = lines.fieldnames or []
            if not {"id", "label"} <= set(header):
                raise DataError(f"{path} has the columns {_some(header)}; it needs the columns id and label")
            rows = [(unmarked(row["id"] or ""), row["label"]) for row in lines]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file") from None
    check_ids(path, [name for name, _ in rows])
    return {name: label for name, label in rows if label}


def _some(names: Sequence[str]) -> str:
    """The first of many names."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
