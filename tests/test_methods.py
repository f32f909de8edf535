"""What all methods have in common: any mask, nothing hidden is looked at, one seed one result, new samples, files."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import viewfuse
from conftest import make_blobs
from viewfuse import DataError, SettingError, Views, metrics
from viewfuse.methods.registry import ESTIMATORS, estimator_of

_MLP = {"hidden_dims": (16,), "learning_rate": 3e-3}
TINY = {
    "completer": {"epochs": 30, "prediction_start": 15, "latent_dim": 8, **_MLP},
    "dcp": {"epochs": 30, "prediction_start": 15, "latent_dim": 8, **_MLP},
    "sure": {"epochs": 4, "batch_size": 100, "n_negatives": 5, **_MLP},
    "dsimvc": {"pretrain_epochs": 20, "neighbor_pretrain_epochs": 20, "neighbor_epochs": 20, "iterations": 25,
               "latent_dim": 16, "feature_dim": 8, **_MLP},
    "cpspan": {"pretrain_epochs": 30, "pretrain_rate": 3e-3, "epochs": 5, **_MLP},
    "recformer": {"recover_epochs": 4, "refine_epochs": 4, "token_dim": 16, "feedforward_dim": 16, "batch_size": 30},
    "kmeans-mean": {},
    "kmeans-knn": {},
    "nemo": {},
    "pimvc": {},
}  # fmt: skip
PLACING = [name for name in TINY if name != "nemo"]


def tiny(name, n_clusters=3, **params):
    return estimator_of(name)(n_clusters, random_state=0, **{**TINY[name], **params})


@pytest.fixture(scope="module")
def blobs():
    """Views with NaN where they are missing, the classes, and the mask."""
    return make_blobs(60, 3)


@pytest.fixture(scope="module")
def fitted(blobs):
    """Every method, fitted once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", viewfuse.EmptyClusterWarning)
        return {name: tiny(name).fit(blobs[0]) for name in TINY}


def test_all_methods_are_tested():
    assert set(TINY) == set(ESTIMATORS) - {"urrl"}


@pytest.mark.parametrize("name", TINY)
def test_clear_clusters_are_found(fitted, blobs, name):
    assert metrics.clustering_accuracy(blobs[1], fitted[name].labels_) >= 0.9


@pytest.mark.parametrize("name", TINY)
def test_hidden_values_are_never_looked_at_and_a_seed_decides(fitted, blobs, name):
    views, _, mask = blobs
    spoiled = [np.where(mask[:, [v]], view, 1e6 * (1 + v)).astype(np.float32) for v, view in enumerate(views)]
    assert (tiny(name).fit(Views(spoiled, mask=mask)).labels_ == fitted[name].labels_).all()


@pytest.mark.parametrize("name", TINY)
def test_known_labels_change_nothing(fitted, blobs, name):
    assert (tiny(name).fit(blobs[0], blobs[1]).labels_ == fitted[name].labels_).all()


@pytest.mark.parametrize("name", PLACING)
def test_training_samples_are_placed_where_they_were(fitted, blobs, name):
    assert (fitted[name].predict(blobs[0]) == fitted[name].labels_).all()
    shares = fitted[name].explain(blobs[0]).weights
    assert shares.sum(axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    assert (shares[~blobs[2]] == 0).all()


@pytest.mark.parametrize("name", PLACING)
def test_new_samples_with_one_view_are_placed(fitted, blobs, name):
    views, labels, _ = make_blobs(60, 3, missing=0.0)
    found = fitted[name].predict([views[0], None, None])
    assert metrics.clustering_accuracy(labels, found) >= 0.8


@pytest.mark.parametrize("name", PLACING)
def test_a_saved_model_places_alike(fitted, blobs, name, tmp_path):
    fitted[name].save(tmp_path / "model")
    loaded = viewfuse.load(tmp_path / "model", device="cpu")
    assert type(loaded) is type(fitted[name])
    assert (loaded.predict(blobs[0]) == fitted[name].labels_).all()
    assert loaded.get_params()["n_clusters"] == 3


@pytest.mark.filterwarnings("ignore::viewfuse.SuspiciousDataWarning", "ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("shape", ["one view", "no complete sample", "a view hardly anybody has", "three samples"])
def test_any_mask_will_do(name, shape):
    views, _, _ = make_blobs(24, 2, missing=0.0)
    mask = np.ones((24, 3), dtype=bool)
    if shape == "one view":
        views, mask = views[:1], mask[:, :1]
    elif shape == "no complete sample":
        mask = np.arange(24)[:, None] % 3 == np.arange(3)
    elif shape == "a view hardly anybody has":
        mask[1:, 2] = False
    else:
        views, mask = [view[:3] for view in views], mask[:3]
    labels = tiny(name, 2).fit(Views(views, mask=mask)).labels_
    assert labels.shape == mask[:, 0].shape
    assert set(labels) <= {0, 1}


@pytest.mark.parametrize("name", TINY)
def test_wrong_settings_and_data_are_refused(name, blobs):
    for wrong in ({"n_clusters": 0}, {"n_clusters": 2.5}, {"scaling": "odd"}, {"fill": "odd"}, {"reduction": "odd"}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            tiny(name, **wrong).fit(blobs[0])
    with pytest.raises(DataError, match="n_samples=60 should be >= n_clusters=61"):
        tiny(name, 61).fit(blobs[0])


def test_methods_that_cannot_say_so(fitted, blobs):
    assert not hasattr(fitted["nemo"], "predict")
    with pytest.raises(SettingError, match="cannot fill missing views"):
        fitted["pimvc"].impute(blobs[0])
    with pytest.raises(SettingError, match="unknown; choose from urrl, completer"):
        estimator_of("nothing")
