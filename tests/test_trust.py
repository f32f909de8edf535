"""Trust: the chance of being found again by a slow literal reference, intervals, sets, reasons, repeated fits."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import permutations
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.metrics import adjusted_mutual_info_score

from conftest import make_blobs
from viewfuse import URRL, Config, SettingError, load
from viewfuse.methods.urrl import refits
from viewfuse.selection import confidence, rules
from viewfuse.selection.decision_texts import advice_of, reasons_of, words
from viewfuse.selection.decisions import ClusterNumber, Trust

QUICK = {"config": Config(embedding_dim=8, hidden_dim=16, pretrain_epochs=3, joint_epochs=1, learning_rate=2e-3)}
QUICK |= {"scaling": "standard", "random_state": 0}


@pytest.fixture(scope="module")
def clear():
    views, *_ = make_blobs(60, 3)
    return URRL(3, **QUICK).fit(views), views


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(120, width)) for width in (8, 12)]
    return URRL(4, **QUICK).fit(views), views


def matched_hits(labels, other, k):
    """Which samples two partitions put together, over all ways to match their clusters."""
    names = max(permutations(range(k)), key=lambda names: np.mean(labels == np.array(names)[other]))
    return labels == np.array(names)[other]


# The chance of a sample.


def literal_logit(model, i, again):
    """-1/4 + near (3 margin + 2 again), each by its definition, one sample at a time."""
    own, k = int(model.labels_[i]), model.n_clusters_
    stored, centers = model._model.stored, model.cluster_centers_.astype(float)
    middle = centers.mean(axis=0)
    directions, *_ = np.linalg.qr((centers - middle).T)
    basis = directions[:, : k - 1]  # of k centres around their middle
    spot = (model.embedding_[i].astype(float) - middle) @ basis
    far = [sqrt(sum((spot - (center - middle) @ basis) ** 2)) for center in centers]
    following = min(x for c, x in enumerate(far) if c != own)
    margin = (following - far[own]) / (following + far[own])
    neighbors = [j for view in stored.neighbor_ids[i].tolist() for j in view if j >= 0]
    chance = np.mean(model.labels_ == own)
    near = (np.mean([model.labels_[j] == own for j in neighbors]) - chance) / (1 - chance)
    return -0.25 + max(near, 0) * (1.5 * margin + 2.75 * max(again[own], 0)) + shift_of(model, own)


def shift_of(model, own):
    """What is known of a cluster as a whole, one sample after the other."""
    members, n = np.flatnonzero(model.labels_ == own), len(model.labels_)
    chance = len(members) / n
    z, stored = model.embedding_.astype(np.float64), model._model.stored
    near, held = [], []
    for i in members:
        ids = [j for view in stored.neighbor_ids[i].tolist() for j in view if j >= 0]
        near.append(max((np.mean(model.labels_[ids] == own) - chance) / (1 - chance), 0))
        far = [(sum((z[i] - z[j]) ** 2), j) for j in range(n) if j != i]
        held.append(np.mean([model.labels_[j] == own for _, j in sorted(far)[: min(10, len(members) - 1)]]))
    return 0.75 * np.mean(near) * max((np.mean(held) - chance) / (1 - chance), 0)


def test_confidence_by_a_literal_reference(noise, clear):
    for model in (noise[0], clear[0]):
        k, again = model.n_clusters_, model._model.calibration.again
        found = model.soft_labels_.max(axis=1)
        for i in range(0, len(found), 7):
            wanted = 1 / (1 + exp(-literal_logit(model, i, again)))
            assert found[i] == pytest.approx(min(max(wanted, 1 / k), 0.995), abs=1e-5)


def test_the_logit_of_a_chance_in_numbers():
    """Two centres 10 apart on a line, four training samples of which one is in cluster 1."""
    known = confidence.Calibration(torch.tensor([0, 0, 0, 1]), np.array([0.5, -0.3]), np.zeros(2))
    points, centers = torch.tensor([[2.0, 5.0], [9.0, 0.0], [8.0, 3.0]]), torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    ids = torch.tensor([[[0, 1]], [[3, 0]], [[1, 2]]])
    found = confidence.sample_logits(known, points, centers, torch.tensor([0, 1, 1]), ids)
    margins, near = (0.6, 0.8, 0.6), (1.0, (0.5 - 0.25) / 0.75, 0.0)  # never less than chance
    wanted = [-0.25 + n * (1.5 * m + 2.75 * again) for n, m, again in zip(near, margins, (0.5, 0.0, 0.0), strict=True)]
    assert found.tolist() == pytest.approx(wanted)


def test_what_is_found_again_is_matched_one_to_one_and_corrected_for_chance():
    labels, others = np.array([0, 0, 0, 1, 1, 2]), [np.array([2, 2, 0, 0, 0, 1]), np.array([1, 1, 1, 0, 0, 2])]
    hits = np.mean([matched_hits(labels, other, 3) for other in others], axis=0)
    shares = [1 / 2, 1 / 3, 1 / 6]  # a large cluster is found again by chance more often than a small one
    wanted = [(hits[labels == c].mean() - chance) / (1 - chance) for c, chance in enumerate(shares)]
    assert confidence.chance_corrected_again(labels, others, 3) == pytest.approx(wanted)
    assert confidence.chance_corrected_again(labels, others, 4)[3] == 0.0  # an empty cluster
    assert confidence.chance_corrected_again(np.zeros(3, dtype=np.int64), [], 1).tolist() == [1.0]


def test_how_far_clusters_lie_apart_by_a_literal_reference(monkeypatch):
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 3], [40, 15, 8])
    points = rng.normal(size=(63, 4)) * [1, 2, 3, 4] + labels[:, None] * [0.5, 2, 0, 0] + 100
    points[:5] = points[0]  # ties
    wanted = []
    for c in range(4):
        members, chance = np.flatnonzero(labels == c), np.mean(labels == c)
        own = []
        for i in members:
            far = np.linalg.norm(points - points[i], axis=1)
            far[i] = np.inf
            own.append(np.mean(labels[np.argsort(far, kind="stable")[: min(10, len(members) - 1)]] == c))
        wanted.append(max((np.mean(own) - chance) / (1 - chance), 0) if len(members) else 0.0)
    found = confidence.apart_shares(torch.tensor(points), torch.tensor(labels), 4)
    assert found == pytest.approx(wanted)
    assert confidence.apart_shares(torch.tensor(points[:12]), torch.zeros(12, dtype=torch.int64), 1).tolist() == [1.0]
    monkeypatch.setattr(confidence, "_MOST_APART", 32)  # of more samples every second one
    rows = np.linspace(0, 62, 32).round().astype(int)
    fewer = confidence.apart_shares(torch.tensor(points), torch.tensor(labels), 4)
    assert np.array_equal(fewer, confidence.apart_shares(torch.tensor(points[rows]), torch.tensor(labels[rows]), 4))


def test_what_is_known_of_a_cluster_as_a_whole():
    """Two clusters of unequal sizes; the second is found again by half, and one neighbour of its samples is outside."""
    labels, other = np.repeat([0, 1], [9, 3]), np.repeat([0, 1, 0], [9, 2, 1])
    points = torch.tensor(np.where(labels == 0, 0.0, 50.0) + np.arange(12.0))[:, None]
    ids = torch.tensor([[[1, -1]]] * 9 + [[[0, 10]]] * 3)
    known = confidence.Calibration.of(labels, [other], points, ids, 2)
    chance = np.array([0.75, 0.25])
    again = (np.array([1.0, 2 / 3]) - chance) / (1 - chance)
    near = np.array([1.0, (0.5 - 0.25) / 0.75])
    assert known.again == pytest.approx(again)  # both lie apart
    assert known.shifts == pytest.approx(0.75 * near)
    assert known.labels.tolist() == labels.tolist()


def test_margins_do_not_depend_on_directions_in_which_centres_agree():
    rng = np.random.default_rng(0)
    centers, points = torch.tensor(rng.normal(size=(3, 5)) + 1e3), torch.tensor(rng.normal(size=(20, 5)) + 1e3)
    labels = torch.cdist(points, centers).argmin(dim=1)
    wide = torch.cat([points, torch.tensor(rng.normal(size=(20, 4)))], dim=1)
    found = confidence.margins(points, centers, labels)
    assert torch.allclose(found, confidence.margins(wide, torch.nn.functional.pad(centers, (0, 4)), labels))
    assert (found >= 0).all()
    assert torch.equal(found[3:4], confidence.margins(points[3:4], centers, labels[3:4]))  # alone as among others
    one = torch.zeros(20, dtype=torch.int64)
    assert confidence.margins(points, centers[:1], one).tolist() == [0.0] * 20


def test_samples_without_neighbours_or_in_the_only_cluster_have_no_share():
    stored = torch.tensor([0, 0, 1])
    ids = torch.tensor([[[0, 1]], [[-1, -1]], [[2, -1]]])
    assert confidence.near_shares(torch.tensor([0, 0, 1]), ids, stored, 2).tolist() == [1.0, 0.0, 1.0]
    assert confidence.near_shares(torch.tensor([1, 0, 0]), ids, stored, 2).tolist() == pytest.approx([-0.5, 0.0, -2.0])
    assert confidence.near_shares(torch.tensor([0, 0, 0]), ids, stored * 0, 1).tolist() == [0.0] * 3


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 1000))
def test_rows_get_their_chances_and_keep_their_best(k, n, seed):
    rng = np.random.default_rng(seed)
    raw, chances = rng.dirichlet(np.full(k, 3.0), size=n).astype(np.float32), rng.uniform(size=n)
    found = confidence.with_chances(raw, chances)
    assert found.sum(axis=1) == pytest.approx(np.ones(n), abs=1e-5)
    assert found.max(axis=1) == pytest.approx(np.clip(chances, 1 / k, 0.995), abs=1e-5)
    assert np.array_equal(found.argmax(axis=1), raw.argmax(axis=1))


def test_a_row_by_hand():
    raw, chance = np.array([[0.5, 0.3, 0.2]], dtype=np.float32), 0.8
    power = brentq(lambda p: 0.5**p / (0.5**p + 0.3**p + 0.2**p) - chance, 0.1, 50)
    rest = np.array([0.3, 0.2]) ** power
    wanted = 0.2 * (0.85 * rest / rest.sum() + 0.15 / 2)
    assert confidence.with_chances(raw, np.array([chance]))[0] == pytest.approx([0.8, *wanted], abs=1e-5)


# The verdict.


@pytest.mark.parametrize(
    ("share", "n", "interval"), [(0.8, 5, (0.435, 0.96)), (1.0, 5, (0.65, 1.0)), (0.0, 4, (0, 0.4))]
)
def test_wilson_by_the_quadratic_equation(share, n, interval):
    """The bounds are the shares p whose normal test statistic |share - p| / sqrt(p (1 - p) / n) is 1.645."""
    roots = np.roots([1 + 1.645**2 / n, -(2 * share + 1.645**2 / n), share**2]).real
    assert rules.wilson(share, n) == pytest.approx(sorted(roots), abs=1e-9)
    assert rules.wilson(share, n) == pytest.approx(interval, abs=0.01)


@pytest.mark.parametrize(
    ("mean", "word"), [(0.851, "high"), (0.849, "some"), (0.626, "some"), (0.624, "none"), (0.3, "none")]
)
def test_levels_by_hand(mean, word):
    # Of four clusters: (0.85 - 0.25) / 0.75 = 0.8, (0.625 - 0.25) / 0.75 = 0.5
    found = rules.found_again(np.full(40, mean), np.arange(40) % 4, 4)
    assert found.level == word
    assert found.evidence["low"] < mean < found.evidence["high"]
    assert log(found.evidence["high"] / (1 - found.evidence["high"])) == pytest.approx(log(mean / (1 - mean)) + 1.2)
    assert bool(found.reasons) == (mean < 0.5 and word != "none")


def test_repeated_fits_are_counted():
    labels = np.array([0, 0, 0, 1])
    hits = np.array([[1, 1, 0, 1], [1, 1, 1, 0]], dtype=bool)
    found = rules.found_again(hits, labels, 2, len(hits))
    assert (found.refits, found.evidence["again"]) == (2, 0.75)
    assert [one["again"] for one in found.clusters] == pytest.approx([5 / 6, 0.5])
    assert (found.clusters[1]["low"], found.clusters[1]["high"]) == rules.wilson(0.5, 2)


def test_a_continuum_is_never_trusted_much_and_the_end_of_the_range_is_named():
    number = ClusterNumber(3, {}, "continuum", [], "largest", [])
    found = rules.with_reasons(rules.found_again(np.full(9, 0.99), np.arange(9) % 3, 3), *rules.on_number(number))
    assert found.level == "some"
    assert [one["name"] for one in found.reasons] == ["continuum", "range_end"]
    assert "embedding" in advice_of(found)


def test_one_cluster_is_not_judged():
    """Its level was "high", so whoever asked for that took it."""
    found = rules.found_again(np.ones(9), np.zeros(9, int), 1)
    assert (found.level, words(found)) == ("none", "not judged, as there is one cluster")
    assert rules.found_again(np.ones((3, 9)), np.zeros(9, int), 1, 3).level == "none"


def test_one_cluster_of_few_samples_is_not_judged():
    number = ClusterNumber(1, {}, "few", [], "", [])
    found = rules.with_reasons(rules.found_again(np.ones(9), np.zeros(9, int), 1), *rules.on_number(number))
    assert (found.level, [one["name"] for one in found.reasons]) == ("none", ["untested"])
    assert words(found) == "not judged, as there is one cluster, and too few samples to look for more"
    assert "n_clusters=2" in advice_of(found)
    one = rules.with_reasons(found, *rules.on_number(ClusterNumber(1, {}, "one", [], "", [])))
    assert words(replace(one, chosen="high", reasons=[])) == "not judged, as there is one cluster"


def test_reasons_are_found_at_their_bounds():
    sizes = np.repeat([0, 1, 2], [5, 50, 20])
    assert rules.on_sizes(sizes, 4) == {"name": "unequal", "least": 5, "most": 50}
    assert rules.on_sizes(sizes[:-20][:-1], 2) is None
    assert rules.on_outliers(0, 9) is None
    assert rules.on_kmeans(0.8, 0.9, 0.5)["same"]
    assert not rules.on_kmeans(0.79, 0.9, 0.5)["same"]


def test_one_view_that_decides_is_named():
    rng = np.random.default_rng(0)
    labels = torch.tensor(rng.integers(0, 2, 200))
    same = [np.flatnonzero((labels == label).numpy()) for label in (0, 1)]
    own = torch.tensor(np.stack([rng.choice(same[label], 9) for label in labels.tolist()]))
    anyone = torch.tensor(rng.integers(0, 200, (200, 9)))
    found = rules.on_views(labels, torch.stack([anyone, own], dim=1), ["a", "b"])
    assert (found["view"], found["agreement"]) == ("b", pytest.approx(1.0))
    assert rules.on_views(labels, torch.stack([own, own], dim=1), ["a", "b"]) is None
    assert rules.on_views(labels, own[:, None], ["a"]) is None


def test_clusters_that_follow_a_batch():
    rng = np.random.default_rng(0)
    labels, batch = np.repeat([0, 1, 2], 40), np.array(["x", "y"])[np.repeat([0, 1, 0], 40)]
    found = rules.on_batch(labels, batch, "plate")
    assert found["information"] == pytest.approx(adjusted_mutual_info_score(batch, labels))
    assert found["p"] == 1 / 200
    assert rules.on_batch(labels, rng.permutation(batch), "plate") is None
    assert rules.with_reasons(rules.found_again(np.full(120, 0.9), labels, 3), found).reasons[0]["name"] == "batch"


# Sets of clusters.


def test_the_conformal_quantile_by_counting():
    """Of n + 1 equally likely places of a new score, at most alpha (n + 1) lie below the bound."""
    rng = np.random.default_rng(0)
    for n, alpha in ((9, 0.1), (10, 0.1), (99, 0.1), (57, 0.2), (5, 0.1)):
        scores = np.sort(rng.uniform(size=n))
        below = int((scores < confidence._bound(scores, alpha)).sum())
        assert below == max(int(np.floor(alpha * (n + 1) + 1e-9)) - 1, 0)


def test_sets_hold_the_drawn_cluster_as_often_as_asked_whatever_views_there_are():
    rng = np.random.default_rng(1)
    n_present = np.repeat([1, 2], 2_000)
    soft = rng.dirichlet([1.0] * 4, size=4_000).astype(np.float32)
    soft[n_present == 2] **= 3
    soft /= soft.sum(axis=1, keepdims=True)
    known = confidence.bounds(soft, n_present, 0.1)
    assert set(known) == {0, 1, 2}
    above = soft >= np.array([known[count] for count in n_present])[:, None]
    inside = confidence.label_sets(soft, n_present, known)
    labels = np.array([rng.choice(4, p=row / row.sum()) for row in soft.astype(float)])
    for count in (1, 2):
        own = n_present == count
        assert above[own, labels[own]].mean() == pytest.approx(0.9, abs=0.03)
        assert inside[own, labels[own]].mean() == pytest.approx(0.9, abs=0.03)
    assert inside[np.arange(4_000), soft.argmax(axis=1)].all()
    # And each sample by its own chances: the fewest of the likeliest that add up to a half, or more.
    for row, own, bound in zip(
        soft.astype(float), inside, np.array([known[count] for count in n_present]), strict=True
    ):
        falling = sorted(row, reverse=True)
        fewest = next(k for k in range(1, 5) if sum(falling[:k]) >= 0.5)
        assert own.sum() == max(fewest, (row >= bound).sum())
        assert own[row >= falling[fewest - 1]].all()


def test_a_doubtful_sample_among_clear_ones_is_uncertain():
    """The bound of all samples together left it with its likeliest cluster alone."""
    soft = np.array(
        [[0.99, 0.01, 0.0]] * 97 + [[0.4, 0.35, 0.25], [0.2, 0.28, 0.52], [0.3, 0.2, 0.5]], dtype=np.float32
    )
    n_present = np.full(100, 2)
    sets = confidence.label_sets(soft, n_present, confidence.bounds(soft, n_present, 0.1))
    assert sets[:97].tolist() == [[True, False, False]] * 97
    assert sets[97:].tolist() == [[True, True, False], [False, False, True], [False, False, True]]


def test_sets_of_an_estimator(clear, noise):
    for model, views in (clear, noise):
        sets = model.predict_set(views)
        assert sets[np.arange(len(sets)), model.labels_].all()
        assert np.array_equal(model.uncertain(views), sets.sum(axis=1) > 1)
        assert model.predict_set(views, alpha=0.01).sum() >= sets.sum()
    assert clear[0].uncertain(clear[1]).mean() < 0.1 < noise[0].uncertain(noise[1]).mean()
    with pytest.raises(SettingError, match="alpha must be a number between 0 and 1; got 1"):
        clear[0].predict_set(clear[1], alpha=1)


# Of an estimator.


def test_clear_groups_are_trusted_and_noise_is_not(clear, noise):
    assert (clear[0].trust_.level, noise[0].trust_.level) == ("high", "none")
    assert clear[0].trust_.evidence["again"] == pytest.approx(clear[0].soft_labels_.max(axis=1).mean(), abs=1e-6)
    assert [one["again"] for one in noise[0].trust_.clusters] == pytest.approx(
        [noise[0].soft_labels_[noise[0].labels_ == c].max(axis=1).mean() for c in range(4)], abs=1e-6
    )


def test_former_names_warn(clear):
    model = clear[0]
    with pytest.warns(FutureWarning, match="soft_labels_"):
        assert np.array_equal(model.stability_, model.soft_labels_.max(axis=1))
    with pytest.warns(FutureWarning, match="trust_"):
        assert model.cluster_stability_ == pytest.approx([one["again"] for one in model.trust_.clusters])


def test_repeated_fits_replace_the_estimate(tmp_path):
    views, *_ = make_blobs(45, 3, missing=0.3)
    model = URRL(3, **QUICK).fit(views)
    labels, before = model.labels_.copy(), [one for one in model.trust_.reasons if one["name"] != "dissolves"]
    assert model.validate(2) is model
    found = model.trust_
    assert (found.refits, found.level) == (2, "high")
    assert np.array_equal(model.labels_, labels)
    assert list(found.reasons) == before
    means = [model.soft_labels_[labels == c].max(axis=1).mean() for c in range(3)]
    counts = np.bincount(labels)
    wanted = [(one["again"] * 2 * n + 1) / (2 * n + 2) for one, n in zip(found.clusters, counts, strict=True)]
    assert means == pytest.approx(wanted, abs=2e-3)
    assert np.array_equal(model.predict_proba(views), model.soft_labels_)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.trust_ == found
    assert np.array_equal(again.predict_proba(views), model.soft_labels_)
    with pytest.raises(SettingError, match="n_refits must be an integer of at least 2; got 1"):
        model.validate(1)


def test_where_a_cluster_dissolves_trust_is_not_high_and_of_nothing_no_cluster_is_named():
    labels = np.repeat([0, 1, 2], [80, 15, 5])
    lost = rules.found_again(np.where(labels == 2, 0.4, 0.99), labels, 3)
    assert (lost.level, [one["clusters"] for one in lost.reasons]) == ("some", [[2]])
    assert rules.found_again(np.full(100, 0.97), labels, 3).level == "high"
    weak = rules.found_again(np.where(labels == 0, 0.55, 0.6), labels, 3)
    assert (weak.level, weak.reasons) == ("none", [])
    one = rules.found_again(np.where(labels == 0, 0.4, 0.9), labels, 3)
    assert (one.level, [own["clusters"] for own in one.reasons]) == ("none", [[0]])
    none = rules.found_again(np.zeros((5, 100), bool), labels, 3, 5)
    assert (none.level, none.reasons) == ("none", [])


def test_where_more_than_half_of_the_samples_are_uncertain_trust_is_not_high():
    """87 % were found again, which is "high", while 76 of 120 samples had two clusters in their sets."""
    labels, soft = np.arange(120) % 4, np.full((120, 4), 0.01, dtype=np.float32)
    soft[np.arange(120), labels] = 0.87
    soft[np.arange(120), (labels + 1) % 4] = 0.11
    soft[:50] = np.where(soft[:50] > 0.5, 0.97, 0.01)  # these are sure
    found = rules.on_uncertain(soft, np.full(120, 2))
    assert found == {"name": "uncertain", "count": 70, "samples": 120}
    assert rules.on_uncertain(soft[:100], np.full(100, 2)) is None
    sure = rules.found_again(soft.max(axis=1), labels, 4)
    doubted = rules.with_reasons(sure, found)
    assert (sure.level, doubted.level) == ("high", "some")
    assert reasons_of(doubted)[0].what == "70 of 120 samples could be in more than one cluster."
    assert "viewfuse validate" in advice_of(doubted)
    assert "viewfuse validate" not in advice_of(replace(doubted, refits=5))
    assert rules.with_reasons(replace(sure, chosen="none"), found).level == "none"


def test_a_fit_and_its_validation_say_that_samples_are_uncertain(clear, noise):
    for model, views in (clear, noise, (deepcopy(noise[0]).validate(2), noise[1])):
        count, named = int(model.uncertain(views).sum()), {one["name"]: one for one in model.trust_.reasons}
        found = {"name": "uncertain", "count": count, "samples": len(views[0])}
        assert named.get("uncertain") == (found if 2 * count > len(views[0]) else None)
    assert "uncertain" in {one["name"] for one in noise[0].trust_.reasons}


def test_reasons_have_words_of_their_own():
    every = [
        {"name": "batch", "column": "plate", "information": 0.5, "p": 0.005},
        {"name": "continuum"},
        {"name": "dissolves", "clusters": [1, 3]},
        {"name": "uncertain", "count": 200, "samples": 300},
        {"name": "untested"},
        {"name": "range_end", "number": 30},
        {"name": "outliers", "count": 6, "samples": 300},
        {"name": "one_view", "view": "sound", "agreement": 0.8, "others": 0.05},
        {"name": "unequal", "least": 5, "most": 500},
        rules.on_kmeans(0.3, 0.89, 0.45),
    ]
    found = rules.with_reasons(Trust("some", {"again": 0.7, "low": 0.5, "high": 0.8}, 4), *reversed(every))
    assert [one["name"] for one in found.reasons] == [name for name in rules.GRAVITY if name != "structureless"]
    told = reasons_of(found)
    assert told[-1].what.endswith("neighbours agree with ours better: 0.89 against 0.45.")
    assert "clusters 1 and 3" in told[2].what
    assert advice_of(found) == told[0].advice
    assert len({one.advice for one in told}) == 10  # that on k-means has none


@pytest.mark.parametrize(("n", "seen"), [(50, 40), (13, 10), (2, 2)])
def test_every_refit_sees_four_fifths_each_once(n, seen):
    found = refits.drawn(n, 3, 7)
    assert [len(set(rows.tolist())) for rows in found] == [seen] * 3
    assert all((np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < n for rows in found)
    assert n == 2 or len({tuple(rows) for rows in (*found, *refits.drawn(n, 3, 8))}) == 6
