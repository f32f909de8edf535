"""Names of clusters, beside their numbers, which stay the key."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from viewfuse.errors import SettingError


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
