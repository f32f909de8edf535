"""Train once, predict under any mask: held-out samples are placed under every pattern of missing views.

`python -m benchmarks patterns` runs it; `python -m benchmarks.patterns` does without the packages of the command line.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.catalogue import Loaded, load_each, title_of
from benchmarks.experiments.plans import check_known
from benchmarks.experiments.records import Score, write_rows
from benchmarks.experiments.scoring import matched
from benchmarks.experiments.tables import ResultTable, as_markdown
from viewfuse import URRL
from viewfuse.data.views import Views
from viewfuse.errors import DataError, ViewfuseError
from viewfuse.methods import KNNKMeans
from viewfuse.missing import apply_mask, describe, paper_mask
from viewfuse.utils.atomic import write_file

DATA = ("handwritten", "tcga_brca150", "caltech7x200_reextracted", "citeseq_inhouse1182", "bdgp", "landuse21")
"""Sets of at most six views, whose patterns can all be tried."""
TRAINED_ON = {"complete": 0.0, "half": 0.5}
"""Share of the training samples that lack views."""
_TRAINED = {"complete": "trained on complete samples", "half": "half of the training samples incomplete"}
_DASHES: dict[str, Any] = {"complete": "-", "half": "--"}
_HELD_OUT = 0.2
SEEDS = 3
OURS, KMEANS, CLASSIFIER = "URRL", "k-means, KNN filled", "classifier with labels, KNN filled"
Predict = Callable[[Views], NDArray[Any]]


@dataclass(frozen=True)
class Placed:
    """How well held-out samples that all have the same views were placed.

    Attributes
    ----------
    trained_on : a key of `TRAINED_ON`
    gaps : of the training samples, in words
    seed : of the split, the mask and the training
    pattern : per view 1 where samples have it, 0 where it is missing
    acc : in percent; clusters have the classes that training samples give them
    """

    dataset: str
    trained_on: str
    gaps: str
    seed: int
    method: str
    pattern: str
    acc: float

    @property
    def n_views(self) -> int:
        """How many views the samples have."""
        return self.pattern.count("1")


def bench_patterns(
    data_dir: Path,
    *,
    device: str = "auto",
    seeds: int | None = None,
    data: Sequence[str] = (),
    log: Callable[[str], None] = print,
    **settings: Any,
) -> list[Placed]:
    """Fit on four fifths of each set, complete and half complete, and place the others under every pattern.

    Parameters
    ----------
    seeds : splits, masks and trainings of each set
    data : only these of `DATA`
    settings : parameters of `URRL` that differ from its defaults
    """
    check_known("data set", data, DATA)
    found: list[Placed] = []
    for key, loaded in load_each(data_dir, data or DATA, log):
        for trained_on, seed in product(TRAINED_ON, range(seeds or SEEDS)):
            log(f"{title_of(key)}, {trained_on}, seed {seed}")
            ours = URRL(loaded.entry.classes, random_state=seed, device=device, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # those of fitting; what is placed is scored
                found += placed(loaded, trained_on, seed, ours)
    if not found:
        raise DataError(f"{data_dir} holds none of {', '.join(data or DATA)}")
    return found


def placed(loaded: Loaded, trained_on: str, seed: int, ours: URRL) -> Iterator[Placed]:
    """All methods on one split under every pattern."""
    entry, n_views = loaded.entry, len(loaded.entry.widths)
    order = np.random.default_rng(seed).permutation(entry.n)
    new, old = order[: round(_HELD_OUT * entry.n)], order[round(_HELD_OUT * entry.n) :]
    mask = paper_mask(len(old), n_views, TRAINED_ON[trained_on], entry.missing_number, random_state=seed)
    classes = np.unique(loaded.labels, return_inverse=True)[1]
    training = Views(apply_mask([view[old] for view in loaded.views], mask))
    for method, predict in predictors(training, classes[old], ours, seed).items():
        for pattern in patterns(n_views):
            shown = apply_mask([view[new] for view in loaded.views], np.tile(pattern, (len(new), 1)))
            right = predict(Views(shown, allow_disjoint=True)) == classes[new]
            name = "".join(str(int(there)) for there in pattern)
            yield Placed(entry.key, trained_on, str(describe(mask)), seed, method, name, round(100 * right.mean(), 4))


def patterns(n_views: int) -> list[NDArray[np.bool_]]:
    """Every set of views but the empty one, each of shape (views,)."""
    return [np.array(one) for one in product((True, False), repeat=n_views) if any(one)]


def predictors(training: Views, classes: NDArray[np.int64], ours: URRL, seed: int) -> Mapping[str, Predict]:
    """What gives the class of new samples; only the classifier learns from the classes.

    Clusters get the classes of their training samples after the fit, one each.
    """
    from sklearn.linear_model import LogisticRegression

    nearest = KNNKMeans(ours.n_clusters, random_state=seed, device="cpu")
    found: dict[str, Predict] = {}
    for name, model in {OURS: ours, KMEANS: nearest}.items():
        model.fit(training)
        found[name] = partial(_class_of, model, matched(classes, model.labels_, model.n_clusters_))
    learned = LogisticRegression(max_iter=1000).fit(nearest.embedding_, classes)
    found[CLASSIFIER] = lambda views: learned.predict(nearest.transform(views))
    return found


def _class_of(model: URRL | KNNKMeans, names: NDArray[Any], views: Views) -> NDArray[Any]:
    return names[model.predict(views)]


def write_patterns(folder: Path, found: Sequence[Placed]) -> ResultTable:
    """`patterns.csv` with a line per pattern, and `patterns.md` with means, which are returned as well."""
    write_rows(folder / "patterns.csv", Placed, found)
    table = table_of(found)
    write_file(folder / "patterns.md", as_markdown(table).encode())
    return table


def table_of(found: Sequence[Placed]) -> ResultTable:
    """Accuracy by number of views: mean and deviation over seeds of the mean over patterns; and the worst pattern."""
    most = max(one.n_views for one in found)
    header = ("data set", "trained on", "gaps", "method", *map(_views, range(1, most + 1)), "worst pattern", "runs")
    keys = dict.fromkeys((one.dataset, one.trained_on, one.method) for one in found)
    title = "Held-out samples by the number of views that they have: accuracy, %, mean over patterns"
    return ResultTable("patterns", title, header, tuple(_row(found, *key, most) for key in keys))


def _views(number: int) -> str:
    return f"{number} view{'s' * (number > 1)}"


def _row(found: Sequence[Placed], dataset: str, trained_on: str, method: str, most: int) -> tuple[str, ...]:
    own = [one for one in found if (one.dataset, one.trained_on, one.method) == (dataset, trained_on, method)]
    cells = [str(score) if (score := by_number(own, number)) else "-" for number in range(1, most + 1)]
    means = {name: mean(one.acc for one in own if one.pattern == name) for name in {one.pattern for one in own}}
    worst = min(sorted(means), key=lambda name: means[name])
    runs = len({one.seed for one in own})
    return title_of(dataset), trained_on, own[0].gaps, method, *cells, f"{means[worst]:.2f} ({worst})", str(runs)


def by_number(own: Sequence[Placed], number: int) -> Score | None:
    """Mean and deviation over seeds of the mean over all patterns of so many views; None where there are none."""
    seeds = sorted({one.seed for one in own})
    each = [[one.acc for one in own if (one.seed, one.n_views) == (seed, number)] for seed in seeds]
    if not all(each):
        return None
    values = [mean(one) for one in each]
    return Score(mean(values), stdev(values) if len(values) > 1 else nan)


def draw_patterns(path: Path, found: Sequence[Placed]) -> None:
    """A panel per data set: dots are patterns, lines their means by number of views, a colour per method.

    Lines are whole where training samples were complete, dashed where half of them were not.
    """
    from matplotlib.lines import Line2D

    from viewfuse.plots.pictures import picture
    from viewfuse.plots.style import distinct_colors, distinct_markers

    sets, trained = (list(dict.fromkeys(getattr(one, name) for one in found)) for name in ("dataset", "trained_on"))
    methods = list(dict.fromkeys(one.method for one in found))
    styles = list(zip(methods, distinct_colors(3), ("o", *distinct_markers(9)[-2:]), strict=True))
    columns = min(3, len(sets))
    rows = -(-len(sets) // columns)
    with picture(path, "pictures of patterns", (1 + 3.2 * columns, 1 + 2.6 * rows)) as figure:
        grid = [*figure.subplots(rows, columns, squeeze=False).flat]
        for axes in grid[len(sets) :]:
            axes.set_axis_off()
        for axes, dataset in zip(grid, sets, strict=False):
            here = [one for one in found if one.dataset == dataset]
            for on, (place, (method, color, marker)) in product(trained, enumerate(styles)):
                own = [one for one in here if (one.trained_on, one.method) == (on, method)]
                _draw_method(axes, own, color, marker, (place - 1) / 20, _DASHES[on])
            numbers = sorted({one.n_views for one in here})
            axes.set_title(title_of(dataset), fontsize=10)
            axes.set(xlabel="views of a held-out sample", ylabel="accuracy, %", xlim=(0.7, numbers[-1] + 0.3))
            axes.set_xticks(numbers)
        handles = [Line2D([], [], color=color, marker=marker, label=method) for method, color, marker in styles]
        handles += [Line2D([], [], color="0.3", linestyle=_DASHES[on], label=_TRAINED[on]) for on in trained]
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _draw_method(axes: Any, own: Sequence[Placed], color: Any, marker: str, shift: float, dashes: str) -> None:
    names = sorted({one.pattern for one in own})
    means = [mean(one.acc for one in own if one.pattern == name) for name in names]
    axes.scatter([name.count("1") + shift for name in names], means, s=12, color=color, marker=marker, alpha=0.45,
                 linewidths=0)  # fmt: skip
    numbers = sorted({one.n_views for one in own})
    lines = [score.value for number in numbers if (score := by_number(own, number))]
    axes.plot([number + shift for number in numbers], lines, dashes, color=color, marker=marker, markersize=5)


def main(arguments: Sequence[str] | None = None) -> int:
    """The thin command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patterns", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--data", action="append", default=[], choices=DATA)
    asked = vars(parser.parse_args(arguments))
    out = asked.pop("out")
    try:
        write_patterns(out, bench_patterns(**asked))
    except ViewfuseError as error:
        print(f"viewfuse: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
