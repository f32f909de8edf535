"""Config refuse what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from viewfuse import SettingError
from viewfuse.methods.urrl.config import Config


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("n_clusters", 0, "an integer of at least 1; got 0"),
        ("n_neighbors", 2.5, "an integer of at least 1; got 2.5"),
        ("batch_size", True, "an integer"),
        ("pretrain_epochs", -1, "'auto' or an integer of at least 0"),
        ("learning_rate", 0, "'auto' or a number above 0"),
        ("learning_rate", float("nan"), "'auto' or a number above 0"),
        ("learning_rate", "fast", "'auto' or a number above 0"),
        ("noise", float("inf"), "a number of at least 0"),
        ("feature_dropout", 1.0, "a number from 0 to below 1"),
        ("view_dropout", "often", "'auto' or a number"),
        ("imputed_bias", 3.0, "a number of at most 0"),
        ("donor_depth", 0, "an integer of at least 1"),
        ("embedding_dim", 10, "a multiple of 4, the number of attention heads; got 10"),
        ("n_clusters", np.array(2), "an integer"),
        ("view_dropout", np.array([0.1, 0.2]), "'auto' or a number"),
        ("augmentation", "yes", "True or False"),
        ("view_output", "last", "one of first, second"),
        ("schedule", "short", "one of default, paper"),
    ],
)
def test_wrong_values_are_named(field, value, wanted):
    with pytest.raises(SettingError, match=f"{field} must be {wanted}"):
        Config(**{field: value})


def test_numpy_numbers_are_numbers():
    settings = Config(n_clusters=np.int64(3), noise=np.float32(0.1), imputed_bias=-np.inf, view_dropout=np.float64(0.2))
    assert settings.n_clusters == 3


@pytest.mark.parametrize(
    ("fields", "length", "depth"),
    [
        ({"n_neighbors": 4, "donor_depth": 1}, 4, 3),
        ({"n_neighbors": 4, "donor_depth": 10}, 4, 9),
        ({"n_neighbors": 4, "donor_depth": 2}, 4, 3),
        ({"n_neighbors": 4, "donor_depth": 10, "knn_imputation": False}, 1, 0),
        ({"n_neighbors": 1}, 1, 9),
    ],
)
def test_lengths_of_lists(fields, length, depth):
    settings = Config(**fields)
    assert (settings.list_length, settings.search_depth) == (length, depth)


def test_no_joint_stage_without_the_clustering_module():
    assert Config(pretrain_epochs=3, joint_epochs=5).epochs(100) == (3, 5)
    assert Config(pretrain_epochs=3, joint_epochs=5, clustering_module=False).epochs(100) == (3, 0)


@pytest.mark.parametrize(("n", "epochs"), [(150, 100), (2000, 100), (2500, 80), (10**6, 1)])
def test_the_schedule_of_the_paper(n, epochs):
    assert Config(schedule="paper").epochs(n) == (epochs, epochs)
