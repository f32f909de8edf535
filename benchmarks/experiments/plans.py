"""Plans: which runs an experiment consists of. They are TOML files; those of the paper come with the package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from itertools import groupby, product
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.experiments.catalogue import CATALOGUE, DataSet
from viewfuse.data.scaling import KINDS
from viewfuse.errors import SettingError
from viewfuse.methods import ESTIMATORS, estimator_of
from viewfuse.methods.urrl.config import PAPER, PAPER_SCALING, Config
from viewfuse.missing import Gaps, describe, paper_mask
from viewfuse.reduction.reduce import HOW

NAMES = ("table2", "rates", "modules", "outputs", "neighbors", "view-dropout", "views", "embedding", "decisions")
SETTINGS = ("paper", "default")
OURS = "urrl"
METHODS = tuple(ESTIMATORS)
ALL = "all"
"""Stands for all methods."""
ON_THE_CPU = ("nemo", "pimvc", "kmeans-mean", "kmeans-knn")
"""Methods that run on the CPU, one clustering after another, and are the same on every device."""
DEFAULT_SCALING = DEFAULT_REDUCTION = "auto"
"""Those of `URRL`, which cannot be asked here: its module needs packages that a training does without."""


@dataclass(frozen=True)
class Condition:
    """One row of an ablation.

    Attributes
    ----------
    settings : what is different from the setting, by the names of `Config`, or of the parameters of another method
    scaling, reduction : instead of those of the setting
    on_request : whether it runs only where its method is asked for
    views : only so many views, the first ones
    trained : shares of the epochs of the two stages
    watched : whether a joint stage of automatic length may end early
    """

    name: str = ""
    method: str = OURS
    settings: Mapping[str, Any] = field(default_factory=dict)
    scaling: str | None = None
    reduction: str | None = None
    views: int | None = None
    trained: tuple[float, float] = (1.0, 1.0)
    watched: bool = True
    on_request: bool = False


@dataclass(frozen=True)
class Plan:
    """An experiment: every condition on every data set, at every missing rate, with every seed.

    Attributes
    ----------
    data : keys of the catalogue
    settings : names of settings, "paper" or "default", unless others are asked for
    keep_embedding : whether the runs keep their embeddings
    """

    name: str
    title: str
    data: tuple[str, ...]
    missing_rates: tuple[float, ...]
    seeds: int
    settings: tuple[str, ...]
    conditions: tuple[Condition, ...]
    keep_embedding: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One clustering of one masked data set.

    Attributes
    ----------
    setting : "paper" or "default"; empty for methods that have none
    settings : of the training; None for methods by others
    params : those of the estimator of a method by others; None for ours
    place : where it stands among the runs of its plan
    """

    plan: str
    dataset: str
    missing_rate: float
    missing_number: int
    n_views: int
    n_clusters: int
    seed: int
    method: str
    setting: str
    condition: str
    scaling: str
    reduction: str
    settings: Config | None
    keep_embedding: bool
    place: tuple[float, ...]
    params: Mapping[str, Any] | None = None

    @property
    def folder(self) -> str:
        """A name for its folder: what it is, in letters that every system takes."""
        parts = [self.dataset, self.method, self.setting, self.condition, f"m{self.missing_rate:g}", f"s{self.seed}"]
        return "--".join(_slug(part) for part in parts if part)

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {**asdict(self), "place": list(self.place)}


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+]+", "-", name)


def read_plan(name: str | Path) -> Plan:
    """A plan of the package by its name, or of the user by its file."""
    if isinstance(name, str) and name in NAMES:
        text, where = _package_file(f"{name}.toml"), name
    else:
        path = Path(name)
        if path.suffix != ".toml" or not path.is_file():
            raise SettingError(f"{name} is no plan; give one of {', '.join(NAMES)}, or a .toml file")
        text, where = path.read_text(encoding="utf-8"), path.stem
    try:
        return _plan(where, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, TypeError, KeyError, ValueError) as error:
        raise SettingError(f"plan {name}: {error}; the plans of the package show how one is written") from None


def _package_file(name: str) -> str:
    return files("benchmarks.experiments").joinpath("paper", name).read_text(encoding="utf-8")


def _plan(name: str, table: Mapping[str, Any]) -> Plan:
    conditions = tuple(
        Condition(**{**one, "trained": tuple(one.get("trained", (1.0, 1.0)))}) for one in table["conditions"]
    )
    lists = {key: tuple(table[key]) for key in ("data", "missing_rates", "settings")}
    plan = Plan(**{**table, **lists, "name": name, "conditions": conditions})
    check_known("data set", plan.data, tuple(CATALOGUE))
    check_known("setting", plan.settings, SETTINGS)
    check_known("method", [one.method for one in conditions], METHODS)
    names = [(one.method, _slug(one.name)) for one in conditions]
    if len(set(names)) < len(names):
        raise SettingError("two conditions have the same name, or nearly so; each needs a folder of its own")
    for one in conditions:
        _check_samples(one)
    return plan


def _check_samples(condition: Condition) -> None:
    if condition.settings:
        ours = condition.method == OURS
        known = [f.name for f in fields(Config)] if ours else estimator_of(condition.method)._get_param_names()
        check_known("setting of a condition", tuple(condition.settings), known)
    if condition.scaling is not None:
        check_known("scaling", [condition.scaling], ("auto", *KINDS))
    if condition.reduction is not None:
        check_known("reduction", [condition.reduction], HOW)
    if not isinstance(condition.watched, bool):
        raise SettingError(f"watched must be true or false; got {condition.watched!r}")


def check_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse names that are not among the known ones."""
    for name in given:
        if name not in known:
            raise SettingError(f"{what} {name!r} is unknown; choose from {', '.join(known)}")


@cache
def gaps_of(plan: str, dataset: str, rate: float, method: str, condition: str, n_views: int = 0) -> Gaps | None:
    """What the first mask of a condition leaves; None of sets and plans that are not known here.

    Parameters
    ----------
    n_views : how many views the method was given; 0 is what the plan of that name says
    """
    entry = CATALOGUE.get(dataset)
    if entry is None or entry.gaps:
        return None if entry is None else entry.gaps
    if not n_views and plan not in NAMES:
        return None
    if not n_views:
        own = (one.views for one in read_plan(plan).conditions if (one.method, one.name) == (method, condition))
        n_views = min(next(own, None) or len(entry.widths), len(entry.widths))
    return _gaps_of_mask(entry.n, n_views, rate, min(entry.missing_number, n_views - 1))


@cache
def _gaps_of_mask(n: int, n_views: int, rate: float, missing_number: int) -> Gaps:
    """What the first mask leaves; every method of a table has the same ones."""
    return describe(paper_mask(n, n_views, rate, missing_number, random_state=0))


class MaskSetting(NamedTuple):
    """How a training is done."""

    config: Config
    scaling: str
    reduction: str


def settings_for(setting: str, entry: DataSet, condition: Condition) -> MaskSetting:
    """Configuration, scaling and reduction of a training."""
    chosen: dict[str, Any] = {"n_clusters": entry.classes}
    scaling, reduction = DEFAULT_SCALING, DEFAULT_REDUCTION
    if setting == "paper":
        scaling, reduction = PAPER_SCALING, "none"
        chosen |= PAPER
        if entry.epochs is not None:
            chosen |= dict(zip(("pretrain_epochs", "joint_epochs"), entry.epochs, strict=True))
    settings = Config(**{**chosen, **condition.settings})
    watched = condition.watched and setting != "paper"  # the paper runs every joint stage to its end
    config = _with_epochs(settings, entry.n, condition.trained, watched)
    return MaskSetting(config, condition.scaling or scaling, condition.reduction or reduction)


def _params_of(entry: DataSet, condition: Condition) -> dict[str, Any]:
    """Those of a method by others: its defaults, but for what the condition says."""
    estimator = estimator_of(condition.method)
    ways = {"scaling": condition.scaling, "reduction": condition.reduction}
    said = {**condition.settings, **{name: how for name, how in ways.items() if how is not None}}
    known = estimator._get_param_names()
    params = estimator(entry.classes, **{name: x for name, x in said.items() if name in known}).get_params(deep=False)
    return {name: value for name, value in params.items() if name not in ("device", "random_state", "verbose")}


def _with_epochs(settings: Config, n: int, trained: tuple[float, float], watched: bool) -> Config:
    """Epochs as numbers; a fixed number also turns early stopping off."""
    is_watched = settings.watched and settings.clustering_module
    if trained == (1.0, 1.0) and (watched or not is_watched):
        return settings
    first, second = (ceil(share * epochs) for share, epochs in zip(trained, settings.epochs(n), strict=True))
    return replace(settings, pretrain_epochs=first, joint_epochs=second)


def expand(
    plan: Plan,
    entry: DataSet,
    *,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    methods: Sequence[str] = (),
    conditions: Sequence[str] = (),
    rates: Sequence[float] = (),
    masks: Sequence[int] = (),
) -> list[PlannedRun]:
    """The runs of a plan on one data set.

    Parameters
    ----------
    settings, seeds : instead of those of the plan
    methods : only these; `ALL` are all
    conditions : only these
    rates : instead of those of the plan; a set with real gaps has its own
    masks : seeds of the masks and trainings, instead of the first `seeds`
    """
    runs = []
    drawn = masks or range(plan.seeds if seeds is None else seeds)
    places = list(product(entry.rates(rates or plan.missing_rates), drawn))
    for number, condition in enumerate(plan.conditions):
        if condition.method not in methods and ALL not in methods and (methods or condition.on_request):
            continue
        if conditions and condition.name not in conditions:
            continue
        # Methods by others have one setting: they run once.
        for setting in (settings or plan.settings) if condition.method == OURS else ("",):
            runs += [_run(plan, entry, number, setting, rate, seed) for rate, seed in places]
    return runs


def _run(plan: Plan, entry: DataSet, number: int, setting: str, rate: float, seed: int) -> PlannedRun:
    condition = plan.conditions[number]
    n_views = min(condition.views or len(entry.widths), len(entry.widths))
    params = None if setting else _params_of(entry, condition)
    ways = (
        (None, str(params["scaling"]), str(params["reduction"])) if params else settings_for(setting, entry, condition)
    )
    chosen, scaling, reduction = ways
    order = (plan.data.index(entry.key), number, SETTINGS.index(setting) if setting else 0, rate, seed)
    return PlannedRun(
        plan.name, entry.key, rate, min(entry.missing_number, n_views - 1), n_views, entry.classes, seed,
        condition.method, setting, condition.name, scaling, reduction, chosen, plan.keep_embedding, order, params,
    )  # fmt: skip


def grouped(runs: Sequence[PlannedRun], at_once: int) -> list[list[PlannedRun]]:
    """Runs that are trained side by side: same samples, views, scaling and settings; masks and seeds may differ.

    Parameters
    ----------
    at_once : most runs of a group
    """
    groups = []
    for _, alike in groupby(runs, key=_training_of):
        members = list(alike)
        most = 1 if members[0].method in ON_THE_CPU else at_once
        count = ceil(len(members) / most)
        groups += [members[i * len(members) // count : (i + 1) * len(members) // count] for i in range(count)]
    return groups


def _training_of(run: PlannedRun) -> tuple[Any, ...]:
    return run.dataset, run.n_views, run.method, run.setting, run.scaling, run.reduction, run.settings, run.params
