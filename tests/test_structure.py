"""Clusters of data without any are not trusted, however often they are found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection import rules
from viewfuse.selection.decision_texts import reasons_of
from viewfuse.selection.kmeans import filled_kmeans
from viewfuse.selection.rules import on_structure


def made(kind, n=260, seed=0):
    """Two views with units, scaled as training samples are; every fourth sample lacks the first."""
    rng = np.random.default_rng(seed)
    groups, views = rng.permutation(np.repeat([0, 1, 2], [n // 2, n // 3, n - n // 2 - n // 3])), []
    for width in (6, 4):
        view = rng.uniform(size=(n, width)) if kind == "uniform" else rng.normal(size=(n, width))
        if kind == "line":  # two groups along the direction that has nearly all of the variance
            view[:, 0] = 30 * (groups > 0) + rng.normal(size=n)
        if kind == "groups":
            view += 3 * np.eye(width)[groups]
        views.append(torch.from_numpy(view).float())
    present = torch.ones(n, 2, dtype=torch.bool)
    present[::4, 0] = False
    views[0][::4] = 0
    return index_training_set(views, present, 9), groups


def looked_at(kind, n_clusters=3):
    samples, groups = made(kind)
    labels = filled_kmeans(samples, n_clusters, 0).numpy() if kind in ("uniform", "normal") else groups
    return on_structure(samples, np.minimum(labels, n_clusters - 1), n_clusters)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_clusters_of_noise_are_no_clearer_than_those_of_a_gaussian(kind):
    found = looked_at(kind)
    assert found["name"] == "structureless"
    assert found["ours"] < 1.2 * found["null"]


def test_groups_are_clearer():
    assert looked_at("groups") is None


def test_two_groups_along_one_line_are_clearer_as_hardly_any_neighbour_leaves():
    samples, groups = made("line")
    labels = (groups > 0).astype(np.int64)
    assert on_structure(samples, labels, 2) is None


def test_a_few_of_many_samples_are_looked_at(monkeypatch):
    monkeypatch.setattr(rules, "_ROWS", 60)
    sizes, real = [], rules.index_training_set
    monkeypatch.setattr(rules, "index_training_set", lambda v, p, d: sizes.append(len(p)) or real(v, p, d))
    samples, groups = made("groups")
    assert on_structure(samples, groups, 3) is None
    assert sizes == [60] * 3  # the samples, and two Gaussians
    monkeypatch.setattr(rules, "_ROWS", 3)
    assert on_structure(samples, groups, 3) is None
    assert len(sizes) == 3


def test_gaussians_lack_the_views_that_samples_lack(monkeypatch):
    drawn, real = [], rules.index_training_set
    monkeypatch.setattr(rules, "index_training_set", lambda v, p, d: drawn.append((v, p)) or real(v, p, d))
    samples, groups = made("normal")
    on_structure(samples, groups, 3)
    filled = torch.cat(list(samples.values), dim=1)[samples.present.all(dim=1)]
    for values, present in drawn[1:]:
        assert torch.equal(present, samples.present)
        assert not values[0][::4].any()
        both = torch.cat(list(values), dim=1)[present.all(dim=1)]
        assert torch.allclose(torch.cov(both.T), torch.cov(filled.T), atol=0.5)
        assert not torch.equal(values[1], samples.values[1])


def test_noise_is_not_trusted_and_the_reason_is_said():
    found = rules.found_again(np.full(9, 0.99), np.arange(9) % 3, 3)
    assert found.level == "high"
    flagged = rules.with_reasons(found, {"name": "structureless", "ours": 0.3, "null": 0.29})
    assert flagged.level == "none"
    (reason,) = reasons_of(flagged)
    assert reason.what.startswith("The data hold together hardly better than a Gaussian")
    both = rules.with_reasons(flagged, {"name": "continuum"})
    assert (both.level, [one["name"] for one in both.reasons]) == ("none", ["continuum"])


@pytest.mark.slow
def test_a_fit_of_noise_says_none_and_one_of_groups_does_not():
    small = flat(embedding_dim=8, hidden_dim=16, pretrain_epochs=8, joint_epochs=2, scaling="standard")
    rng = np.random.default_rng(3)
    noise = [10 + 3 * rng.normal(size=(150, 5)), rng.normal(size=(150, 4)) / 50]
    noise[0][::5] = np.nan
    model = URRL(3, **small, random_state=0).fit(noise)
    assert model.trust_.level == "none"
    assert "structureless" in [one["name"] for one in model.trust_.reasons]
    views, *_ = make_blobs(90, 3)
    clear = URRL(3, **small, random_state=0).fit(views)
    assert "structureless" not in [one["name"] for one in clear.trust_.reasons]
