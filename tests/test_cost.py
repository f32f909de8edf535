"""What a fit will cost: counted as torch counts it, and memory near what was measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from viewfuse import Views
from viewfuse.cli import inspect
from viewfuse.methods.urrl import network as cost
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod

HANDWRITTEN = (2000, [240, 76, 216, 47, 64, 6])


@pytest.mark.parametrize("widths", [[5], [5, 8, 3], [300, 20]])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_clusters": 3, "n_neighbors": 6, "embedding_dim": 32, "hidden_dim": 48, "feedforward_ratio": 3},
        {"distance_code": False, "knn_imputation": False},
        {"neighbor_output": "concat", "view_output": "concat"},
    ],
    ids=["default", "sizes", "modules", "outputs"],
)
def test_parameters_are_counted_exactly(widths, changes):
    config = replace(Config(), **changes)
    length, ratio, size, hidden = (
        config.list_length,
        config.feedforward_ratio,
        config.embedding_width,
        config.hidden_width,
    )
    coded = [width + length * config.distance_code for width in widths]
    expected = config.n_clusters * size
    for width in (*coded, size):  # query, key, value, merge, both layers of the feed-forward part; biases, two norms
        expected += (4 + 2 * ratio) * width**2 + (9 + ratio) * width
    for shape in [[w, hidden, hidden, size] for w in coded] + [[size, hidden, hidden, hidden, w] for w in widths]:
        expected += sum(a * b + b for a, b in pairwise(shape)) + len(shape) - 2  # with biases and slopes
    for choice, n, wide in [(config.neighbor_output, length, w) for w in coded] + [
        (config.view_output, len(widths), size)
    ]:
        expected += (n * wide**2 + wide) * (choice == "concat")
    assert cost.n_parameters(widths, config) == expected


def test_neighbour_lists_are_as_deep_as_the_method_keeps_them():
    for config in (Config(), Config(n_neighbors=20), Config(knn_imputation=False)):
        method = URRLMethod(config)
        grown = cost.fit_bytes(10_001, [4], config) - cost.fit_bytes(10_000, [4], config)
        assert grown == 4 * 4 + 8 * method.neighbor_depth + 1 + 4 * 256 + 6_000


def test_memory_counts_all_that_is_held():
    config = Config().sized(300)
    few = cost.fit_bytes(300, [17, 20], config)
    parameters = cost.n_parameters([17, 20], config)
    assert few > 16 * parameters + 300 * 4 * 37
    waiting = cost.fit_bytes(300, [17, 20], config, n_waiting=1) - few
    assert 4 * parameters < waiting < few
    # A view of 20,000 columns that nobody reduces asks for tens of gigabytes.
    assert 40e9 < cost.fit_bytes(300, [20_000], config) < 80e9
    assert cost.fit_bytes(10, [4], config) < cost.fit_bytes(64, [4], config)


@pytest.mark.parametrize(
    ("n_samples", "widths", "megabytes"), [(*HANDWRITTEN, 145), (300, [3000], 1608), (6000, [50, 20], 141)]
)
def test_memory_is_near_what_was_measured(n_samples, widths, megabytes):
    """Growth of the process over a fit on a CPU, with libraries loaded before."""
    assert megabytes / 2 < cost.fit_bytes(n_samples, widths, Config(), n_waiting=2) / 1e6 < 2 * megabytes


def test_seconds_follow_the_settings():
    def seconds(n_samples=HANDWRITTEN[0], widths=HANDWRITTEN[1], config=None, n_scalings=3):
        return cost.fit_seconds(n_samples, widths, config or Config(), n_scalings, 0.01)

    assert seconds(n_scalings=1) < seconds()
    assert seconds(config=Config(schedule="paper")) > 2 * seconds()
    assert seconds(config=Config(pretrain_epochs=1, joint_epochs=0)) < seconds() / 10
    assert seconds(2000, [1000]) > seconds(2000, [20])


def test_steps_are_those_of_the_plan():
    # 31 steps an epoch: three trials of 11 epochs, 11 more of one of them, 30 of the joint stage.
    assert cost.n_steps(2000, Config()) == 31 * (3 * 11 + 11 + 30)
    assert cost.n_steps(10, Config(pretrain_epochs=5, joint_epochs=2), n_scalings=1) == 7


def test_what_inspect_says_of_time(monkeypatch):
    """The least is one training whose clusters are clear at its trial, with 30 % of the joint stage."""
    steps = {128: 0.1, 256: 0.4}  # by width: small sets have a narrow network for up to twelve clusters
    monkeypatch.setattr(stages, "measured_step", lambda widths, config, n: steps[config.embedding_dim])
    views = Views(list(np.random.default_rng(0).normal(size=(2, 320, 3))))
    found = inspect.describe(views)["fit"]
    epochs, many = Config(n_clusters=12).epochs(320), Config(n_clusters=13).epochs(320)
    assert (epochs.joint, many.joint) == (60, 180)
    passes = 320 / 64 * (1 + 10) / 3
    trial = Config(n_clusters=12).trial_epochs(320)
    assert found["least_seconds"] == pytest.approx(0.1 * (5 * (trial + 18) + passes), abs=0.06)
    assert found["seconds"] > 2 * found["least_seconds"]
    assert found["seconds_of_many"] == pytest.approx(12 * found["seconds"], rel=0.1)  # three times the steps
    large = inspect.describe(Views(list(np.random.default_rng(0).normal(size=(2, 1000, 3)))))["fit"]
    assert large["seconds_of_many"] == large["seconds"]
    assert found["step_seconds"] == 0.1
