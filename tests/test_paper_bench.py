"""The paper's plans: what they expand to, that a killed bench ends with the same numbers, and what tables say."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from dataclasses import fields, replace
from functools import partialmethod
from math import nan

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib.figure import Figure

from benchmarks import command
from benchmarks.command import main
from benchmarks.experiments import catalogue, figures, launch, plans, run_folders, runner, tables
from benchmarks.experiments.catalogue import CATALOGUE, DataSet, Loaded
from benchmarks.experiments.published import published
from benchmarks.experiments.records import Record, read_records, write_records
from benchmarks.experiments.run_folders import DONE, done_folders, read_arrays, read_facts
from conftest import make_blobs, write_tiny_plan
from viewfuse import URRL, DataError, Diverged, SettingError
from viewfuse.engine import replicates as passes
from viewfuse.methods.urrl.config import PAPER, Config

TINY = DataSet("tiny", "Tiny", 40, (5, 8, 3), 2, 2, (1, 1), in_paper=False)
SMALL = "embedding_dim = 8, hidden_dim = 8, batch_size = 40, pretrain_epochs = 1, joint_epochs = 1"
PLAN = f"""
title = "Tiny"
data = ["tiny", "caltech101_7"]
missing_rates = [0.0, 0.5]
seeds = 2
settings = ["paper"]
keep_embedding = true

[[conditions]]
name = "a"
settings = {{ {SMALL}, n_neighbors = 1 }}

[[conditions]]
name = "raw"
method = "kmeans-mean"
"""


def coarsely(figure, save, path, **options):
    save(figure, path, **options | {"dpi": 20})


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the tiny plan, two trainings side by side as on a GPU, and gives the folder of its runs."""
    root = tmp_path_factory.mktemp("bench")
    write_tiny_plan(root, PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CATALOGUE, "tiny", TINY)
        patch.setattr(figures, "plane", lambda points: points[:, :2].T)  # t-SNE takes long, and so do many pixels
        patch.setattr(Figure, "savefig", partialmethod(coarsely, Figure.savefig))
        patch.setattr(passes, "MAX_STACKED", {"cpu": 2})
        yield lambda out, **asked: launch.bench(root / "tiny.toml", root, out, **{"device": "cpu", "log": len, **asked})


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """A bench that nobody stopped."""
    return start(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it, to be changed; its --out."""
    shutil.copytree(whole, tmp_path / "copy" / whole.name)
    return tmp_path / "copy"


def numbers(folder):
    """All that must not change: scores and labels of every run."""
    found = {}
    for run in done_folders(folder):
        facts, arrays = read_facts(run), read_arrays(run)
        found[run.name] = (
            [facts[m] for m in ("acc", "nmi", "ari")],
            arrays["found"].tolist(),
            arrays["embedding"].tolist(),
        )
    return found


def record(**other):
    names = {"plan": "table2", "dataset": "handwritten", "method": "urrl", "setting": "paper", "condition": ""}
    numbers = {"missing_rate": 0.5, "seed": 0, "acc": 90.0, "nmi": 80.0, "ari": 70.0, "seconds": 1.5}
    return Record(**{**names, **numbers, "settings": "{}", **other})


# --- plans


@pytest.mark.parametrize("name", plans.NAMES)
def test_every_plan_of_the_package_expands(name):
    plan = plans.read_plan(name)
    for key in plan.data:
        runs = plans.expand(plan, CATALOGUE[key], seeds=2)
        assert len({run.folder for run in runs}) == len(runs)
        ours = [run for run in runs if run.method == "urrl"]
        conditions = [one for one in plan.conditions if one.method == "urrl"]
        rates = 1 if CATALOGUE[key].gaps else len(plan.missing_rates)
        assert len(ours) == len(conditions) * len(plan.settings) * rates * 2
        assert all(run.missing_number < run.n_views for run in runs)


@pytest.mark.parametrize(
    ("name", "count"), [("modules", 12), ("outputs", 12), ("neighbors", 5), ("view-dropout", 5), ("views", 4)]
)
def test_rows_of_an_ablation_are_distinct_and_are_those_of_the_paper(name, count):
    plan = plans.read_plan(name)
    runs = plans.expand(plan, CATALOGUE["handwritten"], seeds=1)
    assert len({(run.settings, run.n_views) for run in runs}) == count
    printed = {figure.condition for figure in published() if figure.table == name}
    assert {run.condition for run in runs} == printed


def test_the_last_row_of_the_module_ablation_is_the_whole_method():
    rows = plans.expand(plans.read_plan("modules"), CATALOGUE["handwritten"], seeds=1)
    whole = plans.expand(plans.read_plan("table2"), CATALOGUE["handwritten"], seeds=1)[0]
    assert rows[-1].settings == whole.settings
    assert rows[0].settings.epochs(2000) == (100, 0)  # without the clustering module there is no second stage


@pytest.mark.parametrize("key", ["handwritten", "landuse21"])
def test_the_papers_setting_watches_no_joint_stage(key):
    paper = plans.settings_for("paper", catalogue.CATALOGUE[key], plans.Condition())[0]
    default = plans.settings_for("default", catalogue.CATALOGUE[key], plans.Condition())[0]
    assert (paper.watched, default.watched) == (False, True)


def test_settings_are_the_papers_and_the_defaults():
    scene = CATALOGUE["scene15"]
    ours, scaling, reduction = plans.settings_for("paper", scene, plans.Condition())
    assert reduction == "none"
    assert (ours.epochs(scene.n), ours.donor_depth, ours.learning_rate, scaling) == ((50, 0), 1, 3e-4, "minmax")
    default = URRL(n_clusters=15)
    assert plans.settings_for("default", scene, plans.Condition()) == (
        default._config(), default.scaling, default.reduction,
    )  # fmt: skip
    assert default.n_init == "auto"
    assert set(PAPER) <= {f.name for f in fields(Config)}


def test_the_preset_of_the_paper_is_the_setting_of_the_bench():
    entry = CATALOGUE["landuse21"]  # for which the paper has no epochs of its own
    preset = URRL.paper(entry.classes, random_state=3)
    assert plans.settings_for("paper", entry, plans.Condition()) == (
        preset._config(), preset.scaling, preset.reduction,
    )  # fmt: skip
    assert (preset.n_init, preset.random_state) == (1, 3)
    assert (preset._config().watched, preset._config().center_start) == (False, "ward")


@pytest.mark.parametrize("key", ["handwritten", "landuse21", "caltech7x200_reextracted"])
def test_nobody_watches_in_the_papers_setting(key):
    entry = CATALOGUE[key]
    ours = plans.settings_for("paper", entry, plans.Condition()).config
    assert not ours.watched
    assert ours.epochs(entry.n) == (entry.epochs or Config(schedule="paper").epochs(entry.n))
    assert plans.settings_for("default", entry, plans.Condition())[0].watched


def test_stations_of_a_training_are_shares_of_its_epochs():
    runs = plans.expand(plans.read_plan("embedding"), CATALOGUE["caltech101_7"])
    assert [run.settings and run.settings.epochs(1400) for run in runs] == [
        None, (9, 0), (73, 0), (100, 0), (100, 9), (100, 100),
    ]  # fmt: skip


def test_groups_hold_what_can_be_trained_together():
    runs = plans.expand(plans.read_plan("table2"), CATALOGUE["bdgp"])
    groups = plans.grouped(runs, 16)
    assert [len(group) for group in groups[:6]] == [13, 13, 14, 13, 13, 14]
    assert [run for group in groups for run in group] == runs
    assert all(len({(run.settings, run.method) for run in group}) == 1 for group in groups)
    assert {len(group) for group in groups[6:]} == {1}
    assert {len(group) for group in plans.grouped(runs, 1)} == {1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"tiny"', '"mnist"', "data set 'mnist' is unknown"),
        ('"kmeans-mean"', '"magic"', "method 'magic' is unknown"),
        ("n_neighbors = 1", "neighbours = 1", "'neighbours' is unknown"),
        ('name = "raw"\nmethod = "kmeans-mean"', 'name = "a"', "same name"),
        ("seeds = 2", "seedz = 2", "seedz"),
        ("[0.0, 0.5]", "[0.0, 0.5", "plan"),
    ],
)
def test_a_wrong_plan_is_refused(tmp_path, monkeypatch, old, new, message):
    monkeypatch.setitem(CATALOGUE, "tiny", TINY)
    (tmp_path / "own.toml").write_text(PLAN.replace(old, new))
    with pytest.raises(SettingError, match=message):
        plans.read_plan(tmp_path / "own.toml")


# --- runs


@pytest.mark.slow
def test_a_killed_bench_ends_with_the_same_numbers(start, whole, tmp_path, monkeypatch):
    run_group, done = runner.run_group, []

    def killed(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(arguments)
        return run_group(*arguments)

    monkeypatch.setattr(runner, "run_group", killed)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    monkeypatch.setattr(runner, "run_group", run_group)
    said = []
    folder = start(tmp_path, log=said.append)
    assert numbers(folder) == numbers(whole)
    assert len(numbers(folder)) == 8
    assert len([line for line in said if "group" in line]) == 6 - 3  # two of two trainings, four of one k-means


@pytest.mark.slow
def test_a_group_that_was_interrupted_is_done_again_as_a_whole(start, whole, copied):
    folder = copied / "tiny"
    before = {run.name: (run / "result.json").stat().st_mtime_ns for run in done_folders(folder)}
    (folder / "tiny--urrl--paper--a--m0--s1" / DONE).unlink()
    said = []
    start(copied, log=said.append)
    again = {run.name for run in done_folders(folder) if (run / "result.json").stat().st_mtime_ns != before[run.name]}
    assert again == {"tiny--urrl--paper--a--m0--s0", "tiny--urrl--paper--a--m0--s1"}
    assert numbers(folder) == numbers(whole)
    assert said[-1].startswith("Caltech101-7 is left out: ")


def test_in_other_company_a_run_is_another_run(start, copied, monkeypatch):
    said = []
    start(copied, log=said.append)
    assert not [line for line in said if "group" in line]
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 4})
    monkeypatch.setattr(runner, "run_group", diverging)
    start(copied, log=said.append)
    assert [line for line in said if "group" in line] == ["Tiny, group 1 of 5: urrl, paper, a, 4 runs"]


def test_a_training_that_diverges_stops_no_other(start, tmp_path, monkeypatch):
    run_group, said = runner.run_group, []
    monkeypatch.setattr(
        runner, "run_group", lambda *given: (diverging if given[0][0].missing_rate else run_group)(*given)
    )
    folder = start(tmp_path, log=said.append)
    assert {one.missing_rate for one in read_records(folder)} == {0.0}
    assert said.count("not done: the loss is not finite") == 3


def diverging(group, *rest):
    raise Diverged("the loss is not finite")


def test_results_of_other_runs_do_not_stand_in_for_one_that_diverges(start, copied, monkeypatch):
    monkeypatch.setattr(runner, "run_group", diverging)
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 4})  # so that the trainings are others than those that are done
    assert {one.method for one in read_records(start(copied))} == {"kmeans-mean"}


@pytest.mark.slow
def test_runs_that_were_scored_with_other_labels_are_done_again(start, copied, monkeypatch):
    load = runner.load

    def relabelled(folder, entry):
        data = load(folder, entry)
        return data._replace(labels=np.roll(data.labels, 1))

    monkeypatch.setattr(runner, "load", relabelled)
    said = []
    start(copied, log=said.append)
    assert len([line for line in said if "group" in line]) == 6
    start(copied, log=said.append)
    assert len([line for line in said if "group" in line]) == 6  # and once only


def test_a_run_says_what_it_is_and_what_it_ran_on(whole):
    run = whole / "tiny--urrl--paper--a--m0.5--s1"
    facts, environment = read_facts(run), json.loads((run / "environment.json").read_text())
    assert (facts["seed"], facts["missing_rate"], facts["missing_number"]) == (1, 0.5, 2)
    assert Config(**facts["settings"]).n_neighbors == 1
    assert environment["device"] == "cpu"
    assert {"torch", "numpy", "scikit-learn", "scipy", "python", "viewfuse"} <= set(environment["versions"])
    assert "commit" in environment


def test_neither_labels_nor_hidden_values_reach_a_training():
    plan = replace(plans.read_plan("rates"), data=("tiny",))
    small = {"embedding_dim": 8, "hidden_dim": 8, "pretrain_epochs": 1, "joint_epochs": 1}
    plan = replace(plan, conditions=tuple(replace(one, settings=small) for one in plan.conditions))
    runs = [run for run in plans.expand(plan, TINY, seeds=1) if run.missing_rate == 0.5]
    views, labels, _ = make_blobs(40, 2, missing=0.0)
    for run in runs:
        shown = runner.masked(run, views).mask
        spoiled = [np.where(shown[:, v, None], view, 1e6).astype(np.float32) for v, view in enumerate(views)]
        first, second = (
            runner.run_group([run], Loaded(TINY, data, known), torch.device("cpu"))[0]
            for data, known in ((views, labels), (spoiled, np.random.default_rng(0).permutation(labels)))
        )
        assert (~shown).sum() == 40
        assert np.array_equal(first.arrays["found"], second.arrays["found"])
    assert (run.method, len(runs)) == ("kmeans-knn", 3)
    assert first.scores["acc"] > second.scores["acc"]  # it was scored with the other labels


class Nothing:
    """Finds no package of the command line."""

    names = ("click", "safetensors", "pandas", "matplotlib", "pyarrow", "h5py")

    def find_spec(self, name, *_):
        if name in self.names:
            raise ModuleNotFoundError(name)


def bare_bench(arguments) -> int:
    """The exit code of a bench, whose modules are imported anew, where those packages are not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("viewfuse", *Nothing.names)]:
        del sys.modules[name]
    sys.meta_path.insert(0, Nothing())
    try:
        from benchmarks.experiments.launch import main

        return main(arguments)
    except BaseException:
        traceback.print_exc()
        return 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="on this system no process can forget what it has imported")
def test_a_plan_runs_without_the_packages_of_the_command_line(tmp_path):
    """In a fork, as another process would import torch for seconds."""
    (tmp_path / "bare.toml").write_text(
        'title = "Bare"\ndata = ["synthetic_balanced"]\nmissing_rates = [0.5]\nseeds = 1\nsettings = ["paper"]\n'
        '[[conditions]]\nmethod = "kmeans-mean"\n'
    )
    asked = [str(tmp_path / "bare.toml"), "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    pid = os.fork()
    if not pid:
        os._exit(bare_bench([*asked, "--device", "cpu"]))
    assert os.waitpid(pid, 0)[1] == 0
    (found,) = read_records(tmp_path / "out" / "bare")
    assert found.acc > 40


# --- catalogue


@pytest.mark.slow
def test_the_catalogue_knows_the_sets_that_are_here(shared_data):
    for key, entry in CATALOGUE.items():
        if (shared_data / f"{key}.npz").exists():
            found = catalogue.load(shared_data, entry)
            assert tuple(view.shape[1] for view in found.views) == entry.widths
    with pytest.raises(DataError, match=r"does not hold caltech101_7\.npz"):  # the re-extracted one does not stand in
        catalogue.load(shared_data, CATALOGUE["caltech101_7"])


def test_a_set_that_is_not_the_papers_is_refused_with_what_differs(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"view_0": rng.random((30, 20)), "view_1": rng.random((30, 59)), "labels": np.arange(30) % 4}
    np.savez(tmp_path / "Scene-15.npz", **arrays)
    with pytest.raises(DataError, match=r"Table 1 \(samples: 30 instead of 4485; classes: 4 instead of 15\)"):
        catalogue.load(tmp_path, CATALOGUE["scene15"])
    np.savez(tmp_path / "Scene-15.npz", **{name: arrays[name] for name in ("view_0", "view_1")})
    with pytest.raises(DataError, match="no labels"):
        catalogue.load(tmp_path, CATALOGUE["scene15"])


def test_views_in_another_order_or_beside_others_are_found(tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", TINY)
    rng = np.random.default_rng(0)
    arrays = {f"view_{v}": rng.random((40, width), dtype=np.float32) for v, width in enumerate((3, 8, 7, 5))}
    np.savez(tmp_path / "tiny.npz", labels=np.arange(40) % 2, **arrays)
    found = catalogue.load(tmp_path, TINY)
    assert [view.shape[1] for view in found.views] == [5, 8, 3]
    assert np.array_equal(found.views[0], arrays["view_3"])
    assert found.remark.endswith("has the views 3/8/7/5; 5/8/3 are taken, in this order")
    assert catalogue._views_of_the_table((10, 10), (10, 10)) == [0, 1]


# --- tables and figures


@pytest.mark.slow
def test_tables_from_the_csv_alone_are_those_from_the_runs(whole, tmp_path):
    for name, source in (("from-runs", whole), ("from-csv", whole / "results.csv")):
        told = CliRunner().invoke(main, ["tables", str(source), "--out", str(tmp_path / name)])
        assert told.exit_code == 0, told.output
        assert told.stdout == (whole / "tables" / "tiny.txt").read_text()
    for ending in ("txt", "csv", "md", "tex"):
        both = [(tmp_path / name / f"tiny.{ending}").read_text() for name in ("from-runs", "from-csv")]
        assert both[0] == both[1] == (whole / "tables" / f"tiny.{ending}").read_text()
    drawn = [{path.name for path in (tmp_path / name).glob("*.*g")} for name in ("from-runs", "from-csv")]
    assert drawn[1] == {"tiny-tiny-conditions.png", "tiny-tiny-conditions.svg"}
    kinds = ("embedding", "convergence", "confusion")
    assert drawn[0] == drawn[1] | {f"tiny-tiny-paper-{kind}.{ending}" for kind in kinds for ending in ("png", "svg")}


@pytest.mark.slow
def test_runs_without_their_arrays_are_drawn_as_far_as_they_go(whole, tmp_path):
    copied = shutil.copytree(whole, tmp_path / "copied")
    for folder in copied.glob("*/arrays.npz"):
        facts = json.loads((folder.parent / "run.json").read_text())
        (folder.parent / "run.json").write_text(json.dumps({**facts, "keep_embedding": False}))
        folder.unlink()
    told = CliRunner().invoke(main, ["tables", str(copied), "--out", str(tmp_path / "drawn")])
    assert told.exit_code == 0, told.output
    names = {path.name for path in (tmp_path / "drawn").glob("*.png")}
    assert not any("confusion" in name for name in names)
    assert "tiny-tiny-paper-convergence.png" in names


@pytest.mark.slow
def test_embeddings_that_were_not_copied_are_not_drawn(whole, tmp_path):
    copied = shutil.copytree(whole, tmp_path / "copied")
    for arrays in copied.glob("*/arrays.npz"):
        arrays.unlink()
    told = CliRunner().invoke(main, ["tables", str(copied), "--out", str(tmp_path / "drawn")])
    assert told.exit_code == 0, told.output
    assert {path.name for path in (tmp_path / "drawn").glob("tiny-tiny-*.png")} >= {"tiny-tiny-paper-convergence.png"}
    assert not list((tmp_path / "drawn").glob("*embedding*"))


def test_losses_of_trainings_that_ended_at_different_epochs_are_drawn():
    kinds = [("epoch", int), ("stage", "U16"), ("total", float)]
    long = np.array([(1, "pre-training", 4.0), (2, "joint", 2.0), (3, "joint", 1.0)], dtype=kinds)
    short = np.array([(1, "pre-training", 2.0), (2, "joint", 1.0)], dtype=kinds)
    for histories in ([long, short], [short, long]):
        axes = Figure().gca()
        figures._draw_losses(axes, histories, "total", "", "k")
        x, y = axes.lines[0].get_data()
        assert (x.tolist(), y.tolist()) == ([1, 2, 3], [3.0, 1.5, 1.0])


def test_differences_from_the_paper():
    scores = {0.0: (90, 94), 0.25: (91, 93), 0.5: (92, 92), 0.75: (80, 84)}
    runs = [
        record(missing_rate=rate, seed=seed, acc=acc) for rate, pair in scores.items() for seed, acc in enumerate(pair)
    ]
    (line, *others) = tables.pooled("table2", runs)
    assert line.ours["acc"].value == pytest.approx(89.5)
    assert line.ours["acc"].sd == pytest.approx(np.mean([np.std(pair, ddof=1) for pair in scores.values()]))
    assert line.difference("acc") == pytest.approx(89.5 - 93.86)
    assert (line.runs, len(others)) == (8, 6)  # the paper's peers stand below
    assert "-4.36" in tables.as_text(tables.make_tables(runs)[0])
    assert not [one for one in tables.pooled("table2", runs[2:]) if one.ours]  # one rate is missing: no mean


def test_other_data_stand_beside_the_papers_without_a_difference():
    rows = [
        record(plan="modules", dataset=key, condition="KNNI") for key in ("caltech101_7", "caltech7x200_reextracted")
    ]
    same, other = tables.by_rate("modules", rows)
    assert same.difference("acc") == pytest.approx(90 - 83.68)
    assert other.difference("acc") is None
    text = tables.as_text(tables.make_tables(rows)[0]).splitlines()
    assert text[-1].startswith("Caltech 7x200 (re-extracted)")
    assert "83.68 ± 2.79 (Caltech101-7)" in text[-1]


def test_signs_are_escaped_where_a_format_needs_it():
    table = tables.ResultTable("t", "t", ("a",), (("x & y_1 ± 5 %",),))
    assert r"x \& y\_1 $\pm$ 5 \%" in tables.FORMATS["tex"](table)
    assert "| x & y_1 ± 5 % |" in tables.as_markdown(table)
    assert str(tables.Score(1.0, nan)) == "1.00"


def test_records_survive_a_file(tmp_path):
    rows = [record(condition="+x", settings='{"a": 1}'), record(missing_rate=0.0, setting="", acc=33.3333)]
    write_records(tmp_path / "r.csv", rows)
    assert read_records(tmp_path / "r.csv") == rows
    (tmp_path / "bad.csv").write_text("plan,dataset\n1,2\n")
    for path, message in (("bad.csv", "needs the columns"), ("none", "neither a folder")):
        with pytest.raises(DataError, match=message):
            read_records(tmp_path / path)
    with pytest.raises(DataError, match="no run that is done"):
        read_records(tmp_path)


def test_the_papers_figures_are_all_there():
    counts = {name: sum(figure.table == name for figure in published()) for name in plans.NAMES}
    assert counts == {"table2": 126, "rates": 0, "modules": 36, "outputs": 12, "neighbors": 5, "view-dropout": 25,
                      "views": 24, "embedding": 6, "decisions": 0}  # fmt: skip
    ours = {f.dataset: f.value for f in published() if (f.table, f.method, f.metric) == ("table2", "urrl", "acc")}
    assert ours == {"handwritten": 93.86, "caltech101_7": 93.19, "aloi_deep": 91.48, "scene15": 41.18, "bdgp": 89.15,
                    "reuters": 48.63}  # fmt: skip


def test_clusters_stand_in_the_order_of_their_classes():
    shares = figures._matched(np.array([0, 0, 1, 1, 2, 2]), np.array([5, 5, 3, 3, 3, 4]))
    assert shares.tolist() == [[100, 0, 0], [0, 100, 0], [0, 50, 50]]


def test_mistakes_are_told_in_one_line(tmp_path):
    asked = ["--data-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    for arguments, message in (
        (["table2", *asked], "is no folder"),
        (["views", *asked, "--data", "mnist"], "data set 'mnist' is unknown"),
        (["run", str(tmp_path / "own.toml"), *asked], "is no plan"),
        (
            ["neighbors", "--data-dir", str(tmp_path), "--out", str(tmp_path), "--data", "caltech101_7"],
            "none of the data",
        ),
    ):
        told = CliRunner().invoke(main, arguments)
        assert told.exit_code == 2
        assert message in told.stderr.splitlines()[-1]


def test_runs_of_other_code_are_done_again(start, copied, monkeypatch):
    monkeypatch.setattr(run_folders, "code_checksum", lambda: "other code")
    run_group, said = runner.run_group, []
    monkeypatch.setattr(runner, "run_group", lambda *given: (diverging if len(given[0]) > 1 else run_group)(*given))
    start(copied, log=said.append)
    assert len([line for line in said if "group" in line]) == 6


def test_the_checksum_of_the_code_is_that_of_its_files(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("one")
    monkeypatch.setattr("viewfuse.__file__", str(tmp_path / "__init__.py"))
    first = run_folders.code_checksum.__wrapped__()
    (tmp_path / "a.py").write_text("two")
    second = run_folders.code_checksum.__wrapped__()
    assert second != first
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "b.py").write_text("three")
    third = run_folders.code_checksum.__wrapped__()
    assert third != second  # subpackages count,
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "c.py").write_text("four")
    assert run_folders.code_checksum.__wrapped__() == third  # but not the command line


LOSSES = "epoch,stage,total,reconstruction,robustness,clustering\n1,pre-training,4,3,1,0\n2,joint,2,1,0.5,0.5\n"


def test_losses_are_drawn_in_a_panel_each_and_confusion_at_the_shown_rate(tmp_path, monkeypatch):
    runs = []
    for rate, seed in ((0.5, 0), (0.5, 1), (0.0, 0)):
        folder = tmp_path / f"{rate}-{seed}"
        folder.mkdir()
        (folder / run_folders._HISTORY).write_text(LOSSES)
        facts = {"method": "urrl", "setting": "paper", "condition": "", "keep_embedding": False}
        runs.append(figures.FolderRun({**facts, "dataset": "bdgp", "missing_rate": rate, "seed": seed}, folder))
    drawn, confused = [], []
    monkeypatch.setattr(figures, "_saved", lambda stem, figure: drawn.append((stem.name, figure)) or iter(()))
    monkeypatch.setattr(figures, "_confusion", lambda stem, shown: confused.append((stem.name, shown)) or iter(()))
    monkeypatch.setattr(figures, "has_arrays", lambda folder: folder.name != "0.5-1")
    assert not list(figures._from_runs(tmp_path, "x", runs))
    ((name, figure),) = drawn
    assert (name, len(figure.axes)) == ("x-paper-convergence", 4)
    first = figure.axes[0]
    assert [list(line.get_ydata()) for line in first.lines if len(line.get_ydata()) == 2][:1] == [[4.0, 2.0]]
    assert confused == [("x-paper-confusion", runs[:1])]
    monkeypatch.setattr(figures, "has_arrays", lambda folder: False)
    assert not list(figures._from_runs(tmp_path, "x", runs))
    assert len(confused) == 1


def test_tables_of_a_plan_are_written_beside_its_runs_and_shown(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(launch, "bench", lambda name, out, device, log, n_jobs: out / name)
    monkeypatch.setattr("benchmarks.experiments.records.read_records", lambda folder: [folder])
    monkeypatch.setattr(tables, "write_tables", lambda out, records: seen.append((out, records)) or [1, 2])
    monkeypatch.setattr(tables, "as_text", lambda table: f"table {table}\n")
    monkeypatch.setattr(figures, "draw_figures", lambda *given: seen.append(given))
    command._run("tiny", tmp_path, engine="local", n_jobs=1, address=None, device="cpu")
    folder = tmp_path / "tiny"
    assert seen == [(folder / "tables", [folder]), (folder / "tables", [folder], folder)]
    assert capsys.readouterr().out == "table 1\n\ntable 2\n"
