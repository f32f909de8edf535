"""How many clusters? A tree of clusters is tested from its root, split by split; one cluster is an answer, too.

A split **stands** where a Gaussian of the same covariance with the same views missing is hardly ever split as crisply
(p-values; the level is shared over the tree in proportion to the samples of a split, after Kimes, Grabski and
Irizarry), and it is nearly as strong as the strongest of the set. What makes a split strong is in
`viewfuse.selection.split_evidence`. With thousands of samples every group of a real set can be split significantly, in
any of its parts; so significance alone gives far too many clusters, and a fixed strength too few where all overlap.
In the end a split that cuts off few samples must be stronger than one into halves: real clusters have odd corners,
while a rare kind is apart from all others. A split that only cuts off a corner is left out.

The clusters are what is left when no split stands any more. They are a **continuum** where Gaussians are split nearly
as crisply, as curves and sheets are, and samples at the borders lie as densely as all others: in few dimensions a split
stands only where they are rarer (`viewfuse.selection.split_valley`).

results/clusters/README.md says how bounds were found, and what was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.errors import SettingError
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples
from viewfuse.selection.decisions import VALLEYS, ClusterNumber
from viewfuse.selection.kmeans import Tree
from viewfuse.selection.linkage import MOST_GROUPS, PER_GROUP, nearest_different, principal
from viewfuse.selection.split_evidence import (
    LEAST,
    NO_BORDER,
    Look,
    Split,
    agreement,
    crossing,
    evidence,
    first_cut,
    sides_in,
    splits_of,
)
from viewfuse.selection.split_valley import LEVEL, valley_p_value
from viewfuse.utils.settings import Setting, checked_range

RANGE = (1, MOST_GROUPS)
"""The default range of numbers of clusters; there are at least eight samples for each."""
_FREE, _GAP, _FIRST, _CHAIN = 0.62, 1.4, 5, 3
"""Of a continuum the gap, on average over the five largest that stand, is less than 1.4 times what the agreement in
Gaussians has beyond 0.62: the fewer dimensions there are, the crisper borders come for free. At least three are clear,
with a valley or without: wherever it is cut, it falls into parts."""
_GAP_OF_VALLEYS = 0.2
"""The same where the largest split that stands has a valley: curves that turn have some, with gaps up to 0.06."""
_DRAWS = 4
"""Gaussians that a split is compared with."""
_LEAST_ISLAND = 0.75
"""The least size of what one view alone shows, over that of the mean cluster."""


def possible_range(within: Any, n_samples: int) -> tuple[int, int]:
    """The least and the largest number that the samples allow: eight of them per cluster, unless more are asked for."""
    least, most = checked_range(within)
    if least > max(n_samples, 1):
        fault = f" begins at {least}, above the number of samples, {n_samples}; begin it lower"
        raise SettingError(Setting("cluster_range"), fault)
    return least, max(least, min(most, n_samples // PER_GROUP))


def splits_tested(tree: Tree, look: Look, names: Sequence[str], generator: torch.Generator) -> list[Split]:
    """The splits of a tree that were tested, parents before their children: those below one that falls are not."""
    every, found = splits_of(tree), dict[int, Split]()
    child = {(one.parent, one.side): place for place, one in enumerate(every)}
    waiting = [0] if every else []
    while waiting:
        place = max(waiting, key=lambda one: len(every[one].left) + len(every[one].right))
        waiting.remove(place)
        own = every[place]
        said = split_between(look, own.left, own.right, names, generator)
        found[place] = replace(said, parent=own.parent, side=own.side)
        if tested(said, strongest(found.values())):
            waiting += [child[place, side] for side in (0, 1) if (place, side) in child]
    return _standing(found, len(look))


def split_between(
    look: Look, left: NDArray[np.int64], right: NDArray[np.int64], names: Sequence[str], generator: torch.Generator
) -> Split:
    """What speaks for a split of some samples of a look, given by their rows, with its share of the level."""
    rows = np.concatenate([left, right])
    said = evidence(look.take(rows), np.arange(len(rows)) >= len(left), names, _DRAWS, generator)
    return replace(said, level=LEVEL * (len(rows) - 1) / (len(look) - 1))


def strongest(found: Iterable[Split]) -> float:
    """How strong splits can be: the mean of the strongest four of all that were tested."""
    return float(np.mean(sorted((one.strength for one in found), reverse=True)[:4]))


def tested(one: Split, strongest: float) -> bool:
    """Whether a split stands: strong enough for the set, clearer than in Gaussians, with a valley where one is needed.

    A share of 0.4 or 0.5 of the strongest is about as good as 0.45. As networks bend what they see, it is also stronger
    than 0.45 of the agreement in Gaussians: data without clusters were split with up to 0.42 of it (heavy tails),
    Gaussians with five factors with 0.25, noise of many columns with 0.
    """
    strong_enough = one.strength >= 0.45 * strongest and _is_clear(one)
    return strong_enough and not lacks_valley(one)


def lacks_valley(one: Split) -> bool:
    """Whether a split needs a valley and has none.

    Its p-value may be four times as high as the other one: squares seldom have a valley even then, and sub-splits of
    clear clusters, with their lower level, hardly ever (results/clusters).
    """
    return one.valley is not None and one.valley >= VALLEYS * one.level


def _is_clear(one: Split) -> bool:
    return one.strength >= 0.45 * one.null and one.p_value < one.level


def _standing(found: Mapping[int, Split], n_samples: int) -> list[Split]:
    """The splits that stand, each by its strength for its size, and those that fall below them.

    A split of which only one side holds others that stand is left out, with the other side; one both of whose sides do
    stands. In the tree parents have lower places.
    """
    if not found:
        return []
    best = strongest(found.values())
    mean = n_samples / (1 + sum(tested(one, best) for one in found.values()))
    sized, child = dict[int, Split](), dict[tuple[int, int], int]()
    for place, one in found.items():
        child[one.parent, one.side] = place
        # Less where the smaller side is smaller than the mean cluster and not quite apart. Powers up to 0.5 are as good
        # on real sets; without any these lose twice as much, and without the exception small clusters of sets with
        # sizes of 20 to 1 are joined (results/clusters).
        share = 1.0 if one.agreement >= 0.96 else min(1.0, min(one.sizes) / mean)
        sized[place] = replace(one, strength=one.strength * share ** (1 / 3))
    best = strongest(sized.values())
    stands: dict[int, bool] = {}
    holds: dict[int | None, bool] = {None: False}  # whether a split stands, or one below it
    for place in sorted(found, reverse=True):
        both = [holds[child.get((place, side))] for side in (0, 1)]
        stands[place] = all(both) or tested(sized[place], best)
        holds[place] = stands[place] or any(both)
    out: list[Split] = []
    waiting = [(child[-1, 0], -1, 0)]
    while waiting:
        place, parent, side = waiting.pop(0)
        below = [(child[place, own], own) for own in (0, 1) if (place, own) in child]
        if stands[place]:
            waiting += [(lower, len(out), own) for lower, own in below]
        elif holds[place]:
            waiting += [(lower, parent, side) for lower, _ in below if holds[lower]]
            continue
        out.append(replace(found[place], parent=parent, side=side, stands=stands[place]))
    return out


def number_decision(splits: Sequence[Split], n_samples: int, within: tuple[int, int]) -> ClusterNumber:
    """How many clusters there are within a `possible_range`, which coarser numbers hold as well, and the whole tree."""
    least, most = within
    if n_samples < 2 * LEAST:
        return ClusterNumber(least, {}, "few", [], "", [])
    # The strengths of the splits that stand, no stronger than their parents, the strongest first.
    every = list[float]()
    for one in splits:
        every.append(min(one.strength, every[one.parent]) if one.parent >= 0 else one.strength)
    heights = sorted((height for height, one in zip(every, splits, strict=True) if one.stands), reverse=True)
    kind = "continuum" if _is_continuum(splits) else "clusters" if heights else "one"
    found = 1 if kind == "continuum" else 1 + len(heights)
    chosen = min(max(found, least), most)
    end = "largest" if chosen < found else "smallest" if chosen > found else ""
    evidence = {"weakest": heights[chosen - 2]} if 2 <= chosen <= len(heights) + 1 else {}
    fallen = [one.strength for one in splits if not one.stands]
    evidence |= {"next": max(fallen)} if fallen else {}
    # Coarser numbers hold as well where the next split is weaker by more than a half.
    own = heights[: chosen - 1]
    levels = [place + 2 for place in range(len(own) - 1) if own[place] > 1.5 * own[place + 1]]
    return ClusterNumber(chosen, evidence, kind, levels, end, list(map(asdict, splits)))


def _is_continuum(splits: Sequence[Split]) -> bool:
    """Whether the data fall into parts wherever they are cut, with borders as dense as the rest."""
    clear = [one for one in splits if one.stands or _is_clear(one)]
    first = sorted((one for one in splits if one.stands), key=lambda one: -sum(one.sizes))[:_FIRST]
    if not first:
        return any(map(lacks_valley, clear))
    gap = np.mean([1.0 if one.agreement > NO_BORDER else min(one.gap, 1.0) for one in first])
    free = np.mean([one.null for one in first]) - _FREE
    return bool(len(clear) >= _CHAIN and gap < (_GAP * free if first[0].valley is None else _GAP_OF_VALLEYS))


def islands(look: Look, labels: NDArray[np.int64], seed: int) -> dict[int, int | None]:
    """The clusters, by labels of shape (samples,), that fall into two, each about as large as a cluster.

    What the tree shows as one may come apart in k-means: the tree of each cluster alone is cut once, and its neighbours
    are asked as for any split. As far as its sides are smaller than the mean cluster they must share fewer
    (results/clusters). With each cluster comes the view that alone shows the two, None where all together do.
    """
    found: dict[int, int | None] = {}
    each = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    level = LEVEL / (len(each) * len(look.values))
    for rows in each:
        if len(rows) < 2 * LEAST:
            continue
        some, size, label = look.take(rows), len(rows) / (len(labels) / len(each)), int(labels[rows[0]])
        sides = first_cut(some.embedding, some.neighbors, seed)
        if sides is not None and -crossing(agreement(some.graph, sides)) * min(1.0, size * sides.mean()) ** 0.5 >= 1.7:
            found[label] = None
        alone = (v for v in range(len(look.values)) if _parted_by(some, v, _LEAST_ISLAND / size, level, seed))
        if label not in found and (view := next(alone, None)) is not None:
            found[label] = view
    return found


def _parted_by(look: Look, view: int, least: float, level: float, seed: int) -> bool:
    """Whether one view alone parts the samples that have it: a valley between two sides, both of a `least` share.

    Where the other views bind the two together, and fill this one for those that lack it, the tree has no such cut.
    Besides the cut of the tree of the view, the two means that it leads to are tried.
    """
    own = look.values[view][look.present[:, view]]
    if len(look.values) < 2 or len(own) < 2 * LEAST:
        return False
    points = principal(own)
    cut = first_cut(points, nearest_different(own)[:, None], seed)
    for sides in () if cut is None else (cut, sides_in(points, cut)):
        p_value = valley_p_value(points.numpy(force=True), sides)
        if min(sides.mean(), 1 - sides.mean()) >= least and p_value is not None and 2 * p_value < level:
            return True
    return False


def without_view(samples: Samples, view: int) -> Samples:
    """Samples of which one view is hidden, where they have another."""
    others = samples.present.clone()
    others[:, view] = False
    kept = torch.where(others.any(dim=1, keepdim=True), others, samples.present)
    values = [torch.where(kept[:, v, None], own, 0.0) for v, own in enumerate(samples.values)]
    return Samples(values, kept, torch.where(kept[:, :, None], samples.neighbor_ids, NO_NEIGHBOR))
