"""What the estimators of all methods have in common: placing new samples, explaining, filling, saving, loading."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from viewfuse.data.alignment import checked_ids
from viewfuse.data.filling import EmptyCells, warn_of_filled
from viewfuse.data.given import is_anndata, is_mudata
from viewfuse.data.known.batches import with_batch
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import BadModelFile, DataError
from viewfuse.fitted.batches import check_takes_batch
from viewfuse.fitted.clusters import merge_tree, representatives
from viewfuse.fitted.drift import warn_of_shifted
from viewfuse.fitted.explanation import Explanation, explain
from viewfuse.fitted.manifest import decode, encode
from viewfuse.fitted.model import Model, warn_of_far
from viewfuse.io.writers import KEY, Results, annotate
from viewfuse.methods.trusting import Trusting, ViewsClusterer, with_names
from viewfuse.neighbors.samples import Samples
from viewfuse.plots.fitted import FittedPlots
from viewfuse.utils import memory
from viewfuse.utils.jobs import chosen_device

if TYPE_CHECKING:  # where it is needed it is imported: machines that only train lack its packages
    from viewfuse.fitted import persistence

_PER_SAMPLE = ("labels_", "embedding_", "soft_labels_")
_NOT_SAVED = ("device", "checkpoint")
"""Parameters that belong to a machine, and not to a model."""


class MultiViewClusterer(Trusting, FittedPlots, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ViewsClusterer):
    """An estimator with a fitted `Model`; methods add their parameters and `fit`.

    Attributes
    ----------
    method_builders : by name, what makes a method from its saved configuration
    """

    method_builders: ClassVar[Mapping[str, persistence.BuildMethod]] = {}
    device: str
    fill: str
    _model: Model

    def transform(self, X: Any, *, batch: Any = None) -> NDArray[np.float32]:
        """Embeddings of shape (samples, embedding_dim) of samples with any subset of the views."""
        views = self._known_views(X, batch)
        return self._framed(self._place(views)[2].cpu().numpy(), X, views.ids)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> NDArray[np.float32]:
        """Fit, and return the embedding of shape (samples, embedding_dim)."""
        self.fit(X, y, **fit_params)
        return self._framed(self.embedding_, X, self.ids_)

    def _framed(self, embedding: NDArray[np.float32], X: Any, ids: NDArray[Any]) -> Any:
        """The embedding, with the ids as index where `set_output` asks for pandas; one table keeps its own."""
        own = getattr(self, "_sklearn_output_config", {}).get("transform")
        if is_one_table(X) or (own or get_config()["transform_output"]) != "pandas":
            return embedding
        from pandas import DataFrame, Index

        return DataFrame(embedding, index=Index(ids.tolist()))

    def predict_proba(self, X: Any, *, batch: Any = None) -> NDArray[np.float32]:
        """Probability of each cluster, of shape (samples, clusters); rows sum to 1.

        The largest one is the chance that the sample would be in this cluster again if the fit were repeated, see
        ``trust_`` and docs/decisions.md.
        """
        model, samples, embedding = self._place(self._known_views(X, batch))
        return model.assign(samples, embedding)

    def predict(self, X: Any, *, batch: Any = None) -> NDArray[np.int64]:
        """The cluster of each sample, which may have any subset of the views; its neighbours are training samples.

        Parameters
        ----------
        batch : as for `fit`, where the model was fitted with batches, which these must be of. Methods without this
            parameter take Views with a `batch`, such as those of `with_batch`.
        """
        model, samples, embedding = self._place(self._known_views(X, batch))
        return self._labelled(model, samples, model.assign(samples, embedding))

    def out_of_range(self, X: Any) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), have values far outside of those that the model was fitted on."""
        model = self._placed_model()
        return model.is_far(*model.tensors(self._known_views(X)))

    def annotate(self, data: Any, X: Any = None, *, key: str = KEY) -> None:
        """Write clusters, confidence and embedding into an AnnData or MuData object, to each cell by its name.

        ``obs[key]`` holds the clusters as categories "0", "1", ..., ``obs[key + "_confidence"]`` the probability of
        the best one, ``obsm["X_" + key]`` the embedding, ``obsm["X_" + key + "_map"]`` the map once `plot_map` drew it.
        Cells of `data` without a result get no category, and NaN.

        Parameters
        ----------
        data : AnnData or MuData, which may hold some of the samples only; of a MuData, what all modalities share
        X : samples that are placed now, as `predict` does it; by default those that the model was fitted on.
            ``annotate(new, new)`` predicts new cells.
        key : name of what is written; what has this name already is replaced
        """
        check_is_fitted(self)
        results = Results(self.ids_, self.soft_labels_, self.embedding_, self.labels_, self._coordinates())
        if X is not None:
            views = self._known_views(X)
            model, samples, embedding = self._place(views)
            chances = model.assign(samples, embedding)
            results = Results(views.ids, chances, embedding.cpu().numpy(), self._labelled(model, samples, chances))
        annotate(data, results, key)

    def explain(self, X: Any) -> Explanation:
        """Why each sample, which may have any subset of the views, is placed where `predict` places it.

        Returns
        -------
        Explanation
            Per sample the weight of each view, the donors of missing views and the second-best cluster; per cluster
            its typical samples, the features that set it apart and whether it would be found again; which clusters
            join first when there are to be fewer. ``samples()``, ``clusters()``, ``features()`` and ``tree()`` are
            data frames of these.
        """
        views = self._known_views(X)
        sizes = np.bincount(self._clusters(), minlength=self.n_clusters_)
        tree = merge_tree(self.cluster_centers_, sizes)
        model, samples, embedding = self._place(views)
        return explain(model, views, (samples, embedding), self.ids_, self._again(), tree)

    def impute(self, X: Any) -> Any:
        """Fill missing views with what the decoder expects there, in the units of the data.

        Returns
        -------
        The kind that was given: a list of float32 arrays with all of the model's views, a dict of them (of a MuData,
        too), Views, or one array (of an AnnData, too). Observed rows are returned as they were, in float32, with their
        empty cells filled as for `predict`; filled values stay within the range of the training samples. A view of the
        model that has `Views.offsets` is float64.
        """
        given = self._known_views(X)
        what = f"filling {len(given):,} samples with {sum(given.widths):,} columns"
        memory.require(3 * 4 * len(given) * sum(given.widths), what, "fill fewer samples at a time")
        model, _, embedding = self._place(given)
        rebuilt = model.rebuild(embedding)  # before it is dense: sums could round in another way
        views = given.dense()
        filled = tuple(np.where(views.mask[:, v, None], views.arrays[v], rebuilt[v]) for v in range(len(views.names)))
        whole = views.replace(arrays=filled, mask=np.ones_like(views.mask)).in_units()
        arrays = whole.arrays
        if isinstance(X, Views):
            return whole
        if isinstance(X, Mapping) or is_mudata(X):
            return dict(zip(views.names, arrays, strict=True))
        return arrays[0] if is_one_table(X) or is_anndata(X) else list(arrays)

    def save(self, path: str | PathLike[str], *, keep: int | None = None) -> None:
        """Write the fitted model into a folder: a manifest and its tensors, nothing that can run code.

        The folder is new, empty, or holds a model, which is replaced in one step. A random generator given as
        `random_state` becomes None, and `device` is left out: a model may be used on another machine.

        Parameters
        ----------
        keep : training samples that travel along, among which new samples find their neighbours; all by default.
            Fewer make a smaller model that is a little less accurate (docs/command-line.md has figures). Those are
            chosen in proportion to the clusters' sizes, samples with many views first.
        """
        from viewfuse.fitted import persistence

        check_is_fitted(self)
        rows = representatives(self._clusters(), self._model.stored.present.cpu().numpy(), keep)
        model = self._model if keep is None else self._model.thinned(rows)
        arrays = {name: getattr(self, name)[rows] for name in _PER_SAMPLE}
        arrays["cluster_centers_"] = self.cluster_centers_
        persistence.save(Path(path), persistence.Saved(model, arrays, self._facts(rows)))

    def _plain_params(self) -> dict[str, Any]:
        """The parameters, as they can be saved."""
        return dict(self.get_params(deep=False))

    def _facts(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """What else is saved: anything that JSON can hold."""
        params = {name: value for name, value in self._plain_params().items() if name not in _NOT_SAVED}
        params = {name: dict(value) if isinstance(value, Mapping) else value for name, value in params.items()}
        if not isinstance(params["random_state"], (Integral, NoneType)):
            params["random_state"] = None
        names = getattr(self, "feature_names_in_", None)
        return {
            "params": params,
            "history": self.history_,
            "objectives": self.objectives_,
            "decisions": self.decisions_,
            "ids": encode(self.ids_[rows]),
            "cluster_names": [[label, name] for label, name in self.cluster_names_.items()],
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else names.tolist(),
        }

    @classmethod
    def load(cls, path: str | PathLike[str], *, device: str = "auto") -> Self:
        """Read a model that `save` wrote; a damaged one is refused with the file and the reason.

        Parameters
        ----------
        device : where it will predict: "cpu", "cuda", ...; "auto" takes a GPU where there is one
        """
        from viewfuse.fitted import persistence

        place = chosen_device(device)
        saved = persistence.load(Path(path), cls.method_builders)
        try:
            return cls._restored(saved, device, place)
        except Exception as error:  # whatever a forged manifest leads to
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadModelFile(f"{path}: its facts are not those of a model ({reason}); save it again") from None

    @classmethod
    def _restored(cls, saved: persistence.Saved, device: str, place: torch.device) -> Self:
        facts, n = saved.facts, len(saved.model.stored)
        params = {name: value for name, value in facts["params"].items() if name not in _NOT_SAVED}
        # What was a tuple before JSON made it a list is one again, as scikit-learn compares parameters.
        model = cls(**{name: tuple(x) if isinstance(x, list) else x for name, x in params.items()}, device=device)
        model._model, model.history_ = saved.model.to(place), facts["history"]
        model.n_features_in_ = facts["n_features"]
        # The first models of format 1 had none of these.
        model.objectives_, model.decisions_ = facts.get("objectives", []), facts.get("decisions", {})
        model.view_names_, model.ids_ = list(saved.model.names), checked_ids(decode(facts["ids"]), n)
        model._n_features_out = saved.arrays["embedding_"].shape[1]
        if facts["feature_names"] is not None:
            model.feature_names_in_ = np.array(facts["feature_names"], dtype=object)
        model.cluster_centers_ = saved.arrays["cluster_centers_"]
        model.n_clusters_ = len(model.cluster_centers_)
        model.cluster_names_ = with_names({}, dict(facts.get("cluster_names", [])), model.n_clusters_)
        for name in _PER_SAMPLE:
            if len(saved.arrays[name]) != n:
                raise DataError(f"{name} has {len(saved.arrays[name])} rows instead of {n}")
            setattr(model, name, saved.arrays[name])
        return model

    def complete(self, X: Any, *, batch: Any = None) -> tuple[Views, list[EmptyCells]]:
        """New samples as the model takes them: its views and columns, in its order, without empty cells.

        Columns are matched by name where they have names, in any order; those that the model does not know are left
        out with a warning. Cells of columns that are not there are empty. Empty cells are filled as in training.

        Returns
        -------
        The samples, and how many cells were filled, for every view that had empty ones.
        """
        check_is_fitted(self)
        if batch is not None:
            check_takes_batch(self._model.batches)
        one_table = is_one_table(X) and len(self._model.names) == 1
        names = self._model.names if one_table else None
        views = X if isinstance(X, Views) else Views(X, names=names, allow_disjoint=True)
        views = with_batch(views, batch, X)
        if not len(views):
            raise DataError("the views have no rows (0 sample(s)); pass at least one sample")
        by_column = (hasattr(X, "columns") and hasattr(self, "feature_names_in_")) or is_anndata(X)
        if one_table and not by_column:  # scikit-learn wants columns in the order of training
            validate_data(self, X, reset=False, skip_check_array=True)
        return self._model.complete(views, by_name=isinstance(X, (Mapping, Views)) or is_mudata(X))

    def _known_views(self, X: Any, batch: Any = None) -> Views:
        """What `complete` gives; warns of cells that were filled."""
        views, filled = self.complete(X, batch=batch)
        warn_of_filled(filled)
        return views

    def _present(self) -> NDArray[np.bool_]:
        """Which views the training samples have, of shape (samples, views)."""
        return np.asarray(self._model.stored.present.cpu().numpy(), dtype=bool)

    def _placed_model(self) -> Model:
        """The model on the device that is asked for."""
        check_is_fitted(self)
        return self._model.to(chosen_device(self.device))

    def _place(self, views: Views) -> tuple[Model, Samples, torch.Tensor]:
        """The model, samples with neighbours, embeddings of shape (samples, embedding); warns of samples far out."""
        model = self._placed_model()
        samples, embedding = model.place(views)
        warn_of_far(views.ids[model.is_far(samples.values, samples.present)], len(views))
        warn_of_shifted(model, samples)
        return model, samples, embedding

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
