"""The training that is kept is the one that agrees with the others."""

from __future__ import annotations

import numpy as np

from viewfuse.replicate_choice import most_typical

TRUE = np.repeat([0, 1, 2], 20)


def changed(count: int, seed: int):
    """The labels with `count` of them at random, and clusters renamed, which must not matter."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(3)[TRUE]
    labels[rng.choice(60, count, replace=False)] = rng.integers(3, size=count)
    return labels


def test_the_middle_of_the_agreeing_ones_is_kept_whatever_its_loss():
    astray = np.random.default_rng(9).integers(3, size=60)
    labels = [astray, changed(12, 0), changed(2, 1), changed(14, 2)]
    assert most_typical(labels, [0.1, 0.2, 0.9, 0.3]) == 2


def test_of_one_or_two_the_lower_loss_is_kept():
    assert most_typical([TRUE], [1.0]) == 0
    assert most_typical([TRUE, changed(9, 0)], [1.0, 0.5]) == 1
    assert most_typical([TRUE, TRUE, TRUE], [3.0, 1.0, 2.0]) == 1
