"""Drift: samples of the same kind give no alarm, others do, in the right sentence; the tests beside those of scipy."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import binom, chi2_contingency, fisher_exact, ks_2samp, mannwhitneyu

from flat import flat
from viewfuse import URRL, load
from viewfuse.cli import main
from viewfuse.errors import OutOfRangeWarning
from viewfuse.fitted import drift
from viewfuse.fitted.drift import Drift, DriftTest

QUICK = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 4, "joint_epochs": 1, "learning_rate": 2e-3}
QUICK |= {"scaling": "standard", "random_state": 0}
CENTRES = [np.random.default_rng(7).normal(scale=4.0, size=(4, width)) for width in (6, 9, 4)]
NAMES = ("text", "image", "price")
UNITS = (1.0, 1e4, 1e-3)
FEW = "no sign of it in the novelty of samples; viewfuse drift tests missing views and all else"
SHARES = (0.4, 0.35, 0.25, 0.0)


def drawn(n, rng, shares=SHARES, lost=(0.3, 0.3, 0.3)):
    """Samples of kinds with these shares, in units of their own, views lost at random; text is never lost with all."""
    kind = rng.choice(4, size=n, p=shares)
    there = rng.random((n, 3)) >= lost
    there[~there.any(axis=1), 0] = True
    views = {}
    for v, (name, centres) in enumerate(zip(NAMES, CENTRES, strict=True)):
        values = 50 * UNITS[v] + UNITS[v] * (centres[kind] + rng.normal(size=(n, centres.shape[1])))
        views[name] = np.where(there[:, v, None], values, np.nan)
    return views


def shifted(n, rng):
    views = drawn(n, rng)
    return {**views, "image": views["image"] + 1.2 * UNITS[1]}


CHANGES = {
    "shifted view": (shifted, "look in view 'image' like nothing in training"),
    "lost view": (
        lambda n, rng: drawn(n, rng, lost=(0.3, 1.0, 0.3)),
        "view 'image' is missing for 100% of the samples",
    ),
    "new class": (lambda n, rng: drawn(n, rng, (0.3, 0.3, 0.2, 0.2)), "like nothing in training"),
    "other shares": (lambda n, rng: drawn(n, rng, (0.2, 0.35, 0.45, 0.0)), "% of the samples, and "),
}


@pytest.fixture(scope="module")
def fitted():
    return URRL(3, **flat(**QUICK)).fit(drawn(400, np.random.default_rng(0)))


def share_with(check, draw, fits, draws):
    """In which share of draws a check holds; each fit has its own training samples."""
    return np.mean([check(model.drift(draw(150, rng))) for model, rng in fits for _ in range(draws)])


def test_samples_of_the_same_kind_hardly_give_an_alarm(fitted):
    found = share_with(bool, drawn, [(fitted, np.random.default_rng(1))], 5)
    assert 5 * found <= binom.ppf(0.999, 5, 0.05)  # few draws of one fit cannot say more


@pytest.mark.parametrize("change", CHANGES)
def test_other_samples_give_the_right_alarm(fitted, change):
    draw, sentence = CHANGES[change]
    fits = [(fitted, np.random.default_rng(2))]
    found = share_with(lambda drift: any(sentence in one for one in drift.alarms), draw, fits, 4)
    assert 4 * found >= binom.ppf(0.001, 4, 0.9)


@pytest.mark.slow
def test_alarms_of_many_fits_are_as_rare_and_as_certain_as_they_should_be():
    rng = np.random.default_rng(100)
    fits = [(URRL(3, **flat(**QUICK)).fit(drawn(400, rng)), rng) for _ in range(15)]
    assert share_with(bool, drawn, fits, 8) <= 0.05
    for draw, sentence in CHANGES.values():
        assert share_with(lambda drift, own=sentence: any(own in one for one in drift.alarms), draw, fits, 2) >= 0.9


def test_the_training_samples_themselves_give_no_alarm(fitted):
    assert not fitted.drift(drawn(400, np.random.default_rng(0)))


def test_values_far_out_are_an_alarm(fitted):
    views = drawn(100, np.random.default_rng(3))
    views["price"][:30] *= 1e6
    with pytest.warns(OutOfRangeWarning):
        found = fitted.drift(views)
    (test,) = (one for one in found.tests if one.name == "out_of_range")
    count = round(100 * test.new)
    assert test.p_value == pytest.approx(fisher_exact([[count, 100 - count], [0, 400]], alternative="greater").pvalue)
    assert any("values far outside of those of training" in one for one in found.alarms)


def test_few_values_far_out_are_compared_as_fisher_does_it():
    model = SimpleNamespace(is_far=lambda values, present: np.arange(10) < 2, stored=range(20))
    found = drift._out_of_range(model, SimpleNamespace(values=None, present=None))
    assert found.p_value == pytest.approx(fisher_exact([[2, 8], [0, 20]], alternative="greater").pvalue)
    assert (found.training, found.new, found.effect) == (0, 0.2, 0.2)


def test_one_sample_and_one_cluster_are_compared_too(fitted):
    rng = np.random.default_rng(4)
    assert not fitted.drift(drawn(1, rng))
    alone = URRL(1, **flat(**{**QUICK, "pretrain_epochs": 1})).fit(drawn(60, rng))
    assert {one.name for one in alone.drift(drawn(30, rng)).tests} == {"novelty", "out_of_range", "missing"}


def test_shares_are_compared_as_chi_squared_does_it():
    rng = np.random.default_rng(5)
    before, now = rng.choice(3, size=900, p=(0.5, 0.3, 0.2)), rng.choice(3, size=500, p=(0.46, 0.3, 0.24))
    effect, p_value = drift._permuted(before, now, 4)  # the last group is empty
    counts = [[(own == c).sum() for c in range(3)] for own in (before, now)]
    assert p_value == pytest.approx(chi2_contingency(counts).pvalue, abs=0.02)
    apart = [abs((before == c).mean() - (now == c).mean()) for c in range(3)]
    assert effect == pytest.approx(sum(apart) / 2)


def test_the_farthest_tenth_is_compared_as_fisher_does_it():
    rng = np.random.default_rng(6)
    before, now = rng.exponential(size=90), rng.exponential(size=60) + (rng.random(60) < 0.1) * 5
    edge = np.quantile([*before, *now], 0.9)
    table = [[(now > edge).sum(), (now <= edge).sum()], [(before > edge).sum(), (before <= edge).sum()]]
    assert drift._among_farthest(before, now) == pytest.approx(fisher_exact(table, alternative="greater").pvalue)


def test_the_better_of_two_tests_of_distances_counts_twice():
    rng = np.random.default_rng(7)
    before = rng.exponential(size=200)
    few, all_of_them = rng.exponential(size=80) + 9 * (np.arange(80) < 12), rng.exponential(size=80) + 0.25
    for now in (few, all_of_them, before[:80] / 2):
        found = drift._farther("rna", before, now)
        both = ks_2samp(now, before, alternative="less", method="asymp"), drift._among_farthest(before, now)
        assert found.p_value == pytest.approx(min(2 * min(both[0].pvalue, both[1]), 1))
        edge = sorted(before)
        gap = max((before <= x).mean() - (now <= x).mean() for x in [*edge, *now])
        assert found.effect == pytest.approx(max(gap, 0))
        edge = np.quantile(before, 0.95)
        assert (found.training, found.new) == ((before > edge).mean(), (now > edge).mean())
    assert drift._among_farthest(before, few) < ks_2samp(few, before, alternative="less").pvalue
    assert drift._farther("rna", before, few[:4]) is None
    assert drift._farther("rna", before[:5], few[:5]) is not None


def test_half_of_the_training_samples_are_set_aside(fitted, monkeypatch):
    counts = []
    monkeypatch.setattr(drift, "_farther", lambda view, before, now: counts.append((len(before), len(now))))
    stored = fitted._model.stored
    drift._novelty(fitted._model, stored.take(slice(0, 50)))
    present = stored.present.numpy()
    assert [now for _, now in counts] == present[:50].sum(axis=0).tolist()
    assert np.abs(np.array([before for before, _ in counts]) - present.mean(axis=0) * 200).max() < 30


def test_what_differs_most_is_named_in_either_direction():
    before, now = np.ones((10, 3), dtype=bool), np.ones((20, 3), dtype=bool)
    before[:6, 1] = now[:2, 0] = False
    missing = drift._missing(before, now, NAMES)
    assert (missing.view, missing.training, missing.new) == ("image", pytest.approx(0.6), 0)
    clusters = drift._clusters(np.repeat([0, 1, 2], [8, 1, 1]), np.repeat([0, 1, 2], [8, 6, 6]), 3, {0: "shoes"})
    assert (clusters.cluster, clusters.training, clusters.new) == ("shoes", 0.8, 0.4)
    assert drift._permuted(np.array([0, 1] * 9), np.array([0, 1] * 4), 2) == (0, 1)
    assert drift._permuted(np.zeros(300, dtype=np.int64), np.ones(200, dtype=np.int64), 2) == (1, 1e-4)


def test_confidence_is_compared_in_one_direction():
    rng = np.random.default_rng(8)
    highest = rng.uniform(0.7, 1, 60), rng.uniform(0.5, 0.9, 40)
    sure, unsure = (np.stack([one, 1 - one], axis=1).astype(np.float32) for one in highest)
    found, reverse = drift._confidence(sure, unsure), drift._confidence(unsure, sure)
    assert found.effect == pytest.approx(sure.max(axis=1).mean() - unsure.max(axis=1).mean(), abs=1e-6)
    ranks = mannwhitneyu(unsure.max(axis=1), sure.max(axis=1), alternative="less", method="asymptotic")
    assert found.p_value == pytest.approx(ranks.pvalue)
    assert (reverse.effect, reverse.p_value > 0.9) == (0, True)


def test_alarms_begin_at_five_percent():
    given = (0.06, 0.03), (0.04, 1e-9), (0.5, 0.07), (0.05, 0.001)  # 0.03 is one of the last two, so it is 0.06
    found = drift._judged([DriftTest("out_of_range", "", 0, effect, effect, p) for effect, p in given])
    assert [bool(one.sentence) for one in found] == [False, False, False, True]
    assert drift.in_short(3, 20) == FEW  # 0.075 by chance
    assert drift.in_short(101, 1000).startswith("101 of 1,000")


def test_p_values_are_corrected_as_holm_does_it_and_small_effects_are_no_alarm():
    given = [0.02, 0.001, 0.9, 0.011, 0.011]
    tests = [DriftTest("confidence", "", 0.9, 0.8, 0.1 if p < 0.015 else 0.01, p) for p in given]
    found = Drift(9, tuple(drift._judged(tests)))
    for one, p in zip(found.tests, given, strict=True):
        below = sorted(other for other in given if other <= p)
        assert one.adjusted == pytest.approx(min(1, max((5 - i) * other for i, other in enumerate(below))))
    assert [bool(one.sentence) for one in found.tests] == [False, True, False, True, True]
    small = drift._judged([DriftTest("missing", "text", 0.3, 0.32, 0.04, 1e-9)])
    assert not small[0].sentence


def test_sentences_have_names_and_shares(fitted):
    rng = np.random.default_rng(8)
    named = copy.copy(fitted)
    named.rename({c: f"kind {c}" for c in range(3)})
    found = named.drift(drawn(400, rng, (0.9, 0.05, 0.05, 0.0)))
    (test,) = (one for one in found.tests if one.name == "clusters")
    assert (
        test.sentence
        == f"cluster {test.cluster} has {test.new:.0%} of the samples, and {test.training:.0%} in training"
    )
    assert test.cluster.startswith("kind ")
    together = drift._sentence(DriftTest("missing", "text", 0.3, 0.3, 0.4, 1e-4))
    assert together.startswith("other views are missing together")
    several = drift._sentence(DriftTest("clusters", "", 0.3, 0.33, 0.1, 1e-4, "2"))
    assert several.startswith("several clusters have other shares of the samples than in training; cluster 2 has 33%")


def test_a_sentence_names_the_test_that_gave_the_alarm():
    """It said that 3% are like nothing in training, 5% expected, where all samples were a little farther."""
    rng = np.random.default_rng(7)
    before = rng.exponential(size=400)
    few, all_of_them = (
        rng.exponential(size=80) + 9 * (np.arange(80) < 12),
        np.quantile(before, np.linspace(0.3, 0.94, 200)),
    )
    for now, words in (
        (
            few,
            r"\d+% of the samples look in view 'rna' like nothing in training \(5% .*; Fisher's test of the farthest\)",
        ),
        (
            all_of_them,
            r"the samples lie farther .* in view 'rna' .* \(effect 0.30; Kolmogorov and Smirnov's test of all",
        ),
    ):
        assert re.match(words, drift._sentence(drift._farther("rna", before, now)))


def test_the_command_line_says_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "run" / "model")
    views = shifted(150, np.random.default_rng(9))
    for name, values in views.items():
        pd.DataFrame(values, [f"s{i}" for i in range(150)]).to_csv(tmp_path / f"{name}.csv", float_format="%.9g")
    files = [f"{name}={tmp_path / name}.csv" for name in views]
    made = CliRunner().invoke(main, ["drift", str(tmp_path / "run"), *files])
    assert made.exit_code == 0, made.output
    assert "of the samples look in view 'image' like nothing in training" in made.output
    facts = json.loads(CliRunner().invoke(main, ["drift", str(tmp_path / "run" / "model"), *files, "--json"]).stdout)
    table = fitted.drift(views).as_table()
    assert facts["samples"] == 150
    assert [one["test"] for one in facts["tests"]] == table["test"].tolist()
    assert [one["p_value"] for one in facts["tests"]] == pytest.approx(table["p_value"].tolist(), rel=1e-3)


def test_the_short_form_tells_when_far_more_samples_are_novel_than_expected():
    assert drift.in_short(3, 40) == FEW  # one time in three by chance
    assert drift.in_short(55, 1000) == FEW
    assert drift.in_short(90, 1000) == FEW  # certain, and too few to matter
    assert drift.in_short(12, 40).startswith(
        "12 of 40 samples look like nothing in training, 5% are expected to; are units"
    )


def test_predict_prints_the_short_form(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    rng, files = np.random.default_rng(3), []
    for name, view in drawn(60, rng, (0.2, 0.1, 0.1, 0.6)).items():
        pd.DataFrame(view).add_prefix(name).dropna(how="all").to_csv(tmp_path / f"{name}.csv", index_label="id")
        files.append(str(tmp_path / f"{name}.csv"))
    done = CliRunner().invoke(
        main, ["predict", str(tmp_path / "model"), *files, "--out", str(tmp_path / "out.csv"), "--json"]
    )
    assert done.exit_code == 0, done.output
    novel = (pd.read_csv(tmp_path / "out.csv")["novelty"] > 0.95).sum()
    assert json.loads(done.stdout)["drift"].startswith(f"{novel} of 60 samples look like nothing in training")


def test_a_model_that_kept_some_samples_gives_no_alarm_of_their_views(fitted, tmp_path):
    """Those with the most views are kept: other samples seemed to lack views, and the model to be less sure of them."""
    fitted.save(tmp_path / "few", keep=100)
    few, new = load(tmp_path / "few"), drawn(150, np.random.default_rng(3))
    names = {one.name for one in fitted.drift(new).tests}
    assert {one.name for one in few.drift(new).tests} == names - {"missing", "confidence"}
    assert few._present().all(axis=1).mean() > fitted._present().all(axis=1).mean() + 0.3
    few.save(tmp_path / "again")
    assert {one.name for one in load(tmp_path / "again").drift(new).tests} == names - {"missing", "confidence"}
    fitted.save(tmp_path / "whole")
    assert {one.name for one in load(tmp_path / "whole").drift(new).tests} == names
