"""Effort follows the evidence: one training where clusters are clear, and clusters of k-means where they are better."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.methods.urrl import fit, scaling_search
from viewfuse.methods.urrl.config import Epochs
from viewfuse.metrics import clustering_accuracy
from viewfuse.selection import rules
from viewfuse.selection.linkage import centers_of
from viewfuse.selection.scores import Merit, merits

SMALL = {"embedding_dim": 8, "hidden_dim": 16, "batch_size": 30, "learning_rate": 2e-3, "random_state": 0}


@pytest.fixture(scope="module")
def blobs():
    views, groups, *_ = make_blobs(60, 3)
    return views, groups


def test_clear_clusters_need_one_training(blobs):
    model = URRL(3, **flat(pretrain_epochs=15, joint_epochs=1, **SMALL)).fit(blobs[0])
    scaling = model.decisions_["scaling"]
    assert len(scaling["evidence"]) == 1
    assert scaling["clear"]
    assert "others were not tried, as its clusters are clear" in scaling["why"]
    assert model.trust_.level == "high"


@pytest.fixture
def always_clear(monkeypatch):
    """All clusters are clear: of a fit of five epochs those after two are looked at."""
    monkeypatch.setattr(rules, "CLEAR", -inf)
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.trial_epochs", lambda self, n: 2)
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.early_epochs", lambda self, n: 2)
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(5, 0))


@pytest.mark.slow
@pytest.mark.usefixtures("always_clear")
@pytest.mark.parametrize("n_init", [1, 2])
def test_pretraining_ends_where_clusters_are_clear(blobs, n_init):
    model = URRL(3, **flat(**SMALL), n_init=n_init).fit(blobs[0])
    assert model.decisions_["pretraining"]["why"] == "pre-training: 2 of 5 epochs, as the clusters are clear by then"
    assert model.history_["epoch"] == [1, 2]


@pytest.mark.slow
def test_clusters_that_are_not_clear_need_more(blobs, monkeypatch):
    monkeypatch.setattr(rules, "CLEAR", inf)
    model = URRL(3, **flat(pretrain_epochs=1, joint_epochs=0, **SMALL)).fit(blobs[0])
    assert len(model.decisions_["scaling"]["evidence"]) > 1
    assert not model.decisions_["scaling"]["clear"]


def only_good(monkeypatch, wanted):
    """Let k-means find `wanted`, whatever there is, and all others be poor."""
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda samples, k, seed, *_: {"k-means": wanted})
    good = [Merit(0.1, 0.1, 1.0), Merit(0.9, 0.9, 1.0)]
    monkeypatch.setattr(
        scaling_search, "merits", lambda parts, *_: [good[np.array_equal(own, wanted)] for own in parts]
    )


def test_the_network_is_taught_better_clusters(blobs, monkeypatch):
    views, groups = blobs
    wanted = np.where(groups == 2, 0, groups + 1)  # other numbers than those of the network
    only_good(monkeypatch, wanted)
    model = URRL(3, **flat(pretrain_epochs=5, joint_epochs=0, **SMALL), scaling="standard").fit(views)
    assert (model.labels_ == wanted).mean() > 0.9
    assert np.array_equal(model.predict(views), model.labels_)


def test_the_method_as_printed_keeps_its_own_clusters(blobs, monkeypatch):
    only_good(monkeypatch, blobs[1])
    model = URRL.paper(3, **{**SMALL, "pretrain_epochs": 2, "joint_epochs": 0}).fit(blobs[0])
    assert model.decisions_["clusters"]["chosen"] == "network"
    assert model.decisions_["clusters"]["why"] == "clusters: those of the network"


def test_centres_reproduce_a_partition_that_means_do_not():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 2)) * [10.0, 1.0]  # a wide cloud, cut where its means do not cut it
    labels = (points[:, 0] > 8.0).astype(np.int64)
    means = torch.from_numpy(np.stack([points[labels == c].mean(axis=0) for c in range(2)]))
    embedding = torch.from_numpy(points)
    assert (torch.cdist(embedding, means).argmin(dim=1).numpy() == labels).mean() < 0.95
    centers = centers_of(embedding.float(), labels, 2)
    assert (torch.cdist(embedding, centers.double()).argmin(dim=1).numpy() == labels).mean() > 0.98
    assert centers.dtype == torch.float32


def test_what_the_embedding_does_not_hold_is_not_taught():
    embedding = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2)))
    assert centers_of(embedding, np.arange(300) % 3, 3) is None
    assert centers_of(embedding, np.zeros(300, dtype=np.int64), 2) is None  # one of two clusters is empty


def test_merged_clusters_are_not_better():
    """Two of three groups are each other's neighbours: merged, neighbours agree more often."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 30)
    near = np.array([rng.choice(np.flatnonzero((groups == g) | ((groups + g == 1) & (rng.random(90) < 0.5))), 9)
                     for g in groups])  # fmt: skip
    ids = torch.from_numpy(near)[:, None]
    whole, merged = (torch.from_numpy(own) for own in (groups, np.where(groups == 1, 0, groups)))
    own, other = merits([whole, merged], ids, 3)
    assert other.agreement > own.agreement
    assert not rules.clearly_better(other, own)


@pytest.mark.slow
@pytest.mark.usefixtures("always_clear")
def test_nothing_was_spared_where_there_is_one_scaling_only(blobs):
    model = URRL(3, **flat(**SMALL), scaling="standard").fit(blobs[0])
    assert not model.decisions_["scaling"]["clear"]
    assert model.decisions_["scaling"]["why"] == "scaling: standard, as asked"


def test_clusters_that_were_taught_are_not_clear(blobs, monkeypatch):
    """The network finds others than k-means, and is taught: that both have the same clusters then tells nothing."""
    wanted = np.repeat([0, 1, 2], 20)
    only_good(monkeypatch, wanted)
    monkeypatch.setattr(scaling_search, "centers_of", lambda embedding, labels, k: embedding[:3])
    monkeypatch.setattr(scaling_search, "clusters", lambda *_: torch.from_numpy(wanted))  # it learns them
    model = URRL(3, **flat(pretrain_epochs=5, joint_epochs=0, **SMALL)).fit(blobs[0])
    assert len(model.decisions_["scaling"]["evidence"]) > 1


@pytest.mark.slow
def test_what_was_found_before_a_joint_stage_that_ruins_it_stays(blobs, monkeypatch):
    """Only the network proposes clusters here; its joint stage moves two centres into the same group."""
    views, groups = blobs
    monkeypatch.setattr(
        scaling_search, "candidate_partitions", lambda samples, k, seed, *_: {"k-means": np.repeat([0, 1, 2], 20)}
    )
    for name in ("tree_clusters", "unequal_clusters"):
        monkeypatch.setattr(scaling_search, name, lambda *_: None)
    before = []

    def ruined(runs, **_):
        for run in runs:
            before.append(run.clusters.numpy().copy())
            centers = run.network.centers.data
            centers[1] = centers[0] + 0.01 * (centers[2] - centers[0])

    monkeypatch.setattr(fit, "train_jointly", ruined)
    model = URRL(3, **flat(pretrain_epochs=20, joint_epochs=2, **SMALL), scaling="standard").fit(views)
    assert clustering_accuracy(groups, before[-1]) > 0.95
    assert np.mean(model.labels_ == before[-1]) > 0.95
    chosen = model.decisions_["clusters"]
    assert chosen["chosen"] == "earlier"
    assert chosen["why"].startswith("clusters: those of an earlier stage, which the network was taught, as neighbours")
    assert chosen["evidence"]["earlier"] > chosen["evidence"]["network"]
