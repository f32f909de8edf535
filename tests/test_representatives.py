"""Smaller models keep the right samples."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import make_blobs
from viewfuse import URRL, Config, SettingError
from viewfuse.fitted.clusters import representatives


def test_every_cluster_gives_its_share_and_full_samples_come_first():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    present = np.random.default_rng(0).random((100, 3)) < 0.6
    rows = representatives(labels, present, 50)
    assert np.array_equal(rows, np.unique(rows))
    assert np.bincount(labels[rows]).tolist() == [30, 15, 5]
    counts, kept = present.sum(axis=1), np.isin(np.arange(100), rows)
    for label in range(3):
        here = labels == label
        assert counts[here & kept].min() >= counts[here & ~kept].max()


def test_all_are_kept_by_default_and_nonsense_is_refused():
    labels, present = np.zeros(5, dtype=np.int64), np.ones((5, 1), dtype=bool)
    assert representatives(labels, present, None).tolist() == [0, 1, 2, 3, 4]
    for keep in (0, 6, -1, 2.5, True, "3"):
        with pytest.raises(SettingError, match="keep must be a number of training samples from 1 to 5"):
            representatives(labels, present, keep)


@pytest.mark.slow
def test_a_smaller_model_knows_whom_it_kept(tmp_path):
    views, _, _ = make_blobs(90, 3)
    names = ("a", "b", "c")
    given = dict(zip(names, views, strict=True))
    tiny = {"config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=10, joint_epochs=2), "random_state": 0}
    model = URRL(3, **tiny).fit(given)
    model.save(tmp_path / "model", keep=40)
    small = URRL.load(tmp_path / "model")
    rows = representatives(model.labels_, ~np.isnan([v[:, 0] for v in views]).T, 40)
    assert small.ids_.tolist() == rows.tolist()
    assert np.array_equal(small.labels_, model.labels_[rows])
    assert np.array_equal(small.embedding_, model.embedding_[rows])
    assert len(small._model.stored) == 40
    for donors in small.explain(given).donors.ravel():
        assert set(donors) <= set(rows.tolist())
    assert (small.predict(given) == model.labels_).mean() >= 0.9
