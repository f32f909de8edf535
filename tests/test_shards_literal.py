"""Shards, first pass, label files and labels of many files beside literal versions, a few rows at a time."""

from __future__ import annotations

import csv
import json
import math
import shutil
import warnings
import zlib
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sharded_data import written
from test_distributed_literal import ALONE, SMALL, as_table, hashed, mixed, unlike_rows
from viewfuse import Views, load
from viewfuse.distributed import first_pass, sharded_predict, shards
from viewfuse.distributed import fit_large as fit_module
from viewfuse.distributed.first_pass import BucketReader, Buckets, ColumnFacts, lowest, parts_of, run_first_pass
from viewfuse.distributed.fit_large import _Job, fit_large
from viewfuse.distributed.sharded_predict import (
    Shard,
    ShardProgress,
    ShardTask,
    predict_shard,
    predict_shards,
    shards_of,
)
from viewfuse.distributed.shards import Shards, hashed_ids
from viewfuse.errors import CannotWrite, DataError, EmptySampleWarning
from viewfuse.io.writers import NO_NAMES, Judged
from viewfuse.utils.atomic import sealed

SIZES = (1, 40, 31)
"""Rows per shard; two of the last one's have no view at all."""


def rows_with_gaps():
    """Values of shape (rows, columns of all views), mask, and ids: two rows without a view, and an empty cell."""
    views, mask, _, ids = unlike_rows(72)
    mask[[50, 71]] = False
    views[1][3, 0] = np.nan
    mask[3] = True
    return views, mask, ids


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(shards, "_ROWS", 8)


def write_parts(folder, table, sizes=SIZES):
    folder.mkdir()
    for i, size in enumerate(sizes):
        pq.write_table(table.slice(sum(sizes[:i]), size), folder / f"part{i}.parquet")
    return folder


@pytest.fixture
def data(tmp_path):
    views, mask, ids = rows_with_gaps()
    return write_parts(tmp_path / "data", as_table(views, mask, ids))


def wide_rows():
    views, mask, ids = rows_with_gaps()
    wide = np.concatenate([np.where(mask[:, [v]], view, np.nan) for v, view in enumerate(views)], axis=1)
    return wide.astype(np.float32), ids


# --- reading


def test_rows_are_read_a_few_at_a_time_and_those_without_a_view_are_left_out(data, few):
    own, (wide, ids), start = Shards(data), wide_rows(), 0
    assert own.counts == list(SIZES)
    assert [path.name for path in own.paths] == ["part0.parquet", "part1.parquet", "part2.parquet"]
    for path, size in zip(own.paths, SIZES, strict=True):
        parts = list(own.read(path))
        places = [[i for i in range(first, min(first + 8, start + size)) if i not in (50, 71)]
                  for first in range(start, start + size, 8)]  # fmt: skip
        assert [part.ids.to_pylist() for part in parts] == [[ids[i] for i in rows] for rows in places]
        for part, rows in zip(parts, places, strict=True):
            np.testing.assert_array_equal(part.values, wide[rows])
            assert part.keys.tolist() == [hashed(ids[i]) for i in rows]
        start += size


def test_the_row_of_a_wrong_list_is_counted_over_all_parts(tmp_path, few):
    lists = [None] * 9 + [[1.0, 2.0]] * 11 + [[1.0]]
    pq.write_table(pa.table({"id": [f"s{i}" for i in range(21)], "v": lists}), tmp_path / "a.parquet")
    own = Shards(tmp_path / "a.parquet")
    assert own.layout.columns == (range(2),)
    with pytest.raises(DataError, match=r"column 'v', data row 21: 1 numbers instead of 2"):
        list(own.read(own.paths[0]))


def test_lists_may_have_one_number_and_begin_late(tmp_path, few):
    table = pa.table({"id": [1, 2, 3], "v": [None, [], [4.0]], "w": [[1.0], [2.0], [3.0]]})
    pq.write_table(table, tmp_path / "a.parquet")
    own = Shards(tmp_path / "a.parquet")
    assert own.layout.columns == (range(1), range(1))
    (rows,) = own.read(own.paths[0])
    np.testing.assert_array_equal(rows.values, np.array([[np.nan, 1], [np.nan, 2], [4, 3]], np.float32))
    assert rows.keys.tolist() == [mixed(number + 1) for number in (1, 2, 3)]


def test_columns_are_found_by_their_place_among_all(data):
    own = Shards(data)
    found = [own.where(own.paths[0], column).split("view ")[1] for column in range(5)]
    assert found == [f"'v0', column {c}" for c in range(3)] + [f"'v1', column {c}" for c in range(2)]


def test_hidden_files_and_folders_are_no_shards(data):
    table = pq.read_table(data / "part0.parquet")
    for name in ("_temporary/0/x.parquet", ".old/x.parquet", "_x.parquet", "deep/y.parquet"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, data / name)
    expected = ["deep-y.parquet", "part0.parquet", "part1.parquet", "part2.parquet"]
    assert [name for _, name in Shards(data).named] == expected
    assert Shards([data / "part2.parquet", data / "part0.parquet", data / "part2.parquet"]).counts == [1, 31]


def test_a_digest_is_of_all_shards_and_not_of_their_names(data, tmp_path):
    known = Shards(data).digest()
    (data / "part0.parquet").rename(data / "z.parquet")
    assert Shards(data).digest() == known
    views, mask, ids = rows_with_gaps()
    views[0][70, 0] = 9e6  # the highest of its column, in the last shard
    assert Shards(write_parts(tmp_path / "other", as_table(views, mask, ids))).digest() != known


# --- hashes and buckets


def test_hashes_are_cut_into_equal_parts():
    assert [lowest(share) for share in (0.0, 0.25, 1.0, 3.0)] == [0, 2**62, 2**64 - 1, 2**64 - 1]
    keys = np.array([0, 9, 10, 19, 29, 30, 99], np.uint64)
    assert parts_of(keys, 29, 3).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_ids_are_hashed_by_all_their_bytes_wherever_they_lie():
    names = ["", "a", "ab", "ba", "ä", "a" * 40]
    ids = pa.array(names)
    assert hashed_ids(ids.slice(1), "f").tolist() == [hashed(name) for name in names[1:]]
    assert hashed_ids(ids.slice(2, 2), "f").tolist() == [hashed("ab"), hashed("ba")]
    assert hashed_ids(ids.slice(1).dictionary_encode(), "f").tolist() == [hashed(name) for name in names[1:]]
    whole = pa.array([name.encode() for name in names], pa.large_binary())  # of which a part is not copied
    assert hashed_ids(whole.slice(2, 3), "f").tolist() == [hashed(name) for name in names[2:5]]
    assert hashed_ids(pa.array([-1, 0, 7]), "f").tolist() == [mixed(0), mixed(1), mixed(8)]
    with pytest.raises(DataError, match="a row has an empty id"):
        hashed_ids(ids, "f")


def test_a_bucket_is_what_all_processes_wrote(tmp_path):
    for rank, keys in ((0, [5, 9]), (2, [1, 7, 6])):
        np.array(keys, np.uint64).tofile(tmp_path / f"0003-{rank}.keys")
        np.array([[key, -key] for key in keys], np.float32).tofile(tmp_path / f"0003-{rank}.rows")
        files = [tmp_path / f"0003-{rank}.{kind}" for kind in ("keys", "rows")]
        checksums = {path.name: zlib.crc32(path.read_bytes()) for path in files}
        (tmp_path / f"ids-{rank}.json").write_bytes(sealed({"ids": [], "checksums": checksums}))
    reader = BucketReader(tmp_path, Buckets(4, 2**64 - 1, 6), 2)
    assert reader.keys(3).tolist() == [1, 5, 6, 7, 9]
    assert reader.rows(3)[0].tolist() == [1, 5, 6, 7, 9]
    assert reader.rows(3)[1].tolist() == [[1, -1], [5, -5], [6, -6], [7, -7], [9, -9]]


def test_only_rows_that_are_trained_on_are_kept(data, tmp_path, few, monkeypatch):
    monkeypatch.setattr(first_pass, "_ROWS_PER_BUCKET", 20)
    wide, ids = wide_rows()
    buckets = Buckets.of(72, 50, 25)  # the bank is more than a bucket
    assert buckets.number == 3
    stale = tmp_path / "rows"
    stale.mkdir()
    (stale / "0000-5.keys").write_bytes(np.zeros(1, np.uint64).tobytes())  # of a pass that was killed
    (stale / "0000-5.rows").write_bytes(np.zeros(5, np.float32).tobytes())
    facts = run_first_pass(Shards(data), stale, buckets, ALONE)
    reader = BucketReader(stale, buckets, 5)
    there = [i for i in range(72) if i not in (50, 71)]
    kept = sorted((i for i in there if hashed(ids[i]) <= int(50 / 72 * 2.0**64)), key=lambda i: hashed(ids[i]))
    assert 40 < len(kept) < 60
    width = int(50 / 72 * 2.0**64) // 3 + 1
    for bucket in range(3):
        expected = [i for i in kept if min(2, hashed(ids[i]) // width) == bucket]
        keys, values = reader.rows(bucket)
        assert keys.tolist() == [hashed(ids[i]) for i in expected] == reader.keys(bucket).tolist()
        np.testing.assert_array_equal(values, wide[expected])
    bank = [i for i in kept if hashed(ids[i]) <= int(25 / 72 * 2.0**64)]
    names, values = reader.bank()
    assert names == [ids[i] for i in bank]
    np.testing.assert_array_equal(values, wide[bank])

    assert facts.n_rows == 70
    for c in range(5):
        known = [float(wide[i, c]) for i in there if not math.isnan(wide[i, c])]
        assert (facts.counts[c], facts.low[c], facts.high[c]) == (len(known), min(known), max(known))
    text = facts.as_csv(Shards(data).layout).splitlines()
    assert text[0] == "view,column,count,lowest,highest"
    first = [line.split(",") for line in text[1:]]
    assert [line[:3] for line in first] == [
        [f"v{v}", str(c), str(facts.counts[v * 3 + c])] for v, width in enumerate((3, 2)) for c in range(width)
    ]
    again = run_first_pass(Shards(data), stale, buckets, ALONE)  # from what is written
    for own, other in zip(vars(again).values(), vars(facts).values(), strict=True):
        np.testing.assert_array_equal(own, other)
    reader.forget(1)
    assert sorted({path.name[:4] for path in stale.glob("*.rows")}) == ["0000", "0002"]


def test_facts_of_columns_without_a_cell():
    none = np.array([[np.nan, 1.0], [np.nan, -2.0]], np.float32)
    found = ColumnFacts.of(none) + ColumnFacts.of(np.zeros((0, 2), np.float32))
    assert (found.n_rows, found.counts.tolist(), found.high[1], found.low[1]) == (2, [0, 2], 1.0, -2.0)
    assert np.isnan(found.low[0])
    assert np.isnan(found.high[0])
    later = found + ColumnFacts.of(np.array([[5.0, 9.0]], np.float32))
    assert (later.low.tolist(), later.high.tolist(), later.counts.tolist()) == ([5.0, -2.0], [5.0, 9.0], [1, 3])


@pytest.mark.parametrize(("value", "column"), [(np.inf, 2), (-np.inf, 0), (1e39, 1)])
def test_an_infinite_value_is_named(tmp_path, few, value, column):
    views, mask, ids = rows_with_gaps()
    table = as_table(views, mask, ids)
    lists = table.column("v0").to_pylist()
    row = next(i for i in range(60, 72) if mask[i, 0])
    lists[row][column] = value
    folder = write_parts(tmp_path / "data", table.set_column(1, "v0", pa.array(lists)))
    place = rf"part2\.parquet, view 'v0', column {column}, id '{ids[row]}': the value is infinite"
    with pytest.raises(DataError, match=place):
        run_first_pass(Shards(folder), tmp_path / "rows", Buckets.of(72, 72, 20), ALONE)


def test_of_ids_that_appear_twice_the_first_by_hash_is_named(tmp_path, few, monkeypatch):
    """One lies in the first bucket, another one in the last."""
    monkeypatch.setattr(first_pass, "_ROWS_PER_BUCKET", 36)
    views, mask, ids = rows_with_gaps()
    by_hash = sorted(range(2, 40), key=lambda i: hashed(ids[i]))
    first, last = by_hash[0], by_hash[-1]
    assert hashed(ids[first]) < 2**63 < hashed(ids[last])
    ids[60] = ids[61] = ids[first]
    ids[62] = ids[last]
    folder = write_parts(tmp_path / "data", as_table(views, mask, ids))
    told = f"id '{ids[first]}' appears 3 times, in part1.parquet and part2.parquet; keep one row"
    with pytest.raises(DataError, match=told):
        run_first_pass(Shards(folder), tmp_path / "rows", Buckets.of(72, 72, 20), ALONE)


# --- a whole run


@pytest.mark.filterwarnings("ignore::viewfuse.errors.EmptyCellsWarning")  # of what the model predicts below
def test_a_run_counts_all_rows_and_labels_each_as_its_model_does(data, tmp_path, few, monkeypatch):
    """Shards of one row, of many, and with rows without a view."""
    options = {name: value for name, value in SMALL.items() if name not in ("device", "random_state")}
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        summary = fit_large(
            data, tmp_path / "run", 3, bank=40, steps=2, batch_size=64, random_state=9, device="cpu", **options
        )
    model, found, (wide, ids) = load(tmp_path / "run" / "model", device="cpu"), written(tmp_path / "run"), wide_rows()
    assert [one.category for one in noticed] == [EmptySampleWarning]  # the empty cell is not in the bank
    assert str(noticed[0].message).startswith("2 of 72 rows have no view at all and are left out")
    there = [i for i in range(72) if i not in (50, 71)]
    assert sorted(found["id"].to_pylist()) == sorted(ids[i] for i in there)
    rows = {name: place for place, name in enumerate(found["id"].to_pylist())}
    order = [rows[ids[i]] for i in there]
    chances = model.predict_proba(Shards(data).layout.views(wide[there]))
    far = model.out_of_range(Shards(data).layout.views(wide[there]))
    labels = found["label"].to_numpy()[order]
    assert labels.tolist() == chances.argmax(axis=1).tolist()
    np.testing.assert_allclose(found["confidence"].to_numpy()[order], chances.max(axis=1), rtol=1e-5)
    assert found["out_of_range"].to_numpy()[order].tolist() == far.tolist()
    embedding = np.array(found["embedding"].to_pylist())[order]
    np.testing.assert_allclose(embedding, model.transform(Shards(data).layout.views(wide[there])), rtol=1e-3, atol=1e-4)

    bank = [i for i in there if hashed(ids[i]) <= int(40 / 72 * 2.0**64)]
    assert set(model.ids_) == {ids[i] for i in bank}
    expected = {
        "rows": 70, "shards": 3, "views": ["v0", "v1"], "clusters": 3, "bank": len(bank), "steps": 2,
        "batch_size": 64, "processes": 1, "device": "cpu",
        "cluster_sizes": [int((labels == k).sum()) for k in range(3)],
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    assert list(summary["seconds"]) == ["reading", "fit of the bank", "neighbours", "training", "labels"]
    assert summary["fit"]["random_state"] == 9
    assert (tmp_path / "run" / "columns.csv").read_text().count("\n") == 6
    assert len(model.objectives_) == 2


def label_writer(folder, n_clusters, paths, embedding=True, width=2):
    """Of a model that places rows as their first value says."""
    for path in paths:
        pq.write_table(pa.table({"id": ["x"], "v": [[1.0]]}), path)
    network = SimpleNamespace(centers=torch.zeros(n_clusters, width))
    views = SimpleNamespace(id_column="id", views=lambda values: values)
    own = SimpleNamespace(paths=paths, layout=views, named=[(path, path.name) for path in paths])
    model = SimpleNamespace(
        complete=lambda values, by_name: (values, None), tensors=lambda values: (values, None),
        locate=lambda values, present: values, method=None, network=network,
        stored=SimpleNamespace(present=torch.zeros(1)),
        assign=lambda values, _: (0.75 * np.eye(n_clusters) + 0.25 / n_clusters)[values[:, 0].astype(int)].astype("f4"),
        is_far=lambda values, _: values[:, 0] < 8,
    )  # fmt: skip
    return fit_module.LabelFiles(folder, own, model, {}, embedding)


def test_cluster_sizes_of_a_shard_have_a_place_for_every_cluster(tmp_path):
    """The file of a shard that is there already is counted, not written again."""
    (tmp_path / "out").mkdir()
    files = label_writer(tmp_path / "out", 4, [tmp_path / "a", tmp_path / "b"], embedding=False)
    for name, labels in (("a", [1, 0, 1]), ("b", [0])):
        n = len(labels)
        columns = {"id": ["x"] * n, "label": labels, "confidence": [1.0] * n, "out_of_range": [False] * n}
        pq.write_table(pa.table(columns, schema=files._schema), tmp_path / "out" / name)
    assert files.write(ALONE).tolist() == [2, 2, 0, 0]
    two = SimpleNamespace(map=lambda work, pairs: [np.array([0, 5, 0, 1]), *map(work, pairs[1::2])])
    assert files.write(two).tolist() == [1, 5, 0, 1]


def test_a_table_of_labels_has_room_for_many_clusters(tmp_path, monkeypatch):
    files = label_writer(tmp_path, 300, [tmp_path / "a"])
    monkeypatch.setattr(fit_module, "embed", lambda *_: torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    values = np.array([[7], [299]], np.float32)
    found = files._table("f", shards.Rows(pa.array(["a", "b"]), np.arange(2), values, None)).to_pylist()
    sure = pytest.approx(0.75 + 0.25 / 300)
    assert found == [
        {"id": "a", "label": 7, "confidence": sure, "out_of_range": True, "embedding": [1.0, 2.0]},
        {"id": "b", "label": 299, "confidence": sure, "out_of_range": False, "embedding": [3.0, 4.0]},
    ]


def test_a_row_whose_embedding_is_not_finite_is_named(tmp_path, monkeypatch):
    files = label_writer(tmp_path, 2, [tmp_path / "a"])
    monkeypatch.setattr(fit_module, "embed", lambda *_: torch.tensor([[1.0], [2.0], [torch.inf], [torch.nan]]))
    rows = shards.Rows(pa.array(["a", "b", "c", "d"]), np.arange(4), np.zeros((4, 1)), None)
    with pytest.raises(DataError, match="f, id 'c': its values are too far"):
        files._table("f", rows)


def test_what_a_run_left_is_cleared_and_nothing_else(data, tmp_path):
    out = tmp_path / "run"
    (out / "model").mkdir(parents=True)
    asked = {"n_clusters": 3, "bank": 20, "steps": 1, "batch_size": 64, "embedding": True, "random_state": 0}

    def begin():
        return _Job(Shards(data), out, ALONE, asked, {})._claim(force=True)

    begin()  # an empty folder is nobody's
    assert [path.name for path in out.iterdir()] == ["checkpoint"]
    shutil.rmtree(out / "checkpoint")
    (out / "labels").mkdir()
    (out / "labels" / "x").write_text("somebody's")
    for text in ("", "{", '{"fit": 3}'):
        if text:
            (out / "summary.json").write_text(text)
        with pytest.raises(CannotWrite, match="labels is of no fit-large"):
            begin()
    (out / "notes.txt").write_text("mine")
    (out / "summary.json").write_text('{"fit": {"a": 1}}')
    begin()
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint", "notes.txt"]


# --- labels of many files


class Placing:
    """Two clusters: the confidence of a sample is its value."""

    cluster_centers_ = np.zeros((3, 1))
    cluster_names_ = NO_NAMES
    view_names_ = ("a",)

    def complete(self, views):
        return SimpleNamespace(completed=views.arrays[0] + 0), []

    def judge(self, complete, alpha):
        sure = complete.completed[:, 0]
        chances = np.stack([np.zeros(len(sure)), sure, 1 - sure], axis=1).astype(np.float32)
        labels = np.where(np.isclose(sure, 0.7), -1, chances.argmax(axis=1))
        return Judged(labels, chances, chances.max(axis=1) < 1 - alpha, sure, labels < 0, sure > 0.9)


def test_counts_are_added_up_over_parts(tmp_path):
    parts = [Views({"a": np.array(own, np.float32)[:, None]}) for own in ([0.75, 0.5, 1.0], [0.25], [1.0, 1.0, 0.7])]
    placed = sharded_predict.predict_parts(Placing(), iter(parts), tmp_path / "out.csv", 0.25)
    assert placed.facts() == {
        "samples": 7, "uncertain": 2, "outliers": 1, "out_of_range": 3, "cluster_sizes": [0, 5, 1],
    }  # fmt: skip
    lines = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    assert [line[1] for line in lines[1:]] == ["1", "1", "1", "2", "1", "1", "-1"]
    assert [line[-1] for line in lines[1:]] == ["0", "0", "1", "0", "1", "1", "0"]


def test_a_file_is_predicted_a_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_predict, "ROWS_AT_A_TIME", 3)
    np.savez(tmp_path / "x.npz", a=np.linspace(0, 1, 8, dtype=np.float32)[:, None])
    (shard,) = shards_of([tmp_path / "x.npz"], tmp_path / "out")
    told, asked = [], ShardTask(tmp_path, "mark", reading={"trusted": True})
    found = predict_shard(Placing(), asked, shard, lambda rows, size: told.append((rows, size)))
    size = (tmp_path / "x.npz").stat().st_size
    assert told == [(3, round(size * 3 / 8)), (3, round(size * 3 / 8)), (2, round(size * 2 / 8))]
    assert found["samples"] == 8
    assert shard.known(asked) == found
    record = json.loads(shard.record.read_text())["of"]
    assert record == {
        "file": "x.npz", "bytes": size, "model": "mark", "alpha": 0.1,
        "view": None, "reading": {}, "version": record["version"], "bytes_of_labels": shard.labels.stat().st_size,
    }  # fmt: skip
    for change in ({"mark": "other"}, {"alpha": 0.2}, {"view": "b"}, {"reading": {"header": False}}):
        assert shard.known(ShardTask(**{**vars(asked), **change})) is None
    assert shard.known(ShardTask(**{**vars(asked), "device": "cuda"})) == found
    touched = Shard(shard.file, size, shard.changed + 1, shard.labels, shard.record)
    assert touched.known(asked) == touched.known(asked, trust=True) == found
    assert Shard(shard.file, size + 1, shard.changed, shard.labels, shard.record).known(asked) is None
    shard.labels.write_text("cut")
    assert shard.known(asked) is None


def test_names_of_labels_do_not_collide(tmp_path):
    for name in ("Part.csv", "part.npz"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match="would both be predicted into"):
        shards_of([tmp_path / "Part.csv", tmp_path / "part.npz"], tmp_path / "out")
    with pytest.raises(CannotWrite, match="which is read"):
        shards_of([tmp_path / "part.npz"], tmp_path)


def test_all_files_are_added_up_and_told_of(tmp_path, monkeypatch):
    counts = {"x": 4, "y": 2, "z": 5}
    for name, n in counts.items():
        np.savez(tmp_path / f"{name}.npz", a=np.linspace(0.5, 1, n, dtype=np.float32)[:, None])
    files, told = [tmp_path / f"{name}.npz" for name in counts], []
    monkeypatch.setattr(sharded_predict, "model_mark", lambda model: "mark")
    monkeypatch.setattr(sharded_predict, "load", lambda model, device: Placing())
    advance = ShardProgress.advance
    monkeypatch.setattr(
        ShardProgress,
        "advance",
        lambda self, *args, **named: told.append((*args, *named.values())) or advance(self, *args, **named),
    )
    options = {"reading": {"trusted": True}, "alpha": 0.2}
    first = predict_shards(tmp_path, files[:2], tmp_path / "out", **options)
    assert {**first, "rows_per_second": 0} == {
        "shards": 2, "skipped": 0, "samples": 6, "uncertain": 3, "outliers": 0, "out_of_range": 2,
        "cluster_sizes": [0, 6, 0], "rows_per_second": 0,
    }  # fmt: skip
    sizes = [file.stat().st_size for file in files]
    assert told == [(4, sizes[0]), (0, 0, 1), (2, sizes[1]), (0, 0, 1)]
    both = predict_shards(tmp_path, files, tmp_path / "out", **options)
    assert (both["shards"], both["skipped"], both["samples"], both["uncertain"]) == (3, 2, 11, 6)
    assert both["out_of_range"] == 3
    assert len(told) == 6
    none = predict_shards(tmp_path, files, tmp_path / "out", **options)
    assert (none["skipped"], none["samples"], "rows_per_second" in none) == (3, 11, False)
    again = predict_shards(tmp_path, files, tmp_path / "out", again=True, **options)
    assert (again["skipped"], len(told)) == (0, 12)


def test_a_model_that_is_replaced_meanwhile_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_predict, "load", lambda model, device: Placing())
    monkeypatch.setattr(sharded_predict, "model_mark", lambda model: "new")
    with pytest.raises(sharded_predict.BadModelFile, match="was replaced while its labels were written"):
        sharded_predict._loaded(tmp_path, "old", "cpu")
    assert isinstance(sharded_predict._loaded(tmp_path, "new", "cpu"), Placing)
    sharded_predict._loaded.cache_clear()


def test_lines_come_every_thirty_seconds(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(sharded_predict.time, "monotonic", lambda: now[0])
    with closing(ShardProgress([600, 400], shown=True)) as progress:
        for seconds in (29.9, 0.1, 20.0, 10.0, 60.0):
            now[0] += seconds
            progress.advance(10, 50)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "0 of 2 files, 20 rows, 1 rows/s, 04:30 left",
        "0 of 2 files, 40 rows, 1 rows/s, 04:00 left",
        "0 of 2 files, 50 rows, 0 rows/s, 06:00 left",
    ]
