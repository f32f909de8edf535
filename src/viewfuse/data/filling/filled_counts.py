"""How many empty cells a model fills in new samples that come a few at a time."""

from __future__ import annotations

from typing import Any, Protocol

from viewfuse.data.filling.empty_cells import EmptyCells, in_words
from viewfuse.data.views import Views


class _Completes(Protocol):
    """What a fitted estimator offers here."""

    def complete(self, X: Any) -> tuple[Views, list[EmptyCells]]:
        """New samples as the model takes them, and what was filled."""
        ...


class Filled:
    """Counts what a model fills in empty cells of new samples."""

    def __init__(self, fitted: _Completes) -> None:
        self._fitted = fitted
        self._cells: dict[str, EmptyCells] = {}

    def complete(self, views: Views) -> Views:
        """Samples as the model takes them."""
        complete, found = self._fitted.complete(views)
        for cells in found:
            self._cells[cells.view] = self._cells[cells.view] + cells if cells.view in self._cells else cells
        return complete

    def totals(self) -> dict[str, int]:
        """Per view that had empty cells, how many."""
        return {name: cells.total for name, cells in self._cells.items()}

    def facts(self, as_json: bool) -> dict[str, Any]:
        """For the output of a verb; nothing where no cell was empty."""
        facts = {name: cells.facts() for name, cells in self._cells.items()}
        if not facts:
            return {}
        return {"filled_cells": facts if as_json else [in_words(*pair) for pair in facts.items()]}
