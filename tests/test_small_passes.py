"""A few samples are computed in small passes, and give the same numbers as in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from viewfuse import URRL, Config
from viewfuse.engine.replicates import rows_per_pass
from viewfuse.methods.published.filled_kmeans import KNNKMeans
from viewfuse.neighbors.index import index_training_set


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(130, 7)).astype(np.float32), 100 + rng.normal(size=(130, 3)).astype(np.float32)]
    views[0][::5], views[1][1::5] = np.nan, np.nan
    return views


@pytest.fixture(scope="module")
def model(data):
    return URRL(
        3,
        config=Config(pretrain_epochs=1, joint_epochs=0, embedding_dim=24, hidden_dim=40),
        scaling="none",
        random_state=0,
        device="cpu",
    ).fit([view[:60] for view in data])


@pytest.fixture
def stored():
    values = [torch.rand(70, 4, generator=torch.Generator().manual_seed(0))]
    return index_training_set(values, torch.ones(70, 1, dtype=torch.bool), 3)


@pytest.mark.parametrize("n", [1, 17, 33])
def test_a_sample_is_the_same_alone_in_a_batch_and_in_any_order(model, data, n):
    new = [view[60:] for view in data]
    together, filled = model.transform(new), model.impute(new)
    rows = np.random.default_rng(n).permutation(70)[:n]
    few = [view[rows] for view in new]
    assert (model.transform(few) == together[rows]).all()
    for one, whole in zip(model.impute(few), filled, strict=True):
        assert (one == whole[rows]).all()
    assert (model.explain(few).weights == model.explain(new).weights[rows]).all()


@pytest.mark.parametrize(("least", "expected"), [(0, 16), (16, 16), (17, 32), (33, 64)])
def test_passes_are_as_small_as_rounds_alike(stored, least, expected):
    """Passes of fewer than `least` rows round in another way."""
    calls = []

    def work(samples):
        calls.append(len(samples))
        return samples.values[0] + (1e-7 if len(samples) < least else 0.0)

    network = torch.nn.Identity()
    assert rows_per_pass(1, network, stored, work) == expected
    tried = len(calls)
    assert rows_per_pass(32, network, stored, work) == expected
    assert len(calls) == tried  # once per network
    assert rows_per_pass(33, network, stored, work) == 64


def test_another_number_of_threads_is_tried_anew(stored, monkeypatch):
    network, calls = torch.nn.Identity(), []

    def work(samples):
        calls.append(len(samples))
        return samples.values[0]

    for threads in (1, 2, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        rows_per_pass(1, network, stored, work)
    assert calls.count(64) == 2


@pytest.mark.filterwarnings("ignore::viewfuse.SuspiciousDataWarning")
def test_a_method_that_picks_donors_has_whole_passes_only():
    """Many donors are equally far, so rounding picks one; the few samples of a trial need not show it."""
    rng = np.random.default_rng(0)
    views = [rng.integers(4, size=(360, 33)).astype(float) for _ in range(2)]
    views[0][::2], views[1][1::4] = np.nan, np.nan
    model, new = KNNKMeans(2, random_state=0, device="cpu").fit([view[:60] for view in views]), [v[60:] for v in views]
    together = model.transform(new)
    for few in np.split(np.arange(300), 20):
        assert (model.transform([view[few] for view in new]) == together[few]).all()
    assert model._model.rows_per_pass(1) == 64


def test_missing_views_are_not_out_of_range(model, data):
    """Their zeros would be far away: the values of the second view are around 100."""
    assert not model.out_of_range([view[60:] for view in data]).any()
    far = [view[60:63].copy() for view in data]
    far[1][2] = 1e6
    assert model.out_of_range(far).tolist() == [False, False, True]
