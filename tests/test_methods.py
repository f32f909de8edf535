"""What all methods have in common: any mask, nothing hidden is looked at, one seed one result, new samples, files."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import viewfuse
from conftest import make_blobs
from viewfuse import DataError, NotEnoughMemory, SettingError, Views, metrics
from viewfuse.methods import ESTIMATORS, estimator_of
from viewfuse.methods.network import PlacingNetwork
from viewfuse.neighbors.index import Samples

_MLP = {"hidden_dims": (16,), "latent_dim": 8}
BRIEF = {
    "completer": {"epochs": 2, "prediction_start": 1, **_MLP},
    "dcp": {"epochs": 2, "prediction_start": 1, **_MLP},
    "sure": {"epochs": 1, "batch_size": 100, "n_negatives": 2, **_MLP},
    "dsimvc": {"pretrain_epochs": 1, "neighbor_pretrain_epochs": 1, "neighbor_epochs": 1, "iterations": 2,
               "feature_dim": 8, **_MLP},
    "cpspan": {"pretrain_epochs": 2, "epochs": 2, **_MLP},
    "recformer": {"recover_epochs": 2, "refine_epochs": 1, "token_dim": 16, "feedforward_dim": 16},
    "kmeans-mean": {},
    "kmeans-knn": {},
    "nemo": {},
    "pimvc": {},
}  # fmt: skip
"""Networks that learn next to nothing: enough for what must hold of any."""
_RATE = {"learning_rate": 0.01}
LONG = {
    "completer": {"epochs": 300, "prediction_start": 60, "hidden_dims": (64, 64), "learning_rate": 1e-3},
    "dcp": {"epochs": 300, "prediction_start": 60, "hidden_dims": (64, 64), "learning_rate": 1e-3},
    "sure": {"epochs": 20, "batch_size": 100, "n_negatives": 5, "hidden_dims": (32,), **_RATE},
    "dsimvc": {"pretrain_epochs": 100, "neighbor_pretrain_epochs": 100, "neighbor_epochs": 100, "iterations": 200,
               "hidden_dims": (64,), "latent_dim": 64, "feature_dim": 32, "learning_rate": 1e-3},
    "cpspan": {"pretrain_epochs": 30, "pretrain_rate": 3e-3, "epochs": 5, "hidden_dims": (16,)},
    "recformer": {"recover_epochs": 20, "refine_epochs": 12, "token_dim": 32, "feedforward_dim": 32, "batch_size": 60,
                  **_RATE},
}  # fmt: skip
"""Networks that learn what there is to learn; some take a while."""
SLOW = ("completer", "dcp", "sure", "dsimvc", "cpspan", "recformer")
PLACING = [name for name in BRIEF if name != "nemo"]
LEARNING = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in BRIEF]


def brief(name, n_clusters=3, **params):
    return estimator_of(name)(n_clusters, random_state=0, **{**BRIEF[name], **params})


@pytest.fixture(scope="module")
def blobs():
    """Views with NaN where they are missing, the classes, and the mask."""
    return make_blobs(60, 3)


@pytest.fixture(scope="module")
def fitted(blobs):
    """Every method, fitted once, for a moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", viewfuse.EmptyClusterWarning)
        return {name: brief(name).fit(blobs[0]) for name in BRIEF}


def test_all_methods_are_tested():
    assert set(BRIEF) == set(ESTIMATORS) - {"urrl"}


@pytest.mark.parametrize("name", LEARNING)
def test_clear_clusters_are_found_also_of_new_samples_with_one_view(blobs, name):
    views, labels, _ = blobs
    model = estimator_of(name)(3, random_state=0, **LONG.get(name, {})).fit(views)
    assert metrics.clustering_accuracy(labels, model.labels_) >= 0.9
    if name in PLACING:
        whole, _, _ = make_blobs(60, 3, missing=0.0)
        assert metrics.clustering_accuracy(labels, model.predict([whole[0], None, None])) >= 0.8


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize("name", BRIEF)
def test_neither_hidden_values_nor_labels_are_looked_at_and_a_seed_decides(fitted, blobs, name):
    views, labels, mask = blobs
    spoiled = [np.where(mask[:, [v]], view, 1e6 * (1 + v)).astype(np.float32) for v, view in enumerate(views)]
    again = brief(name).fit(Views(spoiled, mask=mask), labels)
    assert (again.labels_ == fitted[name].labels_).all()
    if name in PLACING:
        assert (again.embedding_ == fitted[name].embedding_).all()


@pytest.mark.parametrize("name", PLACING)
def test_training_samples_are_placed_where_they_were(fitted, blobs, name):
    assert (fitted[name].predict(blobs[0]) == fitted[name].labels_).all()
    shares = fitted[name].explain(blobs[0]).weights
    assert shares.sum(axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    assert (shares[~blobs[2]] == 0).all()


@pytest.mark.parametrize("name", PLACING)
def test_a_saved_model_places_alike(fitted, blobs, name, tmp_path):
    fitted[name].save(tmp_path / "model")
    loaded = viewfuse.load(tmp_path / "model", device="cpu")
    assert type(loaded) is type(fitted[name])
    assert (loaded.predict(blobs[0]) == fitted[name].labels_).all()
    assert loaded.get_params()["n_clusters"] == 3


@pytest.mark.filterwarnings("ignore::viewfuse.SuspiciousDataWarning", "ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "completer" else n for n in BRIEF]
)  # as DCP does
@pytest.mark.parametrize(
    "shape",
    [
        "no complete sample",
        "a view hardly anybody has",
        pytest.param("one view", marks=pytest.mark.slow),
        pytest.param("three samples", marks=pytest.mark.slow),
    ],
)
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
    labels = brief(name, 2).fit(Views(views, mask=mask)).labels_
    assert labels.shape == mask[:, 0].shape
    assert set(labels) <= {0, 1}


@pytest.mark.parametrize("name", BRIEF)
def test_wrong_settings_and_data_are_refused(name, blobs):
    for wrong in ({"n_clusters": 0}, {"n_clusters": 2.5}, {"scaling": "odd"}, {"fill": "odd"}, {"reduction": "odd"}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            brief(name, **wrong).fit(blobs[0])
    with pytest.raises(DataError, match="60 samples are fewer than n_clusters=61"):
        brief(name, 61).fit(blobs[0])


def test_methods_that_cannot_say_so(fitted, blobs):
    assert not hasattr(fitted["nemo"], "predict")
    with pytest.raises(SettingError, match="cannot fill missing views"):
        fitted["pimvc"].impute(blobs[0])
    with pytest.raises(SettingError, match="unknown; choose from urrl, completer"):
        estimator_of("nothing")


def test_nemo_is_refused_where_its_matrices_have_no_room(blobs, monkeypatch):
    monkeypatch.setattr("viewfuse.utils.memory.available", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match="NEMO of 60 samples"):
        brief("nemo").fit(blobs[0])


def test_stages_are_told_of_where_that_is_asked_for(blobs, capsys):
    brief("cpspan", verbose=True).fit(blobs[0])
    assert "alignment" in capsys.readouterr().err


def test_the_influence_of_a_view_is_how_far_its_loss_moves_the_embedding():
    """Per sample and view; a view that is the only one counts 1, a missing one nothing."""
    values = [torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([[5.0], [0.0], [7.0]])]
    present = torch.tensor([[True, True], [True, False], [False, True]])
    samples = Samples(values, present, torch.zeros(3, 2, 0, dtype=torch.int64))

    class Network:
        def embed(self, given, stored):
            """Values side by side, and how many views there are; nothing may be left of a view that is taken away."""
            assert all((view[~given.present[:, v]] == 0).all() for v, view in enumerate(given.values))
            return torch.cat([*given.values, 10.0 * given.present.sum(dim=1, keepdim=True)], dim=1)

    found = PlacingNetwork(estimator_of("completer")(2)).view_influence(Network(), samples, samples)
    first, second = (1 + 4 + 100) ** 0.5, (25 + 100) ** 0.5
    expected = torch.tensor([[first, second], [1.0, -torch.inf], [-torch.inf, 1.0]])
    assert torch.allclose(found, expected)
