"""URRL: the method with scikit-learn's face."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from viewfuse.data.checks import check_samples
from viewfuse.data.filling import FILLS
from viewfuse.data.scaling import KINDS
from viewfuse.data.side_information.knowledge import NOTHING, Knowledge
from viewfuse.data.views import Views
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import replicate_seeds
from viewfuse.engine.training import Progress
from viewfuse.errors import JointStageWarning, SettingError
from viewfuse.fitted.manifest import fit_facts
from viewfuse.fitted.model import Source, warn_of_empty_clusters
from viewfuse.fitted.persistence import BuildMethod, Saved
from viewfuse.io.writers import OUTLIER
from viewfuse.methods.clusterer import with_number
from viewfuse.methods.fitted_estimator import MultiViewClusterer
from viewfuse.methods.label_matching import FormerLabels, renumbered
from viewfuse.methods.number_of_clusters import choose_n_clusters
from viewfuse.methods.updating import Updatable
from viewfuse.methods.urrl.config import (
    OF_ESTIMATOR,
    OLD_NAMES,
    PAPER,
    PAPER_SCALING,
    Config,
    opened_params,
    takes_old_names,
    with_old_names,
)
from viewfuse.methods.urrl.fit import fit_models
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.methods.urrl.refits import validated
from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.reduction.reduce import check_reduction
from viewfuse.selection.decision_texts import records
from viewfuse.selection.linkage import coarser
from viewfuse.selection.split_tree import RANGE
from viewfuse.utils.console import warn
from viewfuse.utils.jobs import chosen_device, limited, threads_around, threads_for, worker_count
from viewfuse.utils.settings import Field, check_choice, checked_count, checked_range, wrong

_MEANINGLESS = ("config", "device", "verbose", "checkpoint", "n_jobs", "outliers")
"""Parameters that do not change what is learned, or are known more exactly."""


@takes_old_names
@dataclass(eq=False, repr=False)
class URRL(Updatable, MultiViewClusterer):
    """Cluster samples described by several views, some of them missing (URRL-IMVC, KDD '24).

    Parameters
    ----------
    n_clusters : int or "auto", default "auto"
        Number of clusters. "auto" chooses it from the data: a tree of clusters is split as long as the splits are
        clearer than in data without structure and seen in views left out (docs/decisions.md). 1 says that there
        are no clusters. `cut` joins clusters to fewer.
    cluster_range : (int, int), default (1, 200)
        The least and the largest number of clusters that "auto" may choose, at most one per eight samples.
    scaling : {"auto", "standard", "view", "mixed", "minmax", "none"}, default "auto"
        How columns are scaled; measured on observed rows only. "standard" gives each column a deviation of 1, "view"
        divides all columns of a view by one number, "mixed" does either for each view
        (:mod:`viewfuse.data.scaling`), "minmax" is the paper's. "auto" begins with "mixed", "standard" and
        "minmax", and keeps the one that gives the best clusters (:mod:`viewfuse.selection`).
    fill : {"neighbors", "median", "error"}, default "neighbors"
        What stands in empty cells (NaN) of rows that have other values: the mean of the five nearest rows of the same
        view, or the median of the column where no row can help; always the median; or nothing, and an error. The
        same for new samples, from training samples. At most 30 % of a view may be empty, and 80 % of a row or column.
    reduction : {"auto", "none", "pca", "standard", "log1p", "counts", "words", "links"} or dict by view, default "auto"
        How wide and sparse views become narrow dense ones (:mod:`viewfuse.reduction`). "auto" looks at each view and
        leaves narrow ones alone, "none" leaves all alone.
    effort : {"quick", "auto", "thorough"}, default "auto"
        How much is spent. "auto" stops where nothing more is gained: one training where its clusters are clear, others
        under other scalings where they are not. "quick" takes about half the time: one scaling, a quarter of the
        epochs. "thorough" trains three networks under each scaling, and longer, and repeats all that to `validate` it.
    outliers : {"mark", "label"}, default "mark"
        Whether samples that lie far from all others keep their cluster beside the mark in ``outliers_``, or have the
        label -1, as new ones have in `predict`.
    n_init : int or "auto", default "auto"
        Independent trainings, with each scaling that is tried, of which the one with the best clusters is kept
        (:mod:`viewfuse.selection`). "auto" is one; three with effort="thorough". See `n_jobs`.
    config : :class:`viewfuse.Config`, optional
        The network and its training: epochs, widths, rates, and the switches of the paper's ablations, such as
        ``Config(joint_epochs=0)``. One field is changed by ``set_params(config__joint_epochs=0)``.
    device : str, default "auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes a GPU where there is one.
    random_state : int, RandomState or None
        Seed. The global random generators are neither read nor changed.
    verbose : bool, default False
        Show one progress bar for the whole fit; without a terminal or notebook, a line per stage.
    n_jobs : int or None, default None
        Trainings that run side by side on a CPU, each in a process of its own; -1 is one per core. None is 1, one
        after the other in this process, unless a ``joblib.parallel_config`` is active. The results are the same.
    checkpoint : path, optional
        Folder that keeps where the training stands: once a minute and after each stage. The same call with the same
        data and folder resumes the fit, to the same result; another one is refused. Ctrl-C waits for the end of the
        epoch. Delete the folder when you have the model.

    Attributes
    ----------
    labels_ : int array of shape (samples,); see `outliers`
    embedding_ : float32 array of shape (samples, embedding_dim)
    soft_labels_ : float32 array of shape (samples, clusters), rows sum to 1
    n_clusters_ : int, the number of clusters, those among them that `like` had and no sample has now
    trust_ : :class:`viewfuse.selection.decisions.Trust`: whether the same clusters would be found if the fit were
        repeated, in one word ("high", "some", "none"), with an interval, for each cluster too, and the reasons
    cluster_centers_ : float32 array of shape (clusters, embedding_dim)
    history_ : dict of equally long lists: epoch, stage, the loss terms, total, seconds
    objectives_ : list of the last losses of the trainings with the scaling that was kept
    decisions_ : dict with "n_clusters" (where it was "auto": the "splits" of the tree with their p-values, coarser
        "levels" that hold as well), "empty_cells", "reduction", "scaling", "pretraining", "joint_stage", "clusters",
        "hints", "pairs", "weights", "confidence", "trust", "numbers": for each a dict of what was "chosen", the
        "evidence", and "why"
    cluster_names_ : dict of names by number, as `rename` gave them
    outliers_ : bool array of shape (samples,): samples that lie far from all others in a view that they have
    view_names_ : list of str
    ids_ : array of shape (samples,): which sample a row of the above is

    Examples
    --------
    >>> import numpy as np
    >>> from viewfuse import URRL, Config
    >>> rng = np.random.default_rng(0)
    >>> group = np.repeat([0.0, 5.0], 30)[:, None]
    >>> sound = rng.normal(size=(60, 4)) + group
    >>> image = rng.normal(size=(60, 9)) - group
    >>> image[::3] = np.nan  # every third sample has no image
    >>> model = URRL(n_clusters=2, config=Config(pretrain_epochs=20, joint_epochs=10), random_state=0)
    >>> labels = model.fit_predict({"sound": sound, "image": image})
    >>> len(set(labels[:30])), len(set(labels[30:])), bool(labels[0] != labels[-1])
    (1, 1, True)
    """

    n_clusters: int | str = "auto"
    _: KW_ONLY
    cluster_range: tuple[int, int] = RANGE
    scaling: str = "auto"
    fill: str = "neighbors"
    reduction: str | Mapping[str, str] = "auto"
    effort: str = Config.effort
    outliers: str = "mark"
    n_init: int | str = "auto"
    config: Config | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: bool = False
    n_jobs: int | None = None
    checkpoint: str | PathLike[str] | None = None

    method_builders: ClassVar[Mapping[str, BuildMethod]] = {"urrl": URRLMethod.from_saved}

    @classmethod
    def paper(cls, n_clusters: int, **params: Any) -> Self:
        """The method as the paper prints it, with the paper's hyperparameters; nothing is decided from the data.

        Parameters
        ----------
        params : what is to differ from the paper: parameters such as ``random_state``, and fields of `Config`
        """
        changed = {name: params.pop(name) for name in OLD_NAMES.intersection(params) if name != "ablation"}
        usual = {"scaling": PAPER_SCALING, "reduction": "none", "n_init": 1}
        return cls(n_clusters, config=Config(**{**PAPER, **changed}), **{**usual, **params})

    def set_params(self, **params: Any) -> Self:
        """As scikit-learn has it; ``config__joint_epochs=0`` sets one field of `config`."""
        old = {name: params.pop(name) for name in OLD_NAMES.intersection(params)}
        named = [name for name in params if name.startswith("config__")]
        changed = {name.removeprefix("config__"): params.pop(name) for name in named}
        super().set_params(**params)
        if changed:
            self.config = replace(self.config or Config(), **changed)
        self.config = with_old_names(self.config, old)
        return self

    def fit(
        self, X: Any, y: Any = None, *, like: MultiViewClusterer | None = None, batch: Any = None,
        must_link: Any = None, cannot_link: Any = None, sample_weight: Any = None,
        view_weights: Mapping[str, float] | None = None,
    ) -> Self:  # fmt: skip
        """Train on the samples and cluster them.

        Parameters
        ----------
        X : list or dict of (samples, columns) arrays, data frames or AnnData, a MuData, Views, or one 2-D array
            A row that is all NaN is a missing view; so is a cell that a modality lacks. Other NaN: see `fill`.
        y : labels of which some are known, else -1, None or NaN; by id where they are a dict, or a pandas Series beside
            samples with ids. Cluster i is that of the i-th known class in order. See ``decisions_["hints"]``.
        like : a fitted model, by default none, whose clusters lend their numbers: clusters are matched one to one by
            the samples that both have, or else by where `like` places the new ones. The rest gets new numbers, and
            numbers without a cluster stay empty, see ``decisions_["numbers"]``.
        batch : the batch of each sample, by id or in order, or the name of a column, see ``decisions_["batches"]``
        must_link, cannot_link : array-like of shape (pairs, 2), by default none
            Samples that belong together, and samples that do not, as ids or row numbers. Contradictions are refused,
            with the pairs. See ``decisions_["pairs"]``.
        sample_weight : a number of at least 0 for each sample, in order or by id: one of weight 2 counts like two
            equal samples in what is learned, one of weight 0 is placed without being learned from
        view_weights : by name of a view how much it counts, above 0, such as ``{"rna": 2}``; others count 1
        """
        config, device = self._config(), chosen_device(self.device)
        checked_range(self.cluster_range)
        check_choice("outliers", self.outliers, ("mark", "label"))
        worker_count(self.n_jobs)
        views = self._checked_views(X, y, batch)
        given = (y, must_link, cannot_link, sample_weight, view_weights)
        known = NOTHING if all(one is None for one in given) else Knowledge.of(views.ids, *given, views.names)
        if known is not NOTHING:
            known.check_numbers(like)
            number_known = known.number(config.n_clusters, len(views), asked=not self._chooses())
            config = replace(config, n_clusters=number_known)
        former = None if like is None else FormerLabels.of(like, views)
        seeds = replicate_seeds(self.random_state, self.n_init, config.usual_trainings)
        number, begun, checkpoint = None, None, self._checkpoint(views, seeds, device, known)
        interruptible = checkpoint.interruptible() if checkpoint else nullcontext()
        around = limited(threads_around(len(views)))
        with Progress(shown=bool(self.verbose)) as progress, interruptible, around:
            source = self._source(views, config)
            ways: dict[str, Any] = {"threads": threads_for(len(seeds), len(views)), "progress": progress}
            ways["checkpoint"] = checkpoint
            if self._chooses():
                within = known.range(self.cluster_range, len(views))
                number, begun = choose_n_clusters(source, config, within, self.scaling, seeds[0], device, **ways)
                if number.end == "smallest" and within[0] > checked_range(self.cluster_range)[0]:
                    number = replace(number, end="known")
                config = replace(config, n_clusters=number.chosen)
            ways["n_jobs"] = self.n_jobs if device.type == "cpu" else None  # on a GPU trainings are stacked
            (fitted,) = fit_models([source], config, self.scaling, [seeds], device, known=known, begun=begun, **ways)
        self._remember_columns(X, views)
        fitted = fitted._replace(decisions=with_number(fitted.decisions, number))
        fitted = fitted if former is None else renumbered(fitted, former)
        self._take_over(*fitted)
        self.cluster_names_ = {} if like is None else dict(like.cluster_names_)
        warn_of_empty_clusters(self._clusters(), config.n_clusters, ", or try ", Field("joint_epochs", 0))
        if self.decisions_["joint_stage"]["ended"]:
            warn(JointStageWarning(self.decisions_["joint_stage"]["why"]))
        is_worth_it = self.effort == "thorough" and "trust" in self.decisions_ and self.n_clusters_ > 1
        return self.validate() if is_worth_it else self

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> NDArray[np.int64]:
        """Fit, with the hints `y` where there are any, and return the clusters of shape (samples,)."""
        return self.fit(X, y, **fit_params).labels_

    def validate(self, n_refits: int = 5) -> Self:
        """Measure how often samples are in their clusters again: whole fits on 80 % of the training samples.

        ``trust_`` and the chances of ``soft_labels_`` and `predict_proba` become those that were measured; no label
        changes. It takes about as long as `n_refits` fits; with `checkpoint`, it can be resumed.
        """
        check_is_fitted(self)
        config = replace(self._config(), n_clusters=int(self._model.in_use.sum()))
        ways = {"threads": threads_for(1, len(self._model.stored)), "device": chosen_device(self.device)}
        self._model, self.soft_labels_, decisions = validated(self, config, n_refits, **ways)
        self.decisions_ = {**self.decisions_, **decisions}
        return self

    def cut(self, n_clusters: int) -> NDArray[np.int64]:
        """Labels of the training samples in fewer clusters: the nearest of the fitted ones are joined.

        Parameters
        ----------
        n_clusters : 1 to ``n_clusters_``
        """
        check_is_fitted(self)
        if not isinstance(n_clusters, Integral) or not 1 <= n_clusters <= self.n_clusters_:
            raise wrong("n_clusters", f"1 to {self.n_clusters_}, which were fitted", n_clusters)
        ids = self._model.stored.neighbor_ids
        if len(ids) != len(self.labels_):  # the model was thinned
            ids = ids.new_full((len(self.labels_), 1, 1), NO_NEIGHBOR)
        known = np.unique(self._clusters(), return_inverse=True)[1]  # without those that are empty
        found = coarser(known, self.embedding_, ids, n_clusters)
        return np.where(self.labels_ == OUTLIER, OUTLIER, found)

    @property
    def levels_(self) -> dict[int, NDArray[np.int64]]:
        """By number of clusters nested labels: of coarser levels that hold as well, and of the fit."""
        check_is_fitted(self)
        held = self.decisions_.get("n_clusters", {}).get("levels", [])
        return {k: self.cut(k) for k in [*(one for one in held if one < self.n_clusters_), self.n_clusters_]}

    def choose(self, X: Any) -> dict[str, Any]:
        """How many clusters the samples have, without a fit: what ``decisions_["n_clusters"]`` would be.

        Parameters
        ----------
        X : as for `fit`
        """
        views, config, device = Views.of(X), replace(self._config(), n_clusters=1), chosen_device(self.device)
        seeds = replicate_seeds(self.random_state, 1)
        with Progress(shown=bool(self.verbose)) as progress, limited(threads_around(len(views))):
            how: dict[str, Any] = {"threads": threads_for(1, len(views)), "progress": progress}
            source, within = self._source(views, config), NOTHING.range(self.cluster_range, len(views))
            number = choose_n_clusters(source, config, within, self.scaling, seeds[0], device, **how)[0]
        return records(number)[number.name]

    def _source(self, views: Views, config: Config) -> Source:
        check_samples(views, config.n_clusters)
        return Source.of(views, self.fill, self.reduction)

    def _checkpoint(self, views: Views, seeds: list[int], device: torch.device, known: Knowledge) -> Checkpoint | None:
        """Where this fit is kept; the same for a call with the same data and settings."""
        if self.checkpoint is None:
            return None
        own = {n: value for n, value in self.get_params(deep=False).items() if n not in _MEANINGLESS}
        facts = {**asdict(self._config()), **own, "random_state": seeds, **known.facts()}
        return Checkpoint(Path(self.checkpoint), fit_facts(views, facts, device))

    def _chooses(self) -> bool:
        """Whether the number of clusters is to be chosen."""
        return isinstance(self.n_clusters, str) and self.n_clusters == "auto"

    def _config(self) -> Config:
        check_choice("scaling", self.scaling, ("auto", *KINDS))
        check_choice("fill", self.fill, FILLS)
        check_reduction(self.reduction)
        if not isinstance(self.config, (Config, NoneType)):
            raise wrong("config", "None or a Config, such as Config(joint_epochs=0)", self.config)
        given = self.config or Config()
        if misplaced := [f"{name}={value!r}" for name, value in given.changed().items() if name in OF_ESTIMATOR]:
            raise SettingError(f"give {' and '.join(misplaced)} to URRL itself, and not to its Config")
        # Until it is known.
        number = 1 if self._chooses() else checked_count("n_clusters", self.n_clusters, auto=1)
        return replace(given, n_clusters=number, effort=self.effort)

    def _plain_params(self) -> dict[str, Any]:
        own = super()._plain_params()
        return {**own, "config": None if self.config is None else self.config.changed()}

    @classmethod
    def _restored(cls, saved: Saved, device: str, place: torch.device) -> Self:
        facts = {**saved.facts, "params": opened_params(saved.facts["params"])}
        return super()._restored(replace(saved, facts=facts), device, place)
