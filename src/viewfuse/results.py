"""Results as the bytes of files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.tables import is_number
from viewfuse.views import Views


def labels_csv(views: Views, chances: NDArray[np.float32]) -> bytes:
    """One line per sample: id, label, confidence, the views that it has; `chances` of shape (samples, clusters)."""
    names = np.array(views.names)
    best = zip(views.ids.tolist(), chances.argmax(axis=1).tolist(), chances.max(axis=1), views.mask, strict=True)
    rows = [(name, label, f"{sure:.4f}", " ".join(names[mask])) for name, label, sure, mask in best]
    return _csv(("id", "label", "confidence", "views_present"), rows)


def history_csv(history: Mapping[str, Sequence[Any]]) -> bytes:
    """One line per epoch."""
    return _csv(tuple(history), zip(*history.values(), strict=True))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
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
