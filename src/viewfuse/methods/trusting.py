"""What estimators have in common, checks and tags, and what fitted ones say of their clusters: names, levels, trust."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from viewfuse.data.checks import check_no_second_view, check_not_bare_sparse, data_warnings
from viewfuse.data.given import are_numbered, only_counted
from viewfuse.data.known.batches import with_batch
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import DataError, SettingError, SuspiciousDataWarning
from viewfuse.fitted.drift import Drift, drift
from viewfuse.fitted.manifest import check_names
from viewfuse.fitted.model import Model
from viewfuse.io.writers import OUTLIER, Judged
from viewfuse.selection.confidence import bounds, label_sets
from viewfuse.selection.decisions import ClusterNumber, Trust
from viewfuse.selection.messages import records, restored
from viewfuse.selection.rules import on_number, with_reasons
from viewfuse.utils import memory
from viewfuse.utils.console import warn
from viewfuse.utils.settings import wrong

if TYPE_CHECKING:
    from torch import Tensor

    from viewfuse.neighbors.samples import Samples


_IDLE = ("_", "get_", "set_")
"""What methods are called that take no memory; warnings of settings are about the line that set them."""


class ViewsClusterer(ClusterMixin, BaseEstimator):
    """An estimator that clusters views; methods add their parameters and `fit`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Turn out-of-memory errors of all public methods, those of parts like this one too, into one line."""
        super().__init_subclass__(**kwargs)
        ours = (base for base in cls.__mro__ if base.__module__.startswith("viewfuse."))
        for name, own in [one for base in (cls, *ours) for one in vars(base).items()]:
            if isinstance(own, FunctionType) and not name.startswith(_IDLE) and getattr(cls, name) is own:
                setattr(cls, name, memory.with_memory_errors(own))

    def _checked_views(self, X: Any, y: Any, batch: Any = None) -> Views:
        """What is clustered; warns of what looks wrong, and complains before any work is done."""
        check_not_bare_sparse(X)
        check_no_second_view(X, y)
        views = Views.of(X if batch is None else with_batch(X if isinstance(X, Views) else Views(X), batch, X))
        if not (only_counted(views.ids) and are_numbered(views.columns)):
            check_names(views)
        copy.copy(self)._remember_columns(X, views)
        for line in data_warnings(views):
            warn(SuspiciousDataWarning(line))
        return views

    def _remember_columns(self, X: Any, views: Views) -> None:
        """Set what scikit-learn wants to know of the columns."""
        self.__dict__.pop("feature_names_in_", None)
        if not is_one_table(X):
            self.n_features_in_ = sum(views.widths)
            return
        try:
            validate_data(self, X, skip_check_array=True)
        except TypeError as error:
            raise DataError(f"the names of the columns cannot be used; {error}") from None

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


ALPHA = 0.1
"""The share of samples whose set of clusters may lack theirs, where nothing else is asked for."""
_FORMER = {"stability_": "soft_labels_.max(axis=1)", "cluster_stability_": "in trust_.clusters"}


def trust_in(decisions: Mapping[str, Mapping[str, Any]]) -> Trust | None:
    """The verdict among decisions, as ``decisions_`` holds them; None where there is none."""
    found = restored({name: record for name, record in decisions.items() if name == Trust.name}).get(Trust.name)
    return found if isinstance(found, Trust) else None


def with_number(decisions: Mapping[str, dict[str, Any]], number: ClusterNumber | None) -> dict[str, dict[str, Any]]:
    """Decisions with how many clusters there are, if that was chosen, and what this tells of trust."""
    if number is None:
        return dict(decisions)
    found = trust_in(decisions)
    own = {} if found is None else records(with_reasons(found, *on_number(number)))
    return {**records(number), **decisions, **own}


class Trusting:
    """Names, trust, sets of clusters and what else follows from the chances of a fitted estimator."""

    cluster_names_: Mapping[int, str]
    n_clusters_: int
    decisions_: dict[str, dict[str, Any]]
    soft_labels_: NDArray[np.float32]
    labels_: NDArray[np.int64]
    outliers: str = "mark"
    _model: Model
    _known_views: Callable[[Any], Views]
    _place: Callable[[Views], tuple[Model, Samples, Tensor]]
    _present: Callable[[], NDArray[np.bool_]]

    @property
    def trust_(self) -> Trust:
        """Whether the same clusters would be found again, and the reasons; of methods that estimate it."""
        if (found := trust_in(self.decisions_)) is None:
            raise AttributeError("this method does not estimate whether its clusters would be found again; URRL does")
        return found

    def _again(self) -> NDArray[np.float32]:
        """Per cluster the chance that its samples are found there again; NaN where nothing is known."""
        if (found := trust_in(self.decisions_)) is None:
            return np.full(self.n_clusters_, np.nan, dtype=np.float32)
        return np.array([one["again"] for one in found.clusters], dtype=np.float32)

    def __getattr__(self, name: str) -> Any:
        """Former names, with a warning."""
        if name not in _FORMER or "soft_labels_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"{name} is now {_FORMER[name]}", FutureWarning, stacklevel=2)
        return self.soft_labels_.max(axis=1) if name == "stability_" else self._again()

    def rename(self, names: Mapping[int, str]) -> Self:
        """Name clusters; files, pages, pictures and answers then have the names beside the numbers.

        Parameters
        ----------
        names : by number; clusters that are not among them keep the names that they have
        """
        check_is_fitted(self)
        self.cluster_names_ = with_names(self.cluster_names_, names, self.n_clusters_)
        return self

    def predict_set(self, X: Any, alpha: float = ALPHA) -> NDArray[np.bool_]:
        """Which clusters together hold each sample with a chance of 1 - `alpha`, of shape (samples, clusters).

        A set holds the cluster in which the sample would be if the fit were repeated, for a share of 1 - `alpha` of
        samples like those of training, whatever number of views they have.
        """
        views = self._known_views(X)
        model, samples, embedding = self._place(views)
        return self._sets(model.assign(samples, embedding), views.mask, alpha)

    def _sets(self, chances: NDArray[np.float32], present: NDArray[np.bool_], alpha: float) -> NDArray[np.bool_]:
        if not 0 < alpha < 1:
            raise wrong("alpha", "a number between 0 and 1", alpha)
        return label_sets(chances, present.sum(axis=1), self._bounds(alpha))

    def _bounds(self, alpha: float) -> dict[int, float]:
        """What `bounds` gives of the training samples; kept, as one new sample would wait longest for it."""
        soft, last, known = self.__dict__.get("_last_bounds", (None, None, {}))
        if soft is not self.soft_labels_ or last != alpha:
            known = bounds(self.soft_labels_, self._present().sum(axis=1), alpha)
            self._last_bounds = self.soft_labels_, alpha, known
        return known

    def uncertain(self, X: Any, alpha: float = ALPHA) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), could be in more than one cluster, see `predict_set`."""
        return np.asarray(self.predict_set(X, alpha).sum(axis=1) > 1)

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How far samples, of shape (samples,), lie from the training samples, from 0 to 1.

        The share of the training samples with as many views that lie nearer to others of them, view by view; one in
        twenty samples of the same kind is above 0.95.
        """
        views = self._known_views(X)
        model, samples, _ = self._place(views)
        return model.novelty(samples, views)

    def drift(self, X: Any) -> Drift:
        """Whether samples are like those of training: view by view, and in what the model makes of them.

        Returns
        -------
        Drift
            True where there is an alarm; ``alarms`` are sentences, ``as_table()`` has all tests with p-values that are
            corrected for their number.
        """
        model, samples, embedding = self._place(self._known_views(X))
        return drift(model, self.soft_labels_, samples, model.assign(samples, embedding), self.cluster_names_)

    @property
    def outliers_(self) -> NDArray[np.bool_]:
        """Which training samples lie far from all others in a view that they have, of shape (samples,)."""
        return self._outlying(self._model, self._model.stored)

    def judge(self, X: Any = None, alpha: float = ALPHA) -> Judged:
        """All that is said of each sample, as ``labels.csv`` has it; by default of the training samples.

        Labels, chances, whether a sample is `uncertain`, its `novelty`, and whether it is an outlier.
        """
        views = None if X is None else self._known_views(X)
        if views is None:
            model, samples, chances = self._model, self._model.stored, self.soft_labels_
        else:
            model, samples, embedding = self._place(views)
            chances = model.assign(samples, embedding)
        unsure = self._sets(chances, samples.present.cpu().numpy(), alpha).sum(axis=1) > 1
        labels, novelty = self._labelled(model, samples, chances), model.novelty(samples, views)
        far = model.is_far(samples.values, samples.present)
        return Judged(labels, chances, unsure, novelty, self._outlying(model, samples), far)

    def _labelled(self, model: Model, samples: Samples, chances: NDArray[np.float32]) -> NDArray[np.int64]:
        """The best clusters, of shape (samples,); that of outliers is -1 where they are to have no cluster."""
        labels = chances.argmax(axis=1)
        return np.where(self._outlying(model, samples), OUTLIER, labels) if self.outliers == "label" else labels

    def _take_over(self, model: Model, embedding: Tensor, history: Any, objectives: Any, decisions: Any) -> None:
        """Set what a training of these samples gave; the embedding is of shape (samples, embedding)."""
        self._model, self.history_, self.objectives_, self.decisions_ = model, history, objectives, decisions
        self.embedding_, self.soft_labels_ = embedding.cpu().numpy(), model.assign(model.stored, embedding)
        self.labels_ = self._labelled(model, model.stored, self.soft_labels_)
        self.cluster_centers_ = model.network.centers.detach().cpu().numpy().copy()
        self.n_clusters_, self._n_features_out = len(self.cluster_centers_), self.embedding_.shape[1]

    def _outlying(self, model: Model, samples: Samples) -> NDArray[np.bool_]:
        return np.asarray(model.fences.outlying(samples, model.stored).any(axis=1))

    def _clusters(self) -> NDArray[np.int64]:
        """The clusters of the training samples, of shape (samples,), those of outliers too."""
        return self.soft_labels_.argmax(axis=1)
