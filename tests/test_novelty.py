"""How far samples lie from what a model knows, beside a version in plain loops."""

from __future__ import annotations

from math import log, nan, sqrt

import numpy as np
import pytest

from conftest import make_blobs
from viewfuse import URRL
from viewfuse.fitted import novelty

QUICK = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 2, "joint_epochs": 0, "scaling": "standard"}


@pytest.fixture(scope="module")
def fitted():
    views, *_ = make_blobs(120, 3, missing=0.3)
    return URRL(3, random_state=0, **QUICK).fit(views), views


def literal(values, present, row, mine, others):
    """The Fisher sum of one sample: `mine` are its values, or None where it is a training sample."""
    parts = []
    for v, view in enumerate(values):
        if not present[row][v] if mine is None else mine[v] is None:
            continue
        spot = view[row] if mine is None else mine[v]
        far = min(sqrt(sum((spot - view[j]) ** 2)) for j in others if present[j][v] and (mine is not None or j != row))
        usual = [
            min(sqrt(sum((view[i] - view[j]) ** 2)) for j in others if present[j][v] and j != i)
            for i in others if present[i][v]
        ]  # fmt: skip
        share = np.mean([(one < far - 1e-9) + 0.5 * (abs(one - far) <= 1e-9) for one in usual])
        parts.append(-log(1 - share + 1e-3))
    return sum(parts) / sqrt(len(parts))


def test_novelty_by_a_literal_reference(fitted):
    model, views = fitted
    stored, found = model._model.stored, model.novelty(views)
    values, present = [view.double().numpy() for view in stored.values], stored.present.numpy()
    sums = np.array([literal(values, present, i, None, range(120)) for i in range(0, 120, 3)])
    own = novelty.combined(*[novelty.nearest_distances(stored, stored)] * 2)
    assert own[::3] == pytest.approx(sums, abs=1e-6)
    count = present.sum(axis=1)
    for i in range(0, 120, 3):
        alike = own[count == count[i]] if (count == count[i]).sum() >= 30 else own
        assert found[i] == pytest.approx(np.mean([(x < own[i]) + 0.5 * (x == own[i]) for x in alike]))


def test_other_kinds_are_novel_and_the_same_kind_is_not(fitted):
    model, views = fitted
    rng = np.random.default_rng(0)
    spread = [np.nanstd(view, axis=0) for view in views]
    alike = [
        view[:60] + 0.05 * one * rng.normal(size=(60, view.shape[1])) for view, one in zip(views, spread, strict=True)
    ]
    other = [view[:60] + 3 * one for view, one in zip(views, spread, strict=True)]
    assert (model.novelty(other) > 0.95).mean() > 0.9
    assert (model.novelty(alike) > 0.95).mean() < 0.1


def test_shares_below_count_equals_by_half():
    known = np.array([1.0, 2.0, 2.0, 3.0])
    assert novelty.share_below(known, np.array([0.0, 1.0, 2.0, 4.0])).tolist() == [0.0, 0.125, 0.5, 1.0]
    assert novelty.share_below(known[:0], np.array([5.0])).tolist() == [0.0]
    assert novelty.combined(np.array([[nan, nan]]), np.zeros((2, 2))).tolist() == [0.0]
