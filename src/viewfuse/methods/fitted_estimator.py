"""What the estimators of all methods have in common: placing new samples, explaining, filling, saving, loading."""

from __future__ import annotations

import warnings
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

from viewfuse.data.alignment import as_labels, checked_ids
from viewfuse.data.filling import EmptyCells, warn_of_filled
from viewfuse.data.input_types import is_anndata, is_mudata, only_counted
from viewfuse.data.longer_ids import misread_ids
from viewfuse.data.side_information.batch_labels import batch_added
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import BadModelFile, DataError, SuspiciousDataWarning
from viewfuse.fitted.batch_effects import check_takes_batch
from viewfuse.fitted.clusters import merge_tree, representatives
from viewfuse.fitted.drift import Drift, drift, warn_of_other_units
from viewfuse.fitted.explanation import Explanation, explain
from viewfuse.fitted.manifest import decode, encode
from viewfuse.fitted.model import Model, warn_of_far
from viewfuse.io.writers import KEY, Judged, Results, annotate
from viewfuse.methods.clusterer import ViewsClusterer, trust_in, with_names
from viewfuse.neighbors.index import Samples
from viewfuse.plots.fitted import FittedPlots
from viewfuse.selection.confidence import ALPHA, bounds, label_sets
from viewfuse.selection.decisions import Trust
from viewfuse.utils import memory
from viewfuse.utils.console import warn
from viewfuse.utils.jobs import chosen_device
from viewfuse.utils.settings import wrong

if TYPE_CHECKING:  # where it is needed it is imported: machines that only train lack its packages
    from viewfuse.fitted import persistence

_FORMER = {"stability_": "soft_labels_.max(axis=1)", "cluster_stability_": "in trust_.clusters"}
_PER_SAMPLE = ("labels_", "embedding_", "soft_labels_")
_NOT_SAVED = ("device", "checkpoint")
"""Parameters that belong to a machine, and not to a model."""


class MultiViewClusterer(FittedPlots, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ViewsClusterer):
    """An estimator with a fitted `Model`; methods add their parameters and `fit`."""

    method_builders: ClassVar[Mapping[str, persistence.BuildMethod]] = {}  # by name, from saved configurations
    _thinned = False  # whether some of the training samples are left, chosen by their views
    device: str
    fill: str
    _model: Model

    def transform(self, X: Any, *, batch: Any = None) -> NDArray[np.float32]:
        """Embeddings of shape (samples, embedding_dim) of samples with any subset of the views."""
        views, _, _, embedding = self._place(X, batch)
        return self._framed(embedding.cpu().numpy(), X, views.ids)

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
        _, model, samples, embedding = self._place(X, batch)
        return model.assign(samples, embedding)

    def predict(self, X: Any, *, batch: Any = None) -> NDArray[np.int64]:
        """The cluster of each sample, which may have any subset of the views; its neighbours are training samples.

        Parameters
        ----------
        batch : as for `fit`, where the model was fitted with batches, which these must be of. Methods without this
            parameter take what `viewfuse.with_batch` gives.
        """
        _, model, samples, embedding = self._place(X, batch)
        return self._labelled(model, samples, model.assign(samples, embedding))

    def predict_set(self, X: Any, alpha: float = ALPHA) -> NDArray[np.bool_]:
        """Which clusters together hold each sample with a chance of 1 - `alpha`, of shape (samples, clusters).

        A set holds the cluster in which the sample would be if the fit were repeated, for a share of 1 - `alpha` of
        samples like those of training, whatever number of views they have; and each sample with an even chance or more.
        """
        views, model, samples, embedding = self._place(X)
        return self._sets(model.assign(samples, embedding), views.mask, alpha)

    def _sets(self, chances: NDArray[np.float32], present: NDArray[np.bool_], alpha: float) -> NDArray[np.bool_]:
        """Sets by the bounds of the training samples, which are kept: one new sample would wait longest for them."""
        if not 0 < alpha < 1:
            raise wrong("alpha", "a number between 0 and 1", alpha)
        soft, last, known = self.__dict__.get("_last_bounds", (None, None, {}))
        if soft is not self.soft_labels_ or last != alpha:
            known = bounds(self.soft_labels_, self._present().sum(axis=1), alpha)
            self._last_bounds = self.soft_labels_, alpha, known
        return label_sets(chances, present.sum(axis=1), known)

    def uncertain(self, X: Any, alpha: float = ALPHA) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), could be in more than one cluster, see `predict_set`."""
        return np.asarray(self.predict_set(X, alpha).sum(axis=1) > 1)

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How far samples, of shape (samples,), lie from the training samples, from 0 to 1.

        The share of the training samples with as many views that lie nearer to others of them, view by view; one in
        twenty samples of the same kind is above 0.95.
        """
        views, model, samples, _ = self._place(X)
        return model.novelty(samples, views)

    def drift(self, X: Any) -> Drift:
        """Whether samples are like those of training: view by view, and in what the model makes of them.

        Returns
        -------
        Drift
            True where there is an alarm; ``alarms`` are sentences, ``as_table()`` has all tests with p-values that are
            corrected for their number.
        """
        _, model, samples, embedding = self._place(X)
        chances = model.assign(samples, embedding)
        return drift(model, self.soft_labels_, samples, chances, self.cluster_names_, thinned=self._thinned)

    def out_of_range(self, X: Any) -> NDArray[np.bool_]:
        """Which samples, of shape (samples,), have values far outside of those that the model was fitted on."""
        model = self._placed_model()
        return model.is_far(*model.tensors(self._known_views(X)))

    @property
    def outliers_(self) -> NDArray[np.bool_]:
        """Which training samples lie far from all others in a view that they have, of shape (samples,)."""
        return self._outlying(self._model, self._model.stored)

    def judge(self, X: Any = None, alpha: float = ALPHA) -> Judged:
        """All that is said of each sample, as ``labels.csv`` has it; by default of the training samples.

        Labels, chances, whether a sample is `uncertain`, its `novelty`, and whether it is an outlier.
        """
        if X is None:
            views, model, samples, chances = None, self._model, self._model.stored, self.soft_labels_
        else:
            views, model, samples, embedding = self._place(X)
            chances = model.assign(samples, embedding)
        unsure = self._sets(chances, samples.present.cpu().numpy(), alpha).sum(axis=1) > 1
        labels, novelty = self._labelled(model, samples, chances), model.novelty(samples, views)
        far = model.is_far(samples.values, samples.present)
        return Judged(labels, chances, unsure, novelty, self._outlying(model, samples), far)

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
            views, model, samples, embedding = self._place(X)
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
        views, model, samples, embedding = self._place(X)
        tree = merge_tree(self.cluster_centers_, np.bincount(self._clusters(), minlength=self.n_clusters_))
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
        _, model, _, embedding = self._place(given, known=True)
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

    def rename(self, names: Mapping[int, str]) -> Self:
        """Name clusters; files, pages, pictures and answers then have the names beside the numbers.

        Parameters
        ----------
        names : by number; clusters that are not among them keep the names that they have
        """
        check_is_fitted(self)
        self.cluster_names_ = with_names(self.cluster_names_, names, self.n_clusters_)
        return self

    @property
    def trust_(self) -> Trust:
        """Whether the same clusters would be found again, and the reasons; of methods that estimate it."""
        if (found := trust_in(self.decisions_)) is None:
            raise AttributeError("this method does not estimate whether its clusters would be found again; URRL does")
        return found

    def _again(self) -> NDArray[np.float32]:
        """Per cluster the chance that its samples are found there again; NaN where it is not known, or of one alone."""
        if (found := trust_in(self.decisions_)) is None or self.n_clusters_ == 1:
            return np.full(self.n_clusters_, np.nan, dtype=np.float32)
        return np.array([one["again"] for one in found.clusters], dtype=np.float32)

    def __getattr__(self, name: str) -> Any:
        """Former names, with a warning."""
        if name not in _FORMER or "soft_labels_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"{name} is now {_FORMER[name]}", FutureWarning, stacklevel=2)
        return self.soft_labels_.max(axis=1) if name == "stability_" else self._again()

    def save(self, path: str | PathLike[str], *, keep: int | None = None) -> None:
        """Write the fitted model into a folder: a manifest and its tensors, nothing that can run code.

        The folder is new, empty, or holds a model, which is replaced in one step. A random generator given as
        `random_state` becomes None, and `device` is left out: a model may be used on another machine.

        Parameters
        ----------
        keep : training samples that travel along, among which new samples find their neighbours; all by default.
            Fewer make a smaller model that is a little less accurate (docs/command-line.md has figures). Those are
            chosen in proportion to the clusters' sizes, samples with many views first; so `drift` of such a model does
            not compare missing views and confidence.
        """
        from viewfuse.fitted import persistence

        check_is_fitted(self)
        rows = representatives(self._clusters(), self._model.stored.present.cpu().numpy(), keep)
        model = self._model if keep is None else self._model.thinned(rows)
        arrays = {name: getattr(self, name)[rows] for name in _PER_SAMPLE}
        arrays["cluster_centers_"] = self.cluster_centers_
        persistence.save(Path(path), persistence.Saved(model, arrays, self._facts(rows)))

    def _plain_params(self) -> dict[str, Any]:
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
            "ids_are_labels": not only_counted(self.ids_),
            "thinned": self._thinned or len(rows) < len(self.ids_),
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
        ids = checked_ids(decode(facts["ids"]), n)
        model.view_names_, model.ids_ = list(saved.model.names), ids
        if facts.get("ids_are_labels", False):
            model.ids_ = as_labels(ids)
        model._thinned = facts.get("thinned", False) is True
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
        views = batch_added(views, batch, X)
        if not len(views):
            raise DataError("the views have no rows (0 sample(s)); pass at least one sample")
        if not only_counted(views.ids):
            for line in misread_ids(views.names, views.mask, views.ids.tolist()):
                warn(SuspiciousDataWarning(line))
        by_column = (hasattr(X, "columns") and hasattr(self, "feature_names_in_")) or is_anndata(X)
        if one_table and not by_column:  # scikit-learn wants columns in the order of training
            validate_data(self, X, reset=False, skip_check_array=True)
        return self._model.complete(views, by_name=isinstance(X, (Mapping, Views)) or is_mudata(X))

    def _known_views(self, X: Any, batch: Any = None) -> Views:
        """What `complete` gives; warns of cells that were filled."""
        views, filled = self.complete(X, batch=batch)
        warn_of_filled(filled)
        return views

    def _placed_model(self) -> Model:
        """The model on the device that is asked for."""
        check_is_fitted(self)
        return self._model.to(chosen_device(self.device))

    def _place(self, X: Any, batch: Any = None, *, known: bool = False) -> tuple[Views, Model, Samples, torch.Tensor]:
        """Views as the model takes them, the model, samples with neighbours, embeddings; warns of samples far out.

        `known` says that `_known_views` gave the samples.
        """
        views, model = X if known else self._known_views(X, batch), self._placed_model()
        samples, embedding = model.place(views)
        warn_of_far(views.ids[model.is_far(samples.values, samples.present)], len(views))
        warn_of_other_units(model, views, samples)
        return views, model, samples, embedding

    def _present(self) -> NDArray[np.bool_]:
        """Which views the training samples have, of shape (samples, views)."""
        return np.asarray(self._model.stored.present.cpu().numpy(), dtype=bool)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
