"""Everything that can be set about the method, in one frozen place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from math import ceil, inf
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

from viewfuse.utils.settings import check_choice, checked_count, wrong

T = TypeVar("T")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
EFFORTS = ("quick", "auto", "thorough")
_CHOICES = {
    "center_start": ("best", "ward"),
    "effort": EFFORTS,
    "schedule": ("default", "paper"),
    "neighbor_output": (*ORDINALS, "mean", "concat"),
    "view_output": (*ORDINALS, "mean", "concat"),
}


class Epochs(NamedTuple):
    """How long the two stages last."""

    pretraining: int
    joint: int


@dataclass(frozen=True, repr=False)
class Config:
    """The network of URRL and its training: ``URRL(config=Config(joint_epochs=0))`` (paper, "Implementation Details").

    Attributes
    ----------
    n_clusters : number of cluster centres, d_c in the paper; of a fit that is the parameter of `URRL`.
    n_neighbors : length of every neighbour list, the sample itself included; k in the paper.
    donor_depth : Algorithm 1 searches ``n_neighbors`` entries of each list for donors of a missing view. Where
        that finds no donor, so many are searched; a number up to ``n_neighbors`` is the algorithm as printed.
    embedding_dim : width of the unified embedding, d_e; "auto" is 256, and 128 for a small set: fewer than 1000 samples
        and at most 12 clusters.
    hidden_dim : width of the hidden fully connected layers of view encoder and decoder; "auto" is 512 for more than 50
        clusters, else as the embedding's.
    n_heads : attention heads of the view encoder; the neighbour encoders have one.
    feedforward_ratio : width of a Transformer block's feed-forward part over the block's width.
    effort : of a fit that is the parameter of `URRL`, too: "quick" trains a quarter as long, under one scaling;
        "thorough" twice as long, under every scaling; "auto" stops where nothing more is gained.
    schedule : what "auto" means for the epochs: "default" is by the effort, "paper" trains as long as the paper.
    pretrain_epochs, joint_epochs : E_p and E_j; "auto" is sized by the number of samples, see `epochs`.
    batch_size, learning_rate, weight_decay : of Adam; "auto" is a rate of 3e-4, and 9e-4 for a small set.
    view_dropout : probability that a view is dropped in the augmented branch, phi_1; "auto" is the
        paper's equation "aug ratio".
    noise, feature_dropout : phi_2 and phi_3.
    robustness_weight, clustering_weight : lambda_1 and lambda_2; "auto" is sized by the reconstruction loss that
        pre-training ends with (`viewfuse.selection.rules.clustering_weight`).
    imputed_bias : gamma, the attention bias of a view that is filled from donors.
    knn_imputation, augmentation, distance_code, three_level_mask, clustering_module :
        the modules KNNI, Aug (with the robustness loss), CDPE, TAM and CM of the paper's ablation.
    early_stopping : whether a joint stage whose length is "auto" ends where it no longer helps, and is taken back
        where it made the clusters worse.
    calibration : whether soft labels are sharpened to the confidence that the data support
        (`viewfuse.selection.confidence`); else they are the paper's q.
    center_start : "best" of k-means solutions (`viewfuse.selection.kmeans`), or "ward" as in the paper.
    neighbor_output, view_output : which Transformer output the two encoders hand on:
        "first", "second", ... "eighth", "mean", or "concat" (concatenation and a linear layer).
    """

    n_clusters: int = 8
    n_neighbors: int = 4
    donor_depth: int = 10
    embedding_dim: int | str = "auto"
    hidden_dim: int | str = "auto"
    n_heads: int = 4
    feedforward_ratio: int = 2
    effort: str = "auto"
    schedule: str = "default"
    pretrain_epochs: int | str = "auto"
    joint_epochs: int | str = "auto"
    batch_size: int = 64
    learning_rate: float | str = "auto"
    weight_decay: float = 4e-5
    view_dropout: float | str = "auto"
    noise: float = 0.05
    feature_dropout: float = 0.05
    robustness_weight: float = 1e-3
    clustering_weight: float | str = "auto"
    imputed_bias: float = -10.0
    knn_imputation: bool = True
    augmentation: bool = True
    distance_code: bool = True
    three_level_mask: bool = True
    clustering_module: bool = True
    early_stopping: bool = True
    calibration: bool = True
    center_start: str = "best"
    neighbor_output: str = "first"
    view_output: str = "mean"

    def __post_init__(self) -> None:
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        for name, value in own.items():  # integers of numpy would overflow where they are multiplied
            if isinstance(value, Integral) and not isinstance(value, bool):
                object.__setattr__(self, name, int(value))
        for name in ("n_clusters", "n_neighbors", "donor_depth", "n_heads", "feedforward_ratio", "batch_size"):
            checked_count(name, own[name])
        for name, least in (("embedding_dim", 1), ("hidden_dim", 1), ("pretrain_epochs", 0), ("joint_epochs", 0)):
            checked_count(name, own[name], least, auto=least)
        some = "a number of at least 0"
        fits = {name: (_is_number(own[name]), some) for name in ("weight_decay", "noise", "robustness_weight")}
        for one in fields(self):
            if one.type == "bool":
                fits[one.name] = isinstance(own[one.name], bool), "True or False"
        lr, bias, drop, weight = self.learning_rate, self.imputed_bias, self.view_dropout, self.clustering_weight
        rate = "a number from 0 to below 1"
        fits |= {
            "clustering_weight": (_is_auto(weight) or _is_number(weight), f"'auto' or {some}"),
            "learning_rate": (_is_auto(lr) or (_is_number(lr) and lr != 0), "'auto' or a number above 0"),
            "feature_dropout": (_is_number(self.feature_dropout, 1.0), rate),
            # An infinite bias is allowed: it masks imputed views altogether.
            "imputed_bias": (isinstance(bias, Real) and bias <= 0, "a number of at most 0"),
            "view_dropout": (_is_auto(drop) or _is_number(drop, 1.0), f"'auto' or {rate}"),
            "embedding_dim": (
                self.embedding_width % self.n_heads == 0,
                f"a multiple of {self.n_heads}, the number of attention heads",
            ),
        }
        for name, (is_fit, wanted) in fits.items():
            if not is_fit:
                raise wrong(name, wanted, own[name])
        for name, choices in _CHOICES.items():
            check_choice(name, own[name], choices)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"

    def changed(self) -> dict[str, Any]:
        """What is not as usual."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in own.items() if value != getattr(Config, name)}

    def sized(self, n_samples: int) -> Config:
        """What "auto" means for the widths and the rate where so many samples are trained on."""
        is_small = self._is_small(n_samples)
        width, rate = (_SMALL_WIDTH, _SMALL_RATE) if is_small else (_WIDTH, _RATE)
        wide = _WIDE if self.n_clusters > _MANY_CLUSTERS else width
        sizes: dict[str, Any] = {"embedding_dim": width, "hidden_dim": wide, "learning_rate": rate}
        return replace(self, **{name: own for name, own in sizes.items() if _is_auto(getattr(self, name))})

    @property
    def embedding_width(self) -> int:
        """Width of the embedding; of a configuration that is not `sized` that of many samples."""
        return _WIDTH if isinstance(self.embedding_dim, str) else self.embedding_dim

    @property
    def hidden_width(self) -> int:
        """Width of the hidden layers; wider ones tell many clusters apart better."""
        if not isinstance(self.hidden_dim, str):
            return self.hidden_dim
        return _WIDE if self.n_clusters > _MANY_CLUSTERS else _WIDTH

    @property
    def rate(self) -> float:
        """Learning rate; of a configuration that is not `sized` that of many samples."""
        return _RATE if isinstance(self.learning_rate, str) else self.learning_rate

    @property
    def usual_trainings(self) -> int:
        """Independent trainings where the user names no number."""
        return 3 if self.effort == "thorough" else 1

    def joint_factor(self, n_samples: int) -> float:
        """By how much the learning rate of the joint stage is larger than that of pre-training."""
        if self.schedule != "default":
            return 1.0
        return _SMALL_JOINT_FACTOR if self._is_small(n_samples) else _JOINT_FACTORS[self.effort]

    @property
    def list_length(self) -> int:
        """Entries in a neighbour list: without KNN imputation only the sample itself."""
        return self.n_neighbors if self.knn_imputation else 1

    @property
    def search_depth(self) -> int:
        """Neighbours, other than the sample itself, that are kept of each sample and view."""
        return max(self.n_neighbors, self.donor_depth) - 1 if self.knn_imputation else 0

    @property
    def watched(self) -> bool:
        """Whether the joint stage ends where it no longer helps: where the user did not say how long it lasts."""
        return self.early_stopping and isinstance(self.joint_epochs, str)

    @property
    def settles(self) -> bool:
        """Whether a watched joint stage ends where its clusters no longer get better; a quick one is short as it is."""
        return self.schedule == "default" and self.effort == "auto"

    @property
    def pretrained_as_needed(self) -> bool:
        """Whether pre-training may end where trainings agree: where the user set no epochs."""
        return isinstance(self.pretrain_epochs, str) and self.schedule == "default" and self.effort != "thorough"

    def epochs(self, n_samples: int) -> Epochs:
        """How long the two stages last; the joint one has no epochs without the clustering module.

        "auto" is 22 and 30 epochs, more for small sets and fewer for large ones, see `_STAGES`. With the paper's
        schedule it is 100 epochs each, and fewer where that would be more than the 3100 steps that they take on
        Handwritten.
        """
        sized = [self._sized(stage, n_samples) for stage in _STAGES[self.effort][1:]]
        if self.schedule == "paper":
            sized = [min(100, ceil(3100 / max(1, n_samples // self.batch_size)))] * 2
        asked = (self.pretrain_epochs, self.joint_epochs)
        first, second = (auto if isinstance(e, str) else e for e, auto in zip(asked, sized, strict=True))
        return Epochs(first, second if self.clustering_module else 0)

    def trial_epochs(self, n_samples: int) -> int:
        """Epochs of pre-training after which scalings are compared: half of "auto"."""
        return min(self._sized(_STAGES[self.effort][0], n_samples), self.epochs(n_samples).pretraining)

    def early_epochs(self, n_samples: int) -> int:
        """Epochs after which clusters that are clear already need no longer trial: a quarter, for under 200 samples."""
        trial = self.trial_epochs(n_samples)
        return ceil(trial / 4) if self.pretrained_as_needed and n_samples < _TINY else trial

    def _is_small(self, n_samples: int) -> bool:
        return n_samples < _SMALL and self.n_clusters <= SEVERAL and self.schedule == "default"

    def _sized(self, stage: tuple[int, int, int, int], n_samples: int) -> int:
        per_epoch, (some, least, most, most_epochs) = max(1, n_samples // self.batch_size), stage
        if self._is_small(n_samples):
            some, least, most = some // _FEWER, least // _FEWER, most // _FEWER
        return min(most_epochs, ceil(min(max(some * per_epoch, least), most) / per_epoch))


PAPER: Mapping[str, Any] = {
    "schedule": "paper",
    "n_neighbors": 4,  # k
    "donor_depth": 1,  # Algorithm 1 as printed, whatever k is
    "embedding_dim": 256,  # d_e
    "batch_size": 64,  # B
    "learning_rate": 3e-4,
    "weight_decay": 4e-5,
    "view_dropout": "auto",  # equation "aug ratio", epsilon = 0.15
    "noise": 0.05,  # phi_2
    "feature_dropout": 0.05,  # phi_3
    "robustness_weight": 1e-3,  # lambda_1
    "clustering_weight": 0.1,  # lambda_2
    "imputed_bias": -10.0,  # gamma
    "hidden_dim": 256,  # not stated, as are the next two
    "n_heads": 4,
    "feedforward_ratio": 2,
    "early_stopping": False,
    "calibration": False,
    "center_start": "ward",
}
"""The paper's appendix "Implementation Details". Its scaling is not stated; min-max reproduces Scene15."""
PAPER_SCALING = "minmax"


_TRIAL, _PRETRAINING, _JOINT = (11, 340, 1500, 170), (22, 680, 3000, 170), (30, 900, 3000, 200)
_STAGES = {
    "quick": ((6, 186, 822, 90), (6, 186, 822, 90), (8, 240, 800, 56)),
    "auto": (_TRIAL, _PRETRAINING, _JOINT),
    "thorough": (_TRIAL, _PRETRAINING, (60, 1800, 6000, 400)),
}
"""By effort, of the trial, pre-training and the joint stage: epochs, unless these are fewer or more than so many steps;
at most so many epochs."""
_TINY = 200  # samples under which the trial is most of the time of a fit
_SMALL, SEVERAL, _FEWER = 1_000, 12, 3
"""Under so many samples, of at most so many clusters, a narrower network takes so many times fewer steps, at a larger
rate: nearly as accurate, in less than half of the time on a CPU (results/speed). More clusters lose by it."""
_WIDTH, _WIDE, _SMALL_WIDTH = 256, 512, 128
_RATE, _SMALL_RATE, _SMALL_JOINT_FACTOR = 3e-4, 9e-4, 2.0
_JOINT_FACTORS = {"quick": 3.0, "auto": 3.0, "thorough": 2.0}
"""Over 21 sets three times the rate is as accurate as twice, and early stopping ends it sooner."""
_MANY_CLUSTERS = 50
"""From 15 to 27 clusters wider layers gained nothing over ten masks; with a hundred clusters three points."""


OF_ESTIMATOR = ("n_clusters", "effort")
"""Fields that are parameters of the estimator, which sets them."""
OLD_NAMES = frozenset({one.name for one in fields(Config)}.difference(OF_ESTIMATOR) | {"ablation"})
"""Parameters that `URRL` itself had in version 0.2; saved models of that time have them."""


def with_old_names(config: Config | None, old: Mapping[str, Any], *, warned: bool = True) -> Config | None:
    """A configuration with parameters that version 0.2 gave to `URRL` itself.

    Warns where the caller of our caller spelled them so, unless a saved model did.
    """
    if not old:
        return config
    flat, ablation = {name: value for name, value in old.items() if name != "ablation"}, old.get("ablation") or {}
    if not isinstance(ablation, Mapping):
        raise wrong("ablation", "a dict of fields of Config", ablation)
    found = replace(config or Config(), **flat, **ablation)
    if warned:
        new = f"{', '.join(old)} moved into Config; write URRL(config={found!r})"
        warnings.warn(f"{new}: the old spelling works in this version only", FutureWarning, stacklevel=3)
    return found


def opened_params(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator from those of a saved model, which version 0.2 saved by its own names."""
    own = {name: value for name, value in saved.items() if name not in OLD_NAMES}
    config = None if own.get("config") is None else Config(**own["config"])
    old = {name: saved[name] for name in OLD_NAMES.intersection(saved)}
    return {**own, "config": with_old_names(config, old, warned=False)}


def takes_old_names(cls: type[T]) -> type[T]:
    """A class whose ``__init__`` takes parameters of version 0.2 as well, in this version only; not its signature."""
    init: Any = cls.__init__

    @wraps(init)
    def taken(self: Any, *args: Any, config: Config | None = None, **params: Any) -> None:
        old = {name: params.pop(name) for name in list(params) if name in OLD_NAMES}
        init(self, *args, config=with_old_names(config, old), **params)

    cls.__init__ = taken  # type: ignore[method-assign]
    return cls


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _is_number(value: Any, below: float = inf) -> bool:
    """Whether it is a number from 0 to below another."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and 0 <= value < below
