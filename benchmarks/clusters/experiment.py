"""Runs of the comparison: one pre-training per data set, missing rate and mask, and what each criterion says of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from benchmarks.clusters.criteria import other_choices, partitions
from benchmarks.clusters.synthetic_sets import all_sets
from benchmarks.experiments.catalogue import CATALOGUE, load_each
from benchmarks.experiments.plans import check_known
from benchmarks.experiments.records import read_rows, write_rows
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.fitted.model import Source
from viewfuse.methods.number_of_clusters import number_of, pretrained
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.stages import embed_stored
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.selection.linkage import principal
from viewfuse.selection.split_tree import RANGE, possible_range
from viewfuse.utils.jobs import chosen_device

OURS = "viewfuse"
RATES = (0.0, 0.25, 0.5)
_FIRST_MASK = 1_000
_MOST = 30
"""Up to here other criteria look at every number; beyond at the true and the chosen one only."""
_TINY = Config(n_clusters=1)


@dataclass(frozen=True)
class NumberChoice:
    """What one criterion says of one data set under one mask.

    Attributes
    ----------
    true_k : number of classes; 1 where there is no structure
    chosen : number of clusters
    holds : the coarser numbers that hold as well, and the chosen one, joined by blanks; of ours only
    ari : adjusted Rand index of the classes and k-means on the embedding with `chosen` clusters
    ari_at_true_k : that with as many clusters as classes
    """

    dataset: str
    missing_rate: float
    mask: int
    true_k: int
    criterion: str
    chosen: int
    holds: str
    ari: float
    ari_at_true_k: float


class Cell(NamedTuple):
    """A data set under one mask."""

    dataset: str
    missing_rate: float
    mask: int
    views: Views
    labels: NDArray[np.generic]


def bench_clusters(
    data_dir: Path,
    out: Path,
    *,
    device: str = "auto",
    masks: int = 5,
    rates: Sequence[float] = RATES,
    data: Sequence[str] = (),
    config: Config = _TINY,
    log: Callable[[str], None] = print,
) -> list[NumberChoice]:
    """Ask every criterion about every data set; what stands in `out`/clusters.csv already is left alone.

    Parameters
    ----------
    masks : per data set and rate
    data : only these sets: those of the catalogue, or "synthetic"
    """
    found = read_choices(out / "clusters.csv")
    done = {(one.dataset, one.missing_rate, one.mask) for one in found}
    for cell in _cells(data_dir, data, rates, masks, log):
        if (cell.dataset, cell.missing_rate, cell.mask) not in done:
            log(f"{cell.dataset}, rate {cell.missing_rate}, mask {cell.mask}")
            found += choices_of(cell, config, chosen_device(device))
            write_choices(out / "clusters.csv", found)
    if not found:
        raise DataError(f"{data_dir} holds none of {', '.join(data) or 'the data sets'}")
    return found


def _cells(
    data_dir: Path, data: Sequence[str], rates: Sequence[float], masks: int, log: Callable[[str], None]
) -> Iterator[Cell]:
    check_known("data set", data, [*CATALOGUE, "synthetic"])
    for mask in range(masks):
        for rate in rates:
            for key, loaded in load_each(data_dir, [key for key in CATALOGUE if key in data or not data], log):
                number = CATALOGUE[key].missing_number
                yield Cell(key, rate, mask, masked(loaded.views, rate, number, mask), loaded.labels)
            for own in all_sets() if not data or "synthetic" in data else ():
                views, labels = own.make(rate, mask + 1)
                yield Cell(own.name, rate, mask, masked(views, rate, 1, mask), labels)


def masked(views: Sequence[NDArray[np.float32]], rate: float, most: int, mask: int) -> Views:
    """Views of which `rate` of the samples lack up to `most`."""
    if not rate:
        return Views(list(views))
    return Views(apply_mask(views, paper_mask(len(views[0]), len(views), rate, most, random_state=_FIRST_MASK + mask)))


def choices_of(cell: Cell, config: Config, device: torch.device) -> list[NumberChoice]:
    """What each criterion says of the same embedding."""
    views, labels = cell.views, cell.labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = pretrained(Source.of(views, "neighbors", "auto"), config, "auto", cell.mask, device)
    possible, draws = possible_range(RANGE, len(views)), torch.Generator().manual_seed(cell.mask)
    decision = number_of(run, views.names, possible)
    embedding, true_k = principal(embed_stored(run)), len(np.unique(labels))
    ks = sorted({*range(2, min(_MOST, possible[1]) + 1), decision.chosen, true_k} - {1})
    found = partitions(embedding, ks, draws)
    chosen = {OURS: decision.chosen, **other_choices(embedding, found, ks, draws)}
    rand = {1: 0.0} | {k: float(adjusted_rand_score(labels, own.cpu())) for k, own in zip(ks, found, strict=True)}
    if true_k == 1:
        rand = dict.fromkeys(rand, 0.0) | {1: 1.0}
    held = {OURS: " ".join(map(str, [*decision.levels, decision.chosen]))}
    where = (cell.dataset, cell.missing_rate, cell.mask, true_k)
    return [
        NumberChoice(*where, name, k, held.get(name, ""), rand[k], rand.get(true_k, 0.0)) for name, k in chosen.items()
    ]


def write_choices(path: Path, found: Sequence[NumberChoice]) -> None:
    """One line per criterion, data set, rate and mask."""
    write_rows(
        path,
        NumberChoice,
        [replace(one, ari=round(one.ari, 4), ari_at_true_k=round(one.ari_at_true_k, 4)) for one in found],
    )


def read_choices(path: Path) -> list[NumberChoice]:
    """What `write_choices` wrote; nothing where there is no file."""
    return read_rows(path, NumberChoice) if path.exists() else []
