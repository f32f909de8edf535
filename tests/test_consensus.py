"""A vote of simple methods with the network: who votes, how votes are counted, and when they change anything."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, cohen_kappa_score

from flat import flat
from viewfuse import URRL, Views
from viewfuse.data.side_information.batch_labels import batch_added
from viewfuse.errors import Diverged, EmptyClusterWarning, NotEnoughMemory
from viewfuse.fitted.model import Source
from viewfuse.methods.published.filled_kmeans import KNNKMeans
from viewfuse.methods.published.nemo import NEMO
from viewfuse.methods.published.pimvc import PIMVC
from viewfuse.methods.urrl import consensus, fit, scaling_search
from viewfuse.methods.urrl.consensus import majority, simple_partitions
from viewfuse.selection.rules import clearly_better
from viewfuse.selection.scores import Merit
from viewfuse.utils.console import quiet, warn

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 16, "n_heads": 2, "pretrain_epochs": 1, "joint_epochs": 0}


def groups(n=60, k=3, seed=0):
    """Groups of unequal sizes in two views of other units, a third of the samples without the second one."""
    rng = np.random.default_rng(seed)
    truth = np.sort(rng.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum()))
    first = rng.normal(size=(n, 4)) + 6.0 * rng.normal(size=(k, 4))[truth]
    second = 50.0 * (rng.normal(size=(n, 3)) + 6.0 * rng.normal(size=(k, 3))[truth])
    mask = np.ones((n, 2), dtype=bool)
    mask[rng.permutation(n)[: n // 3], 1] = False
    return truth, Views([first, second], mask=mask)


def literal_vote(own, others):
    """Every numbering is tried; a sample goes where most have it, its own cluster first, then the lowest number."""
    size = int(max(one.max() for one in (own, *others))) + 1
    votes = [Counter({int(label): 1.5}) for label in own]
    for other in others:
        names = max(permutations(range(size)), key=lambda names: np.sum(own == np.array(names)[other]))
        for place, label in enumerate(other):
            votes[place][names[label]] += 1
    return [min(one, key=lambda label: (-one[label], label)) for one in votes]


@pytest.mark.parametrize("seed", range(6))
def test_votes_are_those_of_a_literal_count(seed):
    rng = np.random.default_rng(seed)
    own = rng.choice(4, 50, p=[0.6, 0.2, 0.15, 0.05])
    others = [np.where(rng.random(50) < 0.7, (own + shift) % 4, rng.integers(4, size=50)) for shift in range(5)]
    assert majority(own, others).tolist() == literal_vote(own, others)


def test_one_vote_does_not_outdo_ones_own_and_two_do():
    own, other = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 1])
    assert majority(own, [other]).tolist() == own.tolist()
    assert majority(own, [other, own, other]).tolist() == own.tolist()
    assert majority(own, [other, other]).tolist() == other.tolist()
    assert majority(own, [other, 1 - other]).dtype == np.int64
    assert majority(np.zeros(6, dtype=np.int64), [other, other]).tolist() in (other.tolist(), (1 - other).tolist())


def test_the_voters_are_the_published_methods_on_the_views_as_they_are_prepared():
    _, views = groups()
    prepared = Source.of(views).reduced
    found = simple_partitions(prepared, 3, 7)
    wanted = [one(3, random_state=7, reduction="none").fit_predict(prepared) for one in (KNNKMeans, NEMO, PIMVC)]
    assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


@pytest.mark.parametrize("error", [NotEnoughMemory("no room"), Diverged("too far")])
def test_a_method_that_fails_has_no_vote(monkeypatch, error):
    def fails(self, X, y=None):
        raise error

    monkeypatch.setattr(NEMO, "fit", fails)
    assert len(simple_partitions(groups()[1], 3, 0)) == 2


def test_a_method_without_an_empty_cluster_of_its_own_warns_of_nothing():
    views = Views([np.repeat(np.eye(3), 4, axis=0), np.ones((12, 1))])
    assert len(simple_partitions(views, 3, 0)) == 3


def test_very_many_samples_have_no_vote(monkeypatch):
    assert consensus._ROWS == 1_500
    monkeypatch.setattr(consensus, "_ROWS", 60)
    assert len(simple_partitions(groups(60)[1], 3, 0)) == 3
    assert simple_partitions(groups(61)[1], 3, 0) == []


def test_nor_have_very_many_columns(monkeypatch):
    assert consensus._COLUMNS == 500
    monkeypatch.setattr(consensus, "_COLUMNS", 4)
    assert len(simple_partitions(groups()[1], 3, 0)) == 3
    monkeypatch.setattr(consensus, "_COLUMNS", 3)
    assert simple_partitions(groups()[1], 3, 0) == []


def test_warnings_of_other_threads_are_heard_while_methods_vote(monkeypatch):
    filters, seen = list(warnings.filters), []
    monkeypatch.setattr(NEMO, "fit_predict", lambda self, X: seen.append(list(warnings.filters)))
    simple_partitions(groups()[1], 3, 0)
    assert seen == [filters]
    elsewhere = threading.Thread(target=warn, args=(EmptyClusterWarning("heard"),))
    with quiet():
        warn(EmptyClusterWarning("not heard, as an error neither"))
        with warnings.catch_warnings(record=True, action="always") as heard:
            elsewhere.start()
            elsewhere.join()
    assert [str(one.message) for one in heard] == ["heard"]
    with pytest.warns(EmptyClusterWarning, match="again"):
        warn(EmptyClusterWarning("again"))


def test_what_was_prepared_is_not_prepared_again(monkeypatch):
    _, views = groups()
    given, seen = batch_added(views, np.arange(60) % 2, views), []
    for method in (KNNKMeans, NEMO, PIMVC):
        monkeypatch.setattr(method, "fit_predict", lambda self, X: seen.append((self.reduction, X)))
    simple_partitions(given, 3, 0)
    assert given.batch is not None
    assert [(how, one.names, one.batch) for how, one in seen] == [("none", views.names, None)] * 3


@pytest.mark.parametrize(
    ("other", "better"),
    [
        (Merit(0.5031, 0.1, 0.1), True),
        (Merit(0.5029, 0.9, 9.0), False),
        (Merit(0.496, 0.9, 9.0), False),
    ],
)
def test_a_consensus_must_score_a_little_higher(other, better):
    assert clearly_better(other, Merit(0.5, 0.5, 1.0), "consensus") == better


@pytest.fixture
def voted(monkeypatch):
    """A function that fits with these votes, and tells who was asked for any."""
    asked = []
    for name in ("tree_clusters", "unequal_clusters"):
        monkeypatch.setattr(scaling_search, name, lambda *_: None)

    def fitted(votes, views, effort="auto", config=None, **given):
        def simple(*args):
            asked.append(args)
            return votes

        monkeypatch.setattr(fit, "simple_partitions", simple)
        params = flat(**TINY, **(config or {}), scaling="standard", random_state=3, effort=effort)
        return URRL(3, **params).fit(views, **given), asked

    return fitted


def wrong(truth, share=1.0):
    """A share of the samples is somewhere."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(len(truth)) < share, rng.permutation(truth), truth)


def test_what_all_others_agree_on_is_taught(voted, monkeypatch):
    truth, views = groups()

    def alone(other, own, found_in, kappa):
        return found_in == "consensus" and clearly_better(other, own, found_in, kappa)

    monkeypatch.setattr(scaling_search, "clearly_better", alone)
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: {"k-means": wrong(truth)})
    monkeypatch.setattr(fit, "_placed", lambda trial, z: wrong(truth, 0.3))
    model, [(prepared, k, seed)] = voted([truth] * 4, views)
    assert (prepared.names, k, seed) == (views.names, 3, 3)
    clusters = model.decisions_["clusters"]
    assert clusters["chosen"] == "consensus"
    assert list(clusters["evidence"]) == ["network", "k-means", "consensus", "earlier"]
    assert "those of a vote of the network, simple methods and the graph of neighbours, which" in clusters["why"]
    assert adjusted_rand_score(truth, model.labels_) > 0.85 > 0.8 > adjusted_rand_score(truth, wrong(truth, 0.3))


def test_a_vote_for_other_clusters_is_not_taken(voted, monkeypatch):
    truth, views = groups()
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: {"k-means": wrong(truth)})
    monkeypatch.setattr(scaling_search, "clearly_better", lambda other, own, found_in, kappa: kappa >= 0.7)
    monkeypatch.setattr(fit, "_placed", lambda trial, z: wrong(truth)[::-1].copy())
    assert voted([truth] * 4, views)[0].decisions_["clusters"]["chosen"] == "network"


def test_all_that_the_fit_has_found_votes_with_the_best_of_its_networks(voted, monkeypatch):
    truth, views = groups()
    votes = {name: np.roll(truth, shift) for shift, name in enumerate(("tree", "k-means", "graph", "simple"), 3)}
    heard = []
    monkeypatch.setattr(scaling_search, "majority", lambda own, others: heard.append((own, others)) or own)
    monkeypatch.setattr(scaling_search, "tree_clusters", lambda *_: votes["tree"])
    monkeypatch.setattr(scaling_search, "unequal_clusters", lambda *_: np.roll(truth, 9))  # which has no vote
    others = {name: votes[name] for name in ("k-means", "graph")}
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: others)
    placed = lambda trial, z: votes["k-means"] if trial.run.seed == 3 else truth  # noqa: E731
    monkeypatch.setattr(fit, "_placed", placed)
    monkeypatch.setattr(fit, "candidate_scores", lambda found, *_: [float((x.labels == truth).all()) for x in found])
    _, asked = voted([votes["simple"]], views, config={"n_init": 2})
    assert [seed for *_, seed in asked] == [3]
    ((own, partitions),) = heard
    assert own.tolist() == truth.tolist()
    assert [x.tolist() for x in partitions] == [votes[x].tolist() for x in ("k-means", "graph", "tree", "simple")]


def test_a_partition_that_is_clearly_better_comes_before_a_consensus(voted, monkeypatch):
    truth, views = groups()
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: {"k-means": truth})
    merits = {3: Merit(0.1, 0.1, 0.1), 4: Merit(0.8, 0.8, 0.8)}
    monkeypatch.setattr(scaling_search, "merits", lambda parts, *_: [merits[3], *[merits[4]] * (len(parts) - 1)])
    monkeypatch.setattr(fit, "_placed", lambda trial, z: wrong(truth))
    model, asked = voted([truth] * 3, views)
    assert len(asked) == 1
    assert model.decisions_["clusters"]["chosen"] == "k-means"
    monkeypatch.setattr(scaling_search, "clearly_better", lambda other, own, found_in, **_: found_in == "consensus")
    assert voted([truth] * 3, views)[0].decisions_["clusters"]["chosen"] == "consensus"


OWN, BEST, UNEQUAL = Merit(0.1, 0.1, 1.0), Merit(0.8, 0.5, 1.2), Merit(0.2, 0.6, 1.15)


@pytest.mark.parametrize(
    ("merits", "taken"),
    [
        ({"k-means": BEST, "linkage": UNEQUAL}, "linkage"),  # fewer leave, and it tells nearly as much
        ({"k-means": BEST, "linkage": Merit(0.2, 0.52, 1.15)}, "k-means"),  # .48 leave: .5 / exp(.07) is .466
        ({"k-means": BEST, "linkage": Merit(0.2, 0.6, 1.1)}, "k-means"),  # 1.2 / exp(.08) is 1.108
        ({"k-means": OWN, "linkage": UNEQUAL}, "linkage"),
        ({"k-means": OWN, "linkage": Merit(0.9, 0.12, 2.0)}, "network"),
    ],
)
def test_average_linkage_must_be_better_than_what_would_be_taken_without_it(voted, monkeypatch, merits, taken):
    truth, views = groups()
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: {"k-means": truth})
    monkeypatch.setattr(scaling_search, "unequal_clusters", lambda *_: truth)
    monkeypatch.setattr(fit, "_placed", lambda trial, z: truth)
    names = ("network", "k-means", "linkage", "earlier")
    scored = [merits.get(name, OWN) for name in names]
    monkeypatch.setattr(scaling_search, "merits", lambda parts, *_: scored if len(parts) == 4 else [OWN] * len(parts))
    clusters = voted([], views)[0].decisions_["clusters"]
    assert (clusters["chosen"], list(clusters["evidence"])) == (taken, list(names))


@pytest.mark.parametrize(("differ", "votes"), [(1, 0), (2, 1), (30, 1)])
def test_there_is_no_vote_where_k_means_finds_nearly_the_same(voted, monkeypatch, differ, votes):
    truth, views = groups()
    own = (np.arange(60) >= 20) * 1 + (np.arange(60) >= 40)
    other = np.where(np.arange(60) < differ, 1, own)
    assert (cohen_kappa_score(own, other) >= 0.97) == (not votes)
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *_: {"k-means": other})
    monkeypatch.setattr(fit, "_placed", lambda trial, z: own)
    assert len(voted([truth], views)[1]) == votes


@pytest.mark.parametrize(
    "given",
    [
        {"y": [0, 1, 2] + [-1] * 57},
        {"must_link": [(0, 1)]},
        {"sample_weight": np.arange(1.0, 61.0)},
        {"view_weights": {"view_0": 2}},
        {"config": {"center_start": "ward"}},
    ],
)
def test_simple_methods_have_no_vote_beside_what_they_do_not_know(voted, monkeypatch, given):
    truth, views = groups()
    find = scaling_search.candidate_partitions
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda *a: {**find(*a), "k-means": wrong(truth)})
    assert len(voted([truth], views)[1]) == 1
    _, asked = voted([truth], views, **given)
    assert len(asked) == 1
