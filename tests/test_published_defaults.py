"""The settings of published methods as their authors print them."""

from __future__ import annotations

import pytest

from viewfuse.methods import estimator_of

NETWORK = {"fill": "neighbors", "reduction": "none", "device": "auto", "random_state": None, "verbose": False}
COMPLETER = NETWORK | {
    "scaling": "range", "latent_dim": 128, "hidden_dims": (1024, 1024, 1024), "entropy_weight": 9.0,
    "reconstruction_weight": 0.1, "prediction_weight": 0.1, "epochs": 500, "prediction_start": 100,
    "batch_size": 256, "learning_rate": 1e-4,
}  # fmt: skip
DEFAULTS = {
    "completer": COMPLETER,
    "dcp": COMPLETER,
    "sure": NETWORK | {
        "scaling": "minmax", "latent_dim": 10, "hidden_dims": (1024, 1024, 1024), "dropout": 0.2, "n_negatives": 30,
        "reconstruction_weight": 0.5, "epochs": 80, "batch_size": 1024, "learning_rate": 1e-3,
    },
    "dsimvc": NETWORK | {
        "scaling": "minmax", "latent_dim": 512, "feature_dim": 128, "hidden_dims": (500, 500, 2000),
        "pretrain_epochs": 100, "neighbor_pretrain_epochs": 200, "neighbor_epochs": 100, "iterations": 200,
        "batch_size": 256, "learning_rate": 3e-4, "virtual_rate": 1e-3, "weight_rate": 4e-4,
    },
    "cpspan": NETWORK | {
        "scaling": "minmax", "latent_dim": 10, "hidden_dims": (500, 500, 2000), "pretrain_epochs": 200, "epochs": 50,
        "prototype_weight": 1e-3, "instance_weight": 1e-3, "batch_size": 256, "pretrain_rate": 5e-4,
        "learning_rate": 1e-4,
    },
    "recformer": NETWORK | {
        "scaling": "standard", "token_dim": 512, "feedforward_dim": 2048, "n_heads": 4, "n_neighbors": 15,
        "graph_weight": 1.0, "recover_epochs": 50, "refine_epochs": 51, "batch_size": 128, "learning_rate": 1e-3,
    },
    "pimvc": NETWORK | {
        "scaling": "minmax", "reduction": "auto", "projection_weight": 1e5, "graph_weight": 1.0, "n_neighbors": 3,
        "rounds": 100, "tolerance": 1e-5,
    },
    **{name: NETWORK | {"scaling": "minmax", "reduction": "auto"} for name in ("nemo", "kmeans-knn", "kmeans-mean")},
}  # fmt: skip
PRESETS = {
    "completer": {
        "caltech101-20": {"scaling": "range"},
        "scene15": {"scaling": "none"},
        "landuse21": {"scaling": "none", "latent_dim": 64},
        "noisymnist": {"scaling": "none", "latent_dim": 64},
    },
    "dcp": {
        "caltech101-20": {"scaling": "range"},
        "scene15": {"scaling": "none"},
        "landuse21": {"scaling": "none", "latent_dim": 40},
        "noisymnist": {"scaling": "none", "latent_dim": 40},
        "caltech101-20, three views": {"learning_rate": 3e-4, "epochs": 150, "prediction_start": 50},
        "scene15, three views": {"scaling": "none", "epochs": 300},
        "landuse21, three views": {"scaling": "none", "latent_dim": 40},
    },
    "sure": {"scene15": {"scaling": "none"}, "caltech101": {"scaling": "none"}, "reuters": {"scaling": "minmax"}},
    "dsimvc": {
        "bdgp": {"neighbor_epochs": 30, "iterations": 100},
        "mnist-usps": {"neighbor_epochs": 80},
        "ccv": {"neighbor_epochs": 30, "iterations": 300, "scaling": "none"},
        "multi-fashion": {"pretrain_epochs": 200, "iterations": 300},
    },
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_authors(name):
    assert estimator_of(name)().get_params() == DEFAULTS[name] | {"n_clusters": 8}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_those_of_the_authors(name):
    method = estimator_of(name)
    assert set(method.presets) == set(PRESETS[name])
    for preset, own in PRESETS[name].items():
        assert method.preset(preset, 5).get_params() == DEFAULTS[name] | own | {"n_clusters": 5}
