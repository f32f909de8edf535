"""Parameters of `URRL`, its `Config`, and names that version 0.2 had."""

from __future__ import annotations

import warnings
from inspect import signature

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import make_pipeline

from viewfuse import URRL, Config, SettingError
from viewfuse.methods.urrl.config import PAPER, opened_params

OLD = {
    "n_neighbors": 3, "embedding_dim": 12, "hidden_dim": 7, "schedule": "paper", "pretrain_epochs": 2,
    "joint_epochs": 0, "batch_size": 9, "learning_rate": 0.5, "weight_decay": 0.25, "view_dropout": 0.1, "noise": 0.2,
    "feature_dropout": 0.3, "robustness_weight": 2.0, "clustering_weight": 3.0, "imputed_bias": -1.5,
}  # fmt: skip
"""Every parameter that version 0.2 had and `URRL` has no more, with a value that is not the default."""
SWITCHES = {"n_heads": 2, "distance_code": False}


def test_what_a_user_turns_are_fourteen_parameters():
    assert list(signature(URRL).parameters) == [
        "n_clusters", "cluster_range", "scaling", "fill", "reduction", "effort", "outliers", "n_init", "config",
        "device", "random_state", "verbose", "n_jobs", "checkpoint",
    ]  # fmt: skip
    assert sorted(URRL().get_params()) == sorted(signature(URRL).parameters)


def test_old_names_give_the_same_config_with_one_warning():
    with pytest.warns(FutureWarning, match="n_neighbors, .*, ablation moved into Config; write URRL") as noticed:
        old = URRL(4, **OLD, ablation=SWITCHES, scaling="view")
    assert (len(noticed), noticed[0].filename) == (1, __file__)
    assert old.config == Config(**OLD, **SWITCHES)
    assert repr(old.config) in str(noticed[0].message)
    with pytest.warns(FutureWarning, match=r"write URRL\(config=Config\(n_heads=8, noise=0.3\)"):
        URRL(config=Config(n_heads=8), noise=0.3)


@pytest.mark.parametrize(("name", "value"), OLD.items())
def test_every_old_name_can_be_set(name, value):
    model = URRL(3, config=Config(n_heads=2))
    with pytest.warns(FutureWarning, match=f"^{name} moved into Config") as noticed:
        model.set_params(**{name: value}, fill="median")
    assert (len(noticed), noticed[0].filename) == (1, __file__)
    assert (model.config, model.fill) == (Config(n_heads=2, **{name: value}), "median")


def test_other_names_are_refused_as_python_does():
    with pytest.raises(TypeError, match=r"^URRL.__init__\(\) got an unexpected keyword argument 'noises'$"):
        URRL(3, noises=0.1)
    with pytest.raises(ValueError, match="Invalid parameter 'noises'"):
        URRL().set_params(noises=0.1)
    with pytest.raises(TypeError, match="'magic'"), warnings.catch_warnings():
        URRL(ablation={"magic": 3})
    with pytest.raises(SettingError, match="ablation must be a dict of fields of Config"):
        URRL(ablation="KNNI")


def test_one_field_is_set_as_grids_of_scikit_learn_do():
    start = make_pipeline(URRL(3, scaling="view"))
    grid = ParameterGrid({"urrl__config__noise": [0.1, 0.2], "urrl__config__batch_size": [np.int64(5)]})
    found = [clone(start).set_params(**clone(one, safe=False))[-1] for one in grid]
    assert [one.config for one in found] == [Config(noise=0.1, batch_size=5), Config(noise=0.2, batch_size=5)]
    assert start[-1].config is None
    assert clone(found[0]).config == found[0].config
    both = found[0].set_params(config=Config(n_heads=2), config__noise=0.4)
    assert both.config == Config(n_heads=2, noise=0.4)


def test_a_config_shows_what_is_not_as_usual():
    config = Config(joint_epochs=0, hidden_dim="auto", view_output="first")
    assert repr(config) == "Config(joint_epochs=0, view_output='first')"
    assert eval(repr(config)) == config
    assert repr(URRL(3, config=config)) == f"URRL(config={config!r}, n_clusters=3)"


def test_the_paper_is_a_config_that_may_differ():
    assert URRL.paper(3).config == Config(**PAPER)
    assert URRL.paper(3, noise=0.2, n_heads=2).config == Config(**{**PAPER, "noise": 0.2, "n_heads": 2})
    with pytest.raises(TypeError, match="config"):
        URRL.paper(3, config=Config())
    with pytest.warns(FutureWarning, match="^ablation moved"):
        assert URRL.paper(3, ablation={"n_heads": 8}).config == Config(**{**PAPER, "n_heads": 8})


@pytest.mark.parametrize("given", [None, Config(), Config(**OLD)])
def test_what_is_saved_gives_the_same_parameters(given):
    params = URRL(3, config=given, scaling="view")._plain_params()
    assert URRL(**opened_params(params)).get_params() == URRL(3, config=given, scaling="view").get_params()


def test_models_of_0_2_are_opened_without_a_warning():
    saved = {**OLD, "n_clusters": 3, "effort": "quick", "ablation": SWITCHES}
    assert opened_params(saved) == {"n_clusters": 3, "effort": "quick", "config": Config(**OLD, **SWITCHES)}
    assert opened_params({"ablation": None, "noise": 0.05}) == {"config": Config()}
