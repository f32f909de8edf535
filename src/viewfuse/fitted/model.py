"""A fitted model: what is needed to place samples, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.filling import EmptyCells, Filler, fit_filler, warn_of_filled
from viewfuse.data.precision import Offset
from viewfuse.data.scaling import Scaler, fit_scaler
from viewfuse.data.tables import labelled
from viewfuse.data.views import Views, measured_from
from viewfuse.engine.replicates import assign, embed, fixed_rows, rows_per_pass
from viewfuse.errors import DataError, EmptyClusterWarning, OutOfRangeWarning, SettingError
from viewfuse.fitted.batch_effects import Batches, fit_batches
from viewfuse.fitted.novelty import LeftOut, Surroundings, unseen_shares
from viewfuse.neighbors.index import RowIndex, Samples, index_new_samples, index_training_set
from viewfuse.reduction.reduce import Asked, Kind, Reduction, fit_reduction
from viewfuse.selection.confidence import Calibration, logistic, sample_logits, sharpened, with_chances
from viewfuse.selection.decisions import CellFilling, Decision, ViewReduction
from viewfuse.selection.rules import SCALINGS, Fences
from viewfuse.utils.console import warn

_FAR = 10.0
"""Times the range of the training samples: a value farther outside than this is out of range."""


@dataclass(frozen=True)
class Model:
    """A trained network with the reduced and scaled training samples, among which new ones find their neighbours."""

    names: tuple[str, ...]  # of the views that it was fitted on, as are columns and offsets
    columns: tuple[Sequence[Hashable], ...]
    offsets: tuple[Offset, ...]
    method: Any  # places samples; all that is asked of one is in `viewfuse.methods.network.PlacingNetwork`
    filler: Filler
    reduction: Reduction
    scaler: Scaler
    stored: Samples
    network: Any
    left_out: LeftOut  # of the training samples; earlier versions lack some of it
    sharpness: float = 1.0  # the power of soft assignments, in models of earlier versions
    calibration: Calibration | None = None  # what makes soft assignments chances; None leaves them alone
    batches: Batches | None = None  # the effects of batches, which are taken out of reduced samples

    def to(self, device: torch.device) -> Model:
        """The model on `device`: itself where it is there already, else a copy."""
        if self.stored.present.device == device:
            return self
        network, known = copy.deepcopy(self.network).to(device), self.calibration and self.calibration.to(device)
        return replace(self, stored=self.stored.to(device), network=network, calibration=known)

    def thinned(self, rows: NDArray[np.int64]) -> Model:
        """The model with some of its training samples only, which are then each other's neighbours."""
        kept = self.stored.take(torch.from_numpy(rows).to(self.stored.present.device))
        stored = index_training_set(kept.values, kept.present, self.method.neighbor_depth)
        filler, known = self.filler.thinned(len(rows)), self.calibration and self.calibration.take(rows)
        left_out = self.left_out.take(rows)
        if left_out.distances.shape[1]:  # few of those that were measured may be left
            left_out = left_out._replace(distances=self.surroundings.times[rows])
        return replace(self, filler=filler, stored=stored, calibration=known, left_out=left_out)

    def complete(self, views: Views, *, by_name: bool) -> tuple[Views, list[EmptyCells]]:
        """New samples with the model's views and columns and without empty cells, and how many of these there were."""
        known = views.conform(self.names, self.columns, by_name=by_name)
        return self.filler.apply(measured_from(known, self.offsets))

    def place(self, views: Views) -> tuple[Samples, Tensor]:
        """Complete samples with their neighbours among the stored ones, and embeddings, (samples, embedding)."""
        samples = self.locate(*self.tensors(views))
        embedding = embed(self.method, self.network, samples, self.stored, self.rows_per_pass(len(samples)))
        _check_finite(embedding, views)
        return samples, embedding

    def rows_per_pass(self, n: int) -> int:
        """How many rows the network is given at a time where there are `n`; all sizes give the same numbers."""

        def work(samples: Samples) -> Tensor:
            embedding = self.method.embed(self.network, samples, self.stored)
            return torch.cat([embedding, *self.network.decode(embedding)], dim=1)

        return rows_per_pass(n, self.network, self.stored, work if self.method.shows_rounding else None)

    def locate(self, values: list[Tensor], present: Tensor) -> Samples:
        """Reduced and scaled samples, as `tensors` gives them, with their neighbours among the stored ones."""
        return index_new_samples(values, present, self.stored, self.row_index.find(values, present))

    def tensors(self, views: Views) -> tuple[list[Tensor], Tensor]:
        """Reduced and scaled values of samples, and who is present."""
        reduced = self.reduction.apply(views)
        reduced = reduced if self.batches is None else self.batches.apply(reduced)
        return scaled_tensors(reduced, self.scaler, self.stored.present.device)

    def assign(self, samples: Samples, embedding: Tensor) -> NDArray[np.float32]:
        """Probabilities of shape (samples, clusters), given what `place` gives."""
        soft = assign(self.method, self.network, embedding)
        if self.calibration is None:
            return sharpened(soft.cpu().numpy(), self.sharpness)
        labels, used = soft.argmax(dim=1), self.in_use
        chances = logistic(self.logits(samples, embedding, labels) + self.calibration.shifts[labels.cpu().numpy()])
        found = np.zeros(soft.shape, dtype=np.float32)
        found[:, used] = with_chances(soft.cpu().numpy()[:, used], chances)
        return found

    @cached_property
    def in_use(self) -> NDArray[np.bool_]:
        """Which clusters there are, of shape (clusters,): the centre of a number without a cluster is infinite."""
        return np.asarray(self.network.centers.detach().isfinite().all(dim=1).cpu().numpy())

    @property
    def n_present(self) -> NDArray[np.int64]:
        """How many views each training sample has, of shape (samples,)."""
        return self.stored.present.sum(dim=1).cpu().numpy()

    def logits(self, samples: Samples, embedding: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Of shape (samples,): see `viewfuse.selection.confidence.sample_logits`."""
        assert self.calibration is not None
        return sample_logits(self.calibration, embedding, self.network.centers.detach(), labels, samples.neighbor_ids)

    @torch.no_grad()
    def rebuild(self, embedding: Tensor) -> list[NDArray[np.float32]]:
        """Per view what the decoder expects, of shape (samples, columns), measured from `offsets`."""
        n = len(embedding)
        rows = fixed_rows(n, self.rows_per_pass(n), embedding.device)
        parts = [self.network.decode(embedding[part]) for part in rows]
        if not parts[0]:
            raise SettingError("this method cannot fill missing views; use URRL, COMPLETER, CPSPAN, SURE or RecFormer")
        # None beyond those of the training samples: no negative counts, constants stay.
        views = [torch.cat(found)[:n].clamp(*own) for *found, own in zip(*parts, self.bounds, strict=True)]
        reduced = [self.scaler.undo(v, view.cpu().numpy()) for v, view in enumerate(views)]
        found = [one.invert(view) for one, view in zip(self.reduction.front_ends, reduced, strict=True)]
        # By rounding, or without the effect of its batch, a value may lie beyond all that were measured.
        kinds = [one.kind for one in self.reduction.front_ends]
        return [
            view.clip(kind.least, kind.largest) if kind != Kind() else view
            for view, kind in zip(found, kinds, strict=True)
        ]

    @cached_property
    def bounds(self) -> list[tuple[Tensor, Tensor]]:
        """Per view the least and the largest scaled value of every column among the training samples that have it.

        Infinite where none has it.
        """
        found = []
        for v, view in enumerate(self.stored.values):
            seen, infinite = view[self.stored.present[:, v]], view.new_full(view.shape[1:], torch.inf)
            found.append((seen.amin(dim=0), seen.amax(dim=0)) if len(seen) else (-infinite, infinite))
        return found

    @cached_property
    def row_index(self) -> RowIndex:
        """Finds stored samples by their values."""
        return RowIndex(self.stored.values, self.stored.present)

    @cached_property
    def fences(self) -> Fences:
        """Beyond which samples are outliers."""
        return Fences(self.stored)

    @cached_property
    def surroundings(self) -> Surroundings:
        """How far the training samples lie from each other."""
        return Surroundings.of(self.stored, self.left_out)

    def known_rows(self, samples: Samples) -> NDArray[np.int64]:
        """Which stored sample each one is, of shape (samples,); -1 if none."""
        return self.row_index.find(samples.values, samples.present).cpu().numpy()

    def unseen_words(self, views: Views) -> NDArray[np.float64]:
        """The shares of unseen words, see `unseen_shares`; without columns where none were measured in training."""
        width = self.left_out.words.shape[1]
        return unseen_shares(self.reduction, views) if width else np.empty((len(views), 0))

    def novelty(self, samples: Samples, views: Views | None = None) -> NDArray[np.float64]:
        """How far samples lie from training samples, of shape (samples,); without views of these themselves."""
        words = self.left_out.words if views is None else self.unseen_words(views)
        return self.surroundings.novelty(samples, self.known_rows(samples), words)

    def is_far(self, values: Sequence[Tensor], present: Tensor) -> NDArray[np.bool_]:
        """Which samples, reduced and scaled, have a value ten times the range of the column outside of it.

        Or of the view's columns on average, whichever is wider.
        """
        found = torch.zeros_like(present)
        for v, (view, (low, high)) in enumerate(zip(values, self.bounds, strict=True)):
            slack = _FAR * torch.maximum(high - low, (high - low).mean())
            found[:, v] = ~((view >= low - slack) & (view <= high + slack)).all(dim=1)
        return (found & present).any(dim=1).cpu().numpy()


def warn_of_far(ids: NDArray[Any], n: int) -> None:
    """Tell which of `n` samples are far out, if any."""
    if len(ids):
        what = f"{len(ids)} of {n} samples, such as {ids.tolist()[0]!r}, have values far outside of those"
        cure = "so their clusters mean little; look for fill values and units"
        warn(OutOfRangeWarning(f"{what} that the model was fitted on, {cure}"))


def warn_of_empty_clusters(labels: NDArray[np.int64], n_clusters: int, *cure: object) -> None:
    """Say how many clusters have no sample."""
    found = len(np.unique(labels))
    if found < n_clusters:
        fault = f"{n_clusters - found} of {n_clusters} clusters are empty; ask for fewer clusters"
        warn(EmptyClusterWarning(fault, *cure))


def scaled_tensors(views: Views, scaler: Scaler, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Scaled values and who is present, in memory of their own: the model must not change when the caller's does."""
    arrays = scaler.apply(views).arrays
    if scaler.kind == "none":
        arrays = tuple(np.array(array, order="C") for array in arrays)
    return [torch.from_numpy(array).to(device) for array in arrays], torch.tensor(np.array(views.mask), device=device)


def _check_finite(embedding: Tensor, views: Views) -> None:
    bad = (~torch.isfinite(embedding).all(dim=1)).nonzero()
    if len(bad):
        fault = "its values are too far from those that the model was fitted on; look for fill values and other units"
        raise DataError(f"row {labelled(int(bad[0]), views.ids)}: {fault}")


class Source(NamedTuple):
    """A set of samples filled, reduced, and without batch effects; `before` has these, where there are any."""

    columns: tuple[Sequence[Hashable], ...]
    offsets: tuple[Offset, ...]
    filler: Filler
    reduction: Reduction
    decisions: tuple[Decision, ...]
    reduced: Views
    left_out: LeftOut
    batches: Batches | None = None
    before: Views | None = None

    @classmethod
    def of(cls, views: Views, fill: str = "neighbors", asked: Asked = "auto") -> Source:
        """Fill empty cells and reduce the views, see `viewfuse.data.filling` and `viewfuse.reduction.reduce`."""
        filler = fit_filler(views, fill)
        filled, cells = filler.apply(views)
        warn_of_filled(cells)
        reduction = fit_reduction(filled, asked)
        filling = CellFilling(fill, {one.view: one.facts() for one in cells})
        reduced = ViewReduction(**reduction.facts(filled, asked))
        before = reduction.apply(filled)
        none = np.empty((len(views), 0))
        left_out = LeftOut.of(reduction, filled) if reduction.reduces else LeftOut(none, none)
        source = (views.columns, views.offsets, filler, reduction, (filling, reduced))
        if before.batch is None:
            return cls(*source, before, left_out)
        batches = fit_batches(before)
        return cls(*source, batches.apply(before), left_out, batches, before)

    def model(self, method: Any, scaler: Scaler, stored: Samples, network: Any) -> Model:
        """The network that was trained on these samples, with all that new ones need."""
        before = (self.reduced.names, self.columns, self.offsets, method, self.filler, self.reduction)
        return Model(*before, scaler, stored, network, self.left_out, batches=self.batches)


def scalers_of(source: Source, scaling: str) -> list[Scaler]:
    """The scalings that are tried, in the order of `SCALINGS`; one that does the same as another is tried once."""
    kinds = SCALINGS if scaling == "auto" else (scaling,)
    scalers = [fit_scaler(source.reduced, kind, source.reduction.units) for kind in kinds]
    if scaling == "auto" and not all(scalers[0].whole):
        scalers = [*scalers[1:], scalers[0]]  # of equals "standard" is kept, as it says more than "mixed"
    kept = [one for i, one in enumerate(scalers) if not any(one.does_the_same(other) for other in scalers[:i])]
    return sorted(kept, key=lambda one: kinds.index(one.kind))


def prepare(source: Source, scaler: Scaler, depth: int, device: torch.device) -> Samples:
    """The samples under a scaling, with `depth` neighbours of each in every view."""
    values, present = scaled_tensors(source.reduced, scaler, device)
    return index_training_set(values, present, depth)
