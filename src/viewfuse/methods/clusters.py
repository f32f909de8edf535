"""What people do with the clusters of a fitted model: give them names, and join them to fewer, without training."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from viewfuse.errors import SettingError
from viewfuse.fitted.model import Model
from viewfuse.io.writers import OUTLIER
from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.tree import coarser
from viewfuse.utils.settings import wrong


class NamedClusters:
    """What a fitted estimator calls its clusters."""

    cluster_names_: Mapping[int, str]
    n_clusters_: int

    def rename(self, names: Mapping[int, str]) -> Self:
        """Name clusters; files, pages, pictures and answers then have the names beside the numbers.

        Parameters
        ----------
        names : by number; clusters that are not among them keep the names that they have
        """
        check_is_fitted(self)
        self.cluster_names_ = with_names(self.cluster_names_, names, self.n_clusters_)
        return self


def with_names(known: Mapping[int, str], names: Mapping[Any, Any], n_clusters: int) -> dict[int, str]:
    """Names by number, the new ones in place of those that are known; refuses what cannot be a name."""
    found = dict(known)
    for label, name in names.items():
        if not isinstance(label, Integral) or isinstance(label, bool) or not 0 <= int(label) < n_clusters:
            raise SettingError(
                f"there is no cluster {label!r} to be named; those of the model are 0 to {n_clusters - 1}"
            )
        if not isinstance(name, str) or not name.strip():
            raise SettingError(f"cluster {label} cannot be called {name!r}; give a text that is not empty")
        found[int(label)] = name.strip()
    first: dict[str, int] = {}
    for label, name in found.items():
        if first.setdefault(name, label) != label:
            raise SettingError(
                f"clusters {first[name]} and {label} cannot both be called {name!r}; give each its own name"
            )
    return dict(sorted(found.items()))


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
