"""What all estimators have in common: one line for every error, checks of what is clustered, scikit-learn's tags."""

from __future__ import annotations

import copy
from typing import Any

from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from viewfuse.data.checks import check_no_second_view, check_not_bare_sparse, data_warnings
from viewfuse.data.known.batches import with_batch
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.fitted.manifest import check_names
from viewfuse.utils import memory
from viewfuse.utils.console import warn

_ASKED = {
    "fit", "choose", "transform", "predict_proba", "out_of_range", "annotate", "explain", "impute",
    "save", "validate",
}  # fmt: skip


class ViewsClusterer(ClusterMixin, BaseEstimator):
    """An estimator that clusters views; methods add their parameters and `fit`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Turn out-of-memory errors of all public methods into one line."""
        super().__init_subclass__(**kwargs)
        for name in _ASKED & vars(cls).keys():
            setattr(cls, name, memory.with_memory_errors(getattr(cls, name)))

    def _checked_views(self, X: Any, y: Any, batch: Any = None) -> Views:
        """What is clustered; warns of what looks wrong, and complains before any work is done."""
        check_not_bare_sparse(X)
        check_no_second_view(X, y)
        views = Views.of(X if batch is None else with_batch(X if isinstance(X, Views) else Views(X), batch, X))
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

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
