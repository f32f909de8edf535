"""New samples join a model: clusters keep their numbers, new kinds get new ones, and what moved is said."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from viewfuse import URRL, Config, OutOfRangeWarning, SuspiciousDataWarning, load, read_chunks, read_views
from viewfuse.cli import main
from viewfuse.data.input_types import only_counted
from viewfuse.errors import DataError, Diverged
from viewfuse.methods import updating
from viewfuse.methods.label_matching import with_numbers
from viewfuse.methods.updating import joined_ids
from viewfuse.methods.urrl.fit import Fitted
from viewfuse.selection.decision_texts import words
from viewfuse.selection.decisions import Update

QUICK = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 12, "joint_epochs": 24, "learning_rate": 3e-3}
QUICK |= {"scaling": "standard", "random_state": 0}
UNITS = (1.0, 1e4, 1e-3)
CENTRES = [np.random.default_rng(7).normal(scale=4.0, size=(5, width)) for width in (6, 9, 4)]


def drawn(kinds, seed, first=0):
    """Samples of these kinds in three views with units and offsets of their own, a third of the views lost."""
    rng, kinds = np.random.default_rng(seed), np.asarray(kinds)
    there = rng.random((len(kinds), 3)) >= 0.3
    there[~there.any(axis=1), 0] = True
    ids = [f"s{first + row}" for row in range(len(kinds))]
    views = {}
    for name, unit, centres, own in zip(("text", "image", "price"), UNITS, CENTRES, there.T, strict=True):
        values = 50 * unit + unit * (centres[kinds] + rng.normal(size=(len(kinds), centres.shape[1])))
        columns = [f"{name}{c}" for c in range(values.shape[1])]
        views[name] = pd.DataFrame(np.where(own[:, None], values, np.nan), ids, columns)
    return views


OLD = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], (70, 50, 30)))


def written(folder, kinds, seed, first=0):
    """Files of samples, one per view."""
    folder.mkdir()
    for name, view in drawn(kinds, seed, first).items():
        view.dropna(how="all").to_csv(folder / f"{name}.csv", index_label="id")
    return [str(folder / f"{name}.csv") for name in ("text", "image", "price")]


OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]


@pytest.fixture(scope="module")
def run(tmp_path_factory, quick_map):
    folder = tmp_path_factory.mktemp("runs")
    files = written(folder / "week1", OLD, 0)
    done = CliRunner().invoke(main, ["fit", *files, "--clusters=3", *OPTIONS, "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return folder / "run"


@pytest.fixture(scope="module")
def fit(run):
    return load(run / "model", device="cpu").rename({1: "shoes"})


@pytest.fixture
def fitted(fit):
    return copy.deepcopy(fit)


def old_kinds(model):
    """Kinds of the first samples, in the order in which a model has them: that of its files."""
    return OLD[[int(name[1:]) for name in model.ids_[:150]]]


def members(labels, kinds, kind):
    """Where most samples of a kind are, and their share."""
    counts = np.bincount(labels[kinds == kind])
    return counts.argmax(), counts.max() / counts.sum()


def test_samples_of_known_kinds_change_nothing_but_join(fitted):
    before, new = fitted.labels_.copy(), np.repeat([0, 1, 2], (9, 20, 11))
    made = fitted.update(drawn(new, 1, 150))
    assert (made.chosen, made.founded, made.empty) == (40, [], [])
    assert fitted.n_clusters_ == 3
    assert fitted.cluster_names_ == {1: "shoes"}
    assert len(fitted.ids_) == len(fitted.labels_) == len(fitted.embedding_) == len(fitted.soft_labels_) == 190
    assert fitted.ids_[150] == "s150"
    assert np.array_equal(fitted.predict(drawn(new, 1, 150)), fitted.labels_[150:])  # as they were in training
    assert np.mean(fitted.labels_[:150] == before) >= 0.98
    for kind in range(3):
        assert members(fitted.labels_[150:], new, kind)[0] == members(before, old_kinds(fitted), kind)[0]


def test_what_moved_is_listed_with_both_clusters(fitted):
    before = fitted.labels_.copy()
    # From weights that are no longer those of the clusters many samples move.
    fitted._model.network.centers.data[[0, 1]] = fitted._model.network.centers.data[[1, 0]]
    made = fitted.update(drawn([0] * 5, 1, 150))
    literal = [
        (name, int(was), int(now))
        for name, was, now in zip(fitted.ids_[:150], before, fitted.labels_[:150], strict=True)
        if was != now
    ]
    assert literal
    assert [tuple(one) for one in made.moved] == literal
    assert made.evidence == {"samples": 150, "stayed": 1 - len(literal) / 150}
    assert fitted.decisions_["update"]["moved"] == made.moved
    assert f"{len(literal)} of these moved" in fitted.decisions_["update"]["why"]


@pytest.mark.slow
def test_new_kinds_get_new_numbers(fitted):
    """One new kind is in the tests below, two at a time here."""
    before, sizes, known = fitted.labels_.copy(), (30, 16), fitted._model
    config = replace(known.method.config, joint_epochs=120)  # two kinds at a time take longer to be learned
    fitted._model = replace(known, method=replace(known.method, config=config))
    new = np.concatenate([np.repeat([0, 1, 2], (10, 8, 12)), np.repeat([3, 4][: len(sizes)], sizes)])
    made = fitted.update(drawn(new, 1, 150))
    labels = fitted.labels_[150:]
    assert [one["label"] for one in made.founded] == list(range(3, 3 + len(sizes)))
    assert fitted.n_clusters_ == 3 + len(sizes) == fitted.soft_labels_.shape[1] == len(fitted.trust_.clusters)
    assert np.mean(fitted.labels_[:150] == before) >= 0.98
    for place in range(len(sizes)):
        number, share = members(labels, new, 3 + place)
        assert number >= 3
        assert share >= 0.8
        assert np.mean(new[labels == number] == 3 + place) >= 0.8
    assert {members(labels, new, kind)[0] for kind in range(3)} == {0, 1, 2}


@pytest.mark.slow
def test_a_kind_that_comes_in_small_portions_is_found_when_there_are_enough(fitted, tmp_path):
    first = fitted.update(drawn([0, 1, 2, 0, 1] + [3] * 5, 1, 150))
    assert (first.founded, fitted.n_clusters_) == ([], 3)
    assert len({f"s{row}" for row in range(155, 160)} & set(first.waiting)) >= 4
    fitted.save(tmp_path / "model")
    again, later = load(tmp_path / "model", device="cpu"), drawn([0, 1, 2, 0, 1] + [3] * 9, 2, 160)
    second = again.update(later)
    assert [one["label"] for one in second.founded] == [3]
    assert (again.labels_[[*range(155, 160), *range(165, 174)]] == 3).mean() >= 0.8
    assert {name for name, _, now in second.moved if now == 3} <= {f"s{row}" for row in range(150, 160)}
    fitted.update(later)
    assert np.array_equal(fitted.labels_, again.labels_)  # as if it had never been saved


def test_numbers_without_a_cluster_stay_empty(fitted, monkeypatch):
    """Of a model whose three clusters have the numbers 0, 2 and 3; a new one is learned in up to four rounds."""
    epochs, train = [], updating._train
    monkeypatch.setattr(updating, "_train", lambda *job: epochs.append(job[2]) or train(*job))
    embedding = torch.from_numpy(fitted.embedding_)
    given = Fitted(fitted._model, embedding, fitted.history_, fitted.objectives_, fitted.decisions_)
    found = with_numbers(given, np.array([0, 2, 3]), 4)
    fitted._take_over(found.model, embedding, found.history, found.objectives, found.decisions)
    assert (set(fitted.labels_.tolist()), fitted.n_clusters_) == ({0, 2, 3}, 4)
    made = fitted.update(drawn([0, 1] * 5 + [3] * 20, 1, 150))
    assert (epochs[0], set(epochs[1:])) == (3, {6})
    assert 2 <= len(epochs) <= 5
    assert made.empty == [1]
    assert "cluster 1 is empty" in words(made)
    assert (fitted.labels_[-20:] == 4).mean() >= 0.8
    assert not (fitted.labels_ == 1).any()


def test_only_a_part_of_many_old_samples_is_trained_on(fitted, monkeypatch):
    seen = []
    monkeypatch.setattr(updating, "_CORESET", 20)
    monkeypatch.setattr(updating, "_PER_NEW", 1)
    train = updating._train
    monkeypatch.setattr(updating, "_train", lambda *job: seen.append(job[2:]) or train(*job))
    fitted.update(drawn([0, 1, 2], 1, 150))
    ((epochs, given),) = seen
    assert epochs == 24 / 8  # an eighth of those of the fit
    rows = given[0].tolist()
    assert len(rows) == 23
    assert rows[-3:] == [150, 151, 152]
    assert set(old_kinds(fitted)[rows[:20]]) == {0, 1, 2}


def changed(change):
    views = drawn([0, 1, 2], 1, 150)
    if change == "new column":
        views["text"]["more"] = 1.0
    elif change == "lost column":
        del views["image"]["image4"]
    else:
        views = {name: view.set_axis(["s150", "s7", "s9"]) for name, view in views.items()}
    return views


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("new column", r"the columns are not those of the model: text 1 \('more'\); give the columns that the model"),
        ("lost column", "view 'image' has no value in 1 columns, such as 'image4'"),
        ("known id", "id 's7' and 1 more are among the training samples already"),
    ],
)
def test_what_cannot_join_is_refused_and_the_model_stays(fitted, change, message):
    before = copy.deepcopy(fitted.__dict__)
    with pytest.raises(DataError, match=message):
        fitted.update(changed(change))
    assert np.array_equal(fitted.soft_labels_, before["soft_labels_"])
    assert fitted.decisions_ == before["decisions_"]


def test_a_training_that_diverges_leaves_the_model_as_it_was(fitted, monkeypatch):
    before, labels = fitted._model, fitted.labels_

    def diverged(runs):
        raise Diverged("the loss is not finite")

    monkeypatch.setattr(updating, "check_diverged", diverged)
    with pytest.raises(Diverged):
        fitted.update(drawn([0, 1, 2], 1, 150))
    assert fitted._model is before
    assert fitted.labels_ is labels


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (np.arange(3), np.arange(2), [0, 1, 2, 3, 4]),
        (np.arange(3), np.array(["a"]), [0, 1, 2, "a"]),
        (np.array([5, 7]), np.array([6, 8]), [5, 7, 6, 8]),
    ],
)
def test_ids_are_counted_on_or_taken_as_they_are(old, new, found):
    assert joined_ids(old, new).tolist() == found


def test_labels_that_count_from_0_are_no_row_numbers():
    labels = np.arange(3).astype(object)
    with pytest.raises(DataError, match="id 0 and 1 more are among the training samples already"):
        joined_ids(labels, labels[:2])
    with pytest.raises(DataError, match="id 0 and 1 more are among"):
        joined_ids(np.arange(3), labels[:2])
    with pytest.raises(DataError, match="the new samples have no ids but row numbers"):
        joined_ids(labels, np.arange(2))
    found = joined_ids(labels, np.array([3, 4]))
    with pytest.raises(DataError, match="id 3 and 1 more are among"):
        joined_ids(found, np.array([3, 4]))


def test_whole_numbers_in_files_are_labels_and_stay_so_in_a_model(fitted, tmp_path):
    pd.DataFrame({"id": range(150), "x": np.sin(range(150))}).to_parquet(tmp_path / "a.parquet", index=False)
    np.savez(tmp_path / "b.npz", view_0=np.eye(3), ids=np.arange(3))
    np.savez(tmp_path / "c.npz", view_0=np.eye(3))
    ids = read_views(tmp_path / "a.parquet").ids
    for model_ids, are_labels in ((ids, True), (np.arange(150), False)):
        fitted.ids_ = model_ids
        fitted.save(tmp_path / str(are_labels))
        opened = load(tmp_path / str(are_labels), device="cpu").ids_
        assert opened.tolist() == list(range(150))
        assert only_counted(opened) != are_labels
    assert not only_counted(read_views(tmp_path / "b.npz").ids)
    assert only_counted(read_views(tmp_path / "c.npz").ids)
    assert [only_counted(views.ids) for views in read_chunks(tmp_path / "a.parquet", 100)] == [False, False]


def test_ids_that_are_written_alike_or_only_count_rows_are_refused():
    with pytest.raises(DataError, match="no ids but row numbers, those of the model have ids such as 'a'; give"):
        joined_ids(np.array(["a", "b"]), np.arange(2))
    with pytest.raises(DataError, match="two ids are both written '1'"):
        joined_ids(np.array(["1", "2"]), np.array([5, 1]))


@pytest.mark.parametrize(
    ("old", "new"),
    [(["0", "x"], ["00"]), (["s0", "s1"], ["s2", "S0"]), (["s017"], ["s17"]), ([17, 5], ["017"]), (["a-1"], ["a.1"])],
)
def test_ids_of_training_samples_that_are_spelled_otherwise_are_warned_of(old, new):
    """They were learned from twice; but A0AO and A0A0 may be two samples."""
    said = f"1 of the new ids differ from ids .* such as {new[-1]!r} from {old[0]!r}; if these"
    with pytest.warns(SuspiciousDataWarning, match=said):
        joined_ids(np.array(old, dtype=object), np.array(new, dtype=object))
    assert joined_ids(np.array(["s1", "s2"]), np.array(["s10", "s20"])).tolist() == ["s1", "s2", "s10", "s20"]


def test_an_update_in_words():
    founded = [{"label": 4}, {"label": 5}]
    made = Update(1200, {"samples": 3000, "stayed": 0.999}, [("a", 0, 1)], founded, [2], ["b", "c"])
    said = "1,200 new samples joined 3,000; 1 of these moved; clusters 4 and 5 are new; cluster 2 is empty"
    assert words(made) == f"{said}; 2 samples fit nowhere yet"


def test_the_command_keeps_the_former_version_and_reports_read_both(run, tmp_path):
    place = shutil.copytree(run, tmp_path / "shop")
    (place / "notes.txt").write_text("mine")
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    files = written(tmp_path / "week2", [0, 1, 2, 1] + [3] * 20, 1, 150)
    done = CliRunner().invoke(main, ["update", str(place), *files, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["samples"], facts["new"], facts["founded"]) == (174, 24, [3])
    old = place / "versions" / "shop-1"
    assert facts["former version"] == str(old)
    gone = {path.name for path in old.iterdir()} - {path.name for path in place.iterdir()}
    assert gone == {"explanation"}
    assert facts["only there"] == "explanation; viewfuse explain makes an explanation anew"
    assert {name: (old / name).read_bytes() for name in before} == before
    assert (place / "notes.txt").read_text() == "mine"
    labels = pd.read_csv(place / "labels.csv", index_col="id")
    model = load(place / "model", device="cpu")
    assert labels["label"].tolist() == model.labels_.tolist()
    assert json.loads((place / "summary.json").read_text())["cluster_sizes"] == np.bincount(model.labels_).tolist()
    moved, was = pd.read_csv(place / "moved.csv"), pd.read_csv(run / "labels.csv", index_col="id")["label"]
    now = labels["label"]
    literal = [(name, was[name], now[name]) for name in was.index if was[name] != now[name]]
    assert list(moved.itertuples(index=False, name=None)) == literal
    assert "3" in (place / "report.html").read_text()
    both = CliRunner().invoke(main, ["report", str(old), str(place), "--out", str(tmp_path / "both.html")])
    assert both.exit_code == 0, both.output
    again = CliRunner().invoke(main, ["update", str(place), *files])
    assert (again.exit_code, "among the training samples already" in again.output) == (2, True)
    assert sorted(path.name for path in (place / "versions").iterdir()) == ["shop-1"]


def test_a_model_alone_can_be_updated_twice(run, tmp_path):
    place = shutil.copytree(run / "model", tmp_path / "model")
    for week in (2, 3):
        files = written(tmp_path / f"week{week}", [0, 1, 2] * 4, week, 150 * week)
        done = CliRunner().invoke(main, ["update", str(place), *files])
        assert done.exit_code == 0, done.output
        assert "12 new samples joined" in done.output
    assert [len(load(place / "versions" / f"model-{n}", device="cpu").ids_) for n in (1, 2)] == [150, 162]
    assert len(load(place, device="cpu").ids_) == 174


def test_an_updated_run_has_its_map_in_the_formats_that_it_had(run, tmp_path):
    place = shutil.copytree(run, tmp_path / "shop")
    (place / "map.png").rename(place / "map.svg")
    done = CliRunner().invoke(main, ["update", str(place), *written(tmp_path / "week2", [0, 1, 2] * 4, 1, 150)])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in place.glob("map.*")) == ["map.csv", "map.svg"]


@pytest.mark.fault
def test_a_kill_during_an_update_leaves_the_old_or_the_new_run(run, tmp_path):
    """At twenty moments, evenly over the time that the command takes."""
    files = written(tmp_path / "week2", [0, 1, 2, 1] + [3] * 20, 1, 150)
    seen = set()

    def begun(name):
        place = shutil.copytree(run, tmp_path / name)
        command = [sys.executable, "-m", "viewfuse", "update", str(place), *files, "--device=cpu"]
        return place, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    place, process = begun("whole")
    assert process.wait() == 0
    seconds = time.monotonic() - began
    for number in range(20):
        place, process = begun(f"run{number}")
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds * (0.5 + 0.03 * number))
        process.kill()
        process.wait()
        model, labels = load(place / "model", device="cpu"), pd.read_csv(place / "labels.csv")
        summary = json.loads((place / "summary.json").read_text())
        assert len(model.ids_) == len(labels) == summary["samples"]
        assert labels["label"].tolist() == model.labels_.tolist()
        assert (place / "versions").is_dir() == (len(model.ids_) == 174)
        seen.add(len(model.ids_))
    assert seen <= {150, 174}


def test_logarithms_do_not_join_a_model_of_counts():
    """As a new kind of samples, say."""
    rng = np.random.default_rng(0)
    genes = rng.poisson(np.where(np.arange(60)[:, None] % 2, [[2.0] * 20 + [9.0] * 20], [[9.0] * 20 + [2.0] * 20]))
    model = URRL(2, config=Config(pretrain_epochs=1, joint_epochs=0), random_state=0).fit({"rna": genes.astype(float)})
    before = model.labels_.tolist()
    with pytest.raises(DataError, match=r"view 'rna': most values are fractions, the model was fitted on whole number"):
        model.update({"rna": np.log2(1 + genes)})
    assert model.labels_.tolist() == before
    model.update({"rna": rng.permuted(genes, axis=0).astype(float)})
    assert len(model.labels_) == 120


def test_an_update_warns_of_values_far_out_as_a_prediction_does(fitted):
    new = {name: 1e3 * table for name, table in drawn([0] * 12, 9, 10_000).items()}
    with pytest.warns(OutOfRangeWarning):
        fitted.update(new)
