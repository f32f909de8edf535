"""What estimators have in common before and after training, names of clusters, and the verdict among decisions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Integral
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from viewfuse.data.checks import check_one_table, data_warnings
from viewfuse.data.input_types import are_numbered, only_counted
from viewfuse.data.side_information.batch_labels import batch_added
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import DataError, SettingError, SuspiciousDataWarning
from viewfuse.fitted.manifest import check_names
from viewfuse.fitted.model import Model
from viewfuse.io.writers import OUTLIER
from viewfuse.neighbors.index import Samples
from viewfuse.selection.decision_texts import records, restored
from viewfuse.selection.decisions import ClusterNumber, Trust
from viewfuse.selection.rules import on_number, with_reasons
from viewfuse.utils import memory
from viewfuse.utils.console import warn

_IDLE = ("_", "get_", "set_")
"""What methods are called that take no memory; warnings of settings are about the line that set them."""


class ViewsClusterer(ClusterMixin, BaseEstimator):
    """An estimator that clusters views; methods add their parameters and `fit`."""

    outliers: str = "mark"
    soft_labels_: NDArray[np.float32]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Turn out-of-memory errors of all public methods, those of parts like this one too, into one line."""
        super().__init_subclass__(**kwargs)
        ours = (base for base in cls.__mro__ if base.__module__.startswith("viewfuse."))
        for name, own in [one for base in (cls, *ours) for one in vars(base).items()]:
            if isinstance(own, FunctionType) and not name.startswith(_IDLE) and getattr(cls, name) is own:
                setattr(cls, name, memory.with_memory_errors(own))

    def _checked_views(self, X: Any, y: Any, batch: Any = None) -> Views:
        """What is clustered; warns of what looks wrong, and complains before any work is done."""
        check_one_table(X, y)
        views = Views.of(X if batch is None else batch_added(X if isinstance(X, Views) else Views(X), batch, X))
        if not (only_counted(views.ids) and are_numbered(views.columns)):
            check_names(views)
        copy.copy(self)._remember_columns(X, views)
        for line in data_warnings(views):
            warn(SuspiciousDataWarning(line))
        return views

    def _remember_columns(self, X: Any, views: Views) -> None:
        """Set ids, names of views, and what scikit-learn wants to know of the columns."""
        self.view_names_, self.ids_ = list(views.names), views.ids
        self.__dict__.pop("feature_names_in_", None)
        self._thinned = False
        if not is_one_table(X):
            self.n_features_in_ = sum(views.widths)
            return
        try:
            validate_data(self, X, skip_check_array=True)
        except TypeError as error:
            raise DataError(f"the names of the columns cannot be used; {error}") from None

    def _labelled(self, model: Model, samples: Samples, chances: NDArray[np.float32]) -> NDArray[np.int64]:
        """The best clusters, of shape (samples,); that of outliers is -1 where they are to have no cluster."""
        labels = chances.argmax(axis=1)
        return np.where(self._outlying(model, samples), OUTLIER, labels) if self.outliers == "label" else labels

    def _take_over(self, model: Model, embedding: torch.Tensor, history: Any, objectives: Any, decisions: Any) -> None:
        """Set what a training of these samples gave; the embedding is of shape (samples, embedding)."""
        self._model, self.history_, self.objectives_, self.decisions_ = model, history, objectives, decisions
        self.embedding_, self.soft_labels_ = embedding.cpu().numpy(), model.assign(model.stored, embedding)
        self.labels_ = self._labelled(model, model.stored, self.soft_labels_)
        self.cluster_centers_ = model.network.centers.detach().cpu().numpy().copy()
        self.n_clusters_, self._n_features_out = len(self.cluster_centers_), self.embedding_.shape[1]

    def _outlying(self, model: Model, samples: Samples) -> NDArray[np.bool_]:
        return np.asarray(model.fences.outlying(samples).any(axis=1))

    def _clusters(self) -> NDArray[np.int64]:
        """The clusters of the training samples, of shape (samples,), those of outliers too."""
        return self.soft_labels_.argmax(axis=1)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the model on the CPU, so that they open on machines without a GPU."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_places", None)
        if "_model" in state:
            state["_model"] = state["_model"].to(torch.device("cpu"))
        return state

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def with_names(known: Mapping[int, str], names: Mapping[Any, Any], n_clusters: int) -> dict[int, str]:
    """Names by number, the new ones in place of those that are known; refuses what cannot be a name."""
    if not isinstance(names, Mapping):
        raise SettingError(f"names are a {type(names).__name__}; give a dict of them by number, such as {{0: 'a'}}")
    found = dict(known)
    for label, name in names.items():
        if not isinstance(label, Integral) or isinstance(label, bool) or not 0 <= int(label) < n_clusters:
            there = f"those of the model are 0 to {n_clusters - 1}"
            raise SettingError(f"there is no cluster {label!r} to be named; {there}")
        if not isinstance(name, str) or not name.strip():
            raise SettingError(f"cluster {label} cannot be called {name!r}; give a text that is not empty")
        found[int(label)] = name.strip()
    first: dict[str, int] = {}
    for label, name in found.items():
        if first.setdefault(name, label) != label:
            both = f"clusters {first[name]} and {label}"
            raise SettingError(f"{both} cannot both be called {name!r}; give each its own name")
    return dict(sorted(found.items()))


def trust_in(decisions: Mapping[str, Mapping[str, Any]]) -> Trust | None:
    """The verdict among decisions, as ``decisions_`` holds them; None where there is none."""
    found = restored({Trust.name: decisions[Trust.name]})[Trust.name] if Trust.name in decisions else None
    return found if isinstance(found, Trust) else None


def with_number(decisions: Mapping[str, dict[str, Any]], number: ClusterNumber | None) -> dict[str, dict[str, Any]]:
    """Decisions with how many clusters there are, if that was chosen, and what this tells of trust."""
    if number is None:
        return dict(decisions)
    found = trust_in(decisions)
    own = {} if found is None else records(with_reasons(found, *on_number(number)))
    return {**records(number), **decisions, **own}
