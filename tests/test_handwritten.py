"""What the method reaches on real data. Trains for real: `make test-slow` or `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from viewfuse import URRL, metrics
from viewfuse.datasets import load_handwritten
from viewfuse.missing import apply_mask, paper_mask

SEEDS = range(5)


def masked(seed, missing_rate=0.5):
    views, digits = load_handwritten()
    mask = paper_mask(len(digits), len(views), missing_rate, 4, random_state=seed)
    return apply_mask(views, mask), digits


def accuracies(device):
    found = []
    for seed in SEEDS:
        views, digits = masked(seed)
        labels = URRL(10, random_state=seed, device=device).fit_predict(views)
        found.append(100 * metrics.clustering_accuracy(digits, labels))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_half_incomplete_digits_are_clustered():
    found = accuracies("cpu")
    assert found.mean() >= 95, found
    assert found.std(ddof=1) <= 1.5, found


@pytest.mark.gpu
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_incomplete_digits_are_clustered_on_a_gpu():
    assert accuracies("cuda").mean() >= 95


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_new_digits_are_placed_as_well_as_the_fitted_ones():
    gaps = []
    for seed in SEEDS:
        views, digits = masked(seed)
        order = np.random.default_rng(seed).permutation(len(digits))
        old, new = order[:1600], order[1600:]
        model = URRL(10, random_state=seed).fit([view[old] for view in views])
        name = digit_of_cluster(digits[old], model.labels_)
        fitted = (name[model.labels_] == digits[old]).mean()
        gaps.append(100 * (fitted - (name[model.predict([view[new] for view in views])] == digits[new]).mean()))
    assert np.mean(gaps) <= 3, gaps


def digit_of_cluster(digits, labels):
    """The best one-to-one match, made on the fitted rows."""
    counts = np.zeros((10, 10))
    np.add.at(counts, (labels, digits), 1)
    return linear_sum_assignment(counts, maximize=True)[1]
