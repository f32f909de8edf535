"""A fitted model: what is needed to place samples, and nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.batches import Samples, newcomers, store
from viewfuse.errors import DataError
from viewfuse.network import Network
from viewfuse.recognition import RowIndex, find_rows, index_rows
from viewfuse.scaling import Scaler, fit_scaler
from viewfuse.settings import Settings
from viewfuse.tables import labelled
from viewfuse.training import History, embed, embed_stored, train_replicates
from viewfuse.views import Views

_ROWS_AT_A_TIME = 1024
_ROWS_PER_PART = 64


@dataclass(frozen=True)
class Model:
    """A trained network with the scaled training samples, among which new samples find their neighbours.

    Attributes
    ----------
    names, columns : of the views that it was fitted on
    """

    names: tuple[str, ...]
    columns: tuple[Sequence[Hashable], ...]
    settings: Settings
    scaler: Scaler
    stored: Samples
    index: RowIndex
    network: Network

    def to(self, device: torch.device) -> Model:
        """The model on `device`; the network itself moves."""
        if self.stored.present.device == device:
            return self
        return replace(
            self, stored=self.stored.to(device), index=self.index.to(device), network=self.network.to(device)
        )

    def thinned(self, rows: NDArray[np.int64]) -> Model:
        """The model with some of its training samples only, which are then each other's neighbours."""
        kept = self.stored.take(torch.from_numpy(rows).to(self.stored.present.device))
        stored = store(kept.values, kept.present, self.settings)
        return replace(self, stored=stored, index=index_rows(stored.values, stored.present))

    def embed(self, views: Views) -> Tensor:
        """Embeddings of shape (samples, embedding) of samples with the model's views, any of them missing."""
        return self.place(views)[1]

    def place(self, views: Views) -> tuple[Samples, Tensor]:
        """The samples with their neighbours among the stored ones, and what `embed` gives."""
        stored = self.stored
        values, present = _tensors(views, self.scaler, stored.present.device)
        known = find_rows(self.index, stored.values, stored.present, values, present)
        samples = newcomers(values, present, stored, known)
        embedding = embed(self.network, samples, stored, self.settings)
        _refuse_strangers(embedding, views)
        return samples, embedding

    @torch.no_grad()
    def assign(self, embedding: Tensor) -> NDArray[np.float32]:
        """Chances of shape (samples, clusters)."""
        # Rows, clusters and columns at once would be far larger than the embedding.
        chunks = [self.network.assign(rows) for rows in torch.split(embedding, _ROWS_AT_A_TIME)]
        return torch.cat(chunks).cpu().numpy()

    @torch.no_grad()
    def rebuild(self, embedding: Tensor) -> list[NDArray[np.float32]]:
        """Per view what the decoder expects, of shape (samples, columns), in the units of the data."""
        n = len(embedding)
        # Parts of one size, the last one filled up, so that a sample gets the same numbers in any company.
        rows = torch.arange(-(-n // _ROWS_PER_PART) * _ROWS_PER_PART, device=embedding.device).clamp(max=n - 1)
        parts = [self.network.decode(part) for part in torch.split(embedding[rows], _ROWS_PER_PART)]
        views = [self._within_range(v, torch.cat(found)[:n]) for v, found in enumerate(zip(*parts, strict=True))]
        return [self.scaler.undo(v, view.cpu().numpy()) for v, view in enumerate(views)]

    def _within_range(self, v: int, values: Tensor) -> Tensor:
        """Scaled values of a view, none beyond those of the training samples: no negative counts, constants stay."""
        seen = self.stored.values[v][self.stored.present[:, v]]
        return values.clamp(seen.amin(dim=0), seen.amax(dim=0)) if len(seen) else values


class Fitted(NamedTuple):
    """A model with what its training gave.

    Attributes
    ----------
    embedding : of the training samples, of shape (samples, embedding)
    objective : the loss of the last epoch
    """

    model: Model
    embedding: Tensor
    history: History
    seed: int
    objective: float


def fit_models(
    sets: Sequence[Views],
    settings: Settings,
    scaling: str,
    seeds: Sequence[int],
    device: torch.device,
    *,
    progress: bool,
) -> list[Fitted]:
    """Scale, search and train: one model per seed, all on one set of samples or each on its own.

    Sets of their own have equal shapes. On a GPU all are trained side by side.
    """
    for views in sets:
        _refuse_unfit(views, settings.n_clusters)
    scalers = [fit_scaler(views, scaling) for views in sets]
    pairs = [_tensors(views, scaler, device) for views, scaler in zip(sets, scalers, strict=True)]
    stored = [store(values, present, settings) for values, present in pairs]
    indexes = [index_rows(values, present) for values, present in pairs]
    fitted = []
    for i, run in enumerate(train_replicates(stored, settings, seeds, progress=progress)):
        own = i % len(sets)
        views = sets[own]
        model = Model(views.names, views.columns, settings, scalers[own], stored[own], indexes[own], run.network)
        fitted.append(Fitted(model, embed_stored(run), run.history, run.seed, run.objective))
    return fitted


def _tensors(views: Views, scaler: Scaler, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Scaled values and who is present, in memory of their own: the model must not change when the caller's does."""
    arrays = scaler.apply(views).arrays
    if scaler.kind == "none":
        arrays = tuple(np.array(array, order="C") for array in arrays)
    return [torch.from_numpy(array).to(device) for array in arrays], torch.tensor(np.array(views.mask), device=device)


def _refuse_strangers(embedding: Tensor, views: Views) -> None:
    bad = (~torch.isfinite(embedding).all(dim=1)).nonzero()
    if len(bad):
        raise DataError(
            f"row {labelled(int(bad[0]), views.ids)}: its values are too far from those that the model was fitted on; "
            "look for fill values and other units"
        )


def _refuse_unfit(views: Views, n_clusters: int) -> None:
    if len(views) < n_clusters:
        raise DataError(
            f"n_samples={len(views)} should be >= n_clusters={n_clusters}; give more samples or ask for fewer clusters"
        )
    for name, count in zip(views.names, views.mask.sum(axis=0), strict=True):
        if not count:
            raise DataError(f"view {name!r} is missing in every row, so nothing can be learned of it; leave it out")
