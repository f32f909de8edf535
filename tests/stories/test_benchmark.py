"""A benchmark with labels of one's own: three methods, the same masks."""

from __future__ import annotations

import numpy as np
import pytest

from viewfuse import URRL, Config, DataError, SettingError
from viewfuse.baselines import kmeans_after_knn, kmeans_after_mean
from viewfuse.metrics import ari, clustering_accuracy, nmi
from viewfuse.missing import apply_mask, paper_mask

QUICK = {
    "config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=6, joint_epochs=2, learning_rate=2e-3),
    "scaling": "standard",
}
MASKS = 2


@pytest.fixture(scope="module")
def machines():
    """120 machines of five kinds, observed by three sensors."""
    rng, kinds = np.random.default_rng(0), np.arange(120) % 5
    widths = {"sound": 8, "heat": 6, "shaking": 12}
    sensors = {name: rng.normal(scale=2, size=(5, w))[kinds] + rng.normal(size=(120, w)) for name, w in widths.items()}
    return sensors, np.array(["fan", "pump", "press", "saw", "drill"])[kinds]


@pytest.fixture(scope="module")
def scores(machines):
    """What a user writes: ten lines. Of shape (methods, masks, 3)."""
    sensors, known = machines
    found = {"URRL": [], "knn": [], "mean": []}
    for seed in range(MASKS):
        mask = paper_mask(len(known), len(sensors), missing_rate=0.5, missing_number=2, random_state=seed)
        shown = apply_mask(sensors, mask)
        found["URRL"].append(URRL(5, random_state=seed, **QUICK).fit_predict(shown))
        found["knn"].append(kmeans_after_knn(shown, 5, random_state=seed))
        found["mean"].append(kmeans_after_mean(shown, 5, random_state=seed))
    measures = (clustering_accuracy, nmi, ari)
    return {name: np.array([[of(known, labels) for of in measures] for labels in runs]) for name, runs in found.items()}


@pytest.mark.slow
def test_three_methods_are_compared_on_the_same_masks(scores):
    accuracy = {name: runs[:, 0].mean() for name, runs in scores.items()}
    assert min(accuracy["URRL"], accuracy["knn"]) >= 0.9
    assert accuracy["mean"] <= 0.8
    assert all(((runs > 0) & (runs <= 1)).all() for runs in scores.values())


def test_hidden_views_are_hidden_in_copies(machines):
    sensors, known = machines
    mask = paper_mask(len(known), 3, 0.5, 2, 0)
    shown = apply_mask(sensors, mask)
    assert mask.sum() == 3 * 60 + 60
    assert [np.isnan(view).all(axis=1).tolist() for view in shown.values()] == (~mask).T.tolist()
    assert not any(np.isnan(view).any() for view in sensors.values())


def test_mistakes_are_told_before_they_become_scores(machines):
    _, known = machines
    with pytest.raises(DataError, match=r"shapes \(120,\) and \(119,\) cannot be compared"):
        clustering_accuracy(known, np.zeros(119))
    with pytest.raises(SettingError, match="from 0 to 2, so that every sample keeps a view"):
        paper_mask(120, 3, 0.5, 3)
