"""What fitted estimators know of their own clusters: whether they would be found again, and for which samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.fitted.drift import Drift, PlacedSamples, drift
from viewfuse.io.writers import OUTLIER, Judged
from viewfuse.methods.clusters import NamedClusters
from viewfuse.selection.decisions import ClusterNumber, Trust
from viewfuse.selection.label_sets import bounds, label_sets
from viewfuse.selection.messages import records, restored
from viewfuse.selection.trust import on_number, with_reasons
from viewfuse.utils.settings import wrong

if TYPE_CHECKING:
    from torch import Tensor

    from viewfuse.fitted.model import Model
    from viewfuse.neighbors.samples import Samples


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


def check_outliers(how: Any) -> None:
    """Refuse what cannot be done with outliers."""
    if not isinstance(how, str) or how not in ("mark", "label"):
        raise wrong("outliers", "'mark' or 'label'", how)


class Trusting(NamedClusters):
    """Trust, sets of clusters and what else follows from the chances of a fitted estimator."""

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
        warn(f"{name} is now {_FORMER[name]}", FutureWarning, stacklevel=2)
        return self.soft_labels_.max(axis=1) if name == "stability_" else self._again()

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
        known = bounds(self.soft_labels_, self._present().sum(axis=1), alpha)
        return label_sets(chances, present.sum(axis=1), known)

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
        placed = PlacedSamples(samples, model.assign(samples, embedding))
        return drift(model, self.soft_labels_, placed, self.cluster_names_)

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

    def _outlying(self, model: Model, samples: Samples) -> NDArray[np.bool_]:
        return np.asarray(model.surroundings.outlying(samples).any(axis=1))

    def _clusters(self) -> NDArray[np.int64]:
        """The clusters of the training samples, of shape (samples,), those of outliers too."""
        return self.soft_labels_.argmax(axis=1)
