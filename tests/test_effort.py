"""How much is spent: quick, auto and thorough."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from operator import attrgetter

import numpy as np
import pytest

from conftest import make_blobs
from flat import flat
from viewfuse import URRL, SettingError
from viewfuse.engine.replicates import replicate_seeds
from viewfuse.methods.urrl import estimator
from viewfuse.methods.urrl.config import PAPER, Config
from viewfuse.selection import rules

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 32, "learning_rate": 2e-3, "random_state": 0}
SHORT = {"pretrain_epochs": 1, "joint_epochs": 1}
UNCHANGED = attrgetter("_model", "soft_labels_", "decisions_")


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(30, 3, widths=(5, 4))[0]


def test_a_quick_fit_trains_under_one_scaling_although_nothing_is_clear(blobs, monkeypatch):
    monkeypatch.setattr(rules, "CLEAR", inf)
    scaling = URRL(3, **flat(**SHORT, **TINY), effort="quick").fit(blobs).decisions_["scaling"]
    assert len(scaling["evidence"]) == 1
    assert "others were not tried (effort='quick')" in scaling["why"]


def test_a_thorough_fit_trains_three_networks_under_every_scaling_although_all_is_clear(blobs, monkeypatch):
    monkeypatch.setattr(rules, "CLEAR", -inf)
    measured = []
    monkeypatch.setattr(estimator, "validated", lambda model, config, n, **ways: measured.append(n) or UNCHANGED(model))
    model = URRL(3, **flat(**SHORT, **TINY), effort="thorough").fit(blobs)
    assert len(model.decisions_["scaling"]["evidence"]) > 1
    assert len(model.objectives_) == 3
    assert measured == [5]  # whole fits, each on a part
    asked = {"effort": "thorough", "n_init": 1, "scaling": "standard"}
    monkeypatch.setattr(URRL, "validate", lambda self: self)
    one = URRL(1, **flat(**SHORT, **TINY), **asked).fit(blobs)
    assert one.trust_.refits == 0  # of one cluster there is nothing to measure
    assert len(one.objectives_) == 1
    assert "trust" not in URRL.paper(3, **asked, **SHORT, **TINY).fit(blobs).decisions_


@pytest.mark.parametrize("n", [40, 200, 2000, 100_000])
def test_more_effort_never_trains_less(n):
    quick, auto, thorough = (Config(effort=effort) for effort in ("quick", "auto", "thorough"))
    assert quick.trial_epochs(n) <= auto.trial_epochs(n) <= thorough.trial_epochs(n)
    stages = [config.epochs(n) for config in (quick, auto, thorough)]
    for first, second in pairwise(stages):
        assert first[0] <= second[0]
        assert first[1] < second[1]
    assert quick.trial_epochs(n) == quick.epochs(n).pretraining  # so that there is no second half


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32])
def test_integers_of_numpy_are_integers(kind):
    config = Config(kind(3), n_neighbors=kind(4), hidden_dim=kind(100), batch_size=kind(64), pretrain_epochs=kind(2))
    numbers = (config.n_clusters, config.n_neighbors, config.hidden_dim, config.batch_size, config.pretrain_epochs)
    assert [type(number) for number in numbers] == [int] * 5
    assert Config(early_stopping=False).early_stopping is False


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "0"])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    with pytest.raises(SettingError, match="random_state must be an integer from 0 to 2"):
        replicate_seeds(seed, 1)


def test_only_the_usual_joint_stage_ends_where_it_gains_nothing_more():
    assert [Config(effort=effort).settles for effort in ("quick", "auto", "thorough")] == [False, True, False]
    assert not Config(n_clusters=3, **PAPER).settles


def test_pretraining_is_never_cut_short_by_a_thorough_fit():
    assert Config().pretrained_as_needed
    assert not Config(effort="thorough").pretrained_as_needed


def test_the_joint_stage_learns_faster_but_in_the_paper():
    efforts = [Config(effort=effort) for effort in ("quick", "auto", "thorough")]
    assert [config.joint_factor(1_000) for config in efforts] == [3.0, 3.0, 2.0]
    assert [config.joint_factor(999) for config in efforts] == [2.0, 2.0, 2.0]
    paper = Config(n_clusters=3, **PAPER)
    assert paper.joint_factor(999) == paper.joint_factor(1_000) == 1.0
    assert paper.hidden_width == 256


def test_many_clusters_get_wider_layers():
    assert Config(n_clusters=50).hidden_width == 256
    assert Config(n_clusters=51).hidden_width == 512
    assert Config(n_clusters=51, hidden_dim=32).hidden_width == 32


@pytest.mark.parametrize(("name", "value"), [("effort", "much"), ("hidden_dim", "wide"), ("hidden_dim", 0)])
def test_wrong_settings_are_named(blobs, name, value):
    with pytest.raises(SettingError, match=f"{name} must be"):
        URRL(3, **flat(**{**TINY, name: value})).fit(blobs)
