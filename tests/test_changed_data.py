"""Data that change between two runs of one command: never the old results in silence, and never a mixture."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sharded_data import quick_fit, rows, write_shards
from viewfuse import URRL, Config
from viewfuse.distributed import first_pass
from viewfuse.distributed import fit_large as fit_module
from viewfuse.distributed.first_pass import Buckets, Checksum, run_first_pass
from viewfuse.distributed.fit_large import LabelFiles
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.sharded_predict import predict_shards
from viewfuse.distributed.shards import Shards
from viewfuse.errors import CannotWrite, CheckpointDiffers, DataError

TINY = {
    "config": Config(embedding_dim=4, hidden_dim=8, pretrain_epochs=1, joint_epochs=1),
    "scaling": "standard",
    "random_state": 0,
    "device": "cpu",
}
ALONE = Processes(0, 1, torch.device("cpu"))


def swapped(cells):
    """Two rows change places, so that sizes, bounds and counts stay as they were."""
    there = [i for i, cell in enumerate(cells) if cell is not None]
    one, other = there[3], there[11]
    cells[one], cells[other] = cells[other], cells[one]
    return cells


def permuted(cells):
    """The values of a view belong to other ids."""
    values = iter(np.random.default_rng(5).permutation([cell for cell in cells if cell is not None]).tolist())
    return [cell if cell is None else next(values) for cell in cells]


def one_bit(cells):
    """The last bit of one 32-bit float."""
    row = next(i for i, cell in enumerate(cells) if cell is not None and abs(cell[1]) < 4)
    number = np.float32(cells[row][1])
    cells[row] = [*cells[row][:1], float((number.view(np.uint32) ^ np.uint32(1)).view(np.float32)), *cells[row][2:]]
    return cells


def two_signs(cells):
    """Of two neighbours."""
    row = next(i for i, cell in enumerate(cells) if cell is not None)
    cells[row] = [-cells[row][0], -cells[row][1], *cells[row][2:]]
    return cells


CHANGES = (swapped, permuted, one_bit, two_signs)


def plain_shards(folder, table, count=3):
    """Without compression and bounds, so that files with other values can have the same size and the same footer."""
    write_shards(folder, table, count)
    for path in folder.iterdir():
        rewrite(path, pq.read_table(path))
    return folder


def rewrite(path, table):
    pq.write_table(table, path, compression="NONE", use_dictionary=False, write_statistics=False)


def change(path, how):
    """Write other values into a shard that looks as before: the same size, footer and time."""
    before, table = path.stat(), pq.read_table(path)
    shards = Shards(path)
    looks = shards.digest()
    cells = how(table.column("v1").to_pylist())
    rewrite(path, table.set_column(2, table.schema.field(2), pa.array(cells, table.schema.field(2).type)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Shards(path).digest() == looks and path.stat().st_mtime_ns == before.st_mtime_ns


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Shards and the folder of a run: after it had read them, when it was trained, and when it was done."""
    folder = tmp_path_factory.mktemp("stages")
    data = plain_shards(folder / "rows", rows()[0])
    for stage, place, name in (("read", fit_module._Job, "_start"), ("trained", LabelFiles, "_table")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                quick_fit(data, folder / "run")
        shutil.copytree(folder / "run", folder / stage)
    quick_fit(data, folder / "run")
    return folder


@pytest.fixture(scope="module")
def finished(stages):
    return stages / "rows", stages / "run"


@pytest.fixture
def copied(stages, tmp_path):
    """The shards once more, and a folder at a stage."""
    shutil.copytree(stages / "rows", tmp_path / "rows")
    return lambda stage: (tmp_path / "rows", Path(shutil.copytree(stages / stage, tmp_path / stage)))


@pytest.mark.parametrize("how", CHANGES)
def test_finished_results_are_not_those_of_changed_data(finished, how):
    data, run = finished
    shard = data / "part1.parquet"
    whole, times = shard.read_bytes(), shard.stat()
    labels = (run / "labels" / "part1.parquet").read_bytes()
    try:
        assert change(shard, how)  # only the values tell it
        with pytest.raises(CannotWrite, match=r"results of other rows: \S*part1\.parquet has changed since; bring"):
            quick_fit(data, run)
        if how is swapped:
            quick_fit(data, run, trust_unchanged=True)  # as was asked for
            os.utime(shard)
            with pytest.raises(CannotWrite, match=r"part1\.parquet has changed since"):
                quick_fit(data, run, trust_unchanged=True)
    finally:
        shard.write_bytes(whole)
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    if how is not swapped:
        return
    os.utime(data / "part0.parquet")  # a copy, say
    assert quick_fit(data, run) == json.loads((run / "summary.json").read_text())
    assert (run / "labels" / "part1.parquet").read_bytes() == labels


@pytest.mark.parametrize("stage", ["read", "trained"])
def test_a_checkpoint_does_not_go_on_with_changed_data(copied, stage):
    data, run = copied(stage)
    whole = (data / "part2.parquet").read_bytes()
    assert change(data / "part2.parquet", swapped)
    with pytest.raises(CheckpointDiffers, match=r"keeps a fit of other rows: \S*part2\.parquet has changed since"):
        quick_fit(data, run)
    (data / "part2.parquet").write_bytes(whole)
    if stage == "trained":
        quick_fit(data, run)


def test_a_shard_that_changes_during_a_run_ends_it(copied, monkeypatch):
    data, run = copied("trained")
    write = LabelFiles.write

    def change_meanwhile(*given):
        assert change(data / "part0.parquet", swapped)
        return write(*given)

    monkeypatch.setattr(LabelFiles, "write", change_meanwhile)
    with pytest.raises(DataError, match=r"part0\.parquet has changed while the model was trained"):
        quick_fit(data, run)
    assert not (run / "labels" / "part0.parquet").exists()
    assert not (run / "summary.json").exists()


def test_values_that_change_places_within_a_row_are_seen(tmp_path):
    data = plain_shards(tmp_path / "rows", rows(40)[0], 1)
    shard = data / "part0.parquet"
    known = Checksum.of(Shards(data), shard)
    assert Checksum.of(Shards(data), shard).digest == known.digest
    assert change(shard, lambda cells: [cell and [cell[1], cell[0], *cell[2:]] for cell in cells])
    assert Checksum.of(Shards(data), shard).digest != known.digest


def test_a_shard_of_another_name_is_another(finished, tmp_path):
    data, _ = finished
    shards = Shards(data)
    contents = [Checksum.of(shards, path) for path in shards.paths]
    assert len({one.digest for one in contents}) == 3
    (data / "part0.parquet").rename(data / "z.parquet")
    try:
        with pytest.raises(CannotWrite, match=r"z\.parquet has changed since"):
            quick_fit(data, finished[1])
    finally:
        (data / "z.parquet").rename(data / "part0.parquet")


# --- predict over many files


def test_labels_of_a_changed_file_are_made_anew(tmp_path):
    rng = np.random.default_rng(0)
    data, model, out = tmp_path / "rows", tmp_path / "model", tmp_path / "labels"
    data.mkdir()
    values = rng.normal(size=(30, 3)).astype(np.float32)
    URRL(2, **TINY).fit({"a": values}).save(model)
    for number in range(2):
        np.savez(data / f"{number}.npz", a=values[15 * number : 15 * number + 15])
    files = sorted(data.iterdir())
    asked = {"device": "cpu", "reading": {"trusted": True}}
    predict_shards(model, files, out, **asked)
    before, times = (out / "1.csv").read_bytes(), files[1].stat()
    np.savez(files[1], a=values[15:][::-1])
    os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files[1].stat().st_size == times.st_size
    assert predict_shards(model, files, out, trust_unchanged=True, **asked)["skipped"] == 2
    assert predict_shards(model, files, out, **asked)["skipped"] == 1
    assert (out / "1.csv").read_bytes() != before
    os.utime(files[0])  # a copy, say
    assert predict_shards(model, files, out, **asked)["skipped"] == 2


def test_a_checkpoint_of_a_fit_is_not_gone_on_with_where_values_change_places(tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    model = URRL(2, **TINY, checkpoint=tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr("viewfuse.methods.urrl.estimator.URRL._take_over", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit([values])
    with pytest.raises(CheckpointDiffers, match="digest of the data"):
        model.fit([values[[1, 0, *range(2, 40)]]])
    model.fit([values])


# --- many changes


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(5))
def test_forty_changes_of_a_shard_are_all_seen(tmp_path, seed):
    """Two rows of a view change places; sizes, footers and times stay."""
    rng = np.random.default_rng(seed)
    data = plain_shards(tmp_path / "rows", rows(seed=seed)[0])
    quick_fit(data, tmp_path / "run")
    summary = (tmp_path / "run" / "summary.json").read_bytes()
    for _ in range(8):
        path = data / f"part{rng.integers(3)}.parquet"
        whole, times = path.read_bytes(), path.stat()

        def places(cells):
            there = [i for i, cell in enumerate(cells) if cell is not None]
            one, other = rng.choice(there, 2, replace=False)
            cells[one], cells[other] = cells[other], cells[one]
            return cells

        assert change(path, places)
        with pytest.raises(CannotWrite, match=f"{path.name} has changed since"):
            quick_fit(data, tmp_path / "run")
        path.write_bytes(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    quick_fit(data, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == summary


# --- ids


@pytest.mark.parametrize("parts", [1, 3])
def test_an_id_that_stands_twice_is_found_among_all_rows(tmp_path, monkeypatch, parts):
    """Twenty rows are trained on; whichever id stands twice, it is told."""
    monkeypatch.setattr(first_pass, "_KEYS_PER_PART", -(-60 // parts))
    table, _ = rows(60)
    for row in range(0, 50, 12):
        ids = table.column("id").to_pylist()
        ids[57] = ids[row]
        data = write_shards(tmp_path / f"rows{row}", table.set_column(0, "id", pa.array(ids)), 3)
        with pytest.raises(DataError, match=rf"id 's{row}' appears 2 times, in part\d.parquet"):
            run_first_pass(Shards(data), tmp_path / "out", Buckets.of(60, 20, 20), ALONE)
    data = write_shards(tmp_path / "rows", table, 3)
    buckets = Buckets.of(60, 20, 20)
    assert buckets.parts == parts
    run_first_pass(Shards(data), tmp_path / "out", buckets, ALONE)
    assert {path.name[:4] for path in (tmp_path / "out").glob("*.keys")} == {"0000"}  # those that are trained on


def test_two_ids_of_one_hash_are_two(tmp_path, monkeypatch):
    from viewfuse.distributed import shards as shards_module

    real = shards_module.hashed_ids

    def colliding(ids, path):
        return np.where(np.isin(ids.to_pylist(), ["s3", "s41"]), np.uint64(2**64 - 5), real(ids, path))

    monkeypatch.setattr(shards_module, "hashed_ids", colliding)
    data = write_shards(tmp_path / "rows", rows(60)[0], 3)
    found = run_first_pass(Shards(data), tmp_path / "out", Buckets.of(60, 20, 20), ALONE)
    assert found.n_rows == 60
