"""Fits inside a caller's `no_grad` or `inference_mode` give what they give elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from conftest import make_blobs
from test_methods import BRIEF
from viewfuse import URRL, Config
from viewfuse.methods import estimator_of

SMALL = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=1), "scaling": "minmax"}
MODELS = {
    "URRL": lambda: URRL(3, **SMALL, random_state=0),
    "URRL that chooses k": lambda: URRL(cluster_range=(2, 3), **SMALL, random_state=0),
    **{name: partial(estimator_of(name), 3, random_state=0, **BRIEF[name]) for name in ("completer", "dsimvc")},
}


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("URRL", torch.inference_mode),
        pytest.param("URRL that chooses k", torch.no_grad, marks=pytest.mark.slow),
        pytest.param("completer", torch.inference_mode, marks=pytest.mark.slow),
        pytest.param("dsimvc", torch.no_grad, marks=pytest.mark.slow),
    ],
)
def test_a_fit_without_gradients_around_it_is_the_same(name, off):
    views = make_blobs(30, 3, widths=(5, 4))[0]
    plain = MODELS[name]().fit(views)
    with off():
        model = MODELS[name]().fit(views)
        inside = model.predict_proba(views)
        assert not torch.is_grad_enabled()
    assert np.array_equal(model.embedding_, plain.embedding_)
    assert np.array_equal(inside, plain.predict_proba(views))
    assert np.array_equal(model.predict_proba(views), inside)
