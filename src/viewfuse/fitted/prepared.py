"""Samples before training: filled, reduced, scaled, and indexed for the search of neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from viewfuse.data.digits import Offset
from viewfuse.data.empty_cells import warn_of_filled
from viewfuse.data.filling import Filler, fit_filler
from viewfuse.data.scaling import Scaler, fit_scaler
from viewfuse.data.views import Views
from viewfuse.fitted.model import FittedMethod, Model, scaled_tensors
from viewfuse.neighbors.samples import RowIndex, Samples, index_rows, index_training_set
from viewfuse.reduction.frontend import Asked, Reduction, fit_reduction
from viewfuse.selection.decisions import CellFilling, Decision, ViewReduction
from viewfuse.selection.rules import SCALINGS


class Source(NamedTuple):
    """A set of samples as it was given, but for its values: those are filled and reduced."""

    columns: tuple[Sequence[Hashable], ...]
    offsets: tuple[Offset, ...]
    filler: Filler
    reduction: Reduction
    decisions: tuple[Decision, ...]
    reduced: Views

    @classmethod
    def of(cls, views: Views, fill: str, asked: Asked) -> Source:
        """Fill empty cells and reduce the views."""
        filler = fit_filler(views, fill)
        filled, cells = filler.apply(views)
        warn_of_filled(cells)
        reduction = fit_reduction(filled, asked)
        filling = CellFilling(fill, {one.view: one.facts() for one in cells})
        reduced = ViewReduction(**reduction.facts(filled, asked))
        return cls(views.columns, views.offsets, filler, reduction, (filling, reduced), reduction.apply(filled))

    def model(self, method: FittedMethod, scaler: Scaler, stored: Samples, row_index: RowIndex, network: Any) -> Model:
        """The network that was trained on these samples, with all that new ones need."""
        before = (self.reduced.names, self.columns, self.offsets, method, self.filler, self.reduction)
        return Model(*before, scaler, stored, row_index, network)


class Prepared(NamedTuple):
    """Samples before training, under one scaling."""

    source: Source
    scaler: Scaler
    stored: Samples
    row_index: RowIndex


def scalers_of(source: Source, scaling: str) -> list[Scaler]:
    """The scalings that are tried, in the order of `SCALINGS`; one that does the same as another is tried once."""
    kinds = SCALINGS if scaling == "auto" else (scaling,)
    scalers = [fit_scaler(source.reduced, kind, source.reduction.units) for kind in kinds]
    if scaling == "auto" and not all(scalers[0].whole):
        scalers = [*scalers[1:], scalers[0]]  # of equals "standard" is kept, as it says more than "mixed"
    kept = [one for i, one in enumerate(scalers) if not any(one.does_the_same(other) for other in scalers[:i])]
    return sorted(kept, key=lambda one: kinds.index(one.kind))


def prepare(source: Source, scaler: Scaler, depth: int, device: torch.device) -> Prepared:
    """The samples under a scaling, with `depth` neighbours of each in every view."""
    values, present = scaled_tensors(source.reduced, scaler, device)
    stored = index_training_set(values, present, depth)
    return Prepared(source, scaler, stored, index_rows(values, present))
