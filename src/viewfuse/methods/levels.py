"""Fewer clusters than were fitted, without training: coarser levels of the same clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from viewfuse.fitted.model import Model
from viewfuse.io.writers import OUTLIER
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.tree import coarser
from viewfuse.utils.settings import wrong


class NestedLevels:
    """What a fitted estimator says of coarser levels."""

    _model: Model
    n_clusters_: int
    labels_: NDArray[np.int64]
    embedding_: NDArray[np.float32]
    soft_labels_: NDArray[np.float32]
    decisions_: dict[str, dict[str, Any]]

    def cut(self, n_clusters: int) -> NDArray[np.int64]:
        """Labels of the training samples in fewer clusters: the nearest of the fitted ones are joined.

        Parameters
        ----------
        n_clusters : 1 to ``n_clusters_``
        """
        check_is_fitted(self)
        if not 1 <= n_clusters <= self.n_clusters_:
            raise wrong("n_clusters", f"1 to {self.n_clusters_}, which were fitted", n_clusters)
        ids = self._model.stored.neighbor_ids
        if len(ids) != len(self.labels_):  # the model was thinned
            ids = ids.new_full((len(self.labels_), 1, 1), NO_NEIGHBOR)
        known = np.unique(self.soft_labels_.argmax(axis=1), return_inverse=True)[1]  # without those that are empty
        found = coarser(known, self.embedding_, ids, n_clusters)
        return np.where(self.labels_ == OUTLIER, OUTLIER, found)

    @property
    def levels_(self) -> dict[int, NDArray[np.int64]]:
        """By number of clusters nested labels: of coarser levels that hold as well, and of the fit."""
        check_is_fitted(self)
        held = self.decisions_.get("n_clusters", {}).get("levels", [])
        return {k: self.cut(k) for k in [*(one for one in held if one < self.n_clusters_), self.n_clusters_]}
