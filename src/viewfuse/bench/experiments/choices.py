"""What is decided without labels beside the choices that one could fix instead, and the best of them, seen with labels.

The best of several means is a little too good, as chance helps to be the highest: a difference of zero from it is more
than can be asked for. The same difference is therefore also taken of every fixed choice, kept for all data sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from viewfuse.bench.experiments.plans import OURS
from viewfuse.bench.experiments.records import Record, Score, scores
from viewfuse.bench.experiments.synthetic import MAKERS

AUTO = "auto"
"""The condition that decides; the others of our method are the fixed choices."""
BASELINE = "kmeans-knn"
_SETTING = "default"
"""The paper's setting decides nothing."""
_LOOKED_AT = {
    "handwritten": (0.5,),
    "scene15": (0.5,),
    "bdgp": (0.5,),
    "caltech7x200_reextracted": (0.5,),
    "landuse21": (0.5, 0.75),
    "citeseq_inhouse1182": (0.25, 0.5, 0.75),
    "tcga_brca150": (0.25, 0.5, 0.75),
}
"""Missing rates at which the numbers of the rule were chosen; others had been seen before the last of them."""


@dataclass(frozen=True)
class Comparison:
    """Accuracies on one data set at one missing rate.

    Attributes
    ----------
    fixed : of every choice that could be fixed
    baseline : None where it was not run
    scalings : how many runs of `auto` kept each scaling, most first
    runs : of `auto`
    """

    dataset: str
    missing_rate: float
    auto: Score
    fixed: Mapping[str, Score]
    baseline: Score | None
    scalings: Mapping[str, int]
    runs: int

    @property
    def best(self) -> str:
        """The fixed choice with the highest mean, which only somebody with labels can know."""
        return max(self.fixed, key=lambda choice: self.fixed[choice].value)

    @property
    def looked_at(self) -> bool:
        """Whether somebody looked at these accuracies, or some like them, while the rule was made."""
        return self.missing_rate in _LOOKED_AT.get(self.dataset, ())

    def of(self, choice: str) -> Score | None:
        """The accuracy of `AUTO` or of a fixed choice; None where it was not run."""
        return self.auto if choice == AUTO else self.fixed.get(choice)

    def difference(self, choice: str = AUTO) -> float:
        """Accuracy of a choice that was run less that of the best one."""
        found = self.of(choice)
        assert found is not None
        return found.value - self.fixed[self.best].value

    def below_baseline(self, choice: str = AUTO) -> bool:
        """Whether a choice does worse than the baseline."""
        found = self.of(choice)
        return found is not None and self.baseline is not None and found.value < self.baseline.value


def comparisons(records: Sequence[Record]) -> list[Comparison]:
    """One per data set and missing rate of a plan; none where nothing was decided, or nothing stands beside it."""
    found = []
    for dataset, rate in dict.fromkeys((record.dataset, record.missing_rate) for record in records):
        here = [record for record in records if (record.dataset, record.missing_rate) == (dataset, rate)]
        ours = _by_condition([one for one in here if (one.method, one.setting) == (OURS, _SETTING)])
        deciding, baseline = ours.pop(AUTO, []), [one for one in here if one.method == BASELINE]
        if deciding and ours:
            kept = Counter(one.chosen_scaling for one in deciding if one.chosen_scaling)
            fixed = {condition: _accuracy(own) for condition, own in ours.items()}
            found.append(
                Comparison(dataset, rate, _accuracy(deciding), fixed, _accuracy(baseline) if baseline else None,
                           dict(kept.most_common()), len(deciding))
            )  # fmt: skip
    return found


def _by_condition(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.condition, []).append(record)
    return found


def _accuracy(records: Sequence[Record]) -> Score:
    return scores(records)["acc"]


@dataclass(frozen=True)
class Summary:
    """How far one choice is behind the best one, over several data sets and missing rates.

    Attributes
    ----------
    part : which of the comparisons
    mean : of the differences
    worst : the comparison with the lowest difference
    below : comparisons in which the choice does worse than the baseline
    with_baseline : how many comparisons have one
    """

    part: str
    choice: str
    count: int
    mean: float
    worst: Comparison
    below: Sequence[Comparison]
    with_baseline: int


_PARTS: dict[str, Callable[[Comparison], bool]] = {
    "all": lambda one: True,
    "looked at": lambda one: one.looked_at,
    "other real data or rates": lambda one: not one.looked_at and one.dataset not in MAKERS,
    "synthetic data": lambda one: one.dataset in MAKERS,
}


def summaries(compared: Sequence[Comparison]) -> Iterator[Summary]:
    """Of every choice, over all comparisons and over those that were looked at or not."""
    choices = dict.fromkeys([AUTO, *(choice for one in compared for choice in one.fixed)])
    for part, belongs in _PARTS.items():
        for choice in choices:
            own = [one for one in compared if belongs(one) and one.of(choice) is not None]
            if own:
                yield _summary(part, choice, own)


def _summary(part: str, choice: str, own: Sequence[Comparison]) -> Summary:
    differences = [one.difference(choice) for one in own]
    worst = own[differences.index(min(differences))]
    below = [one for one in own if one.below_baseline(choice)]
    with_baseline = sum(one.baseline is not None for one in own)
    return Summary(part, choice, len(own), sum(differences) / len(own), worst, below, with_baseline)
