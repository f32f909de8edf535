"""`n_clusters="auto"` from end to end, stability of clusters, the tree of merges, the pictures and the verb."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.cluster.hierarchy import linkage
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from flat import flat
from viewfuse import URRL, SettingError, Views
from viewfuse.cli import main
from viewfuse.engine.training import Training
from viewfuse.fitted.clusters import in_a_word, merge_tree
from viewfuse.methods import number_of_clusters
from viewfuse.plots.pictures import draw_choice

TINY = {"hidden_dim": 8, "embedding_dim": 8, "pretrain_epochs": 6, "joint_epochs": 1, "random_state": 0}


def blobs(n=60, k=3, seed=0, far=2.5):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    views = {name: rng.normal(size=(n, w)) + far * rng.normal(size=(k, w))[labels] for name, w in (("a", 6), ("b", 9))}
    views["a"][::4] = np.nan
    return views, labels


@pytest.fixture(scope="module")
def model():
    return URRL(**flat(**TINY, learning_rate=3e-3), cluster_range=(2, 6)).fit(blobs()[0])


@pytest.mark.slow
def test_the_number_of_clusters_is_found(model):
    decision = model.decisions_["n_clusters"]
    assert next(iter(model.decisions_)) == "n_clusters"
    assert model.n_clusters_ == decision["chosen"] == 3 == len(model.cluster_centers_)
    assert model.n_clusters == "auto"
    assert [one["stands"] for one in decision["splits"]].count(True) == 2
    assert decision["why"].startswith("number of clusters: 3, as 2 splits of the tree stand")
    assert model.predict(blobs()[0]).tolist() == model.labels_.tolist()


@pytest.mark.slow
def test_nothing_but_one_cluster_is_found_in_noise():
    views = Views([np.random.default_rng(0).normal(size=(60, 5)), np.random.default_rng(1).normal(size=(60, 7))])
    found = URRL(**flat(**TINY), cluster_range=(1, 4)).fit(views)
    assert (found.n_clusters_, set(found.labels_.tolist())) == (1, {0})
    assert [one["again"] for one in found.trust_.clusters] == [1.0]
    assert found.explain(views).merges == ()
    assert found.set_params(cluster_range=(3, 3)).choose(views)["chosen"] == 3


def test_fewer_clusters_are_joined_ones(model, tmp_path):
    for k in (1, 2, 3):
        labels = model.cut(k)
        assert len(np.unique(labels)) == k
        assert all(len(np.unique(labels[model.labels_ == c])) == 1 for c in range(3))
    assert list(model.levels_)[-1] == 3
    assert all(np.array_equal(labels, model.cut(k)) for k, labels in model.levels_.items())
    model.save(tmp_path / "thin", keep=20)
    assert len(URRL.load(tmp_path / "thin").cut(2)) == 20
    with pytest.raises(SettingError, match="n_clusters must be 1 to 3, which were fitted; got 4"):
        model.cut(4)
    with pytest.raises(ValueError, match="n_clusters must be 1 to 3, which were fitted"):
        model.cut("2")


def test_a_saved_model_keeps_the_choice(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = URRL.load(tmp_path / "model")
    assert loaded.get_params() == {**model.get_params(), "device": "auto"}
    assert loaded.n_clusters_ == model.n_clusters_
    assert loaded.trust_ == model.trust_
    assert loaded.decisions_["n_clusters"] == json.loads(json.dumps(model.decisions_["n_clusters"]))


def test_the_same_seed_chooses_alike_and_a_fit_chooses_as_choose_does(model):
    again = clone(model).choose(blobs()[0])
    assert again == model.decisions_["n_clusters"]


@pytest.mark.slow
def test_what_was_trained_for_the_choice_is_not_trained_again(model, monkeypatch):
    steps, own = [], Training.record
    monkeypatch.setattr(Training, "record", lambda self, stage, *a: steps.append(stage) or own(self, stage, *a))
    again, given = clone(model).fit(blobs()[0]), clone(model).set_params(n_clusters=3)
    assert steps.count("pre-training") == 6
    assert np.array_equal(again.embedding_, given.fit(blobs()[0]).embedding_)
    assert again.history_["epoch"] == given.history_["epoch"]


def test_of_many_samples_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(number_of_clusters, "_ROWS", 30)
    (first, *_) = URRL(**flat(**{**TINY, "pretrain_epochs": 1})).choose(blobs()[0])["splits"]
    assert sum(first["sizes"]) <= 30


def test_too_few_samples_are_one_cluster():
    assert URRL(**flat(**TINY)).choose({"a": np.eye(6)})["why"].endswith("too few samples to look for more")


@pytest.mark.slow
def test_numbers_can_still_be_searched():
    views = Views(blobs(n=30)[0])
    search = GridSearchCV(
        URRL(**flat(**{**TINY, "pretrain_epochs": 1, "joint_epochs": 0})),
        {"n_clusters": [2, 3]},
        cv=2,
        scoring=lambda own, X: -own.n_clusters_,
    ).fit(views)
    assert search.best_estimator_.n_clusters_ == 2
    assert "n_clusters" not in search.best_estimator_.decisions_


def test_wrong_numbers_are_refused():
    with pytest.raises(SettingError, match="n_clusters must be 'auto' or an integer of at least 1; got None"):
        URRL(None).fit(blobs()[0])
    with pytest.raises(SettingError, match="n_clusters must be 'auto' or an integer of at least 1; got 'many'"):
        URRL("many").fit(blobs()[0])
    with pytest.raises(SettingError, match="cluster_range must rise"):
        URRL(2, cluster_range=(9, 3)).fit(blobs()[0])


def test_clear_clusters_are_found_again_and_parts_of_noise_are_not(model):
    assert min(one["again"] for one in model.trust_.clusters) > 0.75
    noise = URRL(4, **flat(**TINY)).fit([np.random.default_rng(v).normal(size=(120, 6)) for v in range(2)])
    assert max(one["again"] for one in noise.trust_.clusters) < 0.75
    assert [in_a_word(one) for one in (0.8, 0.6, 0.2, np.nan)] == ["found again", "partly", "dissolves", "unknown"]


def test_merges_are_wards():
    centers, sizes = np.random.default_rng(0).normal(size=(6, 3)), np.ones(6, dtype=int)
    merges = merge_tree(centers, sizes)
    np.testing.assert_allclose([one.distance for one in merges], linkage(centers, "ward")[:, 2])
    assert [one.left for one in merges] == [5, 4, 3, 2, 1]
    assert sorted(merges[-1].first + merges[-1].second) == list(range(6))


def test_merges_of_clusters_are_wards_of_their_samples():
    """Where every cluster is as many samples as it has, all at its centre."""
    rng = np.random.default_rng(1)
    centers, sizes = rng.normal(size=(9, 3)) * 5 + 100, np.array([1, 7, 2, 30, 1, 4, 12, 3, 5])
    tree = linkage(np.repeat(centers, sizes, axis=0), "ward")
    wanted, members, owner = [], {}, np.repeat(np.arange(9), sizes)
    for i, (a, b, distance, _) in enumerate(tree):
        two = [members.get(int(one), {owner[int(one)]} if one < len(owner) else None) for one in (a, b)]
        members[len(owner) + i] = two[0] | two[1]
        if distance > 1e-6:
            wanted.append((sorted(map(sorted, two)), distance))
    found = merge_tree(centers, sizes)
    assert [sorted((list(one.first), list(one.second))) for one in found] == [two for two, _ in wanted]
    np.testing.assert_allclose([one.distance for one in found], [distance for _, distance in wanted])


def test_the_tree_of_many_clusters_takes_no_time():
    rng = np.random.default_rng(2)
    began = time.process_time()
    merges = merge_tree(rng.normal(size=(200, 16)).astype(np.float32), rng.integers(0, 50, size=200))
    assert time.process_time() - began < 1
    assert [one.left for one in merges] == list(range(199, 0, -1))
    assert sorted(merges[-1].first + merges[-1].second) == list(range(200))


def test_small_clusters_join_before_large_ones():
    centers, sizes = np.array([[0.0], [1.0], [2.1]]), np.array([100, 100, 1])
    assert merge_tree(centers, sizes)[0][:2] == ((1,), (2,))


def test_the_choice_is_drawn(model, tmp_path):
    draw_choice(tmp_path / "k.png", model.decisions_["n_clusters"])
    assert (tmp_path / "k.png").read_bytes()[:4] == b"\x89PNG"
    draw_choice(tmp_path / "none.png", {"splits": []})
    assert not (tmp_path / "none.png").exists()


def test_the_verb_says_how_many_and_writes_where_it_is_told(tmp_path, monkeypatch, model):
    monkeypatch.setattr(URRL, "choose", lambda self, views: model.decisions_["n_clusters"])
    views, _ = blobs()
    np.savez(tmp_path / "data.npz", **views)
    call = ["choose", str(tmp_path / "data.npz"), "--cluster-range", "2", "8"]
    said = CliRunner().invoke(main, call)
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert re.match(r"60 samples  \(strength \d\.\d\d, p .*, views left out \d\.\d\d\)", lines[0])
    assert sum(line.lstrip("|` -").startswith("20") for line in lines) == 3
    assert "3, as 2 splits of the tree stand" in lines[-1]
    out = tmp_path / "run"
    told = CliRunner().invoke(main, [*call, "--out", str(out), "--json"])
    assert json.loads(told.output)["chosen"] == 3
    assert sorted(path.name for path in out.iterdir()) == ["choice.json", "k.png"]


def test_a_wrong_range_is_one_line(tmp_path):
    np.savez(tmp_path / "data.npz", **blobs()[0])
    said = CliRunner().invoke(main, ["choose", str(tmp_path / "data.npz"), "--cluster-range", "8", "2"])
    assert (said.exit_code, said.output.count("\n")) == (2, 1)
    assert said.output.startswith("viewfuse: --cluster-range must rise from 1 or more to 2 or more; got (8, 2)")


def test_fit_chooses_where_no_number_is_given(tmp_path, quick_map):
    views, _ = blobs()
    np.savez(tmp_path / "data.npz", **views)
    small = ["--hidden-dim", "16", "--embedding-dim", "16", "--pretrain-epochs", "2", "--joint-epochs", "0"]
    call = ["fit", str(tmp_path / "data.npz"), "--cluster-range", "2", "4", *small, "--out", str(tmp_path / "run")]
    said = CliRunner().invoke(main, call)
    assert said.exit_code == 0, said.output
    assert "number of clusters" in said.output
    assert (tmp_path / "run" / "k.png").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["cluster_sizes"]) == summary["decisions"]["n_clusters"]["chosen"]
    assert len(summary["found_again"]) == len(summary["cluster_sizes"])


@pytest.mark.parametrize("n", [1, 2, 15])
def test_few_samples_are_one_cluster(n):
    choice = URRL(cluster_range=(1, 5)).choose([np.arange(3.0 * n).reshape(n, 3)])
    assert (choice["chosen"], choice["splits"]) == (1, [])


def test_a_cluster_that_falls_apart_in_k_means_is_fitted_as_two(monkeypatch, tmp_path):
    """As if the number were asked for, with the pre-training of the choice; a resumed fit says the same."""
    views = blobs(n=60, far=6.0)[0]
    tested, pretrained, begun = number_of_clusters.splits_tested, number_of_clusters.pretrained, []

    def first_alone(*given):
        first, *_ = tested(*given)
        return [first]

    def kept(*given, **ways):
        begun.append(pretrained(*given, **ways))
        begun.append(begun[0].n_epochs)
        return begun[0]

    monkeypatch.setattr(number_of_clusters, "splits_tested", first_alone)
    monkeypatch.setattr(number_of_clusters, "pretrained", kept)
    monkeypatch.setattr("viewfuse.selection.split_tree._DRAWS", 2)  # the evidence is that of other tests
    small = {**TINY, "learning_rate": 3e-3, "pretrain_epochs": 6, "joint_epochs": 1}
    found = URRL(**flat(**small), checkpoint=tmp_path / "kept").fit(views)
    decision = found.decisions_["n_clusters"]
    assert (found.n_clusters_, decision["chosen"], decision["islands"]) == (3, 3, 1)
    assert "; 1 cluster of k-means fell apart, too" in decision["why"]
    assert begun[0].n_epochs == begun[1], "the fit leaves the pre-training as it was"
    asked = URRL(3, **flat(**small)).fit(views)
    assert found.labels_.tolist() == asked.labels_.tolist()
    assert np.array_equal(found.embedding_, asked.embedding_)
    again = URRL(**flat(**small), checkpoint=tmp_path / "kept").fit(views)
    assert np.array_equal(found.embedding_, again.embedding_)
    ended = URRL(**flat(**small), cluster_range=(1, 2)).fit(views)
    assert (ended.n_clusters_, ended.decisions_["n_clusters"]["islands"]) == (2, 0)
