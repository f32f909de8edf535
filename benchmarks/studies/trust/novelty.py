"""How many samples of a class that was left out are marked as novel: python -m benchmarks.studies.trust.novelty DATA.

Each class of a set is left out in turn, and a fifth of the others is held out. Front ends, scaling and neighbours are
those of a fit; no network is trained, as novelty does not depend on it. Printed are the shares above 0.95 of the class
that was left out and of the samples that were held out, by distances alone and with unseen words.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.experiments.catalogue import CATALOGUE, load
from viewfuse import Views
from viewfuse.fitted.model import Source, prepare, scaled_tensors, scalers_of
from viewfuse.fitted.novelty import Surroundings, unseen_shares
from viewfuse.neighbors.index import NO_NEIGHBOR, index_new_samples

SETS = ("handwritten", "citeseq_inhouse1182", "bbcsport", "reuters1200")
NOVEL, DEPTH = 0.95, 9


def marked(views: list[NDArray[np.float32]], train: NDArray[np.int64], asked: NDArray[np.int64]) -> list[np.ndarray]:
    """Which of the asked samples are novel to those of training: by distances alone, and with unseen words."""
    source = Source.of(Views([view[train] for view in views]), "neighbors", "auto")
    scaler, cpu = scalers_of(source, "auto")[0], torch.device("cpu")
    stored = prepare(source, scaler, DEPTH, cpu)
    new = Views([view[asked] for view in views])
    unknown = torch.full((len(asked),), NO_NEIGHBOR)
    samples = index_new_samples(*scaled_tensors(source.reduction.apply(new), scaler, cpu), stored, unknown)
    none, left_out = np.empty((len(views[0]), 0)), source.left_out
    pairs = [(left_out._replace(words=none[: len(train)]), none[: len(asked)])]
    pairs += [(left_out, unseen_shares(source.reduction, new) if left_out.words.shape[1] else none[: len(asked)])]
    rows = unknown.numpy()
    return [Surroundings.of(stored, own).novelty(samples, rows, words) > NOVEL for own, words in pairs]


def study(views: list[NDArray[np.float32]], labels: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
    """Shares of the left-out class and of held-out samples, mean over classes: without and with unseen words."""
    rng, found = np.random.default_rng(seed), []
    for own in np.unique(labels):
        rest = rng.permutation(np.flatnonzero(labels != own))
        held, train = np.split(rest, [len(rest) // 5])
        asked = np.concatenate([held, np.flatnonzero(labels == own)])
        pairs = marked(views, np.sort(train), asked)
        found.append([share for one in pairs for share in (one[len(held) :].mean(), one[: len(held)].mean())])
    return np.mean(found, axis=0)


def main() -> None:
    """Print a line per set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("sets", nargs="*", default=SETS)
    asked = parser.parse_args()
    for name in asked.sets:
        data = load(asked.data, CATALOGUE[name])
        numbers = study([np.asarray(view, np.float32) for view in data.views], data.labels)
        print(f"{name}: distances {numbers[0]:.2f} / {numbers[1]:.2f}, and words {numbers[2]:.2f} / {numbers[3]:.2f}")


if __name__ == "__main__":
    main()
