"""The estimators of published methods: data handling, training of several seeds at once, placing of new samples.

A method is a class derived from `PublishedMethod`: its parameters, the network it builds, and how it is trained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import groupby
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import torch

from viewfuse.data.checks import check_samples
from viewfuse.data.filling import FILLS
from viewfuse.data.scaling import Scaler, fit_scaler, fit_whole_views
from viewfuse.data.views import Views
from viewfuse.engine.replicates import can_stack, generator_for_start, max_stacked, network_bytes, replicate_seeds
from viewfuse.engine.training import History, Progress, Stage, Training, TrainState, check_diverged
from viewfuse.errors import NotEnoughMemory, SettingError
from viewfuse.fitted.model import Source, scaled_tensors, warn_of_empty_clusters
from viewfuse.methods.fitted_estimator import MultiViewClusterer
from viewfuse.methods.network import ClusterNetwork, PlacingNetwork, embeddings
from viewfuse.neighbors.index import Samples, index_training_set
from viewfuse.nn.layers import start_weights, with_gradients
from viewfuse.reduction.reduce import check_reduction
from viewfuse.selection.decision_texts import records
from viewfuse.utils import memory
from viewfuse.utils.jobs import chosen_device
from viewfuse.utils.settings import check_choice, checked_count, wrong

SCALINGS = ("minmax", "range", "standard", "none")
T = TypeVar("T")
_LARGEST = 10**9
"""Of whole numbers; what is larger was meant for something else."""
_HUGE = 3e38
"""Of other numbers: float32 holds no more."""


class Trained(NamedTuple):
    """What a training on one set of samples gave."""

    source: Source
    scaler: Scaler
    samples: Samples
    network: ClusterNetwork
    history: History


@dataclass(eq=False, repr=False)
class PublishedMethod(MultiViewClusterer):
    """Parameters that all published methods have.

    Parameters
    ----------
    n_clusters : int, default 8
        Number of clusters.
    scaling : {"minmax", "range", "standard", "none"}
        How columns are scaled, measured on observed rows only: each to 0..1, a view as a whole to 0..1 (one least and
        one largest value for all of its columns), each to mean 0 and deviation 1, or not at all.
    fill : {"neighbors", "median", "error"}, default "neighbors"
        What stands in empty cells of rows that have other values, see :class:`viewfuse.URRL`.
    reduction : str or dict by view
        How wide and sparse views become narrow ones, see :class:`viewfuse.URRL`; "none" leaves them alone.
    device, random_state, verbose : see :class:`viewfuse.URRL`
    """

    n_clusters: int = 8
    _: KW_ONLY
    scaling: str = "minmax"
    fill: str = "neighbors"
    reduction: str | Mapping[str, str] = "none"
    device: str = "auto"
    random_state: Any = None
    verbose: bool = False

    name: ClassVar[str] = ""
    """Under which saved models and the command line know the method."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by the name of the data set."""
    former: ClassVar[tuple[str, ...]] = ()
    """Parameters of earlier versions, which saved models may still name; placing samples does not depend on them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.method_builders = {cls.name: cls._placing}

    @classmethod
    def _placing(cls, settings: Mapping[str, Any]) -> PlacingNetwork:
        """The method of a saved model."""
        return PlacingNetwork(cls(**{name: value for name, value in settings.items() if name not in cls.former}))

    @classmethod
    def preset(cls, name: str, n_clusters: int, **params: Any) -> Self:
        """The method with the settings that its authors published for a data set; `params` are what is to differ."""
        if name not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise SettingError(f"{cls.__name__} has no preset {name!r}; those of its authors are: {known}")
        return cls(n_clusters, **{**cls.presets[name], **params})

    # What a method defines.

    @abstractmethod
    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """The network for reduced views of these widths; its weights are drawn later."""

    def schedule(self, training: Training) -> Iterable[Stage]:
        """The stages of a training; a generator may compute something between them."""
        raise NotImplementedError(f"{type(self).__name__} has no schedule; define one, see docs/add-your-method.md")

    def start(self, network: ClusterNetwork, seed: int) -> None:
        """Draw the weights of a network of our layers; others are drawn when they are built."""
        start_weights(network, generator_for_start(seed))

    def stack_key(self, samples: Samples) -> tuple[int, ...]:
        """Sets of samples with the same key can be trained at once; what steps there are depends on it."""
        return ()

    # What is the same for all.

    def train(self, networks: Sequence[Any], sets: Sequence[Samples], seeds: Sequence[int]) -> list[History]:
        """Train networks at once, all but their centres; returns their histories."""
        training = Training([TrainState(*own) for own in zip(networks, sets, seeds, strict=True)])
        self.go_through(training, self.schedule(training))
        return [run.history for run in training.runs]

    def go_through(self, training: Training, schedule: Iterable[Stage]) -> None:
        """Train for the stages of a schedule; stops if a training diverges."""
        with Progress(shown=bool(self.verbose)) as progress:
            for stage in schedule:
                progress.expect(stage.epochs)
                progress.begin(stage.name)
                training.run(stage, progress)
                check_diverged(training.runs)

    def empty(self, widths: Sequence[int]) -> ClusterNetwork:
        """A network without memory for its weights, which draws nothing from the global generator."""
        with torch.device("meta"):
            network = self.network(widths)
        return network.to(torch.float32).eval()

    def settings(self) -> dict[str, Any]:
        """What decides a result, besides data and seed."""
        return {k: x for k, x in self.get_params(deep=False).items() if k not in ("device", "random_state", "verbose")}

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on the samples and cluster them.

        Parameters
        ----------
        X : list or dict of (samples, columns) arrays, data frames or AnnData, a MuData, Views, or one 2-D array
            A row that is all NaN is a missing view.
        y : ignored
        """
        plain = checked(self)
        views = self._checked_views(X, y)
        (trained,) = plain.train_many([views], replicate_seeds(self.random_state, 1))
        self._remember_columns(X, views)
        source, scaler, samples, network, history = trained
        method = PlacingNetwork(type(self)(**plain.settings()))
        stored = index_training_set(samples.values, samples.present, method.neighbor_depth)
        model, embedding = source.model(method, scaler, stored, network), embeddings(network, stored)
        self.cluster_names_ = {}
        self._take_over(model, embedding, history, list(history["total"][-1:]), records(*source.decisions))
        warn_of_empty_clusters(self.labels_, self.n_clusters_)
        return self

    @with_gradients
    def train_many(self, sets: Sequence[Views], seeds: Sequence[int]) -> list[Trained]:
        """One training per set of samples and seed, all with these settings; on a GPU they run side by side."""
        plain, device, prepared = checked(self), chosen_device(self.device), []
        for views in sets:
            source = prepared_source(plain, views)
            scaler = scaler_for(plain.scaling, source)
            values, present = scaled_tensors(source.reduced, scaler, device)
            none = torch.empty(len(views), len(values), 0, dtype=torch.int64, device=device)
            prepared.append((source, scaler, Samples(values, present, none)))
        samples, widths = [own for *_, own in prepared], [source.reduced.widths for source, *_ in prepared]
        networks = [plain._started(*own).to(device) for own in zip(widths, seeds, strict=True)]
        histories: dict[int, History] = {}
        keys = [(len(own), *wide, *plain.stack_key(own)) for own, wide in zip(samples, widths, strict=True)]
        most = max_stacked(networks[0], device)
        for _, members in groupby(sorted(range(len(sets)), key=keys.__getitem__), key=keys.__getitem__):
            alike = list(members)
            for start in range(0, len(alike), most):  # those that are trained side by side
                group = alike[start : start + most]
                parts: list[Any] = [[part[i] for i in group] for part in (networks, samples, seeds)]
                histories.update(zip(group, plain.train(*parts), strict=True))
        for own, network, seed in zip(samples, networks, seeds, strict=True):
            network.eval()
            network.find_centers(own, seed)
        return [Trained(*prepared[i], networks[i], histories[i]) for i in range(len(networks))]

    def _started(self, widths: Sequence[int], seed: int) -> ClusterNetwork:
        """A network with the weights that its seed gives; the global generator is neither read nor changed."""
        try:
            network = self.empty(widths)
        except RuntimeError as error:  # sizes whose product no integer holds
            raise NotEnoughMemory(f"a network of these widths is too large ({error}); choose smaller ones") from None
        what = f"the network of {type(self).__name__} with its gradients"
        memory.require(network_bytes(network), what, "choose narrower layers, or reduce wide views first")
        with torch.random.fork_rng([]):
            torch.manual_seed(generator_for_start(seed).initial_seed())
            network = self.network(widths).to(torch.float32)
        if can_stack(network):
            self.start(network, seed)
        return network

    def _plain_params(self) -> dict[str, Any]:
        return checked(self).get_params(deep=False)


def prepared_source(estimator: Any, views: Views) -> Source:
    """A set of samples with empty cells filled, and reduced, as the estimator's parameters say."""
    check_samples(views, estimator.n_clusters)
    return Source.of(views, estimator.fill, estimator.reduction)


def scaler_for(scaling: str, source: Source) -> Scaler:
    """What scales reduced views; see `PublishedMethod` for the names."""
    if scaling == "range":
        return fit_whole_views(source.reduced)
    return fit_scaler(source.reduced, scaling, source.reduction.units)


def checked(estimator: T) -> T:
    """The same estimator, not fitted, with numbers of Python: those of numpy overflow; refuses what cannot be."""
    given: Any = estimator
    check_choice("scaling", given.scaling, SCALINGS)
    check_choice("fill", given.fill, FILLS)
    check_reduction(given.reduction)
    params = given.get_params(deep=False)
    for one in fields(given):
        kind = one.type if isinstance(one.type, str) else one.type.__name__
        params[one.name] = _plain(one.name, params[one.name], kind, one.metadata)
    return type(estimator)(**params)


def _plain(name: str, value: Any, kind: str, bounds: Mapping[str, float]) -> Any:
    """A value of the kind that a parameter is annotated with, in Python's own types; refuses others.

    `bounds` are "least", by default 1 for integers and 0 for others, and "below".
    """
    if kind == "int":
        if checked_count(name, value, int(bounds.get("least", 1))) > _LARGEST:
            raise wrong(name, f"at most {_LARGEST:,}", value)
        return int(value)
    if kind == "Sequence[int]":
        is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_sequence or not all(isinstance(one, Integral) for one in value):
            raise wrong(name, "a sequence of integers", value)
        return tuple(_plain(name, one, "int", bounds) for one in value)
    if kind == "float":
        least, below = bounds.get("least", 0), bounds.get("below", _HUGE)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not least <= value < below:  # not as a float: 10**400 is none
            most = f" and below {below:g}" if "below" in bounds or (is_number and value > least) else ""
            raise wrong(name, f"a number of at least {least}{most}", value)
        return value if type(value) in (int, float) else float(value)
    if kind == "bool" and not isinstance(value, (bool, Integral, np.bool_)):
        raise wrong(name, "True or False", value)
    return value
