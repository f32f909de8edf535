"""Methods side by side on several data sets: one comparison each, then ranks and tests over the sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from numpy.typing import NDArray

from viewfuse.comparison.arguments import estimators_by_name
from viewfuse.comparison.ranks import PairedTest, Ranks, draw_critical_difference, mean_scores, paired_tests, ranks_of
from viewfuse.comparison.results import NAMES, Cells, Comparison, latex, markdown_table
from viewfuse.comparison.run import compare
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.formulas import as_csv
from viewfuse.plots.pictures import why_not_drawn
from viewfuse.plots.style import ON_SCREEN, PictureStyle
from viewfuse.utils.atomic import write_file
from viewfuse.utils.settings import wrong

_LEAST = 6
"""Data sets from which on Wilcoxon's test can reach 5 % at all."""


class LabelledSet(NamedTuple):
    """A data set with the class of each sample, None where it is not known."""

    views: Views
    labels: Sequence[Any]

    @property
    def n_classes(self) -> int:
        """How many classes are known."""
        return len({str(one) for one in self.labels if one is not None})


@dataclass(frozen=True)
class SetsComparison:
    """Comparisons by the name of their data set, and one's own method."""

    sets: Mapping[str, Comparison]
    own: str
    metric: str = "acc"
    ranks: Ranks = field(init=False)
    tests: list[PairedTest] = field(init=False)

    def __post_init__(self) -> None:
        names, scores = mean_scores(self.sets, self.metric)
        object.__setattr__(self, "ranks", ranks_of(names, scores))
        object.__setattr__(self, "tests", paired_tests(names, scores, self.own))

    def cells(self) -> Cells:
        """A line per missing rate and method, a column per data set: mean and deviation over masks; best rank first."""
        ranks = {name: f"{rank:.2f}" for name, rank in zip(self.ranks.names, self.ranks.mean_ranks, strict=True)}
        ranks |= dict.fromkeys(self.ranks.left_out, "-")
        rates = dict.fromkeys(run.missing_rate for one in self.sets.values() for run in one.runs)
        lines = [
            [f"{rate:g}", name, *(_cell(one, name, rate, self.metric) for one in self.sets.values()), rank]
            for rate in rates
            for name, rank in ranks.items()
        ]
        return ["missing rate", "method", *self.sets, "mean rank"], lines

    def test_cells(self) -> Cells:
        """A line per other method: differences to the own one, effect and p-values."""
        header = [f"{self.own} against", "difference", "wins", "ties", "losses", "effect", "p", "p, Holm"]
        lines = [
            [one.method, f"{one.difference:+.1f}", str(one.wins), str(one.ties), str(one.losses), f"{one.effect:+.2f}",
             f"{one.p_value:.3g}", f"{one.corrected:.3g}"]
            for one in self.tests
        ]  # fmt: skip
        return header, lines

    def note(self) -> str:
        """What the tables say, and what they do not."""
        few = f"; with {self.ranks.count} data sets its p-value cannot be below 0.05" * (self.ranks.count < _LEAST)
        spread = " ± standard deviation" * any("±" in cell for line in self.cells()[1] for cell in line)
        return (
            f"{NAMES[self.metric].capitalize()} in percent, mean{spread} over masks. Ranks, differences "
            "and tests are over data sets, each with its mean over masks and missing rates, as masks of one set share "
            f"its samples: Wilcoxon's signed-rank test, exact, corrected by Holm{few}; effect is the rank-biserial "
            f"correlation. Friedman's test that all methods are alike: p = {self.ranks.p_value:.2g}; mean ranks that "
            f"differ by less than {self.ranks.critical_difference:.2f} may do so by chance (Nemenyi, 5 %)."
        )

    def latex(self) -> str:
        """Both tables."""
        return latex({"Scores": self.cells(), "Tests": self.test_cells()}, self.note())


def _cell(found: Comparison, method: str, rate: float, metric: str) -> str:
    runs = [run for run in found.runs if (run.method, run.missing_rate) == (method, rate)]
    values = [found.scores(run)[metric] for run in runs if not run.failed]
    if len(values) < len(runs) or not values:
        return "failed"
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{mean(values):.1f}"


def compare_sets(
    sets: Mapping[str, LabelledSet],
    methods: str | Sequence[str] | Mapping[str, Any] = "all",
    *,
    own: str | None = None,
    out: Path | None = None,
    n_clusters: int | None = None,
    style: PictureStyle = ON_SCREEN,
    log: Callable[[str], None] | None = None,
    **asked: Any,
) -> SetsComparison:
    """Compare methods on every data set, then rank and test them over the sets.

    Parameters
    ----------
    sets : by name
    own : the method that the others are tested against; the first one by default
    out : folder for the tables and a folder per set; what was done there is not repeated
    n_clusters : of all sets; by default the number of classes of each
    style : of the picture of ranks
    asked : other parameters of `viewfuse.compare`
    """
    if len(sets) < 2:
        raise DataError("one data set cannot rank methods; give two at least")
    tell = log or (lambda line: None)
    names = tuple(estimators_by_name(methods, lambda line: None))
    if own is not None and own not in names:
        raise wrong("own", f"one of the methods, {', '.join(names)}", own)
    done: dict[str, Comparison] = {}
    for name, one in sets.items():
        tell(f"data set {name}")
        folder = None if out is None else out / "sets" / name
        k = one.n_classes if n_clusters is None else n_clusters
        done[name] = compare(one.views, methods, n_clusters=k, labels=list(one.labels), out=folder, log=log, **asked)
    found = SetsComparison(done, own or names[0])
    if out is None:
        return found
    scores, tests = found.cells(), found.test_cells()
    gaps = [f"- {name}, missing rate {rate:g}: {gaps}" for name, one in done.items() for rate, gaps in one.gaps.items()]
    text = [markdown_table(*scores), markdown_table(*tests), found.note(), "\n".join(gaps), ""]
    write_file(out / "table.md", "\n\n".join(text).encode())
    write_file(out / "table.tex", found.latex().encode())
    write_file(out / "table.csv", as_csv([scores[0], *scores[1]]).encode())
    header = [one.name for one in fields(PairedTest)]
    write_file(out / "tests.csv", as_csv([header, *(astuple(one) for one in found.tests)]).encode())
    title = f"{NAMES[found.metric].capitalize()} on {found.ranks.count} data sets"
    why = why_not_drawn(draw_critical_difference, out / "ranks.png", found.ranks, title=title, style=style)
    if why is not None:
        tell(f"ranks.png is not there: {why}")
    return found


def as_classes(labels: NDArray[Any]) -> list[str | None]:
    """Labels of a file as text, None for NaN and for numbers below 0, which are not known."""
    return [None if isinstance(one, (int, float)) and not one >= 0 else str(one) for one in labels.tolist()]
