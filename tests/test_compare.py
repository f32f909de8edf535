"""`viewfuse.compare` and its verb: the same masks for all, means, costs, agreement; it stops and goes on."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.base import BaseEstimator, ClusterMixin

import viewfuse
from conftest import make_blobs
from viewfuse import DataError, SettingError, Views
from viewfuse.cli import main
from viewfuse.cli.compare import joined
from viewfuse.comparison import run as runner
from viewfuse.comparison.arguments import checked
from viewfuse.comparison.results import cells, note
from viewfuse.fitted.manifest import digest
from viewfuse.missing import describe, hide_more, paper_mask
from viewfuse.utils.atomic import sealed, unsealed

SIMPLE = ("kmeans-mean", "kmeans-knn")


class Told(ClusterMixin, BaseEstimator):
    """A method of somebody else: keeps what it is given, and puts all samples in turn into clusters."""

    seen: ClassVar[list] = []

    def __init__(self, n_clusters=3, random_state=None, fails=False):
        self.n_clusters, self.random_state, self.fails = n_clusters, random_state, fails

    def fit(self, X, y=None):
        assert y is None
        if self.fails:
            raise ZeroDivisionError("of its own")
        Told.seen.append((X.mask.copy(), [array.copy() for array in X.arrays]))
        self.labels_ = np.arange(len(X)) % self.n_clusters
        return self


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(40, 3, missing=0.0)


@pytest.fixture(scope="module")
def found(blobs):
    views, labels, _ = blobs
    return viewfuse.compare(views, SIMPLE, n_clusters=3, rates=(0, 0.5), seeds=2, labels=labels, device="cpu")


def test_every_method_runs_on_every_mask(found):
    assert [(run.missing_rate, run.seed, run.method) for run in found.runs] == [
        (rate, seed, name) for rate in (0, 0.5) for seed in (0, 1) for name in SIMPLE
    ]
    assert all(run.seconds > 0 for run in found.runs)
    assert all(run.memory_mb >= 0 for run in found.runs)


def test_all_methods_see_the_same_masks_and_nothing_that_is_hidden(blobs):
    Told.seen.clear()
    viewfuse.compare(blobs[0], {"one": Told(), "two": Told()}, n_clusters=3, rates=(0.5,), seeds=2)
    masks = [mask for mask, _ in Told.seen]
    assert (masks[0] == masks[1]).all()
    assert (masks[2] == masks[3]).all()
    assert (masks[0] == paper_mask(40, 3, 0.5, 2, random_state=0)).all()
    assert (masks[0] != masks[2]).any()
    for mask, arrays in Told.seen:
        assert all((array[~mask[:, v]] == 0).all() for v, array in enumerate(arrays))


def test_means_and_deviations_are_those_of_the_runs(found, blobs):
    row = next(row for row in found.rows() if (row["method"], row["missing_rate"]) == ("kmeans-mean", 0.5))
    own = [run for run in found.runs if (run.method, run.missing_rate) == ("kmeans-mean", 0.5)]
    scores = [100 * viewfuse.metrics.clustering_accuracy(blobs[1], run.labels) for run in own]
    assert row["acc"] == pytest.approx(np.mean(scores))
    assert row["acc_sd"] == pytest.approx(np.std(scores, ddof=1))
    assert row["runs"] == 2
    assert list(found.table().columns) == list(row)
    whole = next(row for row in found.rows() if (row["method"], row["missing_rate"]) == ("kmeans-knn", 0.0))
    assert whole["acc"] == 100


def test_without_labels_methods_keep_their_order_and_no_score_orders_them(blobs):
    found = viewfuse.compare(blobs[0], {"one": Told(), "fine": Told()}, n_clusters=3, seeds=2)
    assert found.metrics == ()
    assert found.agreement() == pytest.approx(np.ones((2, 2)))
    assert [line[1] for line in cells(found)[1]] == ["one", "fine"]
    assert cells(found)[0] == ["missing rate", "method", "stability", "seconds", "memory, MB", "runs"]
    assert "nothing says which is better" in note(found)
    assert "below_best" not in found.rows()[0]


def test_unknown_labels_do_not_count(blobs):
    views, labels, _ = blobs
    known = [int(label) if i < 20 else None for i, label in enumerate(labels)]
    found = viewfuse.compare(views, "kmeans-mean", n_clusters=3, seeds=1, labels=known, device="cpu")
    scored = viewfuse.metrics.clustering_accuracy(labels[:20], found.runs[0].labels[:20])
    assert found.rows()[0]["acc"] == pytest.approx(100 * scored)


def test_a_method_that_fails_comes_last_and_the_others_go_on(blobs):
    methods = {"broken": Told(fails=True), "fine": Told()}
    found = viewfuse.compare(blobs[0], methods, n_clusters=3, seeds=2, labels=blobs[1])
    assert [line[1] for line in cells(found)[1]] == ["fine", "broken"]
    assert ["failed" in line for line in cells(found)[1]] == [False, True]
    assert found.rows()[0]["failed"] == "ZeroDivisionError: of its own"
    assert found.rows()[0]["failed_runs"] == 2
    assert np.isnan(found.rows()[0]["acc"])
    assert np.isnan(found.agreement()[0, 1])


def test_what_is_done_is_not_done_again_unless_something_changed(blobs, tmp_path, monkeypatch):
    Told.seen.clear()
    whole = runner._done
    monkeypatch.setattr(runner, "_done", lambda *args: whole(*args) if len(Told.seen) < 2 else pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        viewfuse.compare(blobs[0], {"one": Told()}, n_clusters=3, seeds=3, out=tmp_path)
    monkeypatch.setattr(runner, "_done", whole)
    viewfuse.compare(blobs[0], {"one": Told()}, n_clusters=3, seeds=3, out=tmp_path)
    assert len(Told.seen) == 3
    (tmp_path / "runs/one/rate-0-seed-1.json").write_text("{")  # cut off
    viewfuse.compare(blobs[0], {"one": Told()}, n_clusters=3, seeds=3, out=tmp_path)
    assert len(Told.seen) == 4
    plan = unsealed((tmp_path / "plan.json").read_bytes())
    (tmp_path / "plan.json").write_bytes(sealed(plan | {"clusters": 2}))  # as if it had always been so
    viewfuse.compare(blobs[0], {"one": Told()}, n_clusters=2, seeds=3, out=tmp_path)
    assert len(Told.seen) == 7
    others = [2 * view for view in blobs[0]]
    plan |= {"clusters": 2, "data": digest(Views(others))}
    (tmp_path / "plan.json").write_bytes(sealed(plan))
    viewfuse.compare(others, {"one": Told()}, n_clusters=2, seeds=3, out=tmp_path)
    assert len(Told.seen) == 10


def test_a_folder_of_another_comparison_is_refused(blobs, tmp_path):
    def compared(methods, n_clusters=3, views=blobs[0], **asked):
        return viewfuse.compare(views, methods, n_clusters=n_clusters, out=tmp_path, device="cpu", **asked)

    compared({"one": Told()}, seeds=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for other, said in (
        ({"n_clusters": 2}, "clusters was 3, is 2"),
        ({"views": [2 * view for view in blobs[0]]}, "data was "),
        ({"missing_number": 1, "rates": [0.5]}, "missing_number was 2, is 1"),
        ({"methods": {"one": Told(fails=True)}}, "fails of one was False, is True"),
    ):
        with pytest.raises(viewfuse.CannotWrite, match=rf"holds another comparison \({said}.*; give another folder"):
            compared(**{"methods": {"one": Told()}, **other})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    Told.seen.clear()
    compared({"one": Told(), "two": Told()}, seeds=2, rates=(0, 0.5))
    assert len(Told.seen) == 7


@pytest.mark.parametrize(("n_views", "hidden"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (12, 8)])
def test_two_thirds_of_the_views_are_hidden_from_incomplete_samples(n_views, hidden):
    views = viewfuse.Views([np.eye(5)] * n_views)
    rates = [0.0] if n_views == 1 else [0.5]
    assert checked(views, ["kmeans-mean"], 2, rates, None, 1, False, print).missing_number == hidden


def test_more_views_are_hidden_where_some_are_missing_already():
    mask = paper_mask(200, 4, 0.5, 2, random_state=1)
    more = hide_more(mask, 1.0, 2, random_state=0)
    assert not (more & ~mask).any()
    assert (more.sum(axis=1) == np.maximum(1, mask.sum(axis=1) - 2)).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": "nothing"}, "method 'nothing' is unknown"),
        ({"methods": []}, "at least one"),
        ({"methods": {"a/b": Told()}}, "cannot name a folder"),
        ({"rates": (2,)}, "rates must be numbers from 0 to 1"),
        ({"rates": ()}, "rates has no number"),
        ({"seeds": 0}, "seeds must be"),
        ({"held_out": "yes"}, "held_out must be True or False"),
        (
            {"held_out": True, "views": [np.eye(40), np.eye(40)]},
            "held_out needs at least 3 views, to have two left to fuse; got 2",
        ),
        ({"missing_number": 3}, "missing_number must be from 0 to 2"),
        ({"labels": [1, 2]}, "labels has 2 labels for 40 samples"),
        ({"labels": [None] * 40}, "all unknown"),
        ({"n_clusters": -3}, "n_clusters must be an integer of at least 1; got -3"),
        ({"n_clusters": 0}, "n_clusters must be an integer of at least 1; got 0"),
        ({"n_clusters": 41}, "40 samples are fewer than n_clusters=41"),
    ],
)
def test_what_cannot_be_compared_is_refused(blobs, wrong, said):
    with pytest.raises((SettingError, DataError), match=said):
        viewfuse.compare(**{"views": blobs[0], "methods": "kmeans-mean", "n_clusters": 3, **wrong})


def test_the_verb_writes_tables(blobs, tmp_path):
    views, labels, _ = blobs
    ids = [f"s{i}" for i in range(40)]
    for v, view in enumerate(views[:2]):
        pd.DataFrame(view, index=ids).rename_axis("id").to_csv(tmp_path / f"v{v}.csv")
    pd.DataFrame({"id": ids, "label": labels}).to_csv(tmp_path / "y.csv", index=False)
    files = [str(tmp_path / "v0.csv"), str(tmp_path / "v1.csv")]
    args = ["compare", *files, "--clusters", "3", "--methods", *SIMPLE, "--rates", "0", ".5", "--seeds", "1",
            "--labels", str(tmp_path / "y.csv"), "--out", str(tmp_path / "out")]  # fmt: skip
    shown = CliRunner().invoke(main, args, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "4 of 4: kmeans-knn, rate 0.5, seed 0" in shown.stderr
    assert shown.stdout.splitlines()[0].split()[:4] == ["missing", "rate", "method", "accuracy"]
    assert "Highest accuracy first" in shown.stdout
    assert "no test is made" in shown.stdout
    assert "Missing rate 0.5: 50 % of samples complete, 25 % of cells missing, 3 patterns." in shown.stdout
    assert len(pd.read_csv(tmp_path / "out/table.csv")) == 4
    assert pd.read_csv(tmp_path / "out/agreement.csv", index_col=0).shape == (2, 2)
    assert sorted(one.name for one in (tmp_path / "out").glob("*.*")) == [
        "agreement.csv",
        "plan.json",
        "table.csv",
        "table.md",
        "table.tex",
    ]
    again = CliRunner().invoke(main, args)
    assert " of 4" not in again.stderr
    refused = CliRunner().invoke(main, [*args[:-1], str(tmp_path)])
    assert refused.exit_code == 2
    assert "which is read" in refused.stderr


@pytest.mark.parametrize("rates", ["0_0", "0,0_5", "\N{ARABIC-INDIC DIGIT ZERO}", "half"])
def test_rates_are_plain_numbers(tmp_path, rates):
    (tmp_path / "v.csv").write_text("id,x\ns1,1\ns2,2\ns3,4\n")
    asked = ["--clusters", "2", "--methods", "kmeans-mean", "--rates", rates, "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(main, ["compare", str(tmp_path / "v.csv"), *asked])
    assert (said.exit_code, said.output.count("\n")) == (2, 1)
    assert "--rates must be numbers from 0 to 1" in said.output


def test_labels_that_are_a_view_are_refused(tmp_path):
    rows = [f"s{i},{i % 3}" for i in range(20)]
    for name in ("known.csv", "values.csv"):
        (tmp_path / name).write_text("\n".join(["id,label", *rows]))
    known, values = (str(tmp_path / name) for name in ("known.csv", "values.csv"))
    asked = ["--clusters", "3", "--methods", "kmeans-mean", "--labels", known, "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(main, ["compare", known, values, *asked])
    assert said.exit_code == 2
    assert "known.csv is a view and has the labels that it is judged by; leave it out of the views" in said.output


def test_labels_beside_the_views_of_one_file_are_no_view(blobs, tmp_path):
    views, labels, _ = blobs
    np.savez(tmp_path / "set.npz", view_0=np.nan_to_num(views[0]), view_1=np.nan_to_num(views[1]), labels=labels)
    file = str(tmp_path / "set.npz")
    asked = ["--clusters", "3", "--methods", "kmeans-mean", "--rates", "0", "--seeds", "1", "--json"]
    done = CliRunner().invoke(main, ["compare", file, *asked, "--labels", file, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"][0]["acc"] > 50
    alone = CliRunner().invoke(main, ["compare", file, *asked, "--out", str(tmp_path / "alone")])
    assert json.loads(alone.stdout)["runs"][0]["acc"] == json.loads(done.stdout)["runs"][0]["acc"]
    assert f"scores are against the labels in {file}, which no method sees" in alone.stderr
    assert "Mean over runs" in (tmp_path / "alone" / "table.md").read_text()  # of one run nothing deviates


def test_an_unknown_method_has_names_that_are_near(blobs):
    with pytest.raises(SettingError, match=r"unknown; did you mean kmeans-knn or kmeans-mean\? else choose from"):
        viewfuse.compare(blobs[0], ["urrl", "kmeans"], n_clusters=3)


def test_a_method_that_was_corrected_is_done_again(blobs, tmp_path, monkeypatch):
    """Its runs with the mistake were taken, as its name and parameters are the same."""
    code = (
        "import numpy as np\nfrom sklearn.cluster import KMeans\n\nclass Mine(KMeans):\n    def fit(self, X, y=None):\n"
    )
    said, found = [], []
    for number, labels in enumerate(("np.zeros(len(X), int)", "np.arange(len(X)) % 3", "np.arange(len(X)) % 3")):
        path = tmp_path / f"mine{number}.py"
        path.write_text(f"{code}        self.labels_ = {labels}\n        return self\n")
        spec = importlib.util.spec_from_file_location("mine", path)
        monkeypatch.setitem(sys.modules, "mine", importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules["mine"])
        own = {"mine": sys.modules["mine"].Mine(n_clusters=3)}
        kept = tmp_path / "out"
        done = viewfuse.compare(
            blobs[0], own, n_clusters=3, rates=(0,), seeds=1, labels=blobs[1], out=kept, log=said.append
        )
        found.append(done.rows()[0]["acc"])
    assert found[0] < 40 < 99 < found[1] == found[2]
    assert said[-1].startswith("1 runs are there already, 0 are left")


def test_a_method_that_gives_some_samples_no_cluster_says_so(blobs):
    class Noise(Told):
        def fit(self, X, y=None):
            self.labels_ = np.where(np.arange(len(X)) < 2, -1, 0)
            return self

    found = viewfuse.compare(blobs[0], {"noise": Noise()}, n_clusters=3, rates=(0,), seeds=1, labels=blobs[1])
    assert found.rows()[0]["failed"].startswith("2 samples have the label -1, and so no cluster; only methods that")


def test_a_comparison_of_which_nothing_is_left_fails(blobs, tmp_path, monkeypatch):
    pd.DataFrame(blobs[0][0]).rename_axis("id").to_csv(tmp_path / "v.csv")
    monkeypatch.setattr("viewfuse.comparison.arguments.estimator_of", lambda name: partial(Told, fails=True))
    args = ["compare", str(tmp_path / "v.csv"), "--methods", SIMPLE[0], "--seeds", "1", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(main, [*args, "--clusters", "-3"])
    assert refused.exit_code == 2
    assert refused.stderr == "viewfuse: --clusters must be an integer of at least 1; got -3\n"
    for extra in ([], ["--json"]):
        failed = CliRunner().invoke(main, [*args, "--clusters", "3", *extra])
        assert failed.exit_code == 2
        assert failed.stderr.splitlines()[-1].startswith("viewfuse: every run failed, so there is nothing to compare")


@pytest.mark.parametrize("rates", [["--rates", "0", ".5"], ["--rates", "0", "b.csv", "--rates", ".5"]])
def test_values_of_a_list_may_stand_apart(rates):
    args = ["a.csv", *rates, "--seeds", "1"]
    others = [one for one in args if one in ("a.csv", "b.csv", "--seeds", "1")]
    assert joined(args, "--rates", lambda text: text[0] in "0.") == ["--rates", "0,.5", *others]
    assert joined(others, "--rates", lambda text: text[0] in "0.") == others


@pytest.mark.parametrize("asked", [["mine", "nemo"], ["nemo", "mine"], ["nemo,mine"]])
def test_a_method_that_is_not_known_is_named_and_no_file_is_missed(blobs, tmp_path, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    pd.DataFrame(blobs[0][0]).rename_axis("id").to_csv(tmp_path / "views" / "v.csv")
    for files in (["views"], ["views/v.csv"]):  # a folder, or a file, behind the methods
        args = ["compare", "--clusters", "3", "--out", "out", "--methods", *asked, *files]
        refused = CliRunner().invoke(main, args)
        assert refused.exit_code == 2
        assert refused.stderr.startswith("viewfuse: method 'mine' is unknown; choose from all, urrl")


def test_methods_of_other_packages_are_found_by_their_entry_point(monkeypatch):
    from importlib.metadata import EntryPoint

    from viewfuse import methods as registry

    points = [EntryPoint("told", "test_compare:Told", "viewfuse.methods"), EntryPoint("gone", "nowhere:X", "g")]
    monkeypatch.setattr(registry, "_others", lambda: {one.name: one for one in points})
    assert registry.estimator_of("told").__name__ == "Told"
    assert "told" in registry.method_names()
    with pytest.raises(SettingError, match="'gone' of another package cannot be imported"):
        registry.estimator_of("gone")


def test_the_page_about_own_methods_is_true(blobs):
    text = (Path(__file__).parents[1] / "docs" / "add-your-method.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class MeanCode" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 60
    scope: dict = {"__name__": "my_package"}
    exec(compile(code, "add-your-method.md", "exec", dont_inherit=True), scope)
    own = scope["MeanCode"](epochs=20, hidden_dim=16, learning_rate=0.01)
    found = viewfuse.compare(
        blobs[0], {"mine": own}, n_clusters=3, rates=(0.5,), seeds=1, labels=blobs[1], device="cpu"
    )
    assert found.rows()[0]["failed"] == ""
    assert found.rows()[0]["acc"] > 60


def test_gaps_are_those_of_the_first_mask_that_methods_saw():
    """Of samples that lack views already, which no two masks leave alike."""
    views, _, mask = make_blobs(31, 3, missing=0.4)
    Told.seen.clear()
    given = Views([np.nan_to_num(view) for view in views], mask=mask)
    found = viewfuse.compare(given, {"told": Told()}, n_clusters=3, rates=(0.25, 0.75), seeds=2)
    masks = [seen for seen, _ in Told.seen]  # by rate, then by seed
    assert describe(masks[0]) != describe(masks[1])
    assert found.gaps == {0.25: describe(masks[0]), 0.75: describe(masks[2])}
