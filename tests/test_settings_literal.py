"""Settings, schedules and costs by hand: numbers that nothing in the code computes a second time."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.speed.roofline import multiply_adds
from viewfuse import URRL, EmptyClusterWarning, SettingError
from viewfuse.fitted.model import warn_of_empty_clusters
from viewfuse.methods.fitted_estimator import MultiViewClusterer
from viewfuse.methods.urrl import network as cost
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod

DEFAULTS = {
    "n_clusters": 8, "n_neighbors": 4, "donor_depth": 10, "embedding_dim": "auto", "hidden_dim": "auto", "n_heads": 4,
    "feedforward_ratio": 2, "effort": "auto", "schedule": "default", "pretrain_epochs": "auto", "joint_epochs": "auto",
    "batch_size": 64, "learning_rate": "auto", "weight_decay": 4e-5, "view_dropout": "auto", "noise": 0.05,
    "feature_dropout": 0.05, "robustness_weight": 1e-3, "clustering_weight": "auto", "imputed_bias": -10.0,
    "knn_imputation": True, "augmentation": True, "distance_code": True, "three_level_mask": True,
    "clustering_module": True, "early_stopping": True, "calibration": True, "center_start": "best",
    "neighbor_output": "first",
    "view_output": "mean",
}  # fmt: skip
PAPER = {
    "schedule": "paper", "donor_depth": 1, "embedding_dim": 256, "hidden_dim": 256, "learning_rate": 3e-4,
    "clustering_weight": 0.1, "early_stopping": False,
    "calibration": False,
    "center_start": "ward",
}  # fmt: skip
"""What the paper's appendix has, or what it needs, where that is not the default."""


def test_the_defaults_are_those_of_the_documents():
    assert asdict(Config()) == DEFAULTS
    own = {"cluster_range": (1, 200), "scaling": "auto", "fill": "neighbors", "reduction": "auto", "n_init": "auto",
           "n_jobs": None, "outliers": "mark"}  # fmt: skip
    other = {
        "config": None,
        "effort": "auto",
        "device": "auto",
        "random_state": None,
        "verbose": False,
        "checkpoint": None,
    }
    assert URRL().get_params() == {"n_clusters": "auto"} | own | other
    assert URRL(5)._config() == Config(5)


def test_the_method_as_printed_has_the_numbers_of_the_paper():
    model = URRL.paper(5, random_state=3, noise=0.2)
    assert asdict(model._config()) == DEFAULTS | PAPER | {"n_clusters": 5, "noise": 0.2}
    assert (model.scaling, model.reduction, model.n_init, model.random_state) == ("minmax", "none", 1, 3)
    assert model.fill == "neighbors"


@pytest.mark.parametrize(
    ("effort", "n", "batch", "trial", "epochs"),
    [
        ("auto", 100, 64, 113, (170, 200)),  # one step an epoch: a third of 680 and 900 steps are too many epochs
        ("auto", 400, 64, 19, (38, 50)),  # six: a third of 340 / 6, 680 / 6, 900 / 6
        ("auto", 999, 64, 8, (16, 20)),  # fifteen
        ("auto", 1000, 64, 23, (46, 60)),  # fifteen, not a third
        ("auto", 2000, 64, 11, (22, 30)),
        ("auto", 2000, 32, 11, (22, 30)),
        ("auto", 6400, 64, 11, (22, 30)),  # a hundred: 1100 of 1500, 2200 and 3000 of 3000 steps
        ("auto", 12_800, 64, 8, (15, 15)),  # two hundred: 1500, 3000 and 3000 steps
        ("quick", 100, 64, 62, (62, 56)),
        ("quick", 400, 64, 11, (11, 14)),
        ("quick", 2000, 64, 6, (6, 8)),
        ("quick", 12_800, 64, 5, (5, 4)),  # 822, 822 and 800 steps
        ("thorough", 100, 64, 113, (170, 400)),
        ("thorough", 400, 64, 19, (38, 100)),
        ("thorough", 2000, 64, 11, (22, 60)),
        ("thorough", 12_800, 64, 8, (15, 30)),
        ("auto", 63, 64, 113, (170, 200)),
    ],
)
def test_epochs_by_hand(effort, n, batch, trial, epochs):
    config = Config(effort=effort, batch_size=batch)
    assert (config.trial_epochs(n), config.epochs(n)) == (trial, epochs)


@pytest.mark.parametrize(
    ("settings", "n", "early"),
    [
        ({}, 60, 29),  # 113 / 4
        ({}, 199, 10),  # three steps an epoch: 113 / 3 = 38 epochs
        ({}, 200, 38),
        ({"effort": "quick"}, 60, 16),
        ({"effort": "thorough"}, 60, 113),
        ({"n_clusters": 13}, 60, 43),  # many clusters take all 340 steps, at most 170: 170 / 4
        ({"pretrain_epochs": 9}, 60, 9),  # what a user asks for is done
        ({"schedule": "paper"}, 60, 100),
    ],
)
def test_the_early_look_by_hand(settings, n, early):
    assert Config(**settings).early_epochs(n) == early


@pytest.mark.parametrize(
    ("settings", "n", "sizes"),
    [
        ({}, 999, (128, 128, 9e-4)),
        ({}, 1_000, (256, 256, 3e-4)),
        ({"n_clusters": 12}, 10, (128, 128, 9e-4)),
        ({"n_clusters": 13}, 10, (256, 256, 3e-4)),
        ({"n_clusters": 50}, 1_000, (256, 256, 3e-4)),
        ({"n_clusters": 51}, 10, (256, 512, 3e-4)),
        ({"schedule": "paper"}, 10, (256, 256, 3e-4)),
        ({"embedding_dim": 40, "learning_rate": 0.1}, 10, (40, 128, 0.1)),
        ({"hidden_dim": 40}, 10, (128, 40, 9e-4)),
    ],
)
def test_widths_and_rate_by_hand(settings, n, sizes):
    sized = Config(**settings).sized(n)
    assert (sized.embedding_dim, sized.hidden_dim, sized.learning_rate) == sizes
    assert (sized.embedding_width, sized.hidden_width, sized.rate) == sizes
    assert sized.sized(n) == sized


@pytest.mark.parametrize(("n", "epochs"), [(63, 100), (1984, 100), (2047, 100), (2048, 97), (6400, 31), (6464, 31)])
def test_epochs_of_the_paper_by_hand(n, epochs):
    assert Config(schedule="paper").epochs(n) == (epochs, epochs)  # 3100 steps, rounded up to epochs
    assert Config(schedule="paper", pretrain_epochs=7).epochs(n) == (7, epochs)
    assert Config(schedule="paper", joint_epochs=0).epochs(n) == (epochs, 0)


def test_what_is_watched_settled_and_cut_short():
    watched = [Config(**own).watched for own in ({}, {"joint_epochs": 5}, {"early_stopping": False})]
    assert watched == [True, False, False]
    assert [Config(effort=own).usual_trainings for own in ("quick", "auto", "thorough")] == [1, 1, 3]
    assert [Config(effort=own).pretrained_as_needed for own in ("quick", "auto", "thorough")] == [True, True, False]
    assert [Config(schedule="paper", effort=own).joint_factor(50) for own in ("quick", "auto", "thorough")] == [1.0] * 3
    assert not Config(schedule="paper").settles


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("view_dropout", [0, 0.0, 0.999, "auto"], [1, 1.0, -0.001, "none", True]),
        ("feature_dropout", [0, 0.999], [1, -0.1, "auto"]),
        ("imputed_bias", [0, -0.5, -float("inf")], [0.001, float("nan")]),
        ("learning_rate", [1e-9, 1], [0, -1, float("inf")]),
        ("noise", [0, 5.0], [-1e-9, float("nan")]),
        ("robustness_weight", [0], [-1]),
        ("weight_decay", [0], [-1]),
        ("clustering_weight", [0, "auto", 3], [-1, "much", float("inf")]),
        ("joint_epochs", [0, "auto"], [-1, 0.5, True]),
        ("pretrain_epochs", [0, "auto"], [-1, 0.5, "some"]),
        ("n_neighbors", [1], [0, 1.0]),
        ("hidden_dim", [1, "auto"], [0, 2.5]),
        ("n_heads", [1, 256], [0, 3]),
        ("embedding_dim", [4, 260], [6, 0]),
        ("neighbor_output", ["first", "eighth", "mean", "concat"], ["ninth", 1]),
        ("center_start", ["best", "ward"], ["random"]),
        ("clustering_module", [True, False], [1, None]),
    ],
)
def test_the_bounds_of_every_setting(name, allowed, refused):
    for value in allowed:
        assert getattr(Config(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(SettingError, match=f"^{'embedding_dim' if (name, value) == ('n_heads', 3) else name} must"):
            Config(**{name: value})


TINY = Config(n_clusters=2, n_neighbors=3, embedding_dim=4, n_heads=2, hidden_dim=6, batch_size=10, pretrain_epochs=4,
              joint_epochs=3)  # fmt: skip
WIDTHS = [5, 3]  # with the distance code 8 and 6
MULTIPLIED = 20 * ((45 + 48 + 512) + (27 + 36 + 288) + 2 * 128 + 32 + 108 + 96) + 10 * (126 + 114 + 48)
"""Of both branches code, attention and products of each list, of each token, between tokens, and the layers before;
of one branch the decoders, and distances between ten samples and to two centres."""
HANDED_ON = 2 * 10 * (7 * (8 + 6 + 2 * 4) + 2 * (6 + 6 + 4)) + 10 * ((18 + 5) + (18 + 3))


def parameters():
    return sum(one.numel() for one in URRLMethod(TINY).empty(WIDTHS).parameters())


def test_operations_and_outputs_by_hand():
    assert multiply_adds(WIDTHS, TINY, asked=1) == MULTIPLIED
    more = (2 * 2 * 3 * 8 + 2 * 512) + (2 * 2 * 3 * 6 + 2 * 288)  # two more outputs of each list
    assert multiply_adds(WIDTHS, TINY, asked=3) == MULTIPLIED + 20 * more
    assert cost.layer_outputs(WIDTHS, TINY) == HANDED_ON


@pytest.mark.parametrize("n", [5, 20, 100, 1_000, 3_000, 65_536, 65_537, 200_000])
def test_bytes_by_hand(n):
    per_sample = 4 * 8 + 2 * (8 * 9 + 1) + 4 * 4  # values, nine neighbours and a mark for each view, embedding
    share = min(n, 10) / 10
    step = 4 * (6 * 2 * 10 * 3 * 8 + 2 * HANDED_ON) * share
    training, distances = 16 * parameters() + step, 24 * min(n**2, 4_000_000)
    passing = 64 * 2**20 + 6_000 * min(n, 65_536)  # libraries, and what of each sample is freed in pieces
    assert cost.fit_bytes(n, WIDTHS, TINY) == n * per_sample + passing + max(training, distances)
    held = n * per_sample * 3 + 4 * parameters() * 2 + passing
    assert cost.fit_bytes(n, WIDTHS, TINY, 2) == held + max(training, distances)


def test_seconds_by_hand():
    assert cost.n_steps(100, TINY, 2) == 10 * (2 * 4 + 0 + 3)
    passes, search = 100 / 10 * (2 + 10) / 3, 2 * 100 * 100 * 8 * 2 / 1e11
    assert cost.fit_seconds(100, WIDTHS, TINY, 2, 0.03) == pytest.approx((110 + passes) * 0.03 + search)
    expected = (1 * (4 + 3) + 5 / 5 * (1 + 10) / 3) * 0.25 + 2 * 5 * 5 * 8 / 1e11  # a batch of five
    assert cost.fit_seconds(5, WIDTHS, TINY, 1, 0.25) == pytest.approx(expected)
    many = 64_000
    passes, search = many / 10 * (1 + 10) / 3, 2 * many * 30_000 * 8 / 1e11
    steps = 6_400 * (4 + 3)
    trial = min(4, 1)  # 1500 steps are less than an epoch
    assert cost.n_steps(many, TINY, 1) == 6_400 * (trial + 4 - trial + 3) == steps
    assert cost.fit_seconds(many, WIDTHS, TINY, 1, 1e-3) == pytest.approx((steps + passes) * 1e-3 + search)


def test_the_loss_has_the_weights_of_the_configuration():
    method = URRLMethod(Config(robustness_weight=0.25))
    terms = {"reconstruction": 1.0, "robustness": 2.0, "clustering": 4.0}
    assert method.total(terms, 0.125) == 1.0 + 0.25 * 2.0 + 0.125 * 4.0
    assert method.total({**terms, "hints": 8.0, "pairs": 16.0}, 0.125) == 1.5 + 0.125 * (4.0 + 8.0 + 16.0)
    assert [URRLMethod(Config(n_neighbors=k)).neighbor_depth for k in (4, 11, 20)] == [9, 10, 19]


class Sure(MultiViewClusterer):
    """An estimator that is as sure as it is said to be."""

    def _place(self, X, batch=None):
        return None, SimpleNamespace(assign=lambda *_: np.array(X, dtype=np.float32)), None, None


def test_the_label_is_the_first_of_equals():
    rows = [[0.5, 0.5], [0.25, 0.75], [0.375, 0.625]]
    assert Sure().predict(rows).tolist() == [0, 1, 1]


def test_empty_clusters_are_counted():
    with pytest.warns(EmptyClusterWarning, match="^3 of 5 clusters are empty; ask for fewer clusters, or do less$"):
        warn_of_empty_clusters(np.array([3, 3, 1]), 5, ", or do less")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_empty_clusters(np.array([1, 0]), 2)
