"""What is decided without labels: the weight of the clustering loss, the end of the joint stage, the scaling."""

from __future__ import annotations

import gc
import json
import re
from itertools import count
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference_selection as literal
from conftest import make_blobs
from flat import flat
from training_tools import index_samples, train, train_replicates
from viewfuse import URRL, Diverged, JointStageWarning, SettingError, Views, metrics
from viewfuse.data import scaling as mixing
from viewfuse.data.scaling import fit_scaler
from viewfuse.engine import replicates as passes
from viewfuse.engine.replicates import clusters
from viewfuse.engine.training import JointStage, Training, TrainState
from viewfuse.methods.urrl import fit as fit_module
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.scaling_search import Search
from viewfuse.methods.urrl.stages import EarlyStopping, embed_stored
from viewfuse.neighbors.index import NO_NEIGHBOR, MultiViewIndex
from viewfuse.selection import decision_texts, rules, scores
from viewfuse.selection.confidence import apart_shares
from viewfuse.selection.kmeans import initial_centers
from viewfuse.selection.rules import best_of_each
from viewfuse.selection.scores import (
    Candidate,
    Merit,
    best_start,
    candidate_scores,
    macro_agreement,
    neighbor_agreement,
    stability,
)

pytestmark = pytest.mark.usefixtures("never_still")

SMALL = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 32, "learning_rate": 2e-3}


def test_a_view_that_comes_twice_counts_once():
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(np.stack([[rng.permutation(60)[:9] for _ in range(60)] for _ in range(2)], axis=1))
    labels = torch.from_numpy(rng.integers(3, size=60))
    alone, twice = neighbor_agreement(labels, ids), neighbor_agreement(labels, ids[:, [0, 1, 1]])
    assert twice == pytest.approx(alone, abs=0.03 * abs(alone))  # strangers share a neighbour by chance
    assert scores.view_weights(ids[:, [0, 1, 1]]) == pytest.approx([1.0, 0.5, 0.5], rel=0.1)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3), st.sampled_from([0, 1, 4, 12]), st.integers(1, 4))
def test_neighbor_agreement_is_what_it_says(seed, n, n_views, depth, n_clusters):
    rng = np.random.default_rng(seed)
    labels, neighbor_ids = rng.integers(n_clusters, size=n), rng.integers(-1, n, size=(n, n_views, depth))
    found = neighbor_agreement(torch.from_numpy(labels), torch.from_numpy(neighbor_ids))
    assert found == pytest.approx(literal.agreement(labels.tolist(), neighbor_ids), abs=1e-6)


def observed_lists(members, rng, depth=9):
    """Random neighbours among those who have the view, of shape (samples, 1, depth)."""
    rows, ids = np.flatnonzero(members), np.full((len(members), 1, depth), NO_NEIGHBOR)
    ids[rows, 0] = [rng.choice(rows[rows != row], size=depth) for row in rows]
    return torch.from_numpy(ids)


def test_a_view_of_noise_scores_nothing_whoever_lacks_it():
    """Half of the samples are in cluster 0, but nine in ten of those that have the view are."""
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], 500)
    members = np.concatenate([rng.random(500) < 0.9, rng.random(500) < 0.1])
    found = neighbor_agreement(torch.from_numpy(labels), observed_lists(members, rng))
    assert found == pytest.approx(0.0, abs=0.05)


def test_a_view_that_one_cluster_has_tells_nothing():
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], 50)
    noise, alone = observed_lists(np.ones(100, dtype=bool), rng), observed_lists(labels == 0, rng)
    both = torch.cat([noise, alone], dim=1)
    assert neighbor_agreement(torch.from_numpy(labels), alone) == 0.0
    assert neighbor_agreement(torch.from_numpy(labels), both) == neighbor_agreement(torch.from_numpy(labels), noise)


def test_a_view_that_tells_nothing_counts_nowhere():
    labels, rng = np.repeat([0, 1], 20), np.random.default_rng(0)
    inside = np.stack([rng.choice(np.flatnonzero(labels == own), size=9) for own in labels])[:, None]
    alone = np.where(labels[:, None, None] == 0, inside, NO_NEIGHBOR)
    ids = torch.from_numpy(np.concatenate([inside, alone], axis=1))
    assert neighbor_agreement(torch.from_numpy(labels), ids) == pytest.approx(1.0)
    one = candidate_scores([Candidate("mixed", labels, ids, 1.0)], 2)
    assert one == [macro_agreement(torch.from_numpy(labels), torch.from_numpy(inside), 2)]


@pytest.mark.parametrize("params", [{"n_neighbors": 20}, {"donor_depth": 3}])
def test_the_scores_do_not_hang_on_the_lists_of_the_method(params):
    data = Views(make_blobs(60, 3, missing=0.3)[0])
    lists = []
    for own in ({}, params):
        config = URRL(3, **flat(**own))._config()
        values, present = [torch.tensor(a) for a in data.arrays], torch.tensor(np.array(data.mask))
        lists.append(index_samples(values, present, config).neighbor_ids)
    labels = torch.arange(60) % 3
    assert neighbor_agreement(labels, lists[0]) == neighbor_agreement(labels, lists[1])


def test_clusters_of_neighbours_are_consistent_and_random_ones_are_not():
    neighbor_ids = torch.tensor([[[1, 2]], [[0, 2]], [[0, 1]], [[4, 5]], [[3, 5]], [[3, 4]]])
    assert neighbor_agreement(torch.tensor([0, 0, 0, 1, 1, 1]), neighbor_ids) == pytest.approx(1.0)
    assert neighbor_agreement(torch.tensor([0, 1, 0, 1, 0, 1]), neighbor_ids) < 0
    assert neighbor_agreement(torch.zeros(6, dtype=torch.int64), neighbor_ids) == 0.0  # one cluster says nothing


def test_partitions_of_different_scalings_are_judged_by_the_same_neighbours():
    pairs = torch.tensor([[[1]], [[0]], [[3]], [[2]]])
    crossed = torch.tensor([[[2]], [[3]], [[0]], [[1]]])
    side, cross = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    candidates = [Candidate("minmax", cross, crossed, 1.0), Candidate("standard", side, pairs, 1.0)]
    scores = candidate_scores(candidates, 2)
    assert scores[0] == pytest.approx(scores[1])  # each fits its own neighbours, and only these
    assert rules.best_scaling({"standard": scores[1], "minmax": scores[0]}) == "standard"
    assert rules.best_scaling({"standard": 0.2, "minmax": 0.3}) == "minmax"
    assert rules.best_scaling({"standard": 0.20, "minmax": 0.21}) == "standard"  # not clearly better


def test_a_training_gains_nothing_by_emptying_a_cluster():
    ids = torch.tensor([[[1]], [[0]], [[3]], [[2]], [[5]], [[6]], [[7]], [[4]]])
    whole, merged = np.array([0, 0, 1, 1, 2, 3, 2, 3]), np.array([0, 0, 1, 1, 2, 2, 2, 2])
    found = [Candidate("mixed", own, ids, 1.0) for own in (whole, merged)]
    assert candidate_scores(found, 4) == pytest.approx(
        [macro_agreement(torch.from_numpy(one.labels), ids, 4) for one in found]
    )
    assert neighbor_agreement(torch.from_numpy(merged), ids) == 1.0
    # Two of two at one standard error: 2/3, less one in seven by chance; four of four are 4/5, less three in seven.
    assert candidate_scores(found[1:], 4) == pytest.approx(
        [((2 / 3 - 1 / 7) / (6 / 7) * 2 + (4 / 5 - 3 / 7) / (4 / 7)) / 4]
    )


def test_of_several_trainings_the_most_consistent_one_is_kept():
    pairs = torch.tensor([[[1]], [[0]], [[3]], [[2]]])
    good, poor = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    found = [
        Candidate("standard", poor, pairs, 0.1),
        Candidate("standard", good, pairs, 0.9),
        Candidate("standard", 1 - good, pairs, 0.5),
        Candidate("minmax", poor, pairs, 0.1),
    ]
    assert best_of_each(found, candidate_scores(found, 2)) == {"standard": 2, "minmax": 3}  # the lower loss of equals


def test_of_equals_a_training_that_diverged_is_not_kept():
    pairs, labels = torch.tensor([[[1]], [[0]], [[3]], [[2]]]), np.array([0, 0, 1, 1])
    found = [Candidate("standard", labels, pairs, loss) for loss in (np.nan, 0.5, np.nan, 0.4)]
    assert best_of_each(found, candidate_scores(found, 2)) == {"standard": 3}


def test_stability_is_the_share_of_partitions_that_agree():
    labels = np.array([0, 0, 1, 1])
    renamed, changed = np.array([1, 1, 0, 0]), np.array([0, 1, 1, 1])
    assert stability(labels, [renamed]).tolist() == [1, 1, 1, 1]
    assert stability(labels, [renamed, changed]).tolist() == [1, 0.5, 1, 1]
    assert np.isnan(stability(labels, [])).all()


def samples_for(settings, n=30):
    views = Views(make_blobs(n, 3, widths=(5, 4), missing=0.3)[0])
    scaled = fit_scaler(views, "standard").apply(views)
    return index_samples([torch.from_numpy(a) for a in scaled.arrays], torch.tensor(scaled.mask), settings)


def test_the_clustering_weight_is_a_share_of_the_reconstruction_loss():
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=2, joint_epochs=1, **SMALL)
    run = train(samples_for(settings), settings, 0)
    assert run.numbers["clustering_weight"] == pytest.approx(0.7 * run.history["reconstruction"][1])
    weighted = run.history["reconstruction"][2] + 1e-3 * run.history["robustness"][2]
    weighted += run.numbers["clustering_weight"] * run.history["clustering"][2]
    assert run.history["total"][2] == pytest.approx(weighted)
    fixed = Config(n_clusters=3, n_heads=2, pretrain_epochs=2, joint_epochs=1, clustering_weight=0.3, **SMALL)
    assert train(samples_for(fixed), fixed, 0).numbers["clustering_weight"] == 0.3
    at_once = Config(n_clusters=3, n_heads=2, pretrain_epochs=0, joint_epochs=1, **SMALL)
    assert train(samples_for(at_once), at_once, 0).numbers["clustering_weight"] == 0.1


NOT_FINITE = "the clustering loss is not finite in epoch 6, step 1"


def watched_run(monkeypatch, spoil, n_clusters=3):
    """A joint stage of sixteen epochs, before the second look at which the network is ruined in the way asked for."""
    settings = Config(n_clusters=n_clusters, n_heads=2, pretrain_epochs=3, **SMALL)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(3, 16))
    if spoil is diverge:
        diverge(monkeypatch)
    else:
        embed, calls = stages.embed_all, count()  # the first one is before the stage

        def spoiled(together):
            if next(calls) >= 2:
                spoil(together.network)
            return embed(together)

        monkeypatch.setattr(stages, "embed_all", spoiled)
    return train(samples_for(settings), settings, 0)


def empty_clusters(network):
    network.centers.data[1:] = 1e6


def scatter(network):
    generator = torch.Generator().manual_seed(0)
    for weights in network.parameters():
        weights.data.normal_(generator=generator)


def diverge(monkeypatch):
    """A joint stage of which the first network that is looked at has a loss that is not finite in epoch 6."""
    evaluate, first = EarlyStopping.evaluate, []

    def spoiled(self, epoch, embedding, diverged=""):
        first.append(self)
        evaluate(self, epoch, embedding, NOT_FINITE if epoch >= 7 and self is first[0] else diverged)

    monkeypatch.setattr(EarlyStopping, "evaluate", spoiled)


def break_weights(network):
    for weights in network.parameters():
        weights.data.fill_(torch.nan)


def test_the_clusters_before_the_joint_stage_are_looked_at_first(monkeypatch):
    run = watched_run(monkeypatch, break_weights)
    first, score = next(iter(run.joint_stage.seen.items()))
    assert (first, score) == (3, neighbor_agreement(run.clusters, run.stored.neighbor_ids))


def test_a_single_cluster_does_not_hide_broken_weights(monkeypatch):
    run = watched_run(monkeypatch, break_weights, n_clusters=1)
    assert run.joint_stage.ended == "the embedding is not finite after epoch 7"
    assert torch.isfinite(embed_stored(run)).all()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (empty_clusters, "2 of 3 clusters were emptied"),
        (diverge, "not finite in epoch 6"),
        (scatter, "fell from|emptied"),
        (break_weights, "the embedding is not finite after epoch 7"),
    ],
)
def test_a_joint_stage_that_goes_wrong_is_ended_and_taken_back(monkeypatch, spoil, reason):
    run = watched_run(monkeypatch, spoil)
    assert re.search(reason, run.joint_stage.ended)
    assert run.joint_stage.kept in (3, 5)  # as it was before it went wrong
    assert len(run.history["epoch"]) == 7  # and no further
    labels = clusters(run.method, run.network, embed_stored(run))
    assert neighbor_agreement(labels, run.stored.neighbor_ids) == pytest.approx(max(run.joint_stage.seen.values()))


def test_a_joint_stage_that_was_ended_is_over_in_any_company(monkeypatch):
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=3, **SMALL)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(3, 12))
    monkeypatch.setattr("viewfuse.methods.urrl.stages._PATIENCE", inf)
    monkeypatch.setattr("viewfuse.methods.urrl.stages._FALL", inf)
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 2})
    diverge(monkeypatch)
    ended, other = train_replicates([samples_for(settings, 60)] * 2, settings, [1, 1])
    assert (ended.history["epoch"], len(other.history["epoch"])) == ([*range(1, 8)], 15)
    assert ended.objective == ended.history["total"][6]


def test_an_estimator_says_that_its_joint_stage_was_ended(monkeypatch):
    data = make_blobs(30, 3, widths=(5, 4), missing=0.3)[0]
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(3, 16))
    monkeypatch.setattr("viewfuse.methods.urrl.stages._FALL", inf)
    diverge(monkeypatch)
    with pytest.warns(JointStageWarning, match="joint stage: ended early, the clustering loss is not finite"):
        model = URRL(3, **flat(**SMALL), random_state=0, scaling="standard").fit(data)
    assert (model.predict(data) == model.labels_).all()


def test_a_joint_stage_whose_length_was_given_is_left_alone(monkeypatch):
    monkeypatch.setattr(EarlyStopping, "__init__", None)
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=2, joint_epochs=2, **SMALL)
    run = train(samples_for(settings), settings, 0)
    assert (run.joint_stage.kept, run.joint_stage.ended, run.joint_stage.seen) == (4, "", {})


@pytest.fixture(scope="module")
def decided():
    data, groups, _ = make_blobs(60, 3, missing=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "CLEAR", inf)  # so that all scalings are tried
        return (
            data,
            groups,
            URRL(3, **flat(pretrain_epochs=10, joint_epochs=1, **SMALL | {"hidden_dim": 16}), random_state=0).fit(data),
        )


def test_an_estimator_tells_what_it_decided(decided, tmp_path):
    data, groups, model = decided
    assert metrics.clustering_accuracy(groups, model.labels_) >= 0.97
    assert list(model.decisions_) == [
        "empty_cells", "reduction", "scaling", "pretraining", "joint_stage", "clusters", "confidence",
        "trust",
    ]  # fmt: skip
    scaling = model.decisions_["scaling"]
    tried = {kind: scaling["evidence"][kind] for kind in rules.SCALINGS if kind in scaling["evidence"]}
    assert scaling["chosen"] == rules.best_scaling(tried)
    assert set(scaling["evidence"]) == {"standard", "minmax"}
    assert model.trust_.level == "high"
    assert all(one["why"] for one in model.decisions_.values())
    model.save(tmp_path / "model")
    again = URRL.load(tmp_path / "model")
    assert again.decisions_ == json.loads(json.dumps(model.decisions_))
    assert again.trust_ == model.trust_
    assert (again.predict(data) == model.labels_).all()


@pytest.mark.slow
def test_a_scaling_that_was_asked_for_is_not_decided(decided):
    data = decided[0]
    model = URRL(3, **flat(pretrain_epochs=1, joint_epochs=1, **SMALL), scaling="standard", random_state=0).fit(data)
    assert model.decisions_["scaling"]["why"] == "scaling: standard, as asked"
    with pytest.raises(
        SettingError, match="scaling must be one of auto, minmax, standard, view, mixed, none; got 'max'"
    ):
        URRL(3, scaling="max").fit(data)


def test_training_has_no_joint_stage_to_watch_without_epochs():
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=2, joint_epochs=0, **SMALL)
    run = train(samples_for(settings), settings, 0)
    assert isinstance(run, TrainState)
    assert decision_texts.words(stages.joint_stage_decision(run)).startswith("none")


def test_a_joint_stage_that_settled_says_when(monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, 0.3, 1.0)])
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(1, 16))
    settings = Config(n_clusters=3, n_heads=2, **SMALL)
    decision = stages.joint_stage_decision(train(samples_for(settings), settings, 0))
    words = decision_texts.words(decision)
    assert words == "6 of 16 epochs, as its clusters hardly got better"


@pytest.mark.slow
def test_only_the_scaling_with_the_best_clusters_goes_on(monkeypatch):
    data = make_blobs(60, 3, missing=0.3)[0]
    went_on, go_on = [], fit_module.train_jointly

    def seen(runs, **named):
        went_on.extend(runs)
        go_on(runs, **named)

    monkeypatch.setattr(fit_module, "train_jointly", seen)
    monkeypatch.setattr(rules, "CLEAR", inf)
    monkeypatch.setattr(mixing, "_CLEARLY", -inf)  # so that all views are scaled as a whole
    model = URRL(
        3, **flat(pretrain_epochs=2, joint_epochs=1, **SMALL | {"batch_size": 64}), n_init=2, random_state=0
    ).fit(data)
    scaling = model.decisions_["scaling"]
    assert set(scaling["evidence"]) == {"mixed", "standard", "minmax"}
    assert [run.network is model._model.network for run in went_on].count(True) == 1
    assert len(went_on) == len(model.objectives_) == 2
    assert scaling["as_a_whole"] == (model.view_names_ if scaling["chosen"] == "mixed" else [])


@pytest.mark.slow
def test_a_mixture_that_was_asked_for_is_told_in_words(monkeypatch):
    monkeypatch.setattr(mixing, "_CLEARLY", -inf)
    data = make_blobs(60, 3, missing=0.3)[0]
    model = URRL(
        3, **flat(pretrain_epochs=1, joint_epochs=0, **SMALL | {"batch_size": 64}), scaling="mixed", random_state=0
    ).fit(data)
    names = ", ".join(model.view_names_)
    assert model.decisions_["scaling"]["why"] == f"scaling: mixed, as asked; one scale for all columns of {names}"


def test_a_scaling_that_comes_later_has_to_be_better():
    assert rules.best_scaling({"standard": 0.5, "minmax": 0.539}) == "standard"
    assert rules.best_scaling({"standard": 0.5, "minmax": 0.541}) == "minmax"
    assert rules.best_scaling({"mixed": 0.5, "standard": 0.545, "minmax": 0.58}) == "standard"
    assert rules.best_scaling({"mixed": 0.5, "standard": 0.53, "minmax": 0.545}) == "minmax"
    assert rules.best_scaling({"none": 0.1}) == "none"


class Looked:
    """A network of which only the clusters are asked for, and something to keep."""

    def __init__(self):
        self.labels = torch.arange(12) % 4

    def state_dict(self):
        return {"labels": self.labels}

    def load_state_dict(self, state):
        self.labels = state["labels"]


class FixedClusters:
    """A method whose clusters are those that the network holds."""

    n_clusters = 4

    def assign(self, network, embedding):
        return torch.nn.functional.one_hot(network.labels, 4)


def test_scalings_that_treat_a_view_alike_count_once_there():
    pairs, crossed = torch.tensor([[[1]], [[0]], [[3]], [[2]]]), torch.tensor([[[2]], [[3]], [[0]], [[1]]])
    two = [
        Candidate("standard", np.array([0, 0, 1, 1]), pairs, 1.0),
        Candidate("minmax", np.array([0, 1, 0, 1]), crossed, 1.0),
    ]
    # Two of two are 2/3 at one standard error, none of two is 0, a third is chance: 1/2 on one graph, -1/2 on another.
    assert candidate_scores(two, 2) == pytest.approx([0.0] * 2)
    third = Candidate("mixed", np.array([0, 0, 1, 1]), pairs.clone(), 1.0)
    assert candidate_scores([third, *two], 2) == pytest.approx([0.0] * 3)


def pretrained(monkeypatch):
    """A list to which the trainings of every fit are added after their first stage."""
    runs, pretrain = [], fit_module.pretrain

    def seen(given, until, **named):
        pretrain(given, until, **named)
        runs.extend(run for run in given if not any(run is other for other in runs))

    monkeypatch.setattr(fit_module, "pretrain", seen)
    return runs


def test_trainings_with_different_scalings_share_no_seed(monkeypatch):
    monkeypatch.setattr(mixing, "_CLEARLY", -inf)
    monkeypatch.setattr(rules, "CLEAR", inf)
    data, runs = make_blobs(60, 3, missing=0.3)[0], pretrained(monkeypatch)
    URRL(3, **flat(pretrain_epochs=1, joint_epochs=0, **SMALL | {"batch_size": 64}), n_init=2, random_state=5).fit(data)
    assert len(runs) == 6
    assert len({run.seed for run in runs}) == 6
    assert runs[0].seed == 5


@pytest.mark.slow
def test_on_noise_trainings_do_not_agree(monkeypatch):
    monkeypatch.setattr("viewfuse.data.scaling.views_as_a_whole", lambda views: (True, *(False,) * 5))
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(120, 6)) for _ in range(6)]
    model = URRL(3, **flat(pretrain_epochs=3, joint_epochs=0, **SMALL), random_state=0).fit(views)
    assert model.trust_.level == "none"


@pytest.mark.slow
def test_the_verdict_compares_the_training_that_was_kept_with_all_starts(monkeypatch):
    monkeypatch.setattr(mixing, "_CLEARLY", -inf)
    monkeypatch.setattr(rules, "CLEAR", inf)
    data, runs = make_blobs(32, 4, missing=0.3)[0], pretrained(monkeypatch)
    model = URRL(4, **flat(pretrain_epochs=1, joint_epochs=0, **SMALL | {"batch_size": 64}), random_state=0).fit(data)
    shares = stability(model.labels_, [run.clusters.numpy() for run in runs])
    wanted = [(shares[model.labels_ == c].mean() - 0.25) / 0.75 for c in range(4)]
    apart = apart_shares(torch.from_numpy(model.embedding_), torch.from_numpy(model.labels_), 4)
    assert model._model.calibration.again == pytest.approx(wanted * apart, abs=1e-6)


def test_a_scaling_that_diverges_is_left_out(monkeypatch):
    data = make_blobs(30, 3, widths=(5, 4), missing=0.3)[0]

    def spoiled(self, stage, terms, seconds):
        record(self, stage, terms, seconds)
        for run in self.runs:
            if run.stored.values[0].min() < 0 and stage == "pre-training":  # not scaled to 0..1
                run.diverged = "the reconstruction loss is not finite in epoch 1, step 1"

    record = Training.record
    monkeypatch.setattr(Training, "record", spoiled)
    model = URRL(3, **flat(pretrain_epochs=2, joint_epochs=1, **SMALL), random_state=0).fit(data)
    scaling = model.decisions_["scaling"]
    assert (scaling["chosen"], scaling["diverged"]) == ("minmax", ["standard"])
    assert scaling["why"] == "scaling: minmax, the only one that could be trained; training diverged with standard"
    with pytest.raises(Diverged, match="not finite in epoch 1, step 1"):
        URRL(3, **flat(pretrain_epochs=2, joint_epochs=1, **SMALL), scaling="standard", random_state=0).fit(data)


def test_samples_under_other_scalings_are_gone_when_the_joint_stage_begins(monkeypatch):
    go_on, alive = fit_module.train_jointly, []

    def seen(runs, **named):
        gc.collect()  # of what is new: what was there before is frozen
        alive.append(sum(type(one) is MultiViewIndex for one in gc.get_objects()))
        go_on(runs, **named)

    monkeypatch.setattr(fit_module, "train_jointly", seen)
    data = make_blobs(30, 3, widths=(5, 4), missing=0.3)[0]
    gc.freeze()  # for good: conftest.py has frozen most of it anyway
    for scaling in ("standard", "auto"):
        URRL(3, **flat(pretrain_epochs=1, joint_epochs=1, **SMALL), scaling=scaling, random_state=0).fit(data)
    assert alive[0] == alive[1] > 0


@pytest.mark.parametrize(
    ("scores", "squares", "best"),
    [
        ([0.5, 0.52, 0.9], [10.0, 10.005, 10.005], 2),  # sums that differ by less than a thousandth are equal
        ([0.5, 0.52], [10.0, 10.5], 0),  # a larger sum takes more than a little more consistency
        ([0.5, 0.62], [10.0, 10.5], 0),  # 38 of 100 leave, where 37 would be a quarter fewer than 50
        ([0.5, 0.64], [10.0, 10.5], 1),
        ([0.5, 0.5], [10.005, 10.0], 1),  # of equally consistent ones that with the smallest sum
        ([0.5 + 1e-12, 0.5], [10.005, 10.0], 1),  # rounding decides nothing
        ([0.0, 0.0, 0.0], [3.0, 2.0, 1.0], 2),
        ([0.3, 0.5], [0.0, 0.0], 1),
    ],
)
def test_the_start_is_consistent_and_has_a_small_sum_of_squares(scores, squares, best):
    assert best_start([Merit(own, own, 1.0) for own in scores], squares) == best


@pytest.mark.parametrize("n", [20, 300])  # of more than 1000 samples small groups are clustered
def test_neighbours_decide_between_starts_that_k_means_cannot_tell_apart(n):
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).repeat_interleave(n, dim=0)  # a square
    points = points + 0.01 * torch.randn(4 * n, 2, generator=torch.Generator().manual_seed(0))
    for sides in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):
        corners = dict(sides + [side[::-1] for side in sides])
        neighbor_ids = torch.tensor([[[corners[i // n] * n + i % n]] for i in range(4 * n)])
        centers = torch.from_numpy(initial_centers(points, 2, 0, neighbor_ids))
        labels = torch.cdist(points, centers).argmin(dim=1)
        assert neighbor_agreement(labels, neighbor_ids) == 1.0


def test_a_stage_that_brings_nothing_more_is_ended_without_a_warning():
    network, stage = Looked(), JointStage()
    neighbor_ids = torch.tensor([[[(i + 4) % 12]] for i in range(12)])  # every sample is with its neighbours at once
    watch = EarlyStopping(FixedClusters(), network, neighbor_ids, stage)
    for epoch in range(5, 14):
        watch.evaluate(epoch, torch.zeros(12, 1))
    assert (stage.kept, stage.settled, stage.ended, stage.stopped) == (8, True, "", True)
    assert list(stage.seen) == [5, 6, 7, 8]  # the last ones are not looked at


@pytest.mark.slow
def test_only_the_scaling_that_was_chosen_is_pretrained_to_the_end(monkeypatch):
    data, runs = make_blobs(30, 3, widths=(5, 4), missing=0.3)[0], pretrained(monkeypatch)
    monkeypatch.setattr(rules, "CLEAR", inf)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 2)
    model = URRL(3, **flat(pretrain_epochs=5, joint_epochs=1, **SMALL), random_state=0).fit(data)
    kept = [run for run in runs if run.network is model._model.network]
    assert [run.history["stage"].count("pre-training") for run in kept] == [5]
    assert {len(run.history["epoch"]) for run in runs if run is not kept[0]} == {2}
    assert model.history_["epoch"] == [*range(1, 7)]


def test_a_chosen_training_that_diverges_later_stops_the_fit(monkeypatch):
    def spoiled(self, stage, terms, seconds):
        record(self, stage, terms, seconds)
        for run in self.runs if self.runs[0].n_epochs >= 3 else ():
            run.diverged = "the reconstruction loss is not finite in epoch 3, step 1"

    record = Training.record
    monkeypatch.setattr(Training, "record", spoiled)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 2)
    with pytest.raises(Diverged, match="not finite in epoch 3"):
        URRL(3, **flat(pretrain_epochs=5, joint_epochs=1, **SMALL), random_state=0).fit(
            make_blobs(30, 3, widths=(5, 4), missing=0.3)[0]
        )


@pytest.mark.filterwarnings("ignore::viewfuse.JointStageWarning")  # in noise the stage after it may empty a cluster
@pytest.mark.parametrize(("apart", "pretrained_epochs"), [(9.0, 2), (0.0, 5)])
def test_pretraining_ends_where_trainings_agree(monkeypatch, apart, pretrained_epochs):
    monkeypatch.setattr(rules, "CLEAR", inf)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 2)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(5, 1))
    rng = np.random.default_rng(0)
    kinds = apart * np.repeat(np.arange(3), 20)[:, None]
    model = URRL(3, **flat(**SMALL | {"batch_size": 60}), random_state=0).fit(
        [kinds + rng.normal(size=(60, width)) for width in (6, 8)]
    )
    decision = model.decisions_["pretraining"]
    assert decision["chosen"] == model.history_["stage"].count("pre-training") == pretrained_epochs
    assert (decision["evidence"]["agreement"] >= 0.8) == (pretrained_epochs == 2)
    assert decision["why"].startswith("pre-training: 2 of 5 epochs, as" if apart else "pre-training: all 5 epochs")
    assert model.history_["epoch"] == [*range(1, pretrained_epochs + 2)]


def test_sets_that_were_pretrained_differently_are_trained_on_apart(monkeypatch):
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 4})
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=3, joint_epochs=2, **SMALL)
    samples = samples_for(settings)
    runs = [stages.init_state(samples, settings, seed) for seed in range(3)]
    stages.pretrain(runs, 1)
    stages.pretrain(runs[1:2], 3)
    stages.train_jointly(runs)
    assert [run.history["epoch"] for run in runs] == [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3]]
    assert [run.joint_stage.kept for run in runs] == [3, 5, 3]


def test_the_neighbours_reach_the_start_of_the_centres(monkeypatch):
    settings = Config(n_clusters=3, n_heads=2, pretrain_epochs=1, joint_epochs=0, **SMALL)
    samples, seen = samples_for(settings), []

    def remembered(embedding, n_clusters, seed, neighbor_ids, *weights):
        seen.append(neighbor_ids)
        return initial_centers(embedding, n_clusters, seed, neighbor_ids)

    monkeypatch.setattr(stages, "initial_centers", remembered)
    train(samples, settings, 0)
    assert seen == [samples.neighbor_ids]


def test_a_joint_stage_that_nothing_can_judge_is_kept_as_it_ends(monkeypatch):
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(2, 8))
    settings = Config(n_clusters=1, n_heads=2, **SMALL)
    run = train(samples_for(settings), settings, 0)
    assert (run.joint_stage.kept, run.joint_stage.settled) == (len(run.history["epoch"]), False)
    assert len(run.history["epoch"]) == 2 + settings.epochs(len(run.stored)).joint


@pytest.mark.parametrize(("rise", "looks"), [(-0.0002, 4), (0.0009, 4), (0.0011, 9)])
def test_a_gain_over_three_looks_keeps_a_stage_going(monkeypatch, rise, looks):
    scores = count()
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, 0.3 + rise * next(scores), 1.0)])
    network, stage = Looked(), JointStage()
    watch = EarlyStopping(FixedClusters(), network, torch.zeros(12, 1, 1, dtype=torch.int64), stage)
    for epoch in range(9):
        watch.evaluate(epoch, torch.zeros(12, 1))
    assert len(stage.seen) == looks


def test_the_schedule_of_the_paper_is_not_cut_short():
    assert Config().pretrained_as_needed
    assert not Config(schedule="paper").pretrained_as_needed
    assert not Config(pretrain_epochs=5).pretrained_as_needed
    network, stage = Looked(), JointStage()
    watch = EarlyStopping(FixedClusters(), network, torch.zeros(12, 1, 1, dtype=torch.int64), stage, settles=False)
    for epoch in range(9):
        watch.evaluate(epoch, torch.zeros(12, 1))
    assert (len(stage.seen), stage.stopped) == (9, False)


def test_of_several_trainings_one_that_diverges_later_is_left_out():
    broken, sound, other = (np.full(3, i) for i in range(3))
    trials = [SimpleNamespace(run=SimpleNamespace(diverged=words)) for words in ("not finite", "")]
    found = [broken, sound, other]
    search = Search(None, Config(), [], None, [], False, trials=trials[:], found=found, starts=found[::-1])
    search.drop_diverged()
    assert search.trials == trials[1:]
    assert [own[0] for own in search.found] == [1, 2]
    assert [own[0] for own in search.starts] == [1, 0]
