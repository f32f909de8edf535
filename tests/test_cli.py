"""The command line, from files to labels, and in one line from mistakes to their cure."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import click
import mudata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from click.testing import CliRunner
from scipy import sparse

from conftest import make_blobs
from viewfuse import Config, read_views
from viewfuse.cli import MORE, VERBS, main, options
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.labels import read_table
from viewfuse.io.readers import Reading
from viewfuse.io.writers import Judged, write_labels
from viewfuse.metrics import clustering_accuracy

QUICK = ["--pretrain-epochs", "3", "--joint-epochs", "1", "--embedding-dim", "16", "--hidden-dim", "16"]
TINY = ["--pretrain-epochs", 1, "--joint-epochs", 0, "--embedding-dim", 8, "--hidden-dim", 8, "--scaling", "standard"]
"""For fits of which only the files and words matter."""


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    """A module that is imported for the command line hears Ctrl-C; nothing large is imported before that is caught."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-m", "viewfuse", "--version"]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "viewfuse: interrupted\n")
    script = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]["viewfuse"]
    assert script == "viewfuse.__main__:main"
    code = "import sys, viewfuse.__main__; sys.exit(any(name in sys.modules for name in ('numpy', 'click')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def same_labels(predicted, fitted) -> bool:
    """Whether samples were placed as they were fitted, none of them out of range."""
    lines, labels = predicted.read_text().splitlines(), fitted.read_text().splitlines()
    assert lines[0] == "id,label,confidence,uncertain,novelty,outlier,views_present,out_of_range"
    return lines[1:] == [f"{line},0" for line in labels[1:]]


@pytest.fixture(scope="module")
def omics(tmp_path_factory):
    """Two files, each of which lacks 30 % of the patients."""
    folder = tmp_path_factory.mktemp("omics")
    views, labels, _ = make_blobs(60, 2, widths=(4, 6), missing=0.0)
    rng, ids = np.random.default_rng(0), np.array([f"p{i}" for i in range(60)])
    paths = []
    for name, view, lost in zip(("rna", "protein"), views, rng.permutation(60)[:36].reshape(2, 18), strict=True):
        kept = np.setdiff1d(np.arange(60), lost)
        paths.append(folder / f"{name}.csv")
        pd.DataFrame(view[kept], index=ids[kept]).to_csv(paths[-1], index_label="patient")
    truth = folder / "truth.csv"
    pd.DataFrame({"id": ids, "label": labels}).to_csv(truth, index=False)
    return paths, truth


@pytest.fixture(scope="module")
def first_fit(omics, tmp_path_factory):
    """The folder of a run over the two files, and what was said."""
    out = tmp_path_factory.mktemp("fitted") / "run"
    return out, run("fit", *omics[0], "--clusters", 2, "--out", out, *QUICK)


def test_from_two_files_to_labels_and_back(omics, first_fit, tmp_path):
    files, truth = omics
    shown = run("inspect", *files)
    assert shown.exit_code == 0
    assert "60 samples, 2 views" in shown.output
    assert ["rna", "+", "protein", "24"] in [line.split() for line in shown.output.splitlines()]
    out, fitted = first_fit
    assert fitted.exit_code == 0, fitted.output
    assert "epoch/s" not in fitted.output  # a log file is no place for progress bars
    assert re.search(r"scaling +standard; others were not tried, as its clusters are clear", fitted.output)
    assert sorted(path.name for path in out.iterdir()) == [
        "embedding.npy", "explanation", "history.csv", "labels.csv", "map.csv", "map.png", "model", "report.html",
        "report_data", "summary.json",
    ]  # fmt: skip
    assert np.load(out / "embedding.npy").shape == (60, 16)
    summary = json.loads((out / "summary.json").read_text())
    assert sum(summary["cluster_sizes"]) == 60
    assert summary["params"]["reduction"] == "auto"
    scored = run("score", out / "labels.csv", truth, "--json")
    assert json.loads(scored.output)["accuracy"] >= 0.9
    again = tmp_path / "again.csv"
    assert run("predict", out / "model", *files, "--out", again).exit_code == 0
    assert same_labels(again, out / "labels.csv")
    assert run("predict", out / "model", files[1], "--out", tmp_path / "part.csv").exit_code == 0
    with (tmp_path / "part.csv").open() as file:
        assert {row["views_present"] for row in csv.DictReader(file)} == {"protein"}
    assert "rna (4 columns), protein (6 columns)" in run("info", out / "model").output
    assert run("info", out).output == run("info", out / "model").output, "a run stands for its model"


@pytest.fixture
def fitted(omics, first_fit):
    """The two files and the folder of a run over them."""
    out, said = first_fit
    assert said.exit_code == 0
    return omics[0], out


def test_embeddings_in_three_formats(fitted, tmp_path, monkeypatch):
    files, out = fitted
    monkeypatch.setattr(options, "ROWS_AT_A_TIME", 17)  # block by block gives the same
    expected = np.load(out / "embedding.npy")
    for ending in (".npy", ".csv", ".parquet"):
        assert run("embed", out / "model", *files, "--out", tmp_path / f"z{ending}").exit_code == 0
    assert np.array_equal(np.load(tmp_path / "z.npy"), expected)
    for read, ending in ((pd.read_csv, ".csv"), (pd.read_parquet, ".parquet")):
        table = read(tmp_path / f"z{ending}")
        assert table["id"].tolist() == pd.read_csv(out / "labels.csv")["id"].tolist()
        assert np.array_equal(table.drop(columns="id").to_numpy(dtype=np.float32), expected)
    assert "give one of these endings" in run("embed", out / "model", *files, "--out", tmp_path / "z.xyz").output
    assert not (tmp_path / "z.xyz").exists()


def test_predict_streams(fitted, tmp_path, monkeypatch):
    files, out = fitted
    monkeypatch.setattr(options, "ROWS_AT_A_TIME", 17)
    assert run("predict", out / "model", *files, "--out", tmp_path / "again.csv").exit_code == 0
    assert same_labels(tmp_path / "again.csv", out / "labels.csv")


def test_imputed_files_are_whole_and_keep_what_was_there(fitted, tmp_path, monkeypatch):
    files, out = fitted
    monkeypatch.setattr(options, "ROWS_AT_A_TIME", 17)
    filled = tmp_path / "filled"
    assert run("impute", out / "model", *files, "--out", filled).exit_code == 0
    before, after = read_views(files), read_views([filled / "rna.csv", filled / "protein.csv"])
    assert after.mask.all()
    assert after.ids.tolist() == before.ids.tolist()
    for v in range(2):
        assert np.array_equal(after.arrays[v][before.mask[:, v]], before.arrays[v][before.mask[:, v]])
        assert np.isfinite(after.arrays[v]).all()
    assert run("impute", out / "model", *files, "--out", filled).exit_code == 2


@pytest.mark.parametrize("command", ["impute", "explain", "fit"])
def test_a_folder_is_not_called_like_a_file(fitted, tmp_path, command):
    files, out = fitted
    given = [*files, "--clusters", 2] if command == "fit" else [out / "model", *files]
    refused = run(command, *given, "--out", tmp_path / "filled.csv")
    assert refused.exit_code == 2
    assert "leave off .csv" in refused.output
    assert not (tmp_path / "filled.csv").exists()


@pytest.mark.usefixtures("quick_map")
def test_a_smaller_model(fitted, tmp_path):
    files, out = fitted
    small = tmp_path / "small"
    again = ("--scaling", "standard", *QUICK)  # which the first fit chose
    assert run("fit", *files, "--clusters", 2, "--out", small, "--keep", 20, *again).exit_code == 0
    assert json.loads(run("info", small / "model", "--json").output)["samples"] == 20
    assert run("predict", small / "model", *files, "--out", tmp_path / "labels.csv").exit_code == 0
    whole, thin = (pd.read_csv(path)["label"] for path in (out / "labels.csv", tmp_path / "labels.csv"))
    assert (whole == thin).mean() >= 0.9


@pytest.mark.usefixtures("quick_map")
@pytest.mark.filterwarnings("ignore")  # of mudata's own
def test_h5mu_with_disjoint_cells_from_file_to_labels(tmp_path):
    (rna, protein), labels, _ = make_blobs(60, 2, widths=(4, 6), missing=0.0)
    ids = [f"cell{i}" for i in range(60)]
    parts = {"rna": (sparse.csr_matrix(rna[:36]), ids[:36]), "protein": (protein[24:], ids[24:])}
    made = {name: AnnData(x, obs=pd.DataFrame(index=cells)) for name, (x, cells) in parts.items()}
    mudata.MuData(made).write(tmp_path / "cells.h5mu")
    out = tmp_path / "run"
    fitted = run("fit", tmp_path / "cells.h5mu", "--clusters", 2, "--scaling", "standard", "--out", out, *QUICK)
    assert fitted.exit_code == 0, fitted.output
    back, table = mudata.read_h5mu(out / "cells.h5mu"), pd.read_csv(out / "labels.csv").set_index("id")
    assert back.obs["viewfuse"].dtype == "category"
    assert back.obs["viewfuse"].astype(int).tolist() == table["label"].reindex(back.obs_names).tolist()
    assert back.obsm["X_viewfuse"].shape == (60, 16)
    truth = pd.Series(labels, index=ids).reindex(table.index)
    assert clustering_accuracy(truth.to_numpy(), table["label"].to_numpy()) >= 0.9


def test_every_parameter_of_the_estimator_has_its_option():
    from viewfuse import URRL
    from viewfuse.cli.fit import fit as command

    offered = {option.name: option.default for option in command.params}
    for name, value in URRL().get_params().items():
        if name not in ("n_clusters", "config", "random_state", "verbose", "checkpoint"):
            asked = offered[name][0] if isinstance(offered[name], list) else offered[name]  # where it can be repeated
            assert asked == value, name
    fields = {name: value for name, value in asdict(Config()).items() if name in offered}
    assert (len(fields), fields["schedule"]) == (17, "default")  # with those that URRL has itself
    assert all(offered[name] == value for name, value in fields.items() if name != "n_clusters")


@pytest.mark.usefixtures("quick_map")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(["--reduction", "none"], "none", marks=pytest.mark.slow),
        pytest.param(
            ["--reduction", "rna=pca", "--reduction", "protein=none"],
            {"rna": "pca", "protein": "none"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_reduction_for_all_views_or_by_view(omics, tmp_path, given, wanted):
    files, _ = omics
    said = run("fit", *files, "--clusters", 2, "--out", tmp_path / "run", *TINY, *given)
    assert said.exit_code == 0, said.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["params"]["reduction"] == wanted
    rna = "pca" if isinstance(wanted, dict) else "none"
    assert summary["decisions"]["reduction"]["chosen"] == {"rna": rna, "protein": "none"}


def test_a_large_view_is_told_from_some_of_its_samples(tmp_path, monkeypatch):
    inspect = importlib.import_module("viewfuse.cli.inspect")
    monkeypatch.setattr(inspect, "_LEAST_ROWS", 40)
    monkeypatch.setattr(inspect, "_MOST_CELLS", 50 * 300)
    monkeypatch.setattr(inspect, "_MOST_STORED", 1)
    wide = np.random.default_rng(0).normal(size=(400, 300))
    facts = inspect.describe(Views({"dense": wide, "sparse": sparse.csr_matrix(wide)}))
    assert [view["rows_looked_at"] for view in facts["views"]] == [50, 40]
    assert [view["reduced_columns"] for view in facts["views"]] == [20, 20]  # as of all samples
    np.savez(tmp_path / "wide.npz", view_0=wide)
    lines = run("inspect", tmp_path / "wide.npz").output.splitlines()
    assert "view_0: its kind and what is kept of it are estimated from 50 of its 400 samples, drawn at random" in lines


def test_time_is_said_as_roughly_as_it_is_known():
    in_words = importlib.import_module("viewfuse.cli.inspect")._time_in_words
    assert [in_words(s) for s in (0.2, 7.4, 26, 98, 150, 1234, 40_000)] == [
        "1 s", "7 s", "30 s", "100 s", "2 minutes", "21 minutes", "11 hours",
    ]  # fmt: skip


def test_a_view_that_nobody_has_is_a_row_of_dashes():
    inspect = importlib.import_module("viewfuse.cli.inspect")
    facts = inspect.describe(Views({"a": np.random.default_rng(0).normal(size=(30, 3)), "b": np.full((30, 2), np.nan)}))
    assert inspect._row(facts["views"][1]) == ("b", "-", 2, "-", "-", 0, 30, "-", "-")


def test_wide_file_by_one_command(tmp_path):
    views, _, _ = make_blobs(30, 2, widths=(3, 2), missing=0.0)
    frame = pd.DataFrame(np.hstack(views), columns=["a_0", "a_1", "a_2", "b_0", "b_1"])
    frame.to_csv(tmp_path / "wide.csv", index_label="id")
    shown = json.loads(run("inspect", tmp_path / "wide.csv", "--block", "a=a_*", "--block", "b=b_*", "--json").output)
    assert [(view["name"], view["columns"]) for view in shown["views"]] == [("a", 3), ("b", 2)]
    assert "write NAME=VALUE" in run("inspect", tmp_path / "wide.csv", "--block", "a").output


def test_inspect_says_what_a_fit_refuses(tmp_path):
    rows = [f"s{i},{i % 7},seen on ward {i}" for i in range(40)]
    (tmp_path / "notes.csv").write_text("\n".join(["id,age,note", *rows]))
    said = CliRunner().invoke(main, ["inspect", str(tmp_path / "notes.csv")])
    assert said.exit_code == 0, said.output
    assert "a fit refuses this: view 'notes', column 'note' has 40 different texts" in said.output
    fitted = CliRunner().invoke(main, ["fit", str(tmp_path / "notes.csv"), "--out", str(tmp_path / "run")])
    assert (fitted.exit_code, "column 'note' has 40 different texts" in fitted.output) == (2, True)


def test_inspect_points_at_suspicious_columns(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=["fine", "filled", "flat"])
    frame.loc[7:20, "filled"], frame["flat"], frame["row"] = -999.0, 1.0, rng.permutation(50)
    frame.to_csv(tmp_path / "odd.csv", index_label="id")
    lines = run("inspect", tmp_path / "odd.csv").output.splitlines()
    assert "odd, columns that never change: 'flat'" in lines
    assert "odd, columns that have values so far out that they may stand for nothing, such as -999: 'filled'" in lines
    assert "odd, columns that count the rows, and may be ids: 'row'" in lines


def test_inspect_and_fit_name_outliers_and_give_them_a_label(tmp_path):
    rng = np.random.default_rng(0)
    near, far = (rng.normal(size=(60, 3)) + 8 * (np.arange(60) % 2)[:, None] for _ in range(2))
    near[[7, 30]] += np.array([[400.0], [-300.0]])
    ids = [f"s{i}" for i in range(60)]
    for name, table in (("a", near), ("b", far)):
        pd.DataFrame(table, index=pd.Index(ids, name="id")).to_csv(tmp_path / f"{name}.csv")
    files = tmp_path / "a.csv", tmp_path / "b.csv"
    facts = importlib.import_module("viewfuse.cli.inspect").describe(read_views(files))["outliers"]
    assert {name: [*far] for name, far in facts["by_view"].items()} == {"a": ["s7", "s30"]}
    assert "outliers: 2 of 60 samples lie farther from all others than usual: s7" in run("inspect", *files).output
    quick = ("--clusters", 2, "--pretrain-epochs", 1, "--joint-epochs", 0, "--embedding-dim", 4, "--hidden-dim", 4)
    made = run("fit", *files, *quick, "--scaling", "standard", "--outliers", "label", "--out", tmp_path / "run")
    assert made.exit_code == 0, made.output
    rows = pd.read_csv(tmp_path / "run" / "labels.csv").set_index("id")
    assert rows.index[rows["label"] == -1].tolist() == rows.index[rows["outlier"] == 1].tolist() == ["s7", "s30"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sum(summary["cluster_sizes"]) == 58
    assert "58 samples in 2 clusters, and 2 outliers" in (tmp_path / "run" / "report.html").read_text()
    found = json.loads(run("predict", tmp_path / "run" / "model", *files, "--out", tmp_path / "p.csv", "--json").output)
    assert (found["samples"], found["outliers"], sum(found["cluster_sizes"])) == (60, 2, 58)
    (tmp_path / "known.csv").write_text("id,kind\n" + "\n".join(f"s{i},{'xy'[i % 2]}" for i in range(60)))
    known = ("--known", tmp_path / "known.csv")
    assert run("report", tmp_path / "run", *known, "--out", tmp_path / "r.html").exit_code == 0
    assert run("report", tmp_path / "run", tmp_path / "run", "--out", tmp_path / "two.html").exit_code == 0
    (tmp_path / "truth.csv").write_text("id,label\n" + "\n".join(f"s{i},{i % 2}" for i in range(60)))
    assert run("score", tmp_path / "run" / "labels.csv", tmp_path / "truth.csv").exit_code == 0
    assert run("validate", tmp_path / "run", "--refits", 2).exit_code == 0
    assert (pd.read_csv(tmp_path / "run" / "labels.csv")["label"] == -1).sum() == 2


def test_side_tables_have_their_ids_where_the_others_have_them(tmp_path):
    """Every verb wanted other names of columns than the last one."""
    rows = "".join(f"{i % 2 if i < 6 else ''},s{i},{i},{i % 2},1\n" for i in range(12))
    side = tmp_path / "clinical.csv"
    side.write_text("label,patient,age,batch,weight\n" + rows)
    (tmp_path / "a.csv").write_text("x,patient,y\n" + "".join(f"{i}.5,s{i},{i * i}\n" for i in range(12)))
    given = (tmp_path / "a.csv", "--id-column", "patient")
    source = options.Inputs((tmp_path / "a.csv",), Reading(id_column="patient"), batch=str(side)).open()
    assert source.read().batch.tolist() == ["0", "1"] * 6
    asked = ("--hints", side, "--sample-weight", side, "--clusters", 2, "--pretrain-epochs", 0)
    made = run("fit", *given, *asked, "--joint-epochs", 0, "--scaling", "standard", "--out", tmp_path / "run")
    assert made.exit_code == 0, made.output
    (tmp_path / "truth.csv").write_text("patient,age,label\n" + "".join(f"s{i},1,{i % 2}\n" for i in range(12)))
    assert run("score", tmp_path / "run" / "labels.csv", tmp_path / "truth.csv").exit_code == 0
    refused = run("score", side, side)
    assert "it needs the columns id and label; ids may also be in the first column" in refused.output


def test_score_against_data_that_carry_labels(tmp_path):
    np.savez(tmp_path / "data.npz", view_0=np.ones((4, 1)), labels=[0, 0, 1, 1])
    (tmp_path / "labels.csv").write_text("id,label\n0,5\n1,5\n2,7\n3,7\n")
    assert json.loads(run("score", tmp_path / "labels.csv", tmp_path / "data.npz", "--json").output)["accuracy"] == 1


@pytest.mark.parametrize("unknown", ["", "NA", "-1", "-1.0", "nan", "<NA>", " n/a ", "?"])
def test_labels_that_name_no_class_are_left_out_of_the_score(tmp_path, unknown):
    (tmp_path / "labels.csv").write_text("id,label\na,5\nb,5\nc,7\nd,7\n")
    (tmp_path / "truth.csv").write_text(f"id,label\na ,x\n b,x \nc,y\nd,{unknown}\n")
    files = tmp_path / "labels.csv", tmp_path / "truth.csv"
    for pair in (files, files[::-1]):
        said = run("score", *pair)
        assert (
            f"{files[1]}: 1 label names no class (empty, NA or -1), such as that of 'd'; they are left" in said.stderr
        )
        assert " ".join(said.stdout.split()) == "samples 3 without a partner 0 accuracy 1.0 NMI 1.0 ARI 1.0"
    (tmp_path / "none.csv").write_text("id,label\n" + "".join(f"{name},{unknown}\n" for name in "abcd"))
    assert "share no id whose label is known in both" in run("score", files[0], tmp_path / "none.csv").output
    (tmp_path / "twice.csv").write_text("id,label\na,x\na ,y\n")
    assert "id 'a' appears twice" in run("score", files[0], tmp_path / "twice.csv").output


@pytest.mark.usefixtures("quick_map")
def test_nothing_is_overwritten_without_being_told(omics, tmp_path):
    files, _ = omics
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.doc").write_text("years of work")
    refused = run("fit", *files, "--clusters", 2, "--out", out, *TINY)
    assert refused.exit_code == 2
    assert "exists already; give another --out, or --force" in refused.output
    assert run("fit", *files, "--clusters", 2, "--out", out, "--force", *TINY).exit_code == 0
    assert (out / "thesis.doc").exists()


def test_mistakes_are_answered_in_one_line(omics, tmp_path):
    files, _ = omics
    (tmp_path / "bad.csv").write_text("id,x\na,one\nb,2\n")
    for arguments, words in [
        (("inspect", tmp_path / "nothing.csv"), "nothing.csv is no file"),
        (("inspect", tmp_path / "bad.csv"), "'one' is not a number"),
        (("fit", *files, "--clusters", 99, "--out", tmp_path / "o"), "60 samples are fewer than --clusters 99"),
        (
            ("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--scaling", "big"),
            "viewfuse: --scaling must be one of",
        ),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--joint-epochs", "few"), "--joint-epochs must be"),
        (
            ("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--reduction", "svd"),
            "viewfuse: --reduction must be one of",
        ),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--reduction", "dna=pca"), "the view 'dna', but"),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--reduction", "rna="), "write NAME=VALUE"),
        (
            ("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--reduction", "rna=pca", "--reduction", "pca"),
            "--reduction 'pca': write NAME=VALUE, each name once",
        ),
        (("predict", tmp_path, *files, "--out", tmp_path / "o.csv"), "is not a viewfuse model"),
        (("predict", tmp_path, *files, "--out", tmp_path / "o"), "labels are written as .csv"),
        (("predict", tmp_path, *files, "--out", files[0], "--force"), "which is read; give another --out"),
        (("fit", *files, "--clusters", 2, "--out", tmp_path / "o", "--keep", 999), "from 1 to 60; got 999"),
        (("inspect", "x" * 300), "check the path"),
        (("info", tmp_path), "is not a viewfuse model"),
        (("score", files[0], files[1]), "it needs the columns id and label"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        last = result.output.strip().splitlines()[-1]
        assert last.startswith("viewfuse: ")
        assert words in last


@pytest.mark.parametrize("verb", VERBS | MORE)
def test_every_verb_has_help(verb):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert (VERBS | MORE)[verb][1] in shown.output


def test_the_overview_names_every_verb():
    assert all(verb in run("--help").output for verb in VERBS | MORE)


def test_formulas_in_ids_stay_text(tmp_path):
    views = Views([np.ones((2, 1))], ids=["=HYPERLINK(1)", "-3"])
    two = np.zeros(2, dtype=np.int64)
    judged = Judged(two, np.ones((2, 1), np.float32), two > 0, np.zeros(2), two > 0)
    write_labels(tmp_path / "labels.csv", views, judged)
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert lines[1].startswith("'=HYPERLINK")
    assert lines[2].startswith("-3,")


def test_the_package_is_a_command_too():
    said = subprocess.run([sys.executable, "-m", "viewfuse", "--help"], check=True, capture_output=True, text=True)
    assert all(verb in said.stdout for verb in VERBS | MORE)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_map")
@pytest.mark.filterwarnings("ignore::viewfuse.SuspiciousDataWarning")
def test_what_looks_wrong_stands_under_the_results_too(omics, tmp_path):
    paths, _ = omics
    other = tmp_path / "other.csv"
    other.write_text(paths[1].read_text().replace("p", "Q"))
    said = run("fit", paths[0], other, "--allow-disjoint", "--clusters", 2, "--out", tmp_path / "run", *TINY)
    assert said.exit_code == 0
    assert "spelled alike" in said.stdout.splitlines()[-2]
    assert "spelled alike" in " ".join(json.loads((tmp_path / "run" / "summary.json").read_text())["remarks"])


def test_fit_does_with_a_click_whose_types_take_no_parameters(monkeypatch):
    """Before 8.4 `click.ParamType[...]` was an error."""
    monkeypatch.setattr(click.ParamType, "__class_getitem__", None, raising=False)
    command = importlib.reload(importlib.import_module("viewfuse.cli.fit")).fit
    kinds = {option.name: option.type for option in command.params}
    assert kinds["n_init"].convert("auto", None, None) == "auto"
    assert kinds["joint_epochs"].convert("7", None, None) == 7
    assert kinds["view_dropout"].convert("0.5", None, None) == 0.5


@pytest.fixture
def printed_to(monkeypatch, capsys):
    """Run a verb that prints to an open file; its exit code and what it says beside. What is left can be flushed."""

    def ended(descriptor, *arguments):
        with os.fdopen(descriptor, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            with pytest.raises(SystemExit) as raised:
                main([str(a) for a in arguments])
        return raised.value.code, capsys.readouterr().err.strip()

    return ended


def test_a_reader_that_has_seen_enough_is_no_fault(tmp_path, printed_to):
    (tmp_path / "a.csv").write_text("id,x,y\n" + "".join(f"s{i},{i % 7},{i % 5}\n" for i in range(40)))
    reader, writer = os.pipe()
    os.close(reader)
    assert printed_to(writer, "inspect", tmp_path / "a.csv") == (1, "")


def test_a_place_where_nothing_can_be_written_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("id,x,y\n" + "".join(f"s{i},{i % 7},{i % 5}\n" for i in range(40)))

    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("viewfuse.cli.options.TemporaryFile", refused)
    monkeypatch.setattr("viewfuse.methods.urrl.fit.pretrain", None)
    ended = run("fit", tmp_path / "a.csv", "--clusters", 2, "--out", tmp_path / "new" / "run")
    assert ended.exit_code == 2
    assert "cannot be written (Permission denied); choose another place for --out" in ended.output
    assert not (tmp_path / "new").exists()


def test_links_that_lead_in_a_circle_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("id,x\na,1\nb,2\nc,5\n")
    (tmp_path / "loop").symlink_to("loop")
    for arguments, words in [
        (("fit", "x.csv", "--out", "loop", "--force"), "loop is a link that leads to loop, which is not there"),
        (("fit", "loop", "--out", "new"), "loop is no file"),
        (("compare", "x.csv", "--clusters", 2, "--out", "loop"), "loop is a link"),
        (("compare", "loop", "--clusters", 2, "--out", "new"), "loop is no file"),
        (("choose", "x.csv", "--out", "loop"), "loop is a link"),
        (("report", "loop", "--out", "new.html"), "loop/summary.json cannot be read"),
    ]:
        said = run(*arguments)
        assert (said.exit_code, len(said.output.splitlines())) == (2, 1), arguments
        assert words in said.output


@pytest.mark.parametrize(("encoding", "town"), [("utf-16", "K\xf6ln"), ("utf-16-le", "Kiel"), ("latin-1", "K\xf6ln")])
def test_labels_in_another_encoding_are_refused_by_name(tmp_path, encoding, town):
    (tmp_path / "y.csv").write_bytes(f"id,label\na,{town}\nb,Bonn\n".encode(encoding))
    (tmp_path / "plain.csv").write_text("id,label\na,K\xf6ln\nb,Bonn\n", encoding="utf-8-sig")
    said = run("score", tmp_path / "y.csv", tmp_path / "plain.csv")
    assert said.exit_code == 2
    assert (
        said.output
        == f"viewfuse: {tmp_path / 'y.csv'} is no text in UTF-8 (UTF-16, perhaps?); save it as CSV in UTF-8\n"
    )
    with pytest.raises(DataError, match="save it as CSV in UTF-8"):
        read_table(tmp_path / "y.csv")
    assert run("score", tmp_path / "plain.csv", tmp_path / "plain.csv").exit_code == 0
    assert read_table(tmp_path / "plain.csv").column("label") == ["K\xf6ln", "Bonn"]


def test_a_place_that_cannot_become_a_folder_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("id,x\na,1\nb,2\nc,5\n")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "page_data").write_text("mine")
    for arguments, words in [
        (("fit", "x.csv", "--out", "broken", "--force"), "broken is a link that leads to nowhere, which is not there"),
        (("fit", "x.csv", "--out", "broken/run"), "broken is a link that leads to nowhere, which is not there"),
        (("choose", "x.csv", "--out", "page_data", "--force"), "page_data is a file, and a folder is to be written"),
        (("report", "run", "--out", "page.html", "--force"), "page_data is a file, and a folder is to be written"),
    ]:
        said = run(*arguments)
        assert (said.exit_code, len(said.output.splitlines())) == (2, 1), arguments
        assert words in said.output
    assert (tmp_path / "page_data").read_text() == "mine"


@pytest.mark.filterwarnings("default::viewfuse.SuspiciousDataWarning")
def test_few_common_ids_are_warned_of_when_labels_are_scored(tmp_path):
    (tmp_path / "found.csv").write_text("id,label\n" + "".join(f"{i:03},{i % 2}\n" for i in range(120)))
    (tmp_path / "known.csv").write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(120)))
    ended = run("score", tmp_path / "found.csv", tmp_path / "known.csv")
    assert ended.exit_code == 0
    assert "only 20 of 120 and 120 ids are in both files; '000' and '0' read alike; spell ids alike" in ended.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_cannot_be_shown_is_told_from_files_that_cannot_be_written(tmp_path, printed_to):
    np.savez(tmp_path / "a.npz", a=np.ones((4, 2)))
    said = "viewfuse: the output cannot be shown (No space left on device); files that were to be written are complete"
    assert printed_to(os.open("/dev/full", os.O_WRONLY), "inspect", tmp_path / "a.npz", "--trusted") == (2, said)
