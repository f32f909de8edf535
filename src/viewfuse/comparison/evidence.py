"""What speaks for a partition without labels: its samples share clusters with their neighbours in all views."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.fitted.model import scaled_tensors
from viewfuse.fitted.prepared import Source
from viewfuse.neighbors.samples import index_training_set
from viewfuse.selection.scores import AGREEMENT_DEPTH, partition_score


class Evidence:
    """Neighbours of the samples in all views that were given, also in those that a comparison hides from methods."""

    def __init__(self, views: Views) -> None:
        source = Source.of(views, "neighbors", "auto")
        scaler = fit_scaler(source.reduced, "mixed", source.reduction.units)
        values, present = scaled_tensors(source.reduced, scaler, torch.device("cpu"))
        self._neighbor_ids: Tensor = index_training_set(values, present, AGREEMENT_DEPTH).neighbor_ids

    def __call__(self, labels: NDArray[np.int64], n_clusters: int) -> float:
        """Neighbour agreement times size entropy, in percent; see `viewfuse.selection.scores`."""
        return 100 * partition_score(labels, self._neighbor_ids, n_clusters)
