"""viewfuse predict MODEL 'shards/*': each file by itself, and never twice."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pytest
from click.testing import CliRunner

import fake_ray
from conftest import make_blobs
from viewfuse import URRL, Config, Views, load
from viewfuse.cli import main
from viewfuse.cli import predict as predict_verb
from viewfuse.cli.options import on_engine
from viewfuse.distributed import sharded_predict
from viewfuse.distributed.sharded_predict import predict_shards
from viewfuse.errors import CannotWrite, DataError
from viewfuse.io.source import FileSource, FileView, split_by_prefix

ROWS = (7, 12, 5)
TRUSTED = {"reading": {"trusted": True}}
TINY = {"config": Config(embedding_dim=4, hidden_dim=8, pretrain_epochs=1, joint_epochs=1), "scaling": "standard"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    views = dict(zip("ab", make_blobs(40, 2, missing=0.2)[0], strict=False))
    folder = tmp_path_factory.mktemp("sharded") / "model"
    URRL(2, **TINY, random_state=0, device="cpu").fit(views).save(folder)
    return folder


def write(path, seed, rows):
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(40)[:rows]
    views = [view[chosen] + 0.1 * rng.normal(size=view[chosen].shape) for view in make_blobs(40, 2, missing=0)[0]]
    np.savez(path, a=views[0], b=views[1], ids=np.array([f"{path.stem}-{i}" for i in range(rows)]))


def write_all(folder):
    folder.mkdir()
    for number, rows in enumerate(ROWS):
        write(folder / f"part-{number}.npz", number, rows)
    return sorted(folder.iterdir())


@pytest.fixture
def shards(tmp_path):
    return write_all(tmp_path / "shards")


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """What one run says of all shards, and the labels that it writes."""
    folder = tmp_path_factory.mktemp("whole")
    result = many(model, write_all(folder / "shards"), folder / "labels")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), {path.name: path.read_bytes() for path in (folder / "labels").glob("*.csv")}


def predict(model, pattern, out, *options):
    words = ["predict", model, pattern, "--out", out, "--trusted", "--device", "cpu", *options]
    return CliRunner().invoke(main, [str(word) for word in words])


def many(model, shards, out, *options):
    return predict(model, shards[0].parent / "*.npz", out, "--json", *options)


def changed(out):
    return {path.name: path.stat().st_mtime_ns for path in out.glob("*.csv")}


def test_each_file_gets_the_labels_that_it_would_get_alone(model, shards, whole, tmp_path):
    facts, labels = whole
    assert (facts["shards"], facts["skipped"], facts["samples"]) == (3, 0, sum(ROWS))
    assert sum(facts["cluster_sizes"]) == sum(ROWS)
    for shard in shards:
        alone = tmp_path / f"alone-{shard.stem}.csv"
        assert predict(model, shard, alone).exit_code == 0
        assert labels[f"{shard.stem}.csv"] == alone.read_bytes()


def test_what_is_done_is_skipped_and_what_changed_is_done_again(model, shards, tmp_path):
    out = tmp_path / "labels"
    first = json.loads(many(model, shards, out).stdout)
    before = changed(out)
    again = json.loads(many(model, shards, out).stdout)
    assert again == {**{k: v for k, v in first.items() if k != "rows_per_second"}, "skipped": 3}
    assert changed(out) == before
    write(shards[1], 9, 12)
    (out / "part-2.csv").write_text("cut")
    assert json.loads(many(model, shards, out).stdout)["skipped"] == 1
    after = changed(out)
    assert [name for name in before if before[name] == after[name]] == ["part-0.csv"]
    assert json.loads(many(model, shards, out, "--alpha", "0.9").stdout)["skipped"] == 0
    assert json.loads(many(model, shards, out, "--force", "--alpha", "0.9").stdout)["skipped"] == 0


def test_labels_of_another_model_are_replaced_only_by_force(model, shards, tmp_path):
    out = tmp_path / "labels"
    predict_shards(model, shards, out, device="cpu", **TRUSTED)
    before = {path.name: path.read_bytes() for path in out.glob("*.csv")}
    load(model).save(tmp_path / "other", keep=20)
    with pytest.raises(CannotWrite, match="has labels of another model; give another folder, or --force"):
        predict_shards(tmp_path / "other", shards, out, device="cpu", **TRUSTED)
    assert {path.name: path.read_bytes() for path in out.glob("*.csv")} == before
    next(out.glob("*.csv")).unlink()  # what is left is still of the other model
    with pytest.raises(CannotWrite, match="has labels of another model"):
        predict_shards(tmp_path / "other", shards[:1], out, device="cpu", **TRUSTED)
    assert predict_shards(tmp_path / "other", shards, out, device="cpu", again=True, **TRUSTED)["skipped"] == 0
    assert predict_shards(tmp_path / "other", shards, out, device="cpu", **TRUSTED)["skipped"] == len(shards)


@pytest.mark.parametrize("where", ["predict_parts", "write_file"])
def test_a_run_that_was_stopped_goes_on_with_the_same_labels(model, shards, whole, tmp_path, monkeypatch, where):
    """Between labels and record, too, where the labels are there but nothing says so."""
    out, own, left = tmp_path / "labels", getattr(sharded_predict, where), [1]

    def stopping(*args):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return own(*args)

    with monkeypatch.context() as patch:
        patch.setattr(sharded_predict, where, stopping)
        stopped = many(model, shards, out)
    assert stopped.exit_code == 130
    assert "interrupted; 1 of 3 files were done; the same command resumes with the others" in stopped.stderr
    assert json.loads(many(model, shards, out).stdout)["skipped"] == 1
    assert {path.name: path.read_bytes() for path in out.glob("*.csv")} == whole[1]
    assert sorted(path.name for path in out.iterdir()) == ["done", "part-0.csv", "part-1.csv", "part-2.csv"]


def test_a_broken_file_does_not_stop_the_others(model, shards, tmp_path):
    shards[1].write_bytes(b"not an archive")
    result = many(model, shards, tmp_path / "labels")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "1 of 3 files has no labels, the others have:" in result.stderr
    assert "part-1.npz" in result.stderr
    write(shards[1], 1, 12)
    assert json.loads(many(model, shards, tmp_path / "labels").stdout)["skipped"] == 2


def test_where_all_files_are_broken_no_others_are_spoken_of(model, shards, tmp_path):
    for shard in shards:
        shard.write_bytes(b"not an archive")
    assert "viewfuse: none of 3 files has labels: " in many(model, shards, tmp_path / "labels").stderr
    for shard in shards[1:]:
        write(shard, 1, 5)
    many(model, shards, tmp_path / "labels")
    assert "viewfuse: the file that was left has no labels: " in many(model, shards, tmp_path / "labels").stderr


@pytest.fixture(scope="module")
def dotted(tmp_path_factory):
    """A model whose columns are called VIEW.COLUMN, as those of fit-large may be, and a table of its samples."""
    pa, folder = pytest.importorskip("pyarrow"), tmp_path_factory.mktemp("dotted")
    views = dict(zip("ab", make_blobs(40, 2, missing=0)[0], strict=False))
    names = {view: [f"{view}.{c}" for c in range(x.shape[1])] for view, x in views.items()}
    given = Views(views, columns=[names["a"], names["b"]], ids=[f"s{i}" for i in range(40)])
    URRL(2, **TINY, random_state=0, device="cpu").fit(given).save(folder / "model")
    columns = {name: x[:, c] for view, x in views.items() for c, name in enumerate(names[view])}
    return folder / "model", pa.table({"id": given.ids.tolist(), **columns})


def test_views_are_known_by_the_prefixes_of_columns(dotted, tmp_path):
    from pyarrow import parquet

    model, table = dotted
    mixed = table.select(["id", *sorted(table.column_names[1:], key=lambda name: name.partition(".")[2])])
    for name, one in {
        "wide": table,
        "mixed": mixed,
        "only_a": table.select([n for n in table.column_names if n[:2] in ("id", "a.")]),
    }.items():
        parquet.write_table(one, tmp_path / f"{name}.parquet")
    blocks = ("--block", "a=a.*", "--block", "b=b.*")
    assert predict(model, tmp_path / "wide.parquet", tmp_path / "named.csv", *blocks).exit_code == 0
    assert predict(model, tmp_path / "wide.parquet", tmp_path / "wide.csv").exit_code == 0
    done = predict(model, tmp_path / "[mw]i*.parquet", tmp_path / "labels")
    assert done.exit_code == 0, done.output
    texts = [(tmp_path / name).read_text() for name in ("named.csv", "wide.csv", "labels/wide.csv", "labels/mixed.csv")]
    assert len(set(texts)) == 1
    assert predict(model, tmp_path / "only_a.parquet", tmp_path / "a.csv").exit_code == 0
    assert (tmp_path / "a.csv").read_text().splitlines()[1].split(",")[6] == "a"


def test_a_dot_in_a_name_is_no_view_unless_the_model_knows_it():
    table = FileView(Path("genes.parquet"), "genes", np.zeros((2, 3)), ["TP53.1", "TP53.2", "a.1"], ["s1", "s2"])
    assert split_by_prefix(FileSource([table]), ["a", "genes2"]).names == ("genes",)
    assert split_by_prefix(FileSource([table]), ["a", "TP53", "genes"]).names == ("genes",)
    assert split_by_prefix(FileSource([table]), ["b", "a", "TP53"]).names == ("a", "TP53")


def test_samples_of_a_wide_table_keep_their_order_and_what_is_known_of_them():
    table = FileView(Path("w.h5mu"), "w", np.zeros((2, 2)), ["a.1", "b.1"], ["s2", "s1"])
    assert split_by_prefix(FileSource([table], order=["s1", "s2"]), ["a", "b"]).ids.tolist() == ["s1", "s2"]
    bare = FileSource([replace(table, ids=None)], ids=np.array(["p", "q"]), labels=np.array([1, 2]))
    split = split_by_prefix(bare, ["a", "b"])
    assert (split.names, split.ids.tolist(), split.labels.tolist()) == (("a", "b"), ["p", "q"], [1, 2])


def test_rows_are_never_all_in_memory(model, shards, tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_predict, "ROWS_AT_A_TIME", 5)
    own, seen = sharded_predict.predict_parts, []

    def watching(fitted, parts, *others):
        return own(fitted, (seen.append(len(views)) or views for views in parts), *others)

    monkeypatch.setattr(sharded_predict, "predict_parts", watching)
    assert predict_shards(model, shards, tmp_path / "labels", device="cpu", **TRUSTED)["samples"] == sum(ROWS)
    assert seen == [5, 2, 5, 5, 2, 5]


def test_each_file_can_be_one_table_of_a_named_view(model, tmp_path):
    for number in range(2):
        with (tmp_path / f"t{number}.csv").open("w", newline="") as file:
            rows = make_blobs(6, 2, missing=0, seed=number)[0][0]
            csv.writer(file).writerows([["id", *range(rows.shape[1])], *([i, *row] for i, row in enumerate(rows))])
    result = predict(model, f"a={tmp_path}/t*.csv", tmp_path / "labels")
    assert result.exit_code == 0, result.output
    assert ",a," in (tmp_path / "labels" / "t1.csv").read_text()


def test_mistakes_are_one_line(model, shards, tmp_path):
    folder, out = shards[0].parent, tmp_path / "labels"
    (folder / "part-0.csv").write_text("id,x\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").touch()
    for words, message in {
        (f"{folder}/*.npz", tmp_path / "labels.csv"): "--out is a folder here, for several files; leave off .csv",
        (f"{folder}/x*.npz", out): "means no file; check the pattern",
        (f"{folder}/*", out): "would both be predicted into",
        (f"{folder}/*.npz", folder): "which is read; give another --out",
        (f"{tmp_path}/**/*.npz", tmp_path, "--force"): "which is read; give another",
        (f"{folder}/*.npz", tmp_path / "taken"): "exists already",
        (shards[0], out, shards[1]): "a quoted pattern, such as 'shards/*.parquet'",
        (shards[0], out, "--engine", "ray"): "--engine ray is for many files; give a quoted pattern",
        (shards[0], out, "--jobs", "2"): "--jobs 2 is for many files; give a quoted pattern",
        (f"a={folder}/*.npz", out, f"b={folder}/*.npz"): "a and b: files of a pattern are predicted one by one",
    }.items():
        result = predict(model, *words)
        assert result.exit_code == 2, message
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert not out.exists()


def test_without_ray_one_line_says_what_to_install(model, shards, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = many(model, shards, tmp_path / "labels", "--engine", "ray")
    assert result.exit_code == 2
    assert "--engine ray needs the package ray, which is not installed; pip install ray" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--jobs", "2"),
        pytest.param(("--engine", "ray"), marks=pytest.mark.slow),
        pytest.param(("--engine", "ray", "--jobs", "2"), marks=pytest.mark.slow),
    ],
)
def test_files_side_by_side_are_written_as_in_turn(model, shards, whole, tmp_path, monkeypatch, words):
    ray = fake_ray.put(monkeypatch)
    here, labels = whole
    with joblib.parallel_config("threading"):  # test_jobs.py has workers, which take seconds to start
        there = json.loads(many(model, shards, tmp_path / "there", *words).stdout)
    assert all(here[name] == there[name] for name in set(here) - {"rows_per_second", "written to"})
    assert len(ray.events) == 2 * ("ray" in words)
    assert {path.name: path.read_bytes() for path in (tmp_path / "there").glob("*.csv")} == labels


@pytest.mark.parametrize(("n_jobs", "files"), [(None, 1), (2, 1), (2, 2)])
def test_rows_and_bytes_are_counted_once_however_many_work(model, shards, tmp_path, monkeypatch, n_jobs, files):
    """A file that is alone is counted as it is read, files side by side when they are done."""
    seen, jobs, run = [], [], sharded_predict.run_jobs
    monkeypatch.setattr(
        sharded_predict.ShardProgress, "advance", lambda self, rows, size, files=0: seen.append((rows, size, files))
    )
    monkeypatch.setattr(sharded_predict, "run_jobs", lambda *args, **ways: jobs.extend(args[1]) or run(*args, **ways))
    with joblib.parallel_config("threading"):
        predict_shards(
            model, shards[:files], tmp_path / "labels", device="cpu", n_jobs=n_jobs, reading={"trusted": True}
        )
    sizes = [path.stat().st_size for path in shards[:files]]
    assert [sum(column) for column in zip(*seen, strict=True)] == [sum(ROWS[:files]), sum(sizes), files]
    assert [len(job) for job in jobs] == [3 if files == 1 else 2] * files  # the count cannot travel to other processes


def test_a_broken_file_does_not_stop_those_beside_it(model, shards, tmp_path):
    shards[1].write_bytes(b"no archive")
    refused = pytest.raises(DataError, match=r"^1 of 3 files has no labels, the others have: .*part-1\.npz")
    with refused, joblib.parallel_config("threading"):
        predict_shards(model, shards, tmp_path / "labels", device="cpu", n_jobs=2, **TRUSTED)
    assert sorted(path.name for path in (tmp_path / "labels").glob("*.csv")) == ["part-0.csv", "part-2.csv"]


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_real_ray_writes_the_same(model, shards, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    places = [place for place in sys.path if place]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    predict_shards(model, shards, tmp_path / "here", device="cpu")
    with on_engine("ray", None, "cpu"):
        predict_shards(model, shards, tmp_path / "there", device="cpu")
    for path in (tmp_path / "here").glob("*.csv"):
        assert (tmp_path / "there" / path.name).read_bytes() == path.read_bytes()


def test_a_pattern_is_one_unless_a_file_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a[1].parquet").touch()
    (tmp_path / "plain.parquet").touch()
    files = ["a*.parquet", "b[1].parquet", "a[1].parquet", "plain.parquet", "absent.parquet"]
    assert [predict_verb._is_pattern(Path(file)) for file in files] == [True, True, False, False, False]
