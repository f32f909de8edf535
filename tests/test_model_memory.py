"""A model holds its training samples once: in memory, after loading, and in a pickle."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from viewfuse import URRL, Config
from viewfuse.fitted.model import Model

SMALL = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=0), "scaling": "minmax"}


@pytest.fixture(scope="module")
def views():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(600, width)).astype(np.float32) for width in (60, 40)]
    views[0][:120] = np.nan
    return views


@pytest.fixture(scope="module")
def model(views):
    return URRL(2, **SMALL, fill="error", random_state=0).fit(views)


def bytes_held(thing, seen):
    """By storage, of all tensors and arrays that a thing leads to, but for the network and the lists of neighbours."""
    found = {}
    if id(thing) in seen:
        return found
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, np.ndarray):
        found[thing.__array_interface__["data"][0]] = thing.nbytes
    elif isinstance(thing, dict):
        for name, part in thing.items():
            found |= {} if name in ("network", "neighbor_ids") else bytes_held(part, seen)
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            found |= bytes_held(part, seen)
    elif hasattr(thing, "__dict__"):
        found |= bytes_held(vars(thing), seen)
    return found


def test_training_samples_are_held_once(model, views, tmp_path):
    raw = sum(view.nbytes for view in views)
    model.save(tmp_path / "model")
    for one in (model, URRL.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert raw < sum(bytes_held(one, {}).values()) < 1.3 * raw


def test_a_pickle_holds_training_samples_once(model, views):
    raw = sum(view.nbytes for view in views)
    fitted = model._model
    rest = fitted.stored.neighbor_ids.nbytes + len(pickle.dumps(fitted.network))
    model.predict_proba([view[:1] + 0.1 for view in views])  # a search that keeps numbers for the next one
    assert raw < len(pickle.dumps(model)) - rest < 1.3 * raw


def test_copies_and_fits_share_the_old_model_and_do_not_copy_it(views, model, monkeypatch):
    def refuse(self, memo):
        raise AssertionError("the model is copied")

    fitted = copy.copy(model)
    assert fitted._model is model._model
    monkeypatch.setattr(Model, "__deepcopy__", refuse, raising=False)
    fitted.fit([view[100:160] for view in views])
    assert fitted._model is not model._model


def test_copies_find_the_same_neighbours(model, views):
    new = [view[300:340] + 0.01 for view in views]
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(new), model.transform(new))
    assert np.array_equal(copy.deepcopy(model).transform(new), model.transform(new))
