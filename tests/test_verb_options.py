"""Every option of the verbs that train reaches the estimator, under its name and as a value of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import viewfuse
from viewfuse import Config
from viewfuse.cli import main

ASKED = {
    "--cluster-range 3 9": {"cluster_range": (3, 9)},
    "--scaling view": {"scaling": "view"},
    "--fill median": {"fill": "median"},
    "--reduction b=pca --log1p a": {"reduction": {"b": "pca", "a": "log1p"}},
    "--random-state 11": {"random_state": 11},
    "--device cpu": {"device": "cpu"},
}
"""Options of both verbs, none with its default."""
OF_FITS = {
    "--clusters 5": {"n_clusters": 5},
    "--effort thorough": {"effort": "thorough"},
    "--outliers label": {"outliers": "label"},
    "--n-init 4": {"n_init": 4},
    "--jobs 2": {"n_jobs": 2},
}
SETTINGS = {
    "--pretrain-epochs 7": {"pretrain_epochs": 7},
    "--joint-epochs 8": {"joint_epochs": 8},
    "--n-neighbors 3": {"n_neighbors": 3},
    "--embedding-dim 24": {"embedding_dim": 24},
    "--hidden-dim 20": {"hidden_dim": 20},
    "--batch-size 17": {"batch_size": 17},
    "--learning-rate 0.025": {"learning_rate": 0.025},
    "--weight-decay 0.5": {"weight_decay": 0.5},
    "--view-dropout 0.375": {"view_dropout": 0.375},
    "--noise 0.0625": {"noise": 0.0625},
    "--feature-dropout 0.125": {"feature_dropout": 0.125},
    "--robustness-weight 0.75": {"robustness_weight": 0.75},
    "--clustering-weight 1.5": {"clustering_weight": 1.5},
    "--imputed-bias -3.5": {"imputed_bias": -3.5},
    "--schedule paper": {"schedule": "paper"},
}


class Asked(Exception):
    """Ends a verb where it would train."""


class Recorder:
    """Stands for the estimator."""

    def __init__(self, **given):
        self.given = given

    def set_params(self, **more):
        return self

    def fit(self, *views, **known):
        raise Asked(self.given, views, known)

    choose = fit


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What the estimator is made of, and called with, by a verb with these options."""
    monkeypatch.setattr(viewfuse, "URRL", Recorder, raising=False)
    for name, width in (("a", 3), ("b", 2)):
        rows = [",".join(["id", *(f"{name}{c}" for c in range(width))])]
        rows += [",".join([f"s{r}", *(str(r * 3 + c) for c in range(width))]) for r in range(9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))

    def ask(verb, *options):
        files = [str(tmp_path / f"{name}.csv") for name in "ab"]
        words = [word for option in options for word in option.split()]
        done = CliRunner().invoke(main, [verb, *files, *words])
        assert isinstance(done.exception, Asked), done.output
        return done.exception.args

    return ask


def merged(*tables):
    return {name: value for table in tables for given in table.values() for name, value in given.items()}


def test_options_of_choose(asked):
    given, (views,), known = asked("choose", *ASKED)
    assert given == merged(ASKED)
    assert (views.names, views.widths, known) == (("a", "b"), (3, 2), {})


def test_options_of_fit(asked, tmp_path):
    given, (views,), known = asked("fit", *ASKED, *OF_FITS, *SETTINGS, f"--view-weights b=2.5 --out {tmp_path / 'run'}")
    config = given.pop("config")
    assert given == merged(ASKED, OF_FITS) | {"verbose": True, "checkpoint": Path(tmp_path / "run" / "checkpoint")}
    assert {name: getattr(config, name) for name in merged(SETTINGS)} == merged(SETTINGS)
    assert views.names == ("a", "b")
    assert {name: value for name, value in known.items() if value is not None} == {"view_weights": {"b": "2.5"}}


@pytest.mark.parametrize("option", SETTINGS)
def test_no_setting_is_that_of_another(asked, tmp_path, option):
    """Each alone: all others keep their defaults."""
    given, _, _ = asked("fit", option, f"--out {tmp_path / 'run'}")
    plain = Config()
    ((name, value),) = SETTINGS[option].items()
    found = {key: getattr(given["config"], key) for key in merged(SETTINGS)}
    assert found == {key: getattr(plain, key) for key in merged(SETTINGS)} | {name: value}
