"""Columns with a large offset: what 32-bit floats would lose of them is refused, never lost in silence."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy import sparse

from sharded_data import rows, write_shards
from viewfuse import URRL, Views, read_views
from viewfuse.cli import main
from viewfuse.data.digits import loses_digits
from viewfuse.distributed.fit_large import fit_large
from viewfuse.distributed.rows.shards import Shards
from viewfuse.errors import DataError

TOLD = "differ by less than 32-bit floats can tell"
LONG = [2**60 + i for i in range(20)]


def clusters(far, offset, n=300, seed=0):
    """Three of them, .4 apart, and one row far away."""
    rng = np.random.default_rng(seed)
    values = 0.4 * (np.arange(n) % 3)[:, None] + 0.05 * rng.normal(size=(n, 4))
    values[7] += far
    return values + offset


@pytest.mark.parametrize("far", [0.0, 5.0, 1e4, -1e7])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, lambda table: table.astype(object), pd.DataFrame])
def test_clusters_beside_a_large_offset_are_refused(far, kind):
    told = rf"view 'b', column 0: .*{TOLD}; subtract a number near them first, such as 10000000\.\d+"
    with pytest.raises(DataError, match=told):
        Views({"a": clusters(far, 0), "b": kind(clusters(far, 1e7))})
    Views({"a": clusters(far, 0), "b": kind(clusters(far, 1e7) - 1e7)})  # the cure
    Views({"b": clusters(far, 1e3)})  # rounded by 3e-5
    Views({"b": clusters(far, 1e7).astype(np.float32)})  # they have no other digits


def test_rows_that_are_missing_say_nothing():
    table = clusters(0, 1e7)
    mask = np.ones((300, 2), dtype=bool)
    mask[9:, 1] = False
    Views([table - 1e7, table], mask=mask)  # nine rows may be alike
    mask[9, 1] = True
    with pytest.raises(DataError, match="'view_1', column 0"):
        Views([table - 1e7, table], mask=mask)
    gaps = np.where(np.random.default_rng(1).random(table.shape) < 0.4, np.nan, table)
    with pytest.raises(DataError, match="'view_1', column 0"):
        Views([table - 1e7, gaps])


def test_steps_in_a_file_are_refused(tmp_path):
    lines = [f"s{i},{1_000_000 + i / 100:.2f},{i}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["id,x,y", *lines]) + "\n")
    with pytest.raises(DataError, match=rf"a\.csv: view 'a', column 0 \('x'\): most of its values {TOLD}"):
        read_views(tmp_path / "a.csv")
    found = CliRunner().invoke(main, ["inspect", str(tmp_path / "a.csv")])
    assert (found.exit_code, len(found.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "frame",
    [
        lambda: pd.DataFrame({"x": pd.array(LONG, dtype="Int64")}),
        lambda: pd.DataFrame({"x": pd.array([*LONG, None], dtype="Int64"), "y": range(21)}),
        lambda: pd.DataFrame({"x": LONG, "y": np.arange(20.0)}),
        lambda: pd.DataFrame({"x": pd.array(LONG, dtype="UInt64"), "y": np.arange(20.0)}),
        lambda: np.array([[number, 1.5] for number in LONG], dtype=object),
        lambda: np.ma.masked_array(np.c_[LONG, range(20)], mask=np.c_[np.arange(20) == 3, np.zeros(20)]),
        lambda: np.array(LONG)[:, None],
    ],
    ids=["Int64", "Int64 with gaps", "int64 and float64", "UInt64 and float64", "objects", "masked", "int64"],
)
def test_whole_numbers_beyond_53_bits_are_no_constants(frame):
    with pytest.raises(DataError, match=f"column 0.* its values {TOLD}"):
        Views([frame()])


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


def test_new_samples_may_be_alike():
    """Replicates of one sample: the training samples say which digits matter."""
    rng = np.random.default_rng(0)
    model = URRL(2, embedding_dim=4, hidden_dim=8, pretrain_epochs=1, joint_epochs=1, random_state=0, device="cpu")
    model.fit([1_000 + 50 * rng.normal(size=(40, 3))])
    new = 1_000 + 1e-5 * rng.normal(size=(30, 3))
    with pytest.raises(DataError, match=TOLD):
        Views([new])
    assert len(model.predict([new])) == 30


def batches(folder):
    return [batch for path in sorted(folder.iterdir()) for batch in pq.read_table(path).to_batches()]


@pytest.mark.parametrize("offset", [1e9, 0.0])
@pytest.mark.parametrize("layout", ["lists", "columns", "whole numbers"])
def test_shards_are_looked_at_as_well(tmp_path, offset, layout):
    table, _ = rows(90)
    numbers = (np.arange(90) % 3 + 2**60) if layout == "whole numbers" and offset else np.arange(90) % 3 + offset
    numbers = numbers + (0 if layout == "whole numbers" else 0.01 * np.random.default_rng(0).normal(size=90))
    cells = [[1.5 * i, float(number)] for i, number in enumerate(numbers)] if layout == "lists" else numbers
    column = "v3" if layout == "lists" else "v3.x"
    own = {column: pa.array(cells)} | ({} if layout == "lists" else {"v4.y": pa.array(np.arange(90.0))})
    data = write_shards(tmp_path / "rows", pa.table({"id": table.column("id"), **own}), 3)
    if not offset:
        assert not [c for c, cells in Shards(data).exact(batches(data)) if loses_digits(cells).any()]
        return
    place = r"view 'v3', column 1" if layout == "lists" else r"view 'v3', column 'v3\.x'"
    with pytest.raises(DataError, match=rf"part0\.parquet, {place}: most of its values {TOLD}; subtract"):
        fit_large(data, tmp_path / "run", 3, bank=60, steps=2, batch_size=64, device="cpu")
    assert not (tmp_path / "run" / "checkpoint").exists()
