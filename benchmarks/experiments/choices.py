"""What is decided without labels beside the choices that one could fix instead, and the best of them, seen with labels.

The best of several means is a little too good, as chance helps to be the highest: a difference of zero from it is more
than can be asked for. The same difference is therefore also taken of every fixed choice, kept for all data sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.experiments.plans import OURS
from benchmarks.experiments.records import Record, Score, score
from benchmarks.experiments.synthetic import MAKERS

AUTO = "auto"
"""The condition that decides; the others of our method are the fixed choices."""
ELSEWHERE = "the best on all other sets"
"""The fixed choice with the best mean over all other sets, which needs their labels."""
SIMPLE = ("kmeans-knn", "nemo", "pimvc")
"""Methods that a default should not fall behind."""
COMPARED = {"acc": "accuracy", "macro": "macro accuracy", "ari": "ARI"}
"""Metrics with which choices are compared, and their names: samples, classes or pairs of samples count alike."""
_CLEARLY = 1.0
"""Points of accuracy by which a simple method must be better."""
_FAR_BELOW = 2.0
"""Points of accuracy by which the best fixed choice must be better."""
_SETTING = "default"
"""The paper's setting decides nothing."""
_FIRST_JUDGED = 5
"""Masks of the seeds before it were looked at while the rules were made."""


@dataclass(frozen=True)
class ChoiceComparison:
    """Scores by one metric, accuracy if not said otherwise, on one data set at one missing rate.

    Attributes
    ----------
    fixed : of every choice that could be fixed
    simple : of the simple methods that were run
    scalings : how many runs of `auto` kept each scaling, most first
    runs : of `auto`
    first : the first of them
    """

    dataset: str
    missing_rate: float
    auto: Score
    fixed: Mapping[str, Score]
    simple: Mapping[str, Score]
    scalings: Mapping[str, int]
    runs: int
    first: Record

    @property
    def best(self) -> str:
        """The fixed choice with the highest mean, which needs labels."""
        return max(self.fixed, key=lambda choice: self.fixed[choice].value)

    @property
    def best_simple(self) -> str | None:
        """The simple method with the highest mean; None where none was run."""
        return max(self.simple, key=lambda method: self.simple[method].value, default=None)

    def of(self, choice: str) -> Score | None:
        """The accuracy of `AUTO` or of a fixed choice; None where it was not run."""
        return self.auto if choice == AUTO else self.fixed.get(choice)

    def difference(self, choice: str = AUTO) -> float:
        """Accuracy of a choice that was run less that of the best one."""
        found = self.of(choice)
        assert found is not None
        return found.value - self.fixed[self.best].value

    def below_simple(self, choice: str = AUTO) -> bool:
        """Whether a choice is clearly worse than the best simple method."""
        found, best = self.of(choice), self.best_simple
        return found is not None and best is not None and found.value < self.simple[best].value - _CLEARLY


def comparisons(records: Sequence[Record], metric: str = "acc") -> list[ChoiceComparison]:
    """One per data set and missing rate of a plan; none where nothing was decided, or nothing stands beside it.

    Parameters
    ----------
    metric : one of `COMPARED`; runs that did not write it down are left out
    """
    places: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        if getattr(record, metric) is not None:
            places.setdefault((record.dataset, record.missing_rate), []).append(record)
    found = []
    for (dataset, rate), here in places.items():
        ours = _by_condition([one for one in here if (one.method, one.setting) == (OURS, _SETTING)])
        deciding, simple = ours.pop(AUTO, []), {name: [one for one in here if one.method == name] for name in SIMPLE}
        if deciding and ours:
            kept = Counter(one.chosen_scaling for one in deciding if one.chosen_scaling)
            fixed = {condition: _known(own, metric) for condition, own in ours.items()}
            beside = {name: _known(own, metric) for name, own in simple.items() if own}
            found.append(
                ChoiceComparison(
                    dataset,
                    rate,
                    _known(deciding, metric),
                    fixed,
                    beside,
                    dict(kept.most_common()),
                    len(deciding),
                    deciding[0],
                )
            )
    return found


def _known(records: Sequence[Record], metric: str) -> Score:
    """By a metric that all of these runs have."""
    found = score(records, metric)
    assert found is not None
    return found


def _by_condition(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.condition, []).append(record)
    return found


@dataclass(frozen=True)
class Summary:
    """How far one choice is behind the best one, over several data sets and missing rates.

    Attributes
    ----------
    part : which of the comparisons
    levels : by metric, of those of `COMPARED` that all runs have, the mean score
    mean : of the differences
    worst, where : the lowest difference, and its comparison
    far_below : how many comparisons have a difference of more than two points
    below : comparisons in which the choice is clearly worse than the best simple method
    with_simple : how many comparisons have one
    """

    part: str
    choice: str
    count: int
    levels: Mapping[str, float]
    mean: float
    worst: float
    where: ChoiceComparison
    far_below: int
    below: Sequence[ChoiceComparison]
    with_simple: int


def _is_made_unequal(one: Record) -> bool:
    return one.dataset in CATALOGUE and CATALOGUE[one.dataset].is_made_unequal


_PARTS: dict[str, Callable[[Record], bool]] = {
    "all": lambda one: True,
    "made unequal": _is_made_unequal,
    "all others": lambda one: not _is_made_unequal(one),
    "others, real data": lambda one: not _is_made_unequal(one) and one.dataset not in MAKERS,
    "others, synthetic data": lambda one: not _is_made_unequal(one) and one.dataset in MAKERS,
    f"seeds from {_FIRST_JUDGED} on": lambda one: one.seed >= _FIRST_JUDGED,
}


def summaries(records: Sequence[Record]) -> Iterator[Summary]:
    """Of every choice, over all comparisons and parts of them."""
    for part, belongs in _PARTS.items():
        metrics = {metric: comparisons([one for one in records if belongs(one)], metric) for metric in COMPARED}
        compared = metrics["acc"]
        for choice in dict.fromkeys([AUTO, *(choice for one in compared for choice in one.fixed)]):
            own = [(one, choice) for one in compared if one.of(choice) is not None]
            if own:
                yield _summary(part, choice, own, metrics)
        elsewhere = [(one, choice) for one in compared if (choice := _best_elsewhere(one, compared)) in one.fixed]
        if elsewhere:
            yield _summary(part, ELSEWHERE, elsewhere, metrics)


def _best_elsewhere(here: ChoiceComparison, compared: Sequence[ChoiceComparison]) -> str:
    """The fixed choice with the highest mean over all other data sets; empty where there are none."""
    others = [one.fixed for one in compared if one.dataset != here.dataset]
    known = [choice for choice in here.fixed if others and all(choice in fixed for fixed in others)]
    return max(known, key=lambda choice: sum(fixed[choice].value for fixed in others), default="")


def _summary(
    part: str,
    name: str,
    own: Sequence[tuple[ChoiceComparison, str]],
    metrics: Mapping[str, Sequence[ChoiceComparison]],
) -> Summary:
    differences = [one.difference(choice) for one, choice in own]
    worst = min(differences)
    below = [one for one, choice in own if one.below_simple(choice)]
    with_simple = sum(one.best_simple is not None for one, _ in own)
    where = own[differences.index(worst)][0]
    far_below = sum(one < -_FAR_BELOW for one in differences)
    levels = {metric: level for metric, each in metrics.items() if (level := _level(own, each)) is not None}
    return Summary(
        part, name, len(own), levels, sum(differences) / len(own), worst, where, far_below, below, with_simple
    )


def _level(own: Sequence[tuple[ChoiceComparison, str]], each: Sequence[ChoiceComparison]) -> float | None:
    """The mean of the scores of `each` in the comparisons and choices of `own`; None where one is not there."""
    places = {(one.dataset, one.missing_rate): one for one in each}
    pairs = [(places.get((one.dataset, one.missing_rate)), choice) for one, choice in own]
    found = [score for place, choice in pairs if place is not None and (score := place.of(choice)) is not None]
    return sum(score.value for score in found) / len(found) if len(found) == len(own) else None
