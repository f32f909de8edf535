"""Columns with a large offset: they keep what tells samples apart, or are refused; nothing is lost in silence."""

from __future__ import annotations

import copy
import json
import os
import warnings
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from flat import flat
from sharded_data import quick_fit, write_shards, written
from viewfuse import URRL, Views, read_chunks, read_views
from viewfuse.cli import main
from viewfuse.data import precision
from viewfuse.data.precision import loses_digits
from viewfuse.distributed.fit_large import fit_large
from viewfuse.distributed.shards import Shards
from viewfuse.errors import CannotWrite, DataError, IgnoredColumnsWarning
from viewfuse.serve.bodies import read_json
from viewfuse.serve.limits import Limits

TOLD = "differ by less than 32-bit floats can tell"
LONG = [2**60 + i for i in range(20)]


def clusters(far, offset, n=300, seed=0):
    """Three of them, .4 apart, and one row far away."""
    rng = np.random.default_rng(seed)
    values = 0.4 * (np.arange(n) % 3)[:, None] + 0.05 * rng.normal(size=(n, 4))
    values[7] += far
    return values + offset


@pytest.mark.parametrize("far", [0.0, 5.0, 1e4, -1e7])
@pytest.mark.parametrize("kind", [np.asarray, lambda table: table.astype(object), pd.DataFrame])
def test_clusters_beside_a_large_offset_keep_their_differences(far, kind):
    """Literally: as exact as float32 is on what is left beside the offset."""
    given = clusters(far, 1e7)
    views = Views({"a": clusters(far, 0), "b": kind(given)})
    assert views.offsets[0] == 0.0
    assert all(number in given[:, c] for c, number in enumerate(views.offsets[1]))
    assert views.arrays[1].dtype == np.float32
    assert np.array_equal(views.arrays[1], (given - views.offsets[1]).astype(np.float32))
    back = views.in_units()
    assert (back.offsets, back.arrays[1].dtype) == ((0.0, 0.0), np.float64)
    np.testing.assert_allclose(back.arrays[1] - 1e7, given - 1e7, rtol=1e-7, atol=1e-7)
    assert Views({"b": clusters(far, 1e3)}).offsets == (0.0,)  # rounded by 3e-5
    assert Views({"b": clusters(far, 1e7).astype(np.float32)}).offsets == (0.0,)  # they have no other digits


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_sparse_columns_with_an_offset_are_refused(far):
    told = rf"view 'b', column 0: .*{TOLD}; subtract a number near them first, such as (9999999|10000000)\.\d+"
    with pytest.raises(DataError, match=told):
        Views({"a": clusters(far, 0), "b": sparse.csr_array(clusters(far, 1e7))})
    Views({"b": sparse.csr_array(clusters(far, 1e7) - 1e7)})  # the cure


def test_rows_that_are_missing_say_nothing():
    table = clusters(0, 1e7)
    mask = np.ones((300, 2), dtype=bool)
    mask[9:, 1] = False
    assert Views([table - 1e7, table], mask=mask).offsets == (0.0, 0.0)  # nine rows may be alike
    mask[9, 1] = True
    views = Views([table - 1e7, table], mask=mask)
    assert np.all(views.offsets[1] > 9.9e6)
    assert not views.arrays[1][10:].any()
    assert not views.in_units().arrays[1][10:].any()
    gaps = np.where(np.random.default_rng(1).random(table.shape) < 0.4, np.nan, table)
    views = Views([table - 1e7, gaps])
    there = ~np.isnan(gaps).all(axis=1)
    assert np.array_equal(np.isnan(views.arrays[1][there]), np.isnan(gaps[there]))
    assert np.nanmax(np.abs(views.in_units().arrays[1] - gaps)[there]) < 1e-7


def test_steps_in_a_file_are_kept(tmp_path):
    lines = [f"s{i},{1_000_000 + i / 100:.2f},{i}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["id,x,y", *lines]) + "\n")
    views = read_views(tmp_path / "a.csv")
    np.testing.assert_allclose(np.diff(views.arrays[0][:, 0]), 0.01, rtol=1e-6)
    assert views.arrays[0][:, 1].tolist() == list(range(12))
    found = CliRunner().invoke(main, ["inspect", str(tmp_path / "a.csv"), "--json"])
    assert json.loads(found.stdout)["views"][0]["high"] == pytest.approx(1_000_000.11, abs=1e-7)


WAYS = {
    "Int64": lambda long: pd.DataFrame({"x": pd.array(long, dtype="Int64")}),
    "with gaps": lambda long: pd.DataFrame({"x": pd.array([*long, None], dtype="Int64"), "y": range(21)}),
    "Arrow": lambda long: pd.DataFrame({"x": pd.array(long, dtype="int64[pyarrow]"), "y": np.arange(20.0)}),
    "int64 and float64": lambda long: pd.DataFrame({"x": long, "y": np.arange(20.0)}),
    "UInt64 and float64": lambda long: pd.DataFrame({"x": pd.array(long, dtype="UInt64"), "y": np.arange(20.0)}),
    "objects": lambda long: np.array([[number, 1.5] for number in long], dtype=object),
    "text": lambda long: np.array([[f"{number}.0", 1.5] for number in long], dtype=object),
    "decimals": lambda long: np.array([[Decimal(number), None] for number in long], dtype=object),
    "two values": lambda long: np.array([[long[i % 2]] for i in range(12)], dtype=object),
    "rows": lambda long: [[number, 1.5] for number in long],
    "masked": lambda long: np.ma.masked_array(np.c_[long, range(20)], mask=np.c_[np.arange(20) == 3, np.zeros(20)]),
    "int64": lambda long: np.array(long)[:, None],
    "table of pyarrow": lambda long: pa.table({"x": long, "y": np.arange(20.0)}),
    "table of pyarrow with gaps": lambda long: pa.table({"x": [*long, None], "y": range(21)}),
    "batch of pyarrow": lambda long: pa.record_batch({"x": long, "y": np.arange(20.0)}),
    "polars": lambda long: pl.DataFrame({"x": long, "y": np.arange(20.0)}),
    "polars with gaps": lambda long: pl.DataFrame({"x": [*long, None], "y": range(21)}),
    "UInt64 of polars": lambda long: pl.DataFrame({"x": pl.Series(long, dtype=pl.UInt64), "y": np.arange(20.0)}),
}


@pytest.mark.parametrize("start", [2**53, 2**60])
@pytest.mark.parametrize("way", WAYS)
def test_whole_numbers_beyond_53_bits_keep_their_digits_or_are_refused(way, start):
    """As floats eleven of twenty are left of the first."""
    with pytest.raises(DataError, match=f"column 0.* its values {TOLD}"):
        Views([WAYS[way]([start + i for i in range(20)])])
    found = Views([WAYS[way]([start + 4096 * i for i in range(20)])]).arrays[0][:20, 0]
    assert set(np.diff(np.unique(found[~np.isnan(found)]))) <= {4096, 8192}


@pytest.mark.parametrize("start", [2**53, 2**60])
@pytest.mark.parametrize("index", [None, [f"s{i}" for i in range(20)]])
def test_sparse_columns_of_whole_numbers_beyond_53_bits_are_refused(start, index):
    columns = {"x": np.arange(20.0), "y": start + np.arange(20)}
    columns = {name: pd.arrays.SparseArray(own, fill_value=0) for name, own in columns.items()}
    other = pd.DataFrame({"z": np.arange(20.0)}, index=[f"s{i + 1}" for i in range(20)] if index else None)
    with pytest.raises(DataError, match=rf"view 'view_0', column 1 \('y'\): its values {TOLD}"):
        Views([pd.DataFrame(columns, index), other])


def test_whole_numbers_of_frames_that_are_joined_keep_their_digits():
    first = pd.DataFrame({"x": LONG}, index=[f"s{i}" for i in range(20)])
    second = pd.DataFrame({"y": np.arange(20.0)}, index=[f"s{i + 1}" for i in range(20)])
    with pytest.raises(DataError, match=f"view 'a', column 0 .* its values {TOLD}"):
        Views({"a": first, "b": second})


def draw(kind, rng, n=400):
    return {
        "time stamps of a year": lambda: 1.7e9 + rng.random(n) * 3e7,
        "positions in a genome": lambda: rng.integers(1, 250_000_000, n),
        "metres": lambda: 5_400_000 + rng.normal(size=n) * 2_000,
        "m/z": lambda: 785.8421 + rng.normal(size=n) * 0.005,
        "many scales": lambda: np.exp(10 * rng.normal(size=n)),
        "whole numbers": lambda: 16_000_000 + rng.integers(0, 3, n),
        "probabilities near one": lambda: np.where(rng.random(n) < 0.8, 1 - 1e-9 * rng.random(n), rng.random(n)),
        "set points": lambda: 300.0 + 50 * rng.integers(0, 3, n) + 1e-5 * rng.normal(size=n),
        "rounding, and one that is far": lambda: np.r_[5.0, 0.3 + rng.choice([0, 5.6e-17], n - 1)],
        "mostly zero": lambda: np.where(rng.random(n) < 0.97, 0.0, 1e7 + rng.random(n)),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    ["time stamps of a year", "positions in a genome", "metres", "m/z", "many scales", "whole numbers",
     "probabilities near one", "set points", "rounding, and one that is far", "mostly zero"],
)  # fmt: skip
def test_ordinary_columns_are_read(kind):
    for seed in range(5):
        values = draw(kind, np.random.default_rng(seed))[:, None]
        assert np.array_equal(Views([values]).arrays[0], values.astype(np.float32))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 37.0])
@pytest.mark.parametrize("offset", [10.0**e for e in range(10)])
def test_what_is_refused_is_what_loses_its_order(scale, offset):
    """Literally: how many of ten rows that are a tenth of all apart still differ, in exact arithmetic."""
    rng = np.random.default_rng(3)
    values = scale * (offset + np.sort(rng.normal(size=201)))
    cuts = [Fraction(float(value)) for value in values[::20]]
    error = Fraction(float(np.spacing(np.float32(values[100])))) / 2
    shares = sorted(error / (b - a) for a, b in pairwise(cuts))
    middle = (shares[4] + shares[5]) / 2
    if not Fraction(1, 16) < middle < Fraction(1, 4):  # spacings change within a column
        assert loses_digits(values[:, None]).tolist() == [middle > Fraction(1, 8)]


def quick(n_clusters=3, **options):
    sizes = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 2, "joint_epochs": 1}
    return URRL(n_clusters, **flat(**{**sizes, "scaling": "standard", "random_state": 0, "device": "cpu"} | options))


def test_new_samples_may_be_alike():
    """Replicates of one sample: the training samples say which digits matter."""
    rng = np.random.default_rng(0)
    model = quick(2).fit([1_000 + 50 * rng.normal(size=(40, 3))])
    new = 1_000 + 1e-5 * rng.normal(size=(30, 3))
    assert np.any(Views([new]).offsets[0])
    expected = model.predict_proba([new.astype(np.float32)])
    for given in ([new], Views([new], names=["view_0"], allow_disjoint=True)):
        assert np.array_equal(model.predict_proba(given), expected)


FAR = {
    "time stamps": (1_700_000_000, lambda x: 60 * x),
    "positions in a genome": (248_000_000, lambda x: np.rint(3 * x).astype(np.int64)),
    "m/z": (785.8421, lambda x: 1e-6 * x),
    "metres, and one row elsewhere": (1e7, lambda x: x + np.where(np.arange(len(x)) == 7, 40, 0)[:, None]),
    "nanoseconds": (1_700_000_000_000_000_000, lambda x: np.rint(1e9 * x).astype(np.int64)),
}


@pytest.fixture(scope="module")
def groups():
    """Three clusters in two views, one of which is to be given an offset, and who has it."""
    rng, labels = np.random.default_rng(0), np.arange(150) % 3
    first, second = (3.0 * labels[:, None] + rng.normal(0, 0.3, (150, 4)) for _ in range(2))
    return labels, first, second, np.arange(150) % 5 > 0


@pytest.fixture(scope="module")
def far(groups):
    """A model of a view with a large offset."""
    _, first, second, _ = groups
    return quick().fit({"a": first + 1e9, "b": second})


QUICK = ("nanoseconds",)


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in FAR])
def test_a_model_of_large_offsets_is_that_of_their_differences(kind, groups, tmp_path):
    labels, first, second, has = groups
    offset, apart = FAR[kind][0], FAR[kind][1](first)
    given, mask = apart + offset, np.c_[has, np.ones(150, dtype=bool)]
    plain, model = (quick().fit(Views({"a": a, "b": second}, mask=mask)) for a in (apart, given))
    assert np.any(model._model.offsets[0])
    assert adjusted_rand_score(labels, model.labels_) > 0.9
    np.testing.assert_allclose(model.embedding_, plain.embedding_, atol=0.02)
    model.save(tmp_path / "model")
    again = URRL.load(tmp_path / "model", device="cpu")
    new = {"a": given[has], "b": second[has]}
    for one in (model, again, copy.deepcopy(model)):
        assert np.array_equal(one.predict_proba(new), model.soft_labels_[has])  # training samples are known again
    for row in (0, 3, 8):
        alone = {name: view[row : row + 1] for name, view in new.items()}
        np.testing.assert_allclose(again.predict_proba(alone), model.soft_labels_[has][row : row + 1], atol=1e-5)
    assert np.array_equal(again.predict(Views(new)), model.predict(new))
    hidden = np.where(has[:, None], given.astype(float), np.nan)
    filled, expected = (
        again.impute({"a": hidden, "b": second})["a"],
        plain.impute({"a": hidden - offset, "b": second})["a"],
    )
    assert filled.dtype == np.float64
    assert np.abs(filled - offset - expected).max() < 0.02 * np.ptp(apart) + np.spacing(float(offset))
    assert np.abs(filled - given)[has].max() < 1e-6 * np.ptp(apart) + np.spacing(float(offset))
    told = again.explain(new).features()
    means = told[told.view == "a"]
    assert means["mean"].between(given.min(), given.max()).all()
    assert (means["mean"] != means["mean_of_others"]).all()


def test_samples_that_lost_their_digits_before_are_refused(groups, far):
    _, first, second, _ = groups
    told = "view 'a', column 0: as sparse matrices or 32-bit floats these samples lose digits"
    for lost in ((first + 1e9).astype(np.float32), sparse.csr_array(first + 1e9)):
        with pytest.raises(DataError, match=told):
            far.predict({"a": lost, "b": second})
    with pytest.raises(DataError, match=told):
        far.predict(Views({"a": first[:3] + 1e9, "b": second[:3]}))  # too few rows to see what matters
    far.predict({"a": None, "b": second.astype(np.float32)})


def test_columns_in_another_order_keep_their_offsets(groups):
    _, first, second, _ = groups
    names = list("pqrs")
    frame = pd.DataFrame(first + np.array([1e9, 0, -1e8, 5e9]), columns=names)
    model = quick().fit({"a": frame, "b": second})
    for new in (frame[names[::-1]], frame.assign(z=1.0)[["z", *names]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredColumnsWarning)
            assert np.array_equal(model.predict_proba({"a": new, "b": second}), model.soft_labels_)
            assert np.array_equal(model.predict_proba(Views({"a": new, "b": second})), model.soft_labels_)


@pytest.mark.slow
def test_every_way_to_ask_a_model_of_large_offsets(groups, tmp_path):
    """Files, one row at a time and in JSON: none rounds before the model does."""
    _, first, second, _ = groups
    ids = [f"s{i}" for i in range(150)]
    frames = {"a": pd.DataFrame(first + 1e9, index=ids), "b": pd.DataFrame(second, index=ids)}
    model = quick().fit(frames)
    model.save(tmp_path / "model")
    files = [f"{name}={tmp_path / name}.csv" for name in frames]
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index_label="id")
    done = CliRunner().invoke(main, ["predict", str(tmp_path / "model"), *files, "--out", str(tmp_path / "labels.csv")])
    assert done.exit_code == 0, done.output
    assert pd.read_csv(tmp_path / "labels.csv")["label"].tolist() == model.labels_.tolist()
    done = CliRunner().invoke(main, ["impute", str(tmp_path / "model"), files[1], "--out", str(tmp_path / "filled")])
    assert done.exit_code == 0, done.output
    filled = pd.read_csv(tmp_path / "filled" / "a.csv", index_col="id")
    expected = quick().fit({"a": first, "b": second}).impute({"a": None, "b": second})["a"]
    assert np.abs(filled.to_numpy() - 1e9 - expected).max() < 0.02 * np.ptp(first)
    rows = {"views": {name: frame.iloc[4:5].to_numpy().tolist() for name, frame in frames.items()}}
    one = read_json(json.dumps(rows).encode(), Limits(), ["a", "b"])
    np.testing.assert_allclose(model.predict_proba(one), model.soft_labels_[4:5], atol=1e-5)
    parts = read_chunks({name: tmp_path / f"{name}.csv" for name in frames}, 40)
    assert np.concatenate([model.predict(part) for part in parts]).tolist() == model.labels_.tolist()


def test_views_for_a_model_can_be_fitted_as_well(groups, far):
    labels, first, second, _ = groups
    views = Views({"a": first + 1e9, "b": second}, allow_disjoint=True)
    assert {array.dtype for array in views.arrays} == {np.dtype(np.float64)}
    assert np.array_equal(quick().fit(views).soft_labels_, far.soft_labels_)
    assert adjusted_rand_score(labels, far.labels_) > 0.95


@pytest.mark.parametrize("layout", ["columns", pytest.param("lists", marks=pytest.mark.slow)])
def test_shards_keep_their_differences_beside_an_offset(tmp_path, layout):
    """The labels are those of the same rows without the offset; everything that was written is in the data's units."""
    labels = np.arange(240) % 3
    rng = np.random.default_rng(0)
    near = np.column_stack([labels + 0.05 * rng.normal(size=240), rng.normal(size=240)])
    other = pa.array((3.0 * labels[:, None] + rng.normal(0, 0.2, (240, 3))).tolist())
    found, asked = [], []
    for place, offset in (("near", 0.0), ("far", 1e9)):
        cells = near + np.array([offset, 0.0])
        own = {
            "v0.x": cells[:, 0],
            "v0.y": cells[:, 1],
            **{f"v1.{c}": np.array(other.to_pylist())[:, c] for c in range(3)},
        }
        own = {"v0": pa.array(cells.tolist()), "v1": other} if layout == "lists" else own
        data = write_shards(tmp_path / place, pa.table({"id": [f"s{i}" for i in range(240)], **own}), 3)
        out = tmp_path / f"{place}-out"
        summary = quick_fit(data, out)
        assert quick_fit(data, out) == summary  # known again
        table = written(out)
        order = [int(name[1:]) for name in table.column("id").to_pylist()]
        found.append(np.asarray(table.column("label"))[np.argsort(order)])
        columns = pd.read_csv(out / "columns.csv")
        assert columns["lowest"][0] == pytest.approx(offset + near[:, 0].min(), abs=1e-6)
        model = URRL.load(out / "model", device="cpu")
        assert [bool(np.any(one)) for one in model._model.offsets] == [offset > 0, False]
        lines = [f"s{i},{cells[i, 0]:.12f},{cells[i, 1]:.9f}" for i in range(240)]
        header = "id,0,1" if layout == "lists" else "id,v0.x,v0.y"
        (tmp_path / "v0.csv").write_text("\n".join([header, *lines]) + "\n")
        asked.append(model.predict(next(read_chunks(tmp_path / "v0.csv"))))
    assert adjusted_rand_score(labels, found[0]) > 0.9
    assert adjusted_rand_score(*found) > 0.95
    assert np.array_equal(*asked)
    values = [next(Shards(data).read(path)).values for path in sorted(data.iterdir())]  # as they were before
    assert np.ptp(np.concatenate(values)[:, 0]) == 0


def test_a_changed_shard_with_an_offset_is_seen(tmp_path):
    cells = np.column_stack([1e9 + np.arange(240) % 3 + 0.01 * np.arange(240), np.arange(240.0)])
    table = pa.table({"id": [f"s{i}" for i in range(240)], "v0.x": cells[:, 0], "v0.y": cells[:, 1]})
    data = write_shards(tmp_path / "rows", table, 2)
    quick_fit(data, tmp_path / "out")
    cells[3, 0] += 0.125  # which float32 would not see
    first = sorted(data.iterdir())[0]
    kept = first.stat()
    pq.write_table(table.set_column(1, "v0.x", pa.array(cells[:, 0])).slice(0, pq.read_metadata(first).num_rows), first)
    os.utime(first, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with pytest.raises(CannotWrite):
        quick_fit(data, tmp_path / "out")


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("start", [2**53, 2**60])
def test_shards_of_whole_numbers_beyond_64_bit_floats_are_refused(tmp_path, start, lists, gap):
    """Beside an empty cell pyarrow gives whole numbers as floats."""
    numbers = [None if gap and i == 4 else start + i % 30 for i in range(90)]
    own = {"v3": [[i, one] for i, one in enumerate(numbers)]} if lists else {"v3.x": numbers, "v4.y": np.arange(90.0)}
    data = write_shards(tmp_path / "rows", pa.table({"id": [f"s{i}" for i in range(90)], **own}), 3)
    column = "1" if lists else r"'v3\.x'"
    told = rf"part0\.parquet, view 'v3', column {column}: most of its values {TOLD}; subtract"
    with pytest.raises(DataError, match=told):
        fit_large(data, tmp_path / "run", 3, bank=60, steps=2, batch_size=64, device="cpu")
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("rows", [9, 10])
@pytest.mark.parametrize("form", ["csv", "csv with an empty cell", "frame", "array"])
def test_ten_rows_are_the_fewest_that_are_refused_in_any_form(tmp_path, form, rows):
    """Fewer may be alike by chance; empty cells are no rows."""
    numbers = [2**60 + row for row in range(rows)]

    def read():
        if form.startswith("csv"):
            lines = ["id,x,y", *(f"s{row},{number},{row}" for row, number in enumerate(numbers))]
            lines += ["other,,3"] * (form != "csv")
            (tmp_path / "a.csv").write_text("\n".join(lines))
            return read_views(tmp_path / "a.csv")
        if form == "frame":
            return Views({"a": pd.DataFrame({"x": numbers, "y": np.arange(rows)})})
        return Views([np.array([[number, row] for row, number in enumerate(numbers)])])

    with pytest.raises(DataError, match=f"column .*{TOLD}") if rows == 10 else nullcontext():
        read()


@pytest.mark.parametrize(
    ("n", "width", "cells", "rows"), [(80, 4, 1, 50), (80, 4, 280, 70), (600, 4, 10**6, 500), (45, 4, 1, 45)]
)
def test_of_many_cells_fifty_to_five_hundred_rows_are_looked_at(monkeypatch, n, width, cells, rows):
    seen = []
    monkeypatch.setattr(precision, "_MOST_CELLS", cells)
    monkeypatch.setattr(precision, "loses_digits", lambda sample: seen.append(sample) or np.zeros(width, dtype=bool))
    values = np.arange(1.0, n * width + 1).reshape(n, width)
    precision.lossy_columns(np.vstack([values, -values]), np.arange(2 * n) < n)
    (sample,) = seen
    assert sample.shape == (rows, width)
    assert (np.diff(sample[:, 0]) > 0).all()  # each once, and none that is not there
    assert sample.min() >= 1
