"""Whether new samples are like those of training: view by view, and in what the model makes of them.

Training samples are each other's nearest neighbours, so a part of them is set aside, and these and the new samples are
compared by their distances to the rest; in reduced views the components were fitted without these, too, see
`viewfuse.fitted.novelty`. P-values are corrected by Holm's rule: at most one set of samples of the same
kind in twenty gives an alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom, hypergeom, ks_2samp, mannwhitneyu

from viewfuse.data.input_types import Values, stored
from viewfuse.data.tables import called
from viewfuse.data.views import Views
from viewfuse.errors import OutOfRangeWarning
from viewfuse.fitted.explanation import frame_of
from viewfuse.fitted.novelty import USUAL
from viewfuse.io.writers import NO_NAMES, Names, Sheet
from viewfuse.neighbors.index import Samples
from viewfuse.selection.rules import neighbor_distances
from viewfuse.utils.console import warn

if TYPE_CHECKING:
    import pandas as pd

    from viewfuse.fitted.model import Model

LEVEL = 0.05
"""Of all tests together."""
LEAST = 0.05
"""Effects, from 0 to 1, from which on a difference is worth a new fit; of many samples any difference is certain."""
_ASIDE = 2_000
"""Training samples that are set aside at most, and half of them where there are fewer: more tell hardly more."""
_FEW = 5
"""Samples with a view on either side, below which distances tell nothing."""
_FARTHEST = 0.1
"""Of all samples: a new kind of them that is as frequent, or rarer, is among these."""
_DRAWS = 9_999
"""Of permutations: the least p-value is 1e-4."""
_ENOUGH, _ROUNDING = 10, 1e-5
"""Samples all of whose values lie outside of those of training, by more than this share of the largest: by chance less
than once in a million columns."""
_HALF, _NEARLY, _LOOKED_AT = 0.5, 0.05, 1_000
"""Share of whole numbers among logarithms of counts at most (log2 of 0, 1, 3 and 7, one added, is whole), and of
fractions among counts; samples that are enough to see it."""
_NO_FRACTIONS = 2.0**22
"""From here on float32 holds hardly any fractions: all numbers look whole."""


@dataclass(frozen=True)
class DriftTest:
    """One comparison of new samples with those of training.

    Attributes
    ----------
    name : "novelty" of a view, "out_of_range", "missing", "clusters" or "confidence"
    view, cluster : which it is about; empty where it is about all
    training, new : the number that says most, of either: the share of samples that are farther than usual from those
        of training, or out of range; that lack the view, or are in the cluster, which differs most; the mean confidence
    effect : from 0 to 1: how far the distributions are apart
    p_value, adjusted : of the test, and corrected for the number of tests
    sentence : what it says; empty where it is no alarm
    by : of a novelty test which of its two tests found the smaller p-value: "distances" or "farthest"
    """

    name: str
    view: str
    training: float
    new: float
    effect: float
    p_value: float
    cluster: str = ""
    adjusted: float = 1.0
    sentence: str = ""
    by: str = "distances"


@dataclass(frozen=True)
class Drift:
    """How new samples differ from those of training; true where there is an alarm."""

    n_samples: int
    tests: tuple[DriftTest, ...]

    def __bool__(self) -> bool:
        return bool(self.alarms)

    @property
    def alarms(self) -> tuple[str, ...]:
        """One sentence per difference that is certain, and large enough to matter."""
        return tuple(one.sentence for one in self.tests if one.sentence)

    def sheet(self) -> Sheet:
        """One row per test."""
        facts = ("name", "view", "training", "new", "effect", "p_value", "adjusted", "sentence")
        rows = [tuple(getattr(one, fact) for fact in facts) for one in self.tests]
        return Sheet(("test", *facts[1:-1], "alarm"), rows)

    def as_table(self) -> pd.DataFrame:
        """The same as a data frame."""
        return frame_of(self.sheet())


def in_short(novel: int, n_samples: int) -> str:
    """Whether samples that were placed are like those of training, by how many are novel; `drift` tests more."""
    expected = 1 - USUAL
    by_chance = float(binom.sf(novel - 1, n_samples, expected))
    if by_chance > LEVEL or novel < (expected + LEAST) * n_samples:
        return "no sign of it in the novelty of samples; viewfuse drift tests missing views and all else"
    found = f"{novel:,} of {n_samples:,} samples look like nothing in training, {expected:.0%} are expected to"
    return f"{found}; are units and kinds of values the same? See viewfuse drift and update"


def other_kinds(model: Model, views: Views) -> list[str]:
    """Views of another kind of numbers than in training, a sentence each: counts in one place, logarithms elsewhere."""
    found = []
    for v, front_end in enumerate(model.reduction.front_ends):
        rows, kind = np.flatnonzero(views.mask[:, v])[:_LOOKED_AT], front_end.kind
        share = None if np.any(views.offsets[v]) else _whole_share(views.arrays[v][rows])
        if share is None or len(rows) < _ENOUGH or kind.least == kind.largest:  # constant, or a model without kinds
            continue
        if min(share, kind.whole) <= _HALF and max(share, kind.whole) >= 1 - _NEARLY:
            kinds = ("whole numbers", "fractions") if share > kind.whole else ("fractions", "whole numbers")
            found.append("view {!r}: most values are {}, the model was fitted on {}".format(model.names[v], *kinds))
    return found


def warn_of_other_units(model: Model, views: Views, new: Samples) -> None:
    """Warn of views of another kind of numbers than in training, and of columns all of whose values lie elsewhere.

    `new` are the views as the network takes them.
    """
    if len(new) < _ENOUGH:
        return
    for fault in other_kinds(model, views):
        warn(OutOfRangeWarning(f"{fault}; are these counts in one place and logarithms in the other?"))
    for v, ((low, high), front_end) in enumerate(zip(model.bounds, model.reduction.front_ends, strict=True)):
        values = new.values[v][new.present[:, v]]
        if front_end.how != "none" or len(values) < _ENOUGH:
            continue
        slack = _ROUNDING * torch.maximum(low.abs(), high.abs())
        shifted = ((values < low - slack).all(dim=0) | (values > high + slack).all(dim=0)).nonzero()[:, 0].tolist()
        if shifted:
            more = f" and {len(shifted) - 1:,} more columns" if len(shifted) > 1 else ""
            column = f"view {model.names[v]!r}, column {called(model.columns[v], shifted[0])}{more}"
            side = "no value lies among those that the model was fitted on"
            warn(OutOfRangeWarning(f"{column}: {side}; are units and kind of the values the same?"))


def _whole_share(values: Values) -> float | None:
    """The share of whole numbers among the cells that are not zero; None where these hardly differ.

    Large ones are left out: float32 holds no fractions of them.
    """
    there = stored(values)[(stored(values) != 0) & (np.abs(stored(values)) < _NO_FRACTIONS)]
    return float((there == np.rint(there)).mean()) if len(np.unique(there)) > 2 else None


def drift(
    model: Model, training: NDArray[np.float32], new: Samples, chances: NDArray[np.float32], names: Names = NO_NAMES,
    *, thinned: bool = False,
) -> Drift:  # fmt: skip
    """Compare new samples with those of training, given chances of both, of shape (samples, clusters).

    Of a `thinned` model those with the most views are left, which say nothing of missing views and confidence.
    """
    before, now = (own.present.cpu().numpy() for own in (model.stored, new))
    found = [*_novelty(model, new), _out_of_range(model, new)]
    found += [] if thinned else [_missing(before, now, model.names)]
    if training.shape[1] > 1:
        found.append(_clusters(training.argmax(axis=1), chances.argmax(axis=1), training.shape[1], names))
        found += [] if thinned else [_confidence(training, chances)]
    return Drift(len(now), tuple(_judged(found)))


def _novelty(model: Model, new: Samples) -> list[DriftTest]:
    """Per view whether new samples lie farther from training samples than these from each other."""
    known = model.surroundings
    n, measured = len(model.stored), ~np.isnan(model.left_out.distances).all(axis=0)
    order = np.random.default_rng(0).permutation(n)
    aside, rest = np.sort(order[: min(n // 2, _ASIDE)]), np.sort(order[min(n // 2, _ASIDE) :])
    among, own = model.thinned(rest), model.stored.take(torch.from_numpy(aside).to(model.stored.present.device))
    before, now = (neighbor_distances(among.locate(list(one.values), one.present), among.stored) for one in (own, new))
    columns = [*zip(model.names, before.T, now.T, strict=True)]
    to_all = known.distances(new, model.known_rows(new))
    for v in np.flatnonzero(measured):
        columns[v] = model.names[v], known.known[known.measured, v], to_all[:, v]
    tests = [_farther(name, old[~np.isnan(old)], far[~np.isnan(far)]) for name, old, far in columns]
    return [one for one in tests if one is not None]


def _farther(view: str, before: NDArray[np.float64], now: NDArray[np.float64]) -> DriftTest | None:
    if min(len(before), len(now)) < _FEW:
        return None
    found = ks_2samp(now, before, alternative="less", method="asymp")
    usual, far = (float((one > np.quantile(before, USUAL)).mean()) for one in (before, now))
    # All samples may be a little farther, or a few of them much: two tests, the better of which counts.
    farthest = _among_farthest(before, now)
    p_value, by = min((float(found.pvalue), "distances"), (farthest, "farthest"))
    return DriftTest("novelty", view, usual, far, float(found.statistic), min(2 * p_value, 1.0), by=by)


def _among_farthest(before: NDArray[np.float64], now: NDArray[np.float64]) -> float:
    """The p-value of how many of the farthest tenth of all samples are new ones (Fisher's exact test)."""
    both = np.concatenate([before, now])
    far = both > np.quantile(both, 1 - _FARTHEST)
    return float(hypergeom.sf(far[len(before) :].sum() - 1, len(both), far.sum(), len(now)))


def _out_of_range(model: Model, new: Samples) -> DriftTest:
    """Whether values are far outside of those of training, of which none is."""
    far, n_before = model.is_far(new.values, new.present), len(model.stored)
    share, count = float(far.mean()), int(far.sum())
    # Fisher's exact test: all that are far are new ones.
    p_value = float(hypergeom.sf(count - 1, n_before + len(far), count, len(far)))
    return DriftTest("out_of_range", "", 0.0, share, share, p_value)


def _missing(before: NDArray[np.bool_], now: NDArray[np.bool_], views: Sequence[str]) -> DriftTest:
    """Whether other views are missing, or others together."""
    patterns, codes = np.unique(np.concatenate([before, now]), axis=0, return_inverse=True)
    effect, p_value = _permuted(codes.ravel()[: len(before)], codes.ravel()[len(before) :], len(patterns))
    lacking = [1 - own.mean(axis=0) for own in (before, now)]
    most = int(np.argmax(np.abs(lacking[1] - lacking[0])))
    return DriftTest("missing", views[most], float(lacking[0][most]), float(lacking[1][most]), effect, p_value)


def _clusters(before: NDArray[np.int64], now: NDArray[np.int64], n_clusters: int, names: Names) -> DriftTest:
    """Whether clusters have other shares of the samples."""
    effect, p_value = _permuted(before, now, n_clusters)
    old, new = (np.bincount(own, minlength=n_clusters) / len(own) for own in (before, now))
    most = int(np.argmax(np.abs(new - old)))
    shares, name = (float(old[most]), float(new[most])), names.get(most, str(most))
    return DriftTest("clusters", "", *shares, effect, p_value, name)


def _permuted(before: NDArray[np.int64], now: NDArray[np.int64], n_groups: int) -> tuple[float, float]:
    """How far the shares of groups are apart (total variation), and the p-value of the chi-squared test.

    New samples are drawn again from all samples together, so that rare groups do no harm.
    """
    old, new = (np.bincount(own, minlength=n_groups) for own in (before, now))
    both = old + new
    expected = np.maximum(both * len(now) / both.sum(), 1e-12)

    def squares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(((counts - expected) ** 2 / expected).sum(axis=-1))

    drawn = np.random.default_rng(0).multivariate_hypergeometric(both, len(now), size=_DRAWS, method="marginals")
    p_value = (1 + int((squares(drawn) >= squares(new) - 1e-9).sum())) / (1 + _DRAWS)
    return float(np.abs(old / len(before) - new / len(now)).sum() / 2), p_value


def _confidence(before: NDArray[np.float32], now: NDArray[np.float32]) -> DriftTest:
    """Whether the model is less sure of new samples."""
    old, new = (own.max(axis=1).astype(np.float64) for own in (before, now))
    p_value = float(mannwhitneyu(new, old, alternative="less", method="asymptotic").pvalue)
    means = float(old.mean()), float(new.mean())
    return DriftTest("confidence", "", *means, max(means[0] - means[1], 0.0), p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, so that a true one among them is found false in one of twenty cases at 0.05."""
    order = np.argsort(p_values, kind="stable")
    found = np.empty(len(order))
    found[order] = np.maximum.accumulate((len(order) - np.arange(len(order))) * np.array(p_values)[order])
    return np.minimum(found, 1.0).tolist()


def _judged(tests: Sequence[DriftTest]) -> list[DriftTest]:
    """The tests with p-values as Holm corrects them, and a sentence for each alarm."""
    found = []
    for one, adjusted in zip(tests, holm([one.p_value for one in tests]), strict=True):
        sentence = _sentence(one) if adjusted <= LEVEL and one.effect >= LEAST else ""
        found.append(replace(one, adjusted=adjusted, sentence=sentence))
    return found


def _sentence(one: DriftTest) -> str:
    """What an alarm says."""
    now, before = f"{one.new:.0%}", f"{one.training:.0%}"
    missing = f"view {one.view!r} is missing for {now} of the samples, and for {before} in training"
    if abs(one.new - one.training) < LEAST:
        missing = "other views are missing together than in training"
    novel = f"{now} of the samples look in view {one.view!r} like nothing in training ({before} are expected to; "
    if one.new - one.training < LEAST:
        farther = f"the samples lie farther from those of training in view {one.view!r} than these from each other"
        novel = f"{farther} (effect {one.effect:.2f}; "
    novel += {
        "distances": "Kolmogorov and Smirnov's test of all distances",
        "farthest": "Fisher's test of the farthest",
    }[one.by]
    cluster = f"cluster {one.cluster} has {now} of the samples, and {before} in training"
    if abs(one.new - one.training) < LEAST:
        cluster = f"several clusters have other shares of the samples than in training; {cluster}"
    far = f"{now} of the samples have values far outside of those of training"
    means = f"the mean confidence is {one.new:.2f}, and {one.training:.2f} in training"
    return {
        "novelty": f"{novel}); consider a new fit",
        "out_of_range": f"{far}; look for fill values and units",
        "missing": f"{missing}; check how the samples were collected",
        "clusters": cluster,
        "confidence": f"{means}; look at the samples with the lowest confidence",
    }[one.name]
