"""What is decided without labels beside fixed choices: the plan, its synthetic data, tables and figure."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.experiments import catalogue, choices, figures, plans, runner, synthetic, tables
from benchmarks.experiments.catalogue import CATALOGUE, DataSet, Loaded
from benchmarks.experiments.records import Record, read_records, write_records
from benchmarks.experiments.run_folders import mark_done, read_facts, write_run
from conftest import make_blobs
from viewfuse import SettingError

TINY = DataSet("tiny", "Tiny", 40, (5, 8, 3), 2, 1, in_paper=False)
SMALL = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 20, "pretrain_epochs": 1, "joint_epochs": 1}


def record(condition="auto", acc=90.0, **other):
    names = {"plan": "decisions", "dataset": "handwritten", "method": "urrl", "setting": "default"}
    numbers = {"missing_rate": 0.5, "seed": 0, "acc": acc, "nmi": 80.0, "ari": 70.0, "seconds": 1.5, "settings": "{}"}
    return Record(**{**names, **numbers, "condition": condition, **other})


def accuracies(auto, fixed, simple, **other):
    """Two runs of each, one point below and above the mean."""
    pairs = {"auto": auto, **fixed}
    runs = [(name, acc, {}) for name, acc in pairs.items()]
    runs += [(name, acc, {"method": name, "setting": ""}) for name, acc in simple.items()]
    return [
        record(name, acc + sign, seed=seed, **{**other, **names})
        for name, acc, names in runs
        for seed, sign in ((4, -1), (5, 1))
    ]


SETS = [
    *accuracies(80, {"a": 82, "b": 70}, {"kmeans-knn": 60, "nemo": 81}, chosen_scaling="minmax"),
    *accuracies(50, {"a": 40, "b": 48}, {"kmeans-knn": 40, "pimvc": 51.5}, missing_rate=0.75),
    *accuracies(30, {"a": 36, "b": 31}, {"kmeans-knn": 29}, dataset="synthetic_rings"),
]

# --- the plan


def test_the_plan_has_every_choice_once():
    plan = plans.read_plan("decisions")
    runs = [run for key in plan.data for run in plans.expand(plan, CATALOGUE[key], seeds=1)]
    real = [run for run in runs if run.dataset in ("3sources_partial", "miniacc_partial")]
    assert len(runs) == len({run.folder for run in runs}) == 33 * 10 * 3 + 2 * 10
    assert {(run.dataset, run.missing_rate, run.missing_number) for run in real} == {
        ("3sources_partial", 0.59, 0), ("miniacc_partial", 0.53, 0),
    }  # fmt: skip
    assert plan.seeds == 10
    ours = {
        (run.scaling, run.settings.epochs(2000), run.settings.watched, run.settings.clustering_weight)
        for run in runs
        if run.method == "urrl" and run.dataset == "handwritten"
    }
    assert ours == {
        ("auto", (22, 30), True, "auto"),
        *((scaling, (22, second), False, "auto") for scaling in ("minmax", "standard", "mixed") for second in (0, 30)),
    }


def test_different_scalings_are_not_trained_together():
    plan = plans.read_plan("decisions")
    groups = plans.grouped(plans.expand(plan, CATALOGUE["bdgp"], methods=["urrl"]), 16)
    assert [len(group) for group in groups] == [15] * 14
    assert all(len({(run.scaling, run.settings) for run in group}) == 1 for group in groups)


@pytest.mark.parametrize(
    ("line", "message"),
    [('scaling = "log"', "scaling 'log' is unknown"), ('watched = "no"', "true or false; got 'no'")],
)
def test_a_wrong_condition_is_refused(tmp_path, line, message):
    text = 'title = "Own"\ndata = ["bdgp"]\nmissing_rates = [0.5]\nseeds = 1\nsettings = ["default"]\n[[conditions]]\n'
    (tmp_path / "own.toml").write_text(text + line)
    with pytest.raises(SettingError, match=message):
        plans.read_plan(tmp_path / "own.toml")


@pytest.mark.parametrize(
    "scaling",
    ["minmax", pytest.param("auto", marks=pytest.mark.slow), pytest.param("standard", marks=pytest.mark.slow)],
)
def test_the_scaling_of_a_condition_reaches_the_training_and_is_written_down(tmp_path, monkeypatch, scaling):
    asked = []
    fit = runner.fit_models
    monkeypatch.setattr(runner, "fit_models", lambda *given, **how: asked.append(given[2]) or fit(*given, **how))
    plan = plans.Plan(
        "own", "Own", ("tiny",), (0.5,), 1, ("default",), (plans.Condition("a", settings=SMALL, scaling=scaling),)
    )
    views, labels, _ = make_blobs(40, 2, missing=0.0)
    (run,) = plans.expand(plan, TINY)
    (outcome,) = runner.run_group([run], Loaded(TINY, views, labels), torch.device("cpu"))
    write_run(tmp_path / "a", run.facts(), outcome, {})
    mark_done(tmp_path / "a", "whole")
    assert asked == [scaling]
    assert set(read_facts(tmp_path / "a")["decisions"]) == {
        "empty_cells",
        "scaling",
        "pretraining",
        "joint_stage",
        "clusters",
        "confidence",
        "trust",
        "reduction",
    }
    (found,) = read_records(tmp_path)
    assert found.chosen_scaling in (("minmax", "standard") if scaling == "auto" else (scaling,))


def test_settings_stand_once_and_come_back(tmp_path):
    first = replace(SETS[0], settings='{"a": 1}')
    runs = [
        first,
        replace(first, seed=1),
        replace(first, seed=2, settings='{"a": 2}'),
        replace(first, method="pimvc", settings=""),
    ]
    write_records(tmp_path / "r.csv", runs)
    assert read_records(tmp_path / "r.csv") == runs
    assert (tmp_path / "r.csv").read_text().count("{") == 2


def test_runs_and_tables_from_before_are_still_read(tmp_path):
    write_records(tmp_path / "r.csv", SETS)
    assert read_records(tmp_path / "r.csv") == SETS
    lines = [line.rsplit(",", 4)[0] for line in (tmp_path / "r.csv").read_text().splitlines()]
    assert lines[0].endswith("settings")
    (tmp_path / "r.csv").write_text("\n".join(lines))
    assert {(one.chosen_scaling, one.macro) for one in read_records(tmp_path / "r.csv")} == {("", None)}
    facts = {"place": [0], **vars(SETS[0]), "settings": None}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    (tmp_path / "run" / "result.json").write_text(json.dumps({"acc": 1.0, "nmi": 1.0, "ari": 1.0, "seconds": 1.0}))
    mark_done(tmp_path / "run", "whole")
    assert read_records(tmp_path / "run")[0].chosen_scaling == ""


# --- synthetic data


@pytest.mark.parametrize("key", synthetic.MAKERS)
def test_synthetic_sets_are_what_the_catalogue_says_every_time(tmp_path, key):
    first, second = (catalogue.load(tmp_path, CATALOGUE[key]) for _ in range(2))
    entry = first.entry
    assert not list(catalogue.differences(entry, len(first.labels), [v.shape[1] for v in first.views], entry.classes))
    assert set(first.labels.tolist()) - {-1} == set(range(entry.classes))
    assert all(view.shape[0] == entry.n and view.dtype == np.float32 for view in first.views)
    assert all(np.isfinite(view).all() for view in first.views)
    assert first.checksum() == second.checksum()
    assert np.array_equal(first.labels, second.labels)
    assert "synthetic" in entry.title.lower()
    assert 0 < entry.missing_number < len(entry.widths)


def test_synthetic_sets_are_hard_in_the_way_that_they_say():
    counts = np.bincount(synthetic.imbalanced()[1])
    assert counts.max() == 20 * counts.min()
    views, labels = synthetic.noise_view()
    means = [np.array([(view[labels == k] / view.std(axis=0)).mean(axis=0) for k in range(5)]) for view in views]
    assert [bool(mean.std(axis=0).mean() > 0.2) for mean in means] == [True, True, True, False]
    views, _ = synthetic.duplicated_view()
    assert np.array_equal(views[3], views[0])
    views, labels = synthetic.rings()
    centres = [np.array([view[labels == k].mean(axis=0) for k in range(3)]) for view in views]
    assert max(np.ptp(centre, axis=0).mean() for centre in centres) < 0.2  # around one centre
    assert len(synthetic.handwritten_noise_view()[0]) == 7


# --- tables and figure


def test_the_best_choice_and_the_distance_from_it(tmp_path):
    write_records(tmp_path / "r.csv", SETS)
    found = choices.comparisons(read_records(tmp_path / "r.csv"))
    assert [one.best for one in found] == ["a", "b", "a"]
    assert [one.difference() for one in found] == pytest.approx([-2, 2, -6])
    assert [one.best_simple for one in found] == ["nemo", "pimvc", "kmeans-knn"]
    assert [one.below_simple() for one in found] == [False, True, False]  # a point is noise
    assert found[0].scalings == {"minmax": 2}
    lines = {(one.part, one.choice): one for one in choices.summaries(SETS)}
    whole = lines["all", "auto"]
    assert (whole.mean, whole.worst) == pytest.approx((-2, -6))
    assert (whole.where, whole.below, whole.with_simple) == (found[2], [found[1]], 3)
    assert lines["all", "a"].mean == pytest.approx(-8 / 3)
    assert lines["others, real data", "b"].mean == pytest.approx(-6)
    assert lines["others, synthetic data", "auto"].count == 1
    assert (whole.far_below, lines["all", "a"].far_below, lines["all", "b"].far_below) == (1, 1, 2)
    assert whole.levels == pytest.approx({"acc": 160 / 3, "ari": 70})  # these runs have no macro accuracy
    assert lines["seeds from 5 on", "auto"].where.runs == 1


def test_a_choice_is_taken_where_it_was_the_best_elsewhere():
    """Labels of Handwritten say a for the rings, and those of the rings say a for Handwritten."""
    lines = {(one.part, one.choice): one for one in choices.summaries(SETS)}
    elsewhere = lines["all", choices.ELSEWHERE]
    assert (elsewhere.count, elsewhere.mean) == (3, pytest.approx((0 - 8 + 0) / 3))
    assert ("others, synthetic data", choices.ELSEWHERE) not in lines  # one set has no others


def test_tables_of_choices_in_every_format(tmp_path):
    names = [table.name for table in tables.write_tables(tmp_path, SETS)]
    assert names == ["decisions", "decisions-ari", "decisions-summary", "decisions-by-rate"]
    with (tmp_path / "decisions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["auto - best"] for row in rows] == ["-2.00", "+2.00", "-6.00"]
    assert [row["below a simple method"] for row in rows] == ["no", "yes", "no"]
    assert (rows[0]["NEMO (viewfuse)"], rows[1]["NEMO (viewfuse)"]) == ("81.00 ± 1.41", "-")
    assert (rows[0]["auto"], rows[0]["auto chose"], rows[1]["auto chose"]) == ("80.00 ± 1.41", "minmax 2", "-")
    cells = "all | auto | 3 | 53.33 | 70.00 | -2.00 | -6.00 | Synthetic: rings at 0.5 | 1 of 3 | 1 of 3 | Handwritten"
    assert f"| {cells} at 0.75 |" in (tmp_path / "decisions-summary.md").read_text(encoding="utf-8")
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".csv", ".md", ".tex"}


def test_what_was_not_run_is_left_out_of_a_comparison():
    without = [one for one in SETS if one.condition in ("auto", "a")]
    (one, *_) = found = choices.comparisons(without)
    assert (one.best, one.best_simple, one.below_simple(), len(found)) == ("a", None, False, 3)
    assert {line.with_simple for line in choices.summaries(without)} == {0}
    assert "below a simple method" not in tables.make_tables(without)[0].header
    for part in ([one for one in SETS if one.condition != "auto"], [one for one in SETS if one.condition == "auto"]):
        assert [table.name for table in tables.make_tables(part)] == ["decisions"]


@pytest.mark.slow
def test_the_figure_of_choices_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = list(figures._choices(tmp_path / "choices", choices.comparisons(SETS)))
    assert [path.name for path in drawn] == ["choices.png", "choices.svg"]
    assert all(path.stat().st_size > 5_000 for path in drawn)


def test_each_metric_has_its_own_best_choice(tmp_path):
    """By accuracy a is the best and auto 2 behind; by macro accuracy b is, and auto 20 behind."""
    macro = {"auto": 60.0, "a": 40.0, "b": 80.0, "kmeans-knn": 30.0, "nemo": 20.0}
    runs = [
        replace(one, macro=macro[one.condition])
        for one in SETS
        if (one.dataset, one.missing_rate) == ("handwritten", 0.5)
    ]
    (by_accuracy,), (by_macro,) = (choices.comparisons(runs, metric) for metric in ("acc", "macro"))
    assert (by_accuracy.best, by_accuracy.difference()) == ("a", pytest.approx(-2))
    assert (by_macro.best, by_macro.difference(), by_macro.best_simple) == ("b", pytest.approx(-20), "kmeans-knn")
    (line,) = [one for one in choices.summaries(runs) if (one.part, one.choice) == ("all", "a")]
    assert line.levels == pytest.approx({"acc": 82, "macro": 40, "ari": 70})
    names = [table.name for table in tables.write_tables(tmp_path, runs)]
    assert names == ["decisions", "decisions-macro", "decisions-ari", "decisions-summary", "decisions-by-rate"]
    text = (tmp_path / "decisions-by-rate.csv").read_text(encoding="utf-8")
    assert "ACC %,macro ACC %,ARI %" in text.replace("NMI %,", "")
    old = [replace(one, macro=None) if one.condition == "b" else one for one in runs]
    (partly,) = choices.comparisons(old, "macro")
    assert set(partly.fixed) == {"a"}


def test_sets_that_are_made_unequal_are_a_part_of_their_own():
    runs = [*SETS, *accuracies(30, {"a": 36, "b": 31}, {}, dataset="prokaryotic_cut")]
    counts = {one.part: one.count for one in choices.summaries(runs) if one.choice == "auto"}
    assert counts == {
        "all": 4, "made unequal": 1, "all others": 3, "others, real data": 2, "others, synthetic data": 1,
        "seeds from 5 on": 4,
    }  # fmt: skip
