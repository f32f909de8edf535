"""What `viewfuse.compare` is asked for, checked, and kept on disk with one file per run, so that it can be resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from math import isnan
from numbers import Integral, Real
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from viewfuse.comparison.results import COSTS, HELD_OUT, LEAST_VIEWS, Run
from viewfuse.data.checks import check_samples
from viewfuse.data.side_information.known_labels import labels_of
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, DataError, SettingError
from viewfuse.io.writers import as_json
from viewfuse.methods import ESTIMATORS, estimator_of, method_names
from viewfuse.utils.atomic import sealed, unsealed, write_file
from viewfuse.utils.settings import Setting, checked_count, wrong

ALL = "all"
_MOST_SEEDS = 10_000
_NAME = re.compile(r"[\w+-][\w.+-]*")


@dataclass(frozen=True)
class ToCompare:
    """What is compared; see `viewfuse.compare`."""

    estimators: Mapping[str, Any]
    n_clusters: int
    rates: tuple[float, ...]
    missing_number: int
    seeds: int
    held_out: bool


def checked(
    views: Views,
    methods: Any,
    n_clusters: Any,
    rates: Any,
    missing_number: Any,
    seeds: Any,
    held_out: Any,
    log: Callable[[str], None],
) -> ToCompare:
    """What is asked for, each part checked."""
    n_clusters, count = checked_count("n_clusters", n_clusters), checked_count("seeds", seeds)
    n_views = len(views.names)
    if count > _MOST_SEEDS:
        raise wrong("seeds", f"at most {_MOST_SEEDS:,}", seeds)
    check_samples(views, n_clusters)
    if isinstance(rates, (str, Real)) or not isinstance(rates, Iterable):
        raise wrong("rates", "a list of numbers from 0 to 1, such as [0.5]", rates)
    shares = list(rates)
    for rate in shares:
        if not isinstance(rate, Real) or not 0 <= float(rate) <= 1:
            raise wrong("rates", "numbers from 0 to 1", rate)
    if not shares:
        raise SettingError(Setting("rates"), " has no number; give at least one, such as 0.5")
    if n_views == 1 and any(shares):
        fault = "there is one view, of which nothing can be hidden; leave out "
        raise SettingError(fault, Setting("rates"), ", or give more views")
    if missing_number is None:
        missing_number = min(n_views - 1, max(1, round(2 * n_views / 3)))
    elif not isinstance(missing_number, Integral) or not 0 <= int(missing_number) < n_views:
        raise wrong("missing_number", f"from 0 to {n_views - 1}", missing_number)
    if not isinstance(held_out, (bool, np.bool_)):
        raise wrong("held_out", "True or False", held_out)
    if held_out and n_views < LEAST_VIEWS:
        fault = f" needs at least {LEAST_VIEWS} views, to have two left to fuse; got {n_views}; leave it off"
        raise SettingError(Setting("held_out"), fault)
    once, estimators = tuple(dict.fromkeys(map(float, shares))), estimators_by_name(methods, log)
    return ToCompare(estimators, n_clusters, once, int(missing_number), count, bool(held_out))


def estimators_by_name(methods: Any, log: Callable[[str], None]) -> dict[str, Any]:
    """Estimators by name, in the order that was asked for; of "all" those are left out that cannot be made."""
    found: dict[str, Any] = {}
    if isinstance(methods, Mapping):
        for name, one in methods.items():
            if isinstance(one, type) or not hasattr(one, "fit") or not hasattr(one, "get_params"):
                raise SettingError(f"methods: {name!r} must be an estimator, such as URRL(); got {one!r}")
            found[_folder_name(name)] = one
    elif isinstance(methods, (str, Iterable)):
        asked, known = [methods] if isinstance(methods, str) else list(methods), method_names()
        for name in asked:
            if not isinstance(name, str) or name not in (ALL, *known):
                near = " or ".join(get_close_matches(str(name).lower(), known))
                meant = f"did you mean {near}? else " if near else ""
                raise SettingError(f"method {name!r} is unknown; {meant}choose from {', '.join((ALL, *known))}")
        for name in known if ALL in asked else dict.fromkeys(asked):
            try:
                found[name] = _estimator(name)
            except SettingError as error:
                if name in asked:
                    raise
                log(f"{name} is left out: {error}")
    else:
        raise wrong("methods", "'all', names of methods, or estimators by name", methods)
    if not found:
        raise SettingError(Setting("methods"), " names no method; give at least one")
    return found


def _folder_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingError(f"methods: {name!r} cannot name a folder; use letters, digits, '.', '+' and '-'")
    return name


def _estimator(name: str) -> Any:
    """An estimator by name; that of another package is made and cloned once, to see whether it can be."""
    kind = estimator_of(_folder_name(name))
    if name in ESTIMATORS:
        return kind()
    try:
        return clone(kind())
    except Exception as error:  # third-party code
        raise SettingError(
            f"method {name!r} of another package cannot be made without arguments ({describe(error)}); "
            "make it yourself, and give it by a name: {'mine': estimator}"
        ) from None


def describe(error: BaseException) -> str:
    """An error of third-party code as text that can be written anywhere."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # it cannot even say what it is
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()


def checked_folder(out: Any) -> Path | None:
    """Where results go."""
    if out is None:
        return None
    try:
        folder = Path(fspath(out))
        with suppress(FileNotFoundError):
            folder.stat()  # names that are too long, or that nothing can have, are found out here
    except (TypeError, ValueError, OSError) as error:
        raise CannotWrite(f"out {str(out)[:80]!r} cannot be a folder ({describe(error)}); give another one") from None
    return folder


def known_classes(labels: Any, ids: NDArray[Any]) -> NDArray[np.object_] | None:
    """Per sample its class as text, or None."""
    if labels is None:
        return None
    known = np.array([name or None for name in labels_of(labels, ids, "labels")], dtype=object)
    if not any(known):
        raise DataError("labels are all unknown; leave them out")
    return known


_PLAN = "plan.json"
_OURS = {"data", "clusters", "missing_number", "device", "version"}
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError)


def _known_plan(folder: Path) -> dict[str, Any]:
    try:
        return unsealed((folder / _PLAN).read_bytes())
    except _BROKEN:
        return {}


def holds_comparison(folder: Path) -> bool:
    """Whether a folder was written by a comparison, of one data set or of several, also by one that was stopped."""
    return any(_known_plan(one).keys() >= _OURS for one in (folder, *sorted((folder / "sets").glob("*"))))


def take_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Keep what is compared in the folder, by name; refuse one of another comparison, and one of something else.

    Methods that come in addition are kept as well.
    """
    own: dict[str, Any] = json.loads(as_json(plan))
    known = _known_plan(folder)
    if not known.keys() >= _OURS and any(folder.iterdir()):
        raise CannotWrite(f"{folder} holds something else than a comparison; give a new folder, or an empty one")
    differs = [name for name in own if name in known and known[name] != own[name]]
    if differs:
        listed = ", ".join(f"{name} was {known[name]}, is {own[name]}" for name in differs[:3])
        raise CannotWrite(f"{folder} holds another comparison ({listed}); give another folder for this one")
    if known | own != known:
        write_file(folder / _PLAN, sealed(known | own))


@dataclass(frozen=True)
class RunFile:
    """Where a run of so many samples is kept; a file with another `mark` is of something else, and counts as none."""

    folder: Path
    method: str
    missing_rate: float
    seed: int
    mark: str
    n_samples: int

    @property
    def path(self) -> Path:
        """One file for each method, missing rate and seed."""
        short = f"{self.missing_rate:g}"
        rate = short if float(short) == self.missing_rate else repr(self.missing_rate)
        return self.folder / "runs" / self.method / f"rate-{rate}-seed-{self.seed}.json"

    def write(self, run: Run) -> None:
        """Keep a run."""
        numbers = {name: None if isnan(value := getattr(run, name)) else value for name in (HELD_OUT, *COSTS)}
        labels = None if run.labels is None else run.labels.tolist()
        write_file(self.path, sealed({**asdict(run), **numbers, "labels": labels, "mark": self.mark}))

    def read(self) -> Run | None:
        """The run that was kept; None where there is none, or a bit of it has changed."""
        try:
            facts = unsealed(self.path.read_bytes())
            if facts["mark"] != self.mark or facts["failed"]:
                return None
            numbers: dict[str, Any] = {
                name: np.nan if facts[name] is None else float(facts[name]) for name in (HELD_OUT, *COSTS)
            }
            labels = np.array(facts["labels"])
            is_whole = labels.shape == (self.n_samples,) and labels.dtype.kind == "i"
            if not is_whole or not 0 <= labels.min() <= labels.max() < 2**31:
                return None
            return Run(self.method, self.missing_rate, self.seed, labels.astype(np.int64), **numbers)
        except _BROKEN:
            return None
