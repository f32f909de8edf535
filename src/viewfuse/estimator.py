"""URRL: the method with scikit-learn's face."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from viewfuse import persistence
from viewfuse.data.alignment import checked_ids
from viewfuse.data.checks import data_warnings
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import (
    BadModelFile,
    DataError,
    EmptyClusterWarning,
    JointStageWarning,
    SettingError,
    SuspiciousDataWarning,
)
from viewfuse.explanation import Explanation, explain
from viewfuse.model import Model, fit_models
from viewfuse.representatives import representatives
from viewfuse.seeds import replicate_seeds
from viewfuse.settings import Settings
from viewfuse.utils.devices import chosen_device


class URRL(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Cluster samples described by several views, some of them missing (URRL-IMVC, KDD '24).

    Parameters
    ----------
    n_clusters : int, default 8
        Number of clusters.
    n_neighbors : int, default 4
        Length of every neighbour list, the sample itself included.
    embedding_dim, hidden_dim : int, default 256
        Widths of the embedding and of the hidden layers.
    scaling : {"auto", "standard", "view", "mixed", "minmax", "none"}, default "auto"
        How columns are scaled; measured on observed rows only. "standard" gives each column a deviation of 1, "view"
        divides all columns of a view by one number, "mixed" does either for each view
        (:mod:`viewfuse.data.mixed_scaling`), "minmax" is the paper's. "auto" begins with "mixed", "standard" and
        "minmax", and goes on with the one that gives the best clusters (:mod:`viewfuse.selection`).
    schedule : {"default", "paper"}, default "default"
        What "auto" means for the epochs: 22 and 30 for 2000 samples, more for small sets, fewer for large ones; or
        100 each as in the paper, fewer for more than 2000 samples.
    pretrain_epochs, joint_epochs : int or "auto", default "auto"
        Epochs without and with the clustering loss. Without a joint stage k-means on the embedding decides. With
        "auto" pre-training may end halfway, where trainings agree, and the joint stage is watched: it ends where it
        brings nothing more, and is taken back where it makes the clusters worse.
    batch_size, learning_rate, weight_decay : default 64, 3e-4, 4e-5
        Of Adam.
    view_dropout : float or "auto", default "auto"
        Chance that a view is hidden from the augmented branch; "auto" grows with the share of missing views.
    noise, feature_dropout : float, default 0.05
        Deviation of the noise added to, and share of the values set to zero in, the augmented branch.
    robustness_weight : float, default 1e-3
        Weight of the loss that keeps a sample in place when views are hidden.
    clustering_weight : float or "auto", default "auto"
        Weight of the clustering loss; "auto" is a share of the reconstruction loss, the paper's is 0.1.
    imputed_bias : float, default -10
        Attention bias of views that are filled from donors.
    n_init : int or "auto", default "auto"
        Independent trainings, with each scaling that is tried, of which the one with the most consistent clusters is
        kept (:mod:`viewfuse.selection`). On a GPU they run side by side. "auto" is three for fewer than 200 samples,
        else one.
    ablation : dict, optional
        Other fields of :class:`viewfuse.settings.Settings`: the switches of the paper's ablations.
    device : str, default "auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes a GPU where there is one.
    random_state : int, RandomState or None
        Seed. The global random generators are neither read nor changed.
    verbose : bool, default False
        Show a progress bar.

    Attributes
    ----------
    labels_ : int array of shape (samples,)
    embedding_ : float32 array of shape (samples, embedding_dim)
    soft_labels_ : float32 array of shape (samples, clusters), rows sum to 1
    cluster_centers_ : float32 array of shape (clusters, embedding_dim)
    history_ : dict of equally long lists: epoch, stage, the loss terms, total, seconds
    objectives_ : list of the last losses of the trainings with the scaling that was kept
    decisions_ : dict with "scaling", "pretraining", "joint_stage" and "verdict" (whether trainings agree): for each a
        dict of what was "chosen", from which "evidence", and "why" in words
    stability_ : float32 array of shape (samples,): share of the other trainings that agree on the sample's cluster; NaN
        where there was one training only
    view_names_ : list of str
    ids_ : array of shape (samples,): which sample a row of the above is

    Examples
    --------
    >>> import numpy as np
    >>> from viewfuse import URRL
    >>> rng = np.random.default_rng(0)
    >>> group = np.repeat([0.0, 5.0], 30)[:, None]
    >>> sound = rng.normal(size=(60, 4)) + group
    >>> image = rng.normal(size=(60, 9)) - group
    >>> image[::3] = np.nan  # every third sample has no image
    >>> model = URRL(n_clusters=2, pretrain_epochs=20, joint_epochs=10, random_state=0)
    >>> labels = model.fit_predict({"sound": sound, "image": image})
    >>> len(set(labels[:30])), len(set(labels[30:])), bool(labels[0] != labels[-1])
    (1, 1, True)
    """

    _model: Model

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_neighbors: int = 4,
        embedding_dim: int = 256,
        hidden_dim: int = 256,
        scaling: str = "auto",
        schedule: str = "default",
        pretrain_epochs: int | str = "auto",
        joint_epochs: int | str = "auto",
        batch_size: int = 64,
        learning_rate: float = 3e-4,
        weight_decay: float = 4e-5,
        view_dropout: float | str = "auto",
        noise: float = 0.05,
        feature_dropout: float = 0.05,
        robustness_weight: float = 1e-3,
        clustering_weight: float | str = "auto",
        imputed_bias: float = -10.0,
        n_init: int | str = "auto",
        ablation: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.scaling = scaling
        self.schedule = schedule
        self.pretrain_epochs = pretrain_epochs
        self.joint_epochs = joint_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.view_dropout = view_dropout
        self.noise = noise
        self.feature_dropout = feature_dropout
        self.robustness_weight = robustness_weight
        self.clustering_weight = clustering_weight
        self.imputed_bias = imputed_bias
        self.n_init = n_init
        self.ablation = ablation
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> URRL:
        """Train on the samples and cluster them.

        Parameters
        ----------
        X : list or dict of (samples, columns) arrays or data frames, Views, or one 2-D array
            A row that is all NaN is a missing view.
        y : ignored
        """
        settings, device = self._settings(), chosen_device(self.device)
        _check_not_bare_sparse(X)
        _check_no_second_view(X, y)
        views = Views.of(X)
        copy.copy(self)._remember_columns(X, views)  # a complaint about names must come before the work
        seeds = replicate_seeds(self.random_state, self.n_init, len(views))
        for remark in data_warnings(views):
            warnings.warn(remark, SuspiciousDataWarning, stacklevel=2)
        fitted = fit_models([views], settings, self.scaling, [seeds], device, progress=bool(self.verbose))[0]
        self._remember_columns(X, views)
        self._model = fitted.model
        self.view_names_, self.ids_ = list(views.names), views.ids
        self.history_, self.objectives_ = fitted.history, fitted.objectives
        self.decisions_, self.stability_ = fitted.decisions, fitted.stability
        self.embedding_ = fitted.embedding.cpu().numpy()
        self.soft_labels_ = fitted.model.assign(fitted.embedding)
        self.labels_ = self.soft_labels_.argmax(axis=1)
        self.cluster_centers_ = fitted.model.network.centers.detach().cpu().numpy().copy()
        self._n_features_out = settings.embedding_dim
        _warn_of_empty_clusters(self.labels_, settings.n_clusters)
        if self.decisions_["joint_stage"]["ended"]:
            warnings.warn(self.decisions_["joint_stage"]["why"], JointStageWarning, stacklevel=2)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embeddings of shape (samples, embedding_dim) of samples with any subset of the views."""
        return self._embed(self._known_views(X)).cpu().numpy()

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> NDArray[np.float32]:
        """Fit, and return the embedding of shape (samples, embedding_dim)."""
        return self.fit(X, y, **fit_params).embedding_

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Chance of each cluster, of shape (samples, clusters); rows sum to 1."""
        embedding = self._embed(self._known_views(X))
        return self._model.assign(embedding)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The cluster of each sample, which may have any subset of the views; its neighbours are training samples."""
        return self.predict_proba(X).argmax(axis=1)

    def explain(self, X: Any) -> Explanation:
        """Why each sample, which may have any subset of the views, is placed where `predict` places it.

        Returns
        -------
        Explanation
            Per sample the weight of each view, the donors of missing views and the second-best cluster; per cluster
            its typical samples and the features that set it apart; ``samples()``, ``clusters()`` and ``features()``
            are data frames of these.
        """
        views = self._known_views(X)
        self._model = self._model.to(chosen_device(self.device))
        return explain(self._model, views, self.ids_)

    def impute(self, X: Any) -> Any:
        """Fill missing views with what the decoder expects there, in the units of the data.

        Returns
        -------
        The kind that was given: a dict or list of float32 arrays with all of the model's views, Views, or one
        array. Observed rows are returned as they were, in float32; filled values stay within the range of the
        training samples.
        """
        views = self._known_views(X).dense()
        embedding = self._embed(views)
        rebuilt = self._model.rebuild(embedding)
        arrays = tuple(np.where(views.mask[:, v, None], views.arrays[v], rebuilt[v]) for v in range(len(views.names)))
        if isinstance(X, Views):
            return views.replace(arrays=arrays, mask=np.ones_like(views.mask))
        if isinstance(X, Mapping):
            return dict(zip(views.names, arrays, strict=True))
        return arrays[0] if is_one_table(X) else list(arrays)

    def save(self, path: str | PathLike[str], *, keep: int | None = None) -> None:
        """Write the fitted model into a folder: a manifest and its tensors, nothing that can run code.

        The folder is new, empty, or holds a model, which is replaced in one step. A random generator given as
        `random_state` becomes None.

        Parameters
        ----------
        keep : training samples that travel along, among which new samples find their neighbours; all by default.
            Fewer make a smaller model that is a little less accurate (docs/command-line.md has figures). Those are
            chosen in proportion to the clusters' sizes, samples with many views first.
        """
        check_is_fitted(self)
        rows = representatives(self.labels_, self._model.stored.present.cpu().numpy(), keep)
        model = self._model if keep is None else self._model.thinned(rows)
        params = self.get_params(deep=False)
        if not isinstance(params["random_state"], (Integral, NoneType)):
            params["random_state"] = None
        facts = {
            "params": params,
            "history": self.history_,
            "objectives": self.objectives_,
            "decisions": self.decisions_,
            "ids": self.ids_[rows].tolist(),
            "n_features": self.n_features_in_,
        }
        names = getattr(self, "feature_names_in_", None)
        facts["feature_names"] = None if names is None else names.tolist()
        arrays = {name: getattr(self, name)[rows] for name in _PER_SAMPLE}
        arrays["cluster_centers_"] = self.cluster_centers_
        persistence.save(Path(path), persistence.Saved(model, arrays, facts))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> URRL:
        """Read a model that `save` wrote; a damaged one is refused with the file and the reason."""
        saved = persistence.load(Path(path))
        try:
            return cls._restored(saved)
        except Exception as error:  # whatever a manifest that somebody made up leads to
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadModelFile(f"{path}: its facts are not those of a model ({reason}); save it again") from None

    @classmethod
    def _restored(cls, saved: persistence.Saved) -> URRL:
        facts, n = saved.facts, len(saved.model.stored)
        model = cls(**facts["params"])
        model._settings()
        model._model, model.history_, model.n_features_in_ = saved.model, facts["history"], facts["n_features"]
        # The first models of format 1 had none of these.
        model.objectives_, model.decisions_ = facts.get("objectives", []), facts.get("decisions", {})
        saved.arrays.setdefault("stability_", np.full(n, np.nan, dtype=np.float32))
        model.view_names_, model.ids_ = list(saved.model.names), checked_ids(_untupled(facts["ids"]), n)
        model._n_features_out = saved.model.settings.embedding_dim
        if facts["feature_names"] is not None:
            model.feature_names_in_ = np.array(facts["feature_names"], dtype=object)
        model.cluster_centers_ = saved.arrays["cluster_centers_"]
        for name in _PER_SAMPLE:
            if len(saved.arrays[name]) != n:
                raise DataError(f"{name} has {len(saved.arrays[name])} rows instead of {n}")
            setattr(model, name, saved.arrays[name])
        return model

    def _settings(self) -> Settings:
        shared = {f.name: getattr(self, f.name) for f in fields(Settings) if hasattr(self, f.name)}
        if not isinstance(self.ablation, (Mapping, NoneType)):
            raise SettingError(f"ablation must be None or a dict of settings; got {self.ablation!r}")
        extra = dict(self.ablation or {})
        wrong = sorted(set(extra) - {f.name for f in fields(Settings)} | set(extra) & set(shared), key=str)
        if wrong:
            allowed = [f.name for f in fields(Settings) if f.name not in shared]
            raise SettingError(f"ablation cannot set {wrong}; it can set {allowed}")
        return Settings(**shared, **extra)

    def _known_views(self, X: Any) -> Views:
        """New samples with the views of the model, in its order."""
        check_is_fitted(self)
        one_table = is_one_table(X) and len(self._model.names) == 1
        views = Views(X, names=self._model.names) if one_table else Views.of(X)
        if not len(views):
            raise DataError("the views have no rows (0 sample(s)); pass at least one sample")
        if one_table:
            validate_data(self, X, reset=False, skip_check_array=True)
        by_name = isinstance(X, (Mapping, Views))
        return views.conform(self._model.names, self._model.columns, by_name=by_name)

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

    def _embed(self, views: Views) -> torch.Tensor:
        self._model = self._model.to(chosen_device(self.device))
        return self._model.embed(views)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the model on the CPU, so that they open on machines without a GPU."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "_model" in state:
            state["_model"] = copy.deepcopy(state["_model"]).to(torch.device("cpu"))
        return state

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


_PER_SAMPLE = ("labels_", "embedding_", "soft_labels_", "stability_")


def _untupled(ids: list[Any]) -> list[Any]:
    """Ids of several levels, which JSON turned into lists, as tuples again."""
    return [tuple(name) if isinstance(name, list) else name for name in ids]


def _check_not_bare_sparse(X: Any) -> None:
    """One sparse table alone is refused, as scikit-learn's checks want it of estimators that make it dense."""
    if is_one_table(X) and hasattr(type(X), "toarray"):
        raise DataError("X is sparse, which is not supported for one table alone; pass [X], which is then made dense")


def _check_no_second_view(X: Any, y: Any) -> None:
    if is_one_table(X) and len(getattr(y, "shape", ())) == 2 and y.shape[1] > 1:
        raise DataError("y is ignored, but a table was given as y; pass all views together: fit([first, second])")


def _warn_of_empty_clusters(labels: NDArray[np.int64], n_clusters: int) -> None:
    found = len(np.unique(labels))
    if found < n_clusters:
        warnings.warn(
            f"{n_clusters - found} of {n_clusters} clusters are empty; ask for fewer clusters, or try joint_epochs=0",
            EmptyClusterWarning,
            stacklevel=3,
        )
