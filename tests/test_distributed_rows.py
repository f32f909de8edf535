"""Sharded rows: which order they have, what is refused, and who learns from which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sharded_data import in_threads, rows, write_shards
from viewfuse.distributed.first_pass import BucketReader, Buckets, BucketWriter, lowest, parts_of, run_first_pass
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Shards, hashed_ids
from viewfuse.errors import CannotWrite, DataError

ALONE = Processes(0, 1, torch.device("cpu"))
PATH = Path("x.parquet")


def test_hashes_are_spread_evenly():
    for ids in (pa.array(range(20_000)), pa.array([f"row{i}" for i in range(20_000)])):
        keys = hashed_ids(ids, PATH)
        assert abs((keys <= np.uint64(lowest(0.25))).mean() - 0.25) < 0.01
        assert np.bincount(parts_of(keys, lowest(1.0), 8)).min() > 2_300
    assert parts_of(np.array([2**64 - 1], np.uint64), lowest(1.0), 1).tolist() == [0]


def read(shards):
    found = [part for path in shards.paths for part in shards.read(path)]
    ids = [name for part in found for name in part.ids.to_pylist()]
    return ids, np.concatenate([part.values for part in found])


def test_lists_and_columns_are_the_same_views(tmp_path):
    table, _ = rows(40)
    names = {"v0": 4, "v1": 6}
    wide = {"id": table.column("id")}
    for name, width in names.items():
        cells = [one or [None] * width for one in table.column(name).to_pylist()]
        wide |= {f"{name}.{c}": [row[c] for row in cells] for c in range(width)}
    fixed = {n: table.column(n).cast(pa.list_(pa.float64(), w)) for n, w in names.items()}
    tables = {"lists": table, "wide": pa.table(wide)}
    if int(pa.__version__.split(".")[0]) >= 26:  # others cannot write lists of fixed length that are not there
        tables["fixed"] = pa.table({"id": table.column("id"), **fixed})
    found = {kind: Shards(write_shards(tmp_path / kind, one, 2)) for kind, one in tables.items()}
    found["blocks"] = Shards(str(tmp_path / "wide" / "*.parquet"), blocks={name: f"{name}.*" for name in names})
    expected = read(found["lists"])
    for shards in found.values():
        assert shards.layout.names == ("v0", "v1")
        ids, values = read(shards)
        assert ids == expected[0]
        assert np.array_equal(values, expected[1], equal_nan=True)


def broken(tmp_path, **columns):
    table, _ = rows(30)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    return write_shards(tmp_path / "rows", table, 1)


def first_passed(data, out, bank=10):
    shards = Shards(data)
    buckets = Buckets.of(len(shards), len(shards), bank)
    return run_first_pass(shards, out, buckets, ALONE), BucketReader(out, buckets, shards.layout.width)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": ["a", "b"] + [f"s{i}" for i in range(27)] + ["b"]}, "id 'b' appears 2 times, in part0.parquet"),
        ({"id": [None] + [f"s{i}" for i in range(29)]}, "1 rows have no id"),
        ({"id": [""] + [f"s{i}" for i in range(29)]}, "empty id"),
        ({"id": [0.5 * i for i in range(30)]}, "column 'id' holds double values, but ids are text or whole numbers"),
        ({"v1": [[1.0] * 6] * 29 + [[1.0]]}, "column 'v1', data row 30: 1 numbers instead of 6"),
        ({"v1": [[1.0] * 5 + [np.inf]] * 30}, "view 'v1', column 5, id 's0': the value is infinite"),
        ({"v1": [["x"]] * 30}, "column 'v1' holds list"),
        ({"v1": [[]] * 29 + [None]}, "column 'v1'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(tmp_path, columns, told):
    with pytest.raises(DataError, match=told):
        first_passed(broken(tmp_path, **columns), tmp_path / "out")


def test_data_sets_that_are_none_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"is a folder without \.parquet files; give the folder that has them"):
        Shards(tmp_path)
    with pytest.raises(DataError, match=r"nowhere does not exist; check the path"):
        Shards(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"x\*\.parquet means no file; check the pattern"):
        Shards(f"{tmp_path}/x*.parquet")
    with pytest.raises(DataError, match="no file was given"):
        Shards([])
    (tmp_path / "a.parquet").write_text("nothing")
    with pytest.raises(DataError, match=r"a\.parquet is no Parquet file"):
        Shards(tmp_path)
    pq.write_table(rows(5)[0], tmp_path / "a.parquet")
    pq.write_table(rows(5)[0].drop_columns("v1"), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: column 'v1' is not there, but list"):
        Shards(tmp_path)
    pq.write_table(pa.table({"id": [1], "x": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"does not say which columns are which view; call them VIEW\.COLUMN"):
        Shards(tmp_path / "a.parquet")
    pq.write_table(rows(5)[0].slice(0, 0), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has no rows"):
        Shards(tmp_path / "a.parquet")


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """Facts, bank and rows of a data set in one file, one row of which has no view."""
    folder = tmp_path_factory.mktemp("one")
    table, _ = rows(200)
    for v in range(2):
        cells = table.column(f"v{v}").to_pylist()
        table = table.set_column(v + 1, f"v{v}", pa.array([None, *cells[1:]]))
    return table, outcome(write_shards(folder / "rows", table, 1), folder / "out")


def outcome(data, out):
    facts, reader = first_passed(data, out, bank=60)
    ids, values = reader.bank()
    return {**facts.saved(), "contents": {}}, ids, values.tobytes(), reader.rows(0)[1].tobytes()


@pytest.mark.parametrize(("count", "name"), [(1, "other"), (3, "part"), (7, "z")])
def test_shards_leave_no_trace_in_facts_bank_and_rows(one_shard, tmp_path, count, name):
    table, expected = one_shard
    order = np.random.default_rng(count).permutation(len(table))
    found = outcome(write_shards(tmp_path / "rows", table.take(order), count, name), tmp_path / "out")
    assert found == expected
    assert found[0]["n_rows"] == 199
    assert 45 < len(found[1]) < 75


def test_processes_leave_no_trace_either(one_shard, tmp_path):
    table, expected = one_shard
    data = write_shards(tmp_path / "rows", table, 3)
    shards = [Shards(data) for _ in range(2)]
    buckets = Buckets.of(len(shards[0]), len(shards[0]), 60)
    facts = in_threads(2, lambda own: run_first_pass(shards[own.rank], tmp_path / "out", buckets, own))
    assert len(list((tmp_path / "out").glob("ids-*.json"))) == 2
    for one in facts:
        assert list(one.contents) == ["part0.parquet", "part1.parquet", "part2.parquet"]
        assert {**one.saved(), "contents": {}} == expected[0]
    reader = BucketReader(tmp_path / "out", buckets, 10)
    ids, values = reader.bank()
    assert (ids, values.tobytes(), reader.rows(0)[1].tobytes()) == expected[1:]


def test_buckets_that_cannot_be_written_are_told(tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BucketWriter, "_append", full)
    keys = np.array([5, 2**63], dtype=np.uint64)
    with (
        BucketWriter(tmp_path / "rows", Buckets(1, 2**64 - 1, 0), 0) as writer,
        pytest.raises(CannotWrite, match=r"rows cannot be written: No space left on device; free some space"),
    ):
        writer.add(pa.array(["a", "b"]), keys, np.zeros((2, 3), np.float32))


def test_a_shard_whose_pages_are_damaged_is_named(tmp_path):
    data = write_shards(tmp_path / "rows", rows(120)[0], 2)
    path = sorted(data.iterdir())[1]
    content = bytearray(path.read_bytes())
    for place in range(40, len(content) // 2, 7):
        content[place] ^= 0xFF
    path.write_bytes(content)
    shards = Shards(data)
    with pytest.raises(DataError, match=r"part1\.parquet is damaged, its rows cannot be read \(.*\); use another copy"):
        list(shards.read(path))
