"""All that is known of samples before a fit, on its one way through it: classes, pairs and weights; also as tensors.

A weight says how much a sample or a view counts; one of 2 is like the sample there twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.precision import is_number, objects_as_numbers
from viewfuse.data.side_information.known_labels import UNKNOWN, Hints, as_objects, by_id, digest, key_of
from viewfuse.data.side_information.pairs import CANNOT, MUST, Pairs
from viewfuse.errors import DataError, SettingError, SuspiciousDataWarning
from viewfuse.utils.console import warn
from viewfuse.utils.settings import Setting


@dataclass(frozen=True)
class Knowledge:
    """What is known of samples; None for each thing of which nothing is.

    Attributes
    ----------
    hints : classes of some samples, shared by samples that belong together
    pairs : samples that belong together or apart
    weights : float64 array of shape (samples,), mean 1: how much each counts; None where all count the same
    views : the same of views
    """

    hints: Hints | None = None
    pairs: Pairs | None = None
    weights: NDArray[np.float64] | None = None
    views: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls, ids: NDArray[Any], y: Any = None, must_link: Any = None, cannot_link: Any = None,
        sample_weight: Any = None, view_weights: Any = None, names: Sequence[str] = (),
    ) -> Knowledge:  # fmt: skip
        """Read what the user gave of the samples with these ids, and views of these names; refuse contradictions."""
        hints, pairs = Hints.of(y, ids), Pairs.of(must_link, cannot_link, ids)
        if hints is not None and pairs is not None:
            hints = pairs.spread(hints, ids)
        return cls(hints, pairs, sample_weights(sample_weight, ids), weights_of_views(view_weights, names))

    def take(self, rows: NDArray[np.int64], n: int) -> Knowledge:
        """What is known of some of `n` samples."""
        hints = (self.hints and self.hints.take(rows)) or None  # perhaps none of them is known
        weights = None if self.weights is None else self.weights[rows]
        return Knowledge(hints, self.pairs and self.pairs.take(rows, n), weights, self.views)

    def facts(self) -> dict[str, str]:
        """By name a checksum of each thing that is known."""
        found = {} if self.hints is None else {"hints": self.hints.digest()}
        if self.pairs is not None:
            found["pairs"] = digest(self.pairs.rows.tobytes(), self.pairs.together.tobytes())
        if self.weights is not None:
            found["sample_weight"] = digest(self.weights.tobytes())
        return found if self.views is None else {**found, "view_weights": repr(self.views)}

    def check(self, n_clusters: int) -> None:
        """Refuse weights of which too few are above 0."""
        if self.weights is not None and (count := int((self.weights > 0).sum())) < n_clusters:
            raise DataError(f"{count} samples have a weight above 0, too few for {n_clusters} clusters; weigh more")

    def check_numbers(self, like: object) -> None:
        """Refuse a former model beside hints: both would number the clusters."""
        if self.hints is not None and like is not None:
            raise SettingError(Setting("like"), " and hints both give clusters their numbers; leave one out")

    def number(self, n_clusters: int, n_samples: int, *, asked: bool) -> int:
        """The number of clusters, at least what hints and pairs need; warns where the user asked for fewer."""
        classes, apart = self._least(n_samples)
        least = max(classes, apart)
        if asked and n_clusters < least:
            why = f"the hints name {classes} classes" if classes >= apart else f"{apart} samples cannot be together"
            warn(SuspiciousDataWarning(f"{why}, so there are {least} clusters, not {n_clusters}"))
        return max(n_clusters, least)

    def range(self, within: tuple[int, int], n_samples: int) -> tuple[int, int]:
        """The range of numbers of clusters, which begins at what hints and pairs need, if not later."""
        least = max(self._least(n_samples))
        return within if least == 1 else (max(least, within[0]), max(least, within[1]))

    def _least(self, n_samples: int) -> tuple[int, int]:
        """Clusters that the known classes need, and those that the pairs need."""
        classes = 1 if self.hints is None else len(self.hints.classes)
        return classes, 1 if self.pairs is None else self.pairs.least_clusters(n_samples)

    @classmethod
    def from_records(cls, decisions: Mapping[str, Mapping[str, Any]], ids: NDArray[Any]) -> Knowledge:
        """What a fit knew, from its decisions, of its samples, some of which may be gone."""
        hints, pairs, weights = (decisions.get(name, {}).get("evidence") for name in ("hints", "pairs", "weights"))
        there = {str(one) for one in ids.tolist()}
        links = {name: [pair for pair in own if there.issuperset(pair)] for name, own in (pairs or {}).items()}
        weights = weights or {"samples": {}, "views": {}}
        return cls(
            None if hints is None else Hints.from_classes(hints, ids),
            Pairs.of(links.get(MUST), links.get(CANNOT), ids),
            sample_weights([weights["samples"].get(str(one), 1.0) for one in ids.tolist()], ids),
            weights_of_views(weights["views"], list(weights["views"])),
        )


NOTHING = Knowledge()
"""Of samples of which nothing is known."""


@dataclass(frozen=True)
class Guidance:
    """What is known (see `Knowledge`, `Hints`, `Pairs`) as tensors, which guide a training; None where nothing is.

    Classes of samples are known, -1 where none is; where `doubted`, a boolean tensor, they are not `followed`.
    Of `pairs`, of shape (pairs, 2), `together` says which belong together; the others are apart.
    """

    classes: Tensor | None = None
    doubted: Tensor | None = None
    pairs: Tensor | None = None
    together: Tensor | None = None
    weights: Tensor | None = None
    views: tuple[float, ...] | None = None
    followed: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        classes, doubted = self.classes, self.doubted
        followed = classes if classes is None or doubted is None else classes.masked_fill(doubted, UNKNOWN)
        object.__setattr__(self, "followed", followed)

    @classmethod
    def of(cls, known: Knowledge, device: torch.device) -> Guidance:
        """What is known, as tensors."""
        hints, pairs, weights = known.hints, known.pairs, known.weights
        given = (hints and hints.codes, pairs and pairs.rows, pairs and pairs.together, weights)
        codes, rows, together, own = (None if one is None else torch.from_numpy(one).to(device) for one in given)
        return cls(codes, None, rows, together, None if own is None else own.float(), known.views)

    def kept(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a partition, of shape (samples,), agrees with each class that is followed, then with each pair."""
        found = [np.zeros(0, dtype=bool)]
        if self.followed is not None:
            known = self.followed.cpu().numpy()
            found.append((labels == known)[known != UNKNOWN])
        if self.pairs is not None and self.together is not None:
            one, other = self.pairs.cpu().numpy().T
            found.append((labels[one] == labels[other]) == self.together.cpu().numpy())
        return np.concatenate(found)


UNGUIDED = Guidance()
"""Where nothing is known."""


def sample_weights(given: Any, ids: NDArray[Any]) -> NDArray[np.float64] | None:
    """Weights of mean 1, of shape (samples,); None where none are given, or all are the same.

    They are in order, or by id in a mapping, or in a pandas Series beside samples with ids.
    """
    if given is None:
        return None
    if (listed := by_id(given, ids, "sample_weight")) is None:
        cells = as_objects(given)
    else:
        cells = np.array(list(map(listed.get, map(key_of(ids), ids.tolist()))), dtype=object)
    if cells.shape != (len(ids),):
        raise DataError(f"sample_weight is of shape {cells.shape} for {len(ids):,} samples; give one number each")
    numbers = objects_as_numbers(cells[:, None])
    if numbers is None:
        raise DataError("sample_weight holds something that is no number; give one number per sample")
    found = numbers[:, 0]
    if len(bad := np.flatnonzero(~(np.isfinite(found) & (found >= 0)))):
        fault = f"the sample_weight of {str(ids[bad[0]])!r} is {found[bad[0]]:g}"
        raise DataError(f"{fault}; give numbers of at least 0, one for every sample")
    if not found.any():
        raise DataError("every sample_weight is zero, so there is nothing to learn from; give some a weight above 0")
    return _of_mean_one(found)


def _of_mean_one(weights: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Weights in the same proportions; None where all are the same."""
    if (weights == weights[:1]).all():
        return None
    if not 1e-200 < weights.max() < 1e200:  # the sum would be infinite or 0
        weights = weights / weights.max()
    return np.asarray(weights / weights.mean())


def weights_of_views(given: Any, names: Sequence[str]) -> tuple[float, ...] | None:
    """Weights of mean 1 in the order of the views; None where none are given, or all are the same.

    Views that the mapping does not name have the weight 1.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SettingError(Setting("view_weights"), f" is {given!r}; give a dict such as {{{names[0]!r}: 2}}")
    strange = [name for name in given if name not in names]
    if strange:
        raise SettingError(Setting("view_weights"), f" names {strange[0]!r}; the views are {', '.join(names)}")
    found = []
    for name in names:
        one = given.get(name, 1.0)
        weight = float(one) if is_number(one) else nan
        if not 0 < weight < inf:
            cure = "give a number above 0, or leave the view out"
            raise SettingError(Setting("view_weights"), f" of {name!r} is {given[name]!r}; {cure}")
        found.append(weight)
    weights = _of_mean_one(np.array(found))
    return None if weights is None else tuple(weights.tolist())
