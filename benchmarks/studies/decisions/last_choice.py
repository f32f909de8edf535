"""What the choice at the end is worth: default fits, and the network's own clusters in the same fits.

python -m benchmarks.studies.decisions.last_choice OUT.csv --data DATA --seeds 5 6 --sets 3sources ngs~8
python -m benchmarks.studies.decisions.last_choice OUT.csv --seeds 20 21 --families
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.catalogue import CATALOGUE, load
from benchmarks.experiments.scoring import scored
from viewfuse import URRL, Views
from viewfuse.methods.urrl.scaling_search import Trial
from viewfuse.missing import paper_mask
from viewfuse.utils.jobs import limited

Rng = np.random.Generator
Table = NDArray[Any]
Made = tuple[Sequence[Table], NDArray[np.int64]]
MEASURES = ("acc", "macro", "ari")
COLUMNS = (
    "dataset", "rate", "seed", "chosen", "network", "network_macro", "network_ari", "final", "final_macro", "final_ari",
)  # fmt: skip


def drawn(rng: Rng, n: int, k: int, ratio: float = 1.0) -> NDArray[np.int64]:
    """Labels of k groups, the largest of which is `ratio` times as likely as the smallest."""
    shares = ratio ** -np.linspace(0, 1, k)
    return rng.choice(k, n, p=shares / shares.sum())


def links(rng: Rng, y: NDArray[np.int64], inside: float, outside: float) -> Table:
    """Who is linked with whom."""
    upper = np.triu(rng.random((len(y), len(y))) < np.where(y[:, None] == y[None], inside, outside), 1)
    return (upper + upper.T).astype(float)


def words(rng: Rng, y: NDArray[np.int64], vocabulary: int, length: int, share: float) -> Table:
    """How often words occur in texts, a share of which are of a topic."""
    base, topics = rng.dirichlet(np.full(vocabulary, 0.3)), rng.dirichlet(np.full(vocabulary, 0.03), y.max() + 1)
    texts = [rng.multinomial(rng.poisson(length) + 5, (1 - share) * base + share * topics[c]) for c in y]
    return np.stack(texts).astype(float)


def counts(rng: Rng, y: NDArray[np.int64], genes: int, strength: float, markers: int) -> Table:
    """Counts of genes, of which each group has a few more often, in samples of unequal depth."""
    base, fold = rng.gamma(0.5, 2, genes), np.ones((y.max() + 1, genes))
    for own in fold:
        own[rng.choice(genes, markers, replace=False)] = strength
    return rng.poisson(base * fold[y] * rng.lognormal(0, 0.5, len(y))[:, None]).astype(float)


def gauss(rng: Rng, y: NDArray[np.int64], columns: int, apart: float, noise: int = 0) -> Table:
    """Gaussians so many deviations apart, and columns of noise."""
    centers = rng.normal(size=(y.max() + 1, columns)) * apart / np.sqrt(2 * columns)
    table = centers[y] + rng.normal(size=(len(y), columns))
    return np.hstack([table, rng.normal(size=(len(y), noise))]) if noise else table


def binary(rng: Rng, y: NDArray[np.int64], columns: int, share: float) -> Table:
    """Mutations, a share of which depend on the group."""
    own, usual = rng.beta(1, 6, (y.max() + 1, columns)), rng.beta(1, 6, columns)
    depends = rng.random((y.max() + 1, columns)) < share
    return (rng.random((len(y), columns)) < np.where(depends, own, usual)[y]).astype(float)


def sensors(rng: Rng) -> Made:
    """Waves of four frequencies with shifted starts, in four sensors."""
    y, t = drawn(rng, 400, 4), np.linspace(0, 1, 60)

    def wave(v: int, c: int) -> Table:
        return np.sin(2 * np.pi * (c + 1 + v * 0.3) * (t + rng.uniform(0, 0.15))) + rng.normal(0, 0.7, 60)

    return [np.stack([wave(v, c) for c in y]) for v in range(4)], y


def moons(rng: Rng) -> Made:
    """Two moons, seen in two linear maps."""
    y, angle = drawn(rng, 400, 2), rng.uniform(0, np.pi, 400)
    points = np.c_[np.cos(angle) * (1 - 2 * y) + y, np.sin(angle) * (1 - 2 * y) + 0.4 * y]
    points += rng.normal(0, 0.1, (400, 2))
    return [points @ rng.normal(size=(2, w)) + rng.normal(0, 0.05, (400, w)) for w in (6, 9)], y


def several(n: int, k: int, ratio: float, *makers: Callable[[Rng, NDArray[np.int64]], Table]) -> Callable[[Rng], Made]:
    """One set of labels, seen in a view of each maker."""

    def made(rng: Rng) -> Made:
        y = drawn(rng, n, k, ratio)
        return [maker(rng, y) for maker in makers], y

    return made


FAMILIES: Mapping[str, Callable[[Rng], Made]] = {
    "links and words": several(400, 5, 3, lambda g, y: links(g, y, 0.06, 0.01),
                               lambda g, y: words(g, y, 600, 40, 0.25)),
    "two kinds of links": several(400, 4, 1, lambda g, y: links(g, y, 0.06, 0.015),
                                  lambda g, y: links(g, y, 0.08, 0.02)),
    "omics": several(250, 4, 2, lambda g, y: counts(g, y, 800, 4, 30), lambda g, y: gauss(g, y, 40, 4, 160),
                     lambda g, y: binary(g, y, 300, 0.3)),
    "RNA and protein": several(600, 7, 8, lambda g, y: counts(g, y, 1000, 4, 30), lambda g, y: counts(g, y, 20, 5, 3)),
    "sensors": sensors,
    "one good view": several(400, 5, 1, lambda g, y: gauss(g, y, 10, 7), lambda g, y: gauss(g, y, 10, 1),
                             lambda g, y: gauss(g, y, 30, 0)),
    "complementary": several(500, 6, 1, lambda g, y: gauss(g, y // 2, 8, 7),
                             lambda g, y: gauss(g, y % 2 + 2 * (y // 4), 8, 7), lambda g, y: gauss(g, y, 8, 2)),
    "moons": moons,
    "heavy tails": several(400, 4, 4, *(lambda g, y, w=w: gauss(g, y, w, 6) + 0.5 * g.standard_t(2, (400, w))
                                        for w in (10, 15))),
    "percentages": several(350, 5, 3, lambda g, y: np.stack([g.dirichlet(a) for a in (3 * g.gamma(1, 1, (5, 30)))[y]]),
                           lambda g, y: gauss(g, y, 12, 4)),
}  # fmt: skip
"""Kinds of data that the catalogue has none or few of."""


_MOST, _LEAST = 1_500, 8  # samples of a thinned set, and of its classes


def thinned(labels: NDArray[Any], ratio: float, seed: int) -> NDArray[np.int64]:
    """Rows that give classes in random order sizes from 1 to 1 / ratio."""
    rng = np.random.default_rng([seed, 77])
    classes, counts = np.unique(labels, return_counts=True)
    shares = ratio ** -np.linspace(0, 1, len(classes))
    sizes = np.maximum(_LEAST, np.round(min(counts.min(), _MOST / shares.sum()) * shares)).astype(int)
    pairs = zip(rng.permutation(len(classes)), sizes, strict=True)
    return np.sort(
        np.concatenate([rng.choice(np.flatnonzero(labels == classes[c]), n, replace=False) for c, n in pairs])
    )


def sample(folder: Path | None, name: str, rate: float, seed: int) -> tuple[Views, NDArray[Any]]:
    """The views of a set, some of them missing, and its labels."""
    if name in FAMILIES:
        arrays, labels = FAMILIES[name](np.random.default_rng([seed, list(FAMILIES).index(name)]))
        lost = len(arrays) - 1
    else:
        base, _, ratio = name.partition("~")
        own = load(folder, CATALOGUE[base])
        arrays, labels, lost = own.views, own.labels, CATALOGUE[base].missing_number
        if ratio:
            rows = thinned(labels, float(ratio), seed)
            arrays, labels = [array[rows] for array in arrays], labels[rows]
    mask = paper_mask(len(labels), len(arrays), rate, lost, random_state=seed)
    return Views({f"view {v}": array for v, array in enumerate(arrays)}, mask=mask), labels


def fitted(views: Views, y: NDArray[Any], seed: int, device: str) -> tuple[str, ...]:
    """A default fit with the number of classes: who found the clusters, and how good they and the network's are."""
    seen, conclude = dict[str, Any](), Trial.conclude

    def listened(self: Trial, labels: Any, *rest: Any) -> Any:
        seen["network"] = labels
        return conclude(self, labels, *rest)

    with limited(1), patch.object(Trial, "conclude", listened):
        model = URRL(len(np.unique(y)), random_state=seed, device=device).fit(views)
    found = [scored(y, own) for own in (seen["network"], model.labels_)]
    return model.decisions_["clusters"]["chosen"], *(f"{one[name]:.2f}" for one in found for name in MEASURES)


def main() -> None:
    """Write a line for each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--families", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with asked.out.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for seed in asked.seeds:
            for rate in asked.rates:
                for name in [*asked.sets, *(FAMILIES if asked.families else ())]:
                    views, y = sample(asked.data, name, rate, seed)
                    out.writerow([name, rate, seed, *fitted(views, y, seed, asked.device)])
                    file.flush()


if __name__ == "__main__":
    main()
