"""What fitted estimators know of their own clusters: whether they would be found again, and for which samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.fitted.novelty import novelty
from viewfuse.selection.decisions import ClusterNumber, Trust
from viewfuse.selection.label_sets import bounds, label_sets
from viewfuse.selection.messages import records, restored
from viewfuse.selection.trust import on_number, with_reasons
from viewfuse.utils.settings import wrong

if TYPE_CHECKING:
    from torch import Tensor

    from viewfuse.fitted.model import Model
    from viewfuse.neighbors.samples import Samples


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
    """Trust, sets of clusters and what else follows from the chances of a fitted estimator."""

    decisions_: dict[str, dict[str, Any]]
    soft_labels_: NDArray[np.float32]
    labels_: NDArray[np.int64]
    n_clusters_: int
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
        warn(f"{name} is now {_FORMER[name]}", FutureWarning, stacklevel=2)
        return self.soft_labels_.max(axis=1) if name == "stability_" else self._again()

    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Which clusters together hold each sample with a chance of 1 - `alpha`, of shape (samples, clusters).

        A set holds the cluster in which the sample would be if the fit were repeated, for a share of 1 - `alpha` of
        samples like those of training, whatever number of views they have.
        """
        if not 0 < alpha < 1:
            raise wrong("alpha", "a number between 0 and 1", alpha)
        views = self._known_views(X)
        model, samples, embedding = self._place(views)
        known = bounds(self.soft_labels_, self._present().sum(axis=1), alpha)
        return label_sets(model.assign(samples, embedding), views.mask.sum(axis=1), known)

    def uncertain(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), could be in more than one cluster, see `predict_set`."""
        return np.asarray(self.predict_set(X, alpha).sum(axis=1) > 1)

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How far samples, of shape (samples,), lie from the training samples, from 0 to 1.

        The share of the training samples with as many views that lie nearer to others of them, view by view; one in
        twenty samples of the same kind is above 0.95.
        """
        model, samples, _ = self._place(self._known_views(X))
        return novelty(samples, model.stored)
