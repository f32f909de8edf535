"""Fits that keep the numbers of a former one: clusters are matched, and all that is in their order moves together."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from flat import flat
from run_folders import trust_of
from viewfuse import URRL, Views, load
from viewfuse.cli import main
from viewfuse.errors import SettingError
from viewfuse.methods import label_matching
from viewfuse.methods.label_matching import FormerLabels
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.fit import Fitted
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod

QUICK = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 5, "joint_epochs": 1, "learning_rate": 2e-3}
QUICK |= {"scaling": "standard"}
OFFSETS = np.array([[0, 0], [40, 0], [0, 40], [40, 40], [80, 0]]) + 1_000.0


def kinds(sizes, seed=0, prefix="s"):
    """Two views in their own units, every fifth sample without the second; and the kind of each sample."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(len(sizes)), sizes)[rng.permutation(sum(sizes))]
    ids = [f"{prefix}{i}" for i in range(len(kind))]
    one = pd.DataFrame(OFFSETS[kind] + rng.normal(size=(len(kind), 2)), ids).add_prefix("mm")
    two = pd.DataFrame((OFFSETS[kind] + rng.normal(size=(len(kind), 2))) @ [[1, 1, 0], [0, 1, 2]], ids)
    two.iloc[::5] = np.nan
    return {"one": one, "two": two.add_prefix("kg")}, kind


def taken(views, rows):
    return {name: table[rows] for name, table in views.items()}


def names_of(labels, kind):
    """By kind the cluster of all of its samples."""
    found = {k: set(labels[kind == k].tolist()) for k in np.unique(kind)}
    assert all(len(own) == 1 for own in found.values()), found
    return {int(k): own.pop() for k, own in found.items()}


def most_shared(old, new, n_old, n_new):
    """By trying all: the most samples that keep their number; clusters that are one share a quarter of each."""
    both = {
        (a, b): set(np.flatnonzero(old == a)) & set(np.flatnonzero(new == b))
        for a in range(n_old)
        for b in range(n_new)
    }
    kept = {
        (a, b): len(own) if 4 * len(own) >= max((old == a).sum(), (new == b).sum()) else 0
        for (a, b), own in both.items()
    }
    places = permutations([*range(n_old), *[None] * n_new], n_new)
    return max(sum(kept.get((a, b), 0) for b, a in enumerate(place)) for place in places)


@pytest.mark.parametrize("seed", range(6))
def test_as_many_samples_as_possible_keep_their_number(seed):
    rng = np.random.default_rng(seed)
    n_old, n_new = rng.integers(2, 5, size=2).tolist()
    new = rng.integers(n_new, size=60)
    old = np.where(rng.random(60) < 0.2, rng.integers(n_old, size=60), np.minimum(new, n_old - 1))
    numbers = FormerLabels(old, True, n_old).numbers(new, n_new)
    assert len(set(numbers.tolist())) == n_new
    assert (numbers[new] == old).sum() == most_shared(old, new, n_old, n_new)


def test_strays_do_not_hand_down_a_number():
    old = np.repeat([0, 1, 2, -1], [50, 60, 2, 40])  # 2 is nearly gone
    new = np.repeat([0, 1, 2], [50, 40, 62])  # and what is 2 now has a part of 1, and samples that were not there
    assert FormerLabels(old, True, 3).numbers(new, 3).tolist() == [0, 1, 3]


def test_clusters_that_are_one_share_a_quarter_of_each():
    for first, number in ((25, 0), (24, 5)):
        parts, whole = np.repeat(np.arange(5), [first, 19, 19, 19, 43 - first]), np.zeros(100, dtype=np.int64)
        assert FormerLabels(parts, True, 5).numbers(whole, 1).tolist() == [number]
        found = FormerLabels(whole, True, 1).numbers(parts, 5).tolist()
        assert found == ([0, 1, 2, 3, 4] if number == 0 else [1, 2, 3, 4, 5])


@dataclass(frozen=True)
class Numbered:
    """What has the numbers of clusters."""

    method: URRLMethod
    network: SimpleNamespace
    calibration: None = None


def test_samples_that_were_not_there_count_nowhere_and_reasons_have_the_new_numbers():
    former = FormerLabels(np.array([0, 2, 2, -1, -1]), True, 3)
    made = label_matching._decision(former, np.array([2, 3]), np.array([3, 2, 2, 3, 3]))
    assert made.evidence == {"samples": 3, "share": pytest.approx(2 / 3), "by_ids": True}
    assert (made.chosen, made.new, made.unused) == ([2], [3], [0, 1])
    network = SimpleNamespace(centers=torch.tensor([[1.0], [2.0]]))
    trust = trust_of(clusters=2, reasons=[{"name": "apart", "clusters": [0, 1]}, {"name": "few"}])
    fitted = Fitted(Numbered(URRLMethod(Config(n_clusters=2)), network), None, {}, [], {"trust": trust})
    renumbered = label_matching.with_numbers(fitted, np.array([3, 1]), 4)
    found, method = renumbered.decisions["trust"], renumbered.model.method
    assert renumbered.model.network.centers.ravel().tolist() == [np.inf, 2, np.inf, 1]
    assert (method.n_clusters, method.config.hidden_width) == (4, Config(n_clusters=2).hidden_width)
    assert [one.get("clusters") for one in found["reasons"]] == [[1, 3], None]
    assert [one["again"] for one in found["clusters"]] == [0, 0.93, 0, 0.93]


@pytest.fixture(scope="module")
def first():
    views, kind = kinds([30, 24, 20, 16])
    return views, kind, URRL(4, **flat(**QUICK), random_state=0).fit(views)


def test_a_second_fit_keeps_the_numbers_and_all_that_is_in_their_order(first):
    views, kind, model = first
    views, kind = taken(views, slice(None, None, -1)), kind[::-1]
    plain = URRL(4, **flat(**QUICK), random_state=3).fit(views)
    again = URRL(4, **flat(**QUICK), random_state=3).fit(views, like=model)
    assert names_of(again.labels_, kind) == names_of(model.labels_[::-1], kind)
    assert names_of(plain.labels_, kind) != names_of(model.labels_[::-1], kind)  # else this would show nothing
    in_plain, in_order = names_of(plain.labels_, kind), {c: k for k, c in names_of(again.labels_, kind).items()}
    place = [in_plain[in_order[c]] for c in range(4)]
    np.testing.assert_array_equal(again.cluster_centers_, plain.cluster_centers_[place])
    np.testing.assert_allclose(again.soft_labels_, plain.soft_labels_[:, place], atol=1e-6)
    np.testing.assert_allclose(again.predict_proba(views), again.soft_labels_, atol=1e-6)
    assert again.trust_.clusters == [plain.trust_.clusters[c] for c in place]
    assert again.decisions_["numbers"]["chosen"] == [0, 1, 2, 3]
    assert again.decisions_["numbers"]["evidence"] == {"samples": 90, "share": 1.0, "by_ids": True}


def test_numbers_without_a_cluster_stay_empty_and_new_kinds_get_new_ones(first, tmp_path):
    views, kind, model = first
    before = names_of(model.labels_, kind)
    both, kinds_now = kinds([30, 24, 20, 16, 25], seed=4, prefix="n")
    there = kinds_now != 1
    views, kind = taken(both, there), kinds_now[there]
    again = URRL(4, **flat(**QUICK), random_state=1).fit(views, like=model)
    assert names_of(again.labels_, kind) == {0: before[0], 2: before[2], 3: before[3], 4: 4}
    numbers = again.decisions_["numbers"]
    assert (numbers["new"], numbers["unused"], numbers["evidence"]["by_ids"]) == ([4], [before[1]], False)
    assert f"cluster {before[1]} unused" in numbers["why"]
    assert "cluster 4 new" in numbers["why"]
    assert again.n_clusters_ == 5
    assert (again.soft_labels_[:, before[1]] == 0).all()
    np.testing.assert_allclose(again.soft_labels_.sum(axis=1), 1, atol=1e-5)
    tree = again.explain(views).merges
    assert sorted(tree[-1].first + tree[-1].second) == sorted({0, 1, 2, 3, 4} - {before[1]})
    assert set(again.cut(4)) == {0, 1, 2, 3}
    again.save(tmp_path / "model")
    opened = load(tmp_path / "model")
    np.testing.assert_array_equal(opened.predict(both), again.predict(both))
    assert before[1] not in opened.predict(both)
    third = URRL(5, **flat(**QUICK), random_state=2).fit(both, like=opened)
    assert names_of(third.labels_, kinds_now) == {**names_of(again.labels_, kind), 1: 5}  # it was gone too long
    assert third.validate(2).trust_.refits == 2


@pytest.mark.slow
def test_rows_that_are_only_counted_are_no_ids(first):
    views, _, fitted = first
    model = copy.copy(fitted)
    model.ids_ = np.arange(len(model.ids_))
    turned = {name: table[::-1].reset_index(drop=True) for name, table in views.items()}
    again = URRL(4, **flat(**QUICK), random_state=3).fit(turned, like=model)
    np.testing.assert_array_equal(again.labels_, model.labels_[::-1])


def test_a_tenth_of_the_smaller_set_is_enough_to_look_samples_up(first):
    _, _, model = first
    views, _ = kinds([8, 5, 4, 3], seed=9, prefix="n")
    for shared, by_ids in ((2, True), (1, False)):
        names = [f"{'s' if row < shared else 'n'}{row}" for row in range(20)]
        former = FormerLabels.of(model, Views({name: table.set_axis(names) for name, table in views.items()}))
        assert former.by_ids == by_ids
        if by_ids:
            assert former.labels.tolist() == [*model.labels_[:2].tolist(), *[-1] * 18]


def test_samples_are_looked_up_by_labels_that_count_from_0_but_not_by_row_numbers(first):
    views, _, fitted = first
    model = copy.copy(fitted)
    shown = Views({name: table.set_axis(list(range(len(table)))) for name, table in views.items()})
    for ids, by_ids in ((np.arange(len(shown)), False), (shown.ids, True)):
        model.ids_ = ids
        assert FormerLabels.of(model, shown).by_ids == by_ids


def test_samples_that_are_placed_count_up_to_a_novelty_of_95_percent(first):
    _, _, model = first
    views = Views(kinds([90, 80, 70, 60], seed=11, prefix="n")[0])
    judged, found = model.judge(views), FormerLabels.of(model, views)
    assert ((judged.novelty > 0.9) & (judged.novelty < 0.95)).any()
    assert np.array_equal(found.labels, np.where(judged.novelty > 0.95, -1, judged.chances.argmax(axis=1)))


def test_only_fitted_models_lend_their_numbers(first):
    with pytest.raises(SettingError, match="like must be a fitted model"):
        URRL(4, **flat(**QUICK)).fit(first[0], like="run")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_map")
def test_the_command_line_keeps_numbers_too(first, tmp_path):
    views, kind, model = first
    before, there = names_of(model.labels_, kind), kind != 1
    model.save(tmp_path / "run" / "model")
    for name, table in taken(views, there).items():
        table.to_csv(tmp_path / f"{name}.csv")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    files = [str(tmp_path / f"{name}.csv") for name in views]
    where = ["--out", str(tmp_path / "again"), "--like", str(tmp_path / "run"), "--random-state=3", "--clusters=3"]
    made = CliRunner().invoke(main, ["fit", *files, *options, *where])
    assert made.exit_code == 0, made.output
    labels = pd.read_csv(tmp_path / "again" / "labels.csv", index_col="id")["label"]
    found = names_of(labels[views["one"].index[there]].to_numpy(), kind[there])
    assert {**found, 1: before[1]} == before
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["decisions"]["numbers"]["unused"] == [before[1]]
    assert summary["cluster_sizes"][before[1]] == 0
    page = (tmp_path / "again" / "report.html").read_text()
    assert f"cluster {before[1]} unused" in page
    assert "You asked for 3 clusters" in page
    assert "hold no sample" not in page  # nothing is wrong with it
