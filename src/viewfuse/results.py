"""Results as the bytes of files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.tables import is_number
from viewfuse.views import Views

if TYPE_CHECKING:
    from viewfuse.explanation import Explanation


def labels_csv(views: Views, chances: NDArray[np.float32]) -> bytes:
    """One line per sample: id, label, confidence, the views that it has; `chances` of shape (samples, clusters)."""
    names = np.array(views.names)
    best = zip(views.ids.tolist(), chances.argmax(axis=1).tolist(), chances.max(axis=1), views.mask, strict=True)
    rows = [(name, label, f"{sure:.4f}", " ".join(names[mask])) for name, label, sure, mask in best]
    return as_csv(("id", "label", "confidence", "views_present"), rows)


def history_csv(history: Mapping[str, Sequence[Any]]) -> bytes:
    """One line per epoch."""
    return as_csv(tuple(history), zip(*history.values(), strict=True))


def explanation_files(explanation: Explanation) -> dict[str, bytes]:
    """The three tables of an explanation by the names of their files."""
    from viewfuse.explanation import cluster_sheet, feature_sheet, sample_sheet  # with torch, which others need not

    sheets = {
        "samples.csv": (sample_sheet(explanation), ".4f"),
        "clusters.csv": (cluster_sheet(explanation), ".4f"),
        "features.csv": (feature_sheet(explanation), ".7g"),  # in the data's units, of which float32 has 7 digits
    }
    return {name: as_csv(sheet.header, _rounded(sheet.rows, digits)) for name, (sheet, digits) in sheets.items()}


def _rounded(rows: Iterable[Sequence[Any]], digits: str) -> Iterator[Sequence[Any]]:
    for row in rows:
        yield [format(cell, digits) if isinstance(cell, float) else cell for cell in row]


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A header and rows as a CSV file; text that a spreadsheet would run as a formula is marked as text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _harmless(cell: Any) -> Any:
    """Text that a spreadsheet would run as a formula, marked as text."""
    return (
        f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) and not is_number(cell) else cell
    )
