"""Probabilities are as sure as the clusters are, although nobody has labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from conftest import make_blobs
from flat import flat
from viewfuse import URRL, BadModelFile, load
from viewfuse.fitted.manifest import checksum
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection.confidence import sharpened
from viewfuse.selection.kmeans import filled_kmeans, filled_table
from viewfuse.selection.scores import matched_share

QUICK = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 3, "joint_epochs": 1, "learning_rate": 2e-3}
QUICK |= {"scaling": "standard", "random_state": 0}


@pytest.fixture(scope="module")
def clear():
    views, labels, *_ = make_blobs(60, 3)
    return URRL(3, **flat(**QUICK)).fit(views), views, labels


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(120, width)) for width in (8, 12)]
    return URRL(4, **flat(**QUICK)).fit(views), views


@pytest.mark.slow
def test_clear_groups_are_nearly_certain(clear):
    model, views, _ = clear
    assert model.predict_proba(views).max(axis=1).mean() > 0.9


@pytest.mark.slow
def test_noise_is_hardly_more_certain_than_chance(noise):
    model, views = noise
    assert 0.25 < model.predict_proba(views).max(axis=1).mean() < 0.6  # repeated fits put 30 to 55% there


def test_labels_are_those_of_the_best_probability(clear, noise):
    for model, views in (clear[:2], noise):
        found = model.predict_proba(views)
        assert np.array_equal(found.argmax(axis=1), model.labels_)
        assert np.array_equal(found, model.soft_labels_)
        assert found.sum(axis=1) == pytest.approx(np.ones(len(found)), abs=1e-5)


def test_one_cluster_is_certain_and_has_no_joint_stage():
    """On noise it took 200 epochs."""
    model = URRL(1, **flat(**QUICK | {"pretrain_epochs": 1, "joint_epochs": 3})).fit(make_blobs(30, 2)[0])
    assert model.soft_labels_.tolist() == [[1.0]] * 30
    assert np.isnan(model._again()).all()  # nobody says that it is found again
    assert model.history_["stage"] == ["pre-training"]
    assert model.decisions_["joint_stage"]["why"] == "joint stage: none, as there is one cluster"


def test_clusters_are_matched_whatever_their_numbers():
    assert matched_share(np.array([0, 0, 1, 1, 2]), np.array([2, 2, 0, 0, 1])) == 1.0


def test_saved_models_are_as_sure(noise, tmp_path):
    model, views = noise
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(views), model.predict_proba(views))
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    del manifest["checksum"]
    for made_up in ("sure", 0.0, float("inf")):
        wrong = {**manifest, "sharpness": made_up}
        text = json.dumps({**wrong, "checksum": checksum(json.loads(json.dumps(wrong)))})
        (tmp_path / "m" / "manifest.json").write_text(text)
        with pytest.raises(BadModelFile):
            load(tmp_path / "m")


def samples_with_gaps():
    values = [torch.tensor([[0.0], [1.0], [2.0], [9.0]]), torch.tensor([[5.0], [0.0], [7.0], [0.0]])]
    present = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    return index_training_set(values, present, 9)


def test_missing_views_are_the_means_of_their_donors():
    table = filled_table(samples_with_gaps(), torch.arange(4))
    # Both samples with the second view are donors of the second and of the last one.
    assert table.tolist() == [[0.0, 5.0], [1.0, 6.0], [2.0, 7.0], [9.0, 6.0]]
    assert filled_table(samples_with_gaps(), torch.tensor([3])).tolist() == [[9.0, 6.0]]


def test_hidden_values_do_not_reach_the_filled_views():
    samples = samples_with_gaps()
    spoiled = index_training_set([samples.values[0], torch.tensor([[5.0], [1e6], [7.0], [-1e6]])], samples.present, 9)
    rows = torch.arange(4)
    assert torch.equal(filled_table(spoiled, rows)[:, 0], filled_table(samples, rows)[:, 0])
    assert torch.equal(filled_table(spoiled, rows), filled_table(samples, rows))


def test_a_part_of_many_samples_is_enough(monkeypatch):
    views, labels, *_ = make_blobs(120, 3)
    values = [torch.from_numpy(np.nan_to_num(view).astype(np.float32)) for view in views]
    present = torch.from_numpy(np.stack([~np.isnan(view).any(axis=1) for view in views], axis=1))
    samples = index_training_set(values, present, 9)
    whole = filled_kmeans(samples, 3, 0)
    monkeypatch.setattr("viewfuse.selection.kmeans._ROWS", 50)
    assert matched_share(whole.numpy(), filled_kmeans(samples, 3, 0).numpy()) > 0.95
    assert matched_share(labels, whole.numpy()) > 0.95


def test_what_is_the_best_stays_so_where_rounding_makes_it_equal():
    raw = np.array([[0.3333333, 0.3333334, 0.3333333], [0.2, 0.3, 0.5]], dtype=np.float32)
    found = sharpened(raw, 1e-3)
    assert found.argmax(axis=1).tolist() == [1, 2]
    assert found.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("groups", ["clear", "none"])
def test_the_papers_soft_labels_are_its_q(groups):
    """The literal q of the paper, from the embedding and the centres; nothing is fitted to the data."""
    rng = np.random.default_rng(3)
    views = make_blobs(90, 3)[0] if groups == "clear" else [rng.normal(size=(90, 5)) for _ in range(2)]
    model = URRL.paper(3, pretrain_epochs=2, joint_epochs=2, embedding_dim=16, random_state=0).fit(views)
    q = np.zeros((90, 3))
    for i, z in enumerate(model.embedding_.astype(float)):
        near = [1.0 / (1.0 + ((z - center) ** 2).sum()) for center in model.cluster_centers_.astype(float)]
        q[i] = [one / sum(near) for one in near]
    np.testing.assert_allclose(model.soft_labels_, q, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(views), q, atol=1e-5)
    decision = model.decisions_["confidence"]
    assert decision["chosen"] == pytest.approx(q.max(axis=1).mean(), abs=1e-5)
    assert decision["why"].endswith("the paper's soft labels, which are not calibrated")


def test_the_paper_decides_nothing_else_from_the_data():
    model = URRL.paper(3, pretrain_epochs=2, joint_epochs=2, embedding_dim=16, random_state=0)
    found = model.fit([np.random.default_rng(v).normal(size=(90, 5)) for v in range(2)]).decisions_
    assert found["scaling"]["chosen"] == "minmax"
    assert list(found["scaling"]["evidence"]) == ["minmax"]  # no other one was tried
    assert (found["pretraining"]["chosen"], found["joint_stage"]["chosen"]) == (2, 2)
    assert found["joint_stage"]["evidence"]["clustering_weight"] == 0.1
    assert found["clusters"]["chosen"] == "network"
    assert list(found["clusters"]["evidence"]) == ["network"]  # k-means is no rival
    config = model._config()
    assert not any((config.watched, config.settles, config.pretrained_as_needed, config.calibration))
    assert (config.usual_trainings, config.joint_factor(9), config.hidden_width) == (1, 1.0, 256)
