"""Text goes out so that no spreadsheet runs it, and comes back as it was; numbers with many digits are not merged."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from run_folders import a_split
from viewfuse import DataError, Views, read_views
from viewfuse.cli import main
from viewfuse.io.formulas import marked, unmarked, write_harmless
from viewfuse.io.readers import text
from viewfuse.io.writers import Sheet

SIGNS = "=+-@;,|'\"\t\r\n ＝＋－＠x1"  # noqa: RUF001


@given(st.text(alphabet=SIGNS, max_size=6))
def test_text_comes_back_as_it_was(cell):
    assert unmarked(marked(cell)) == cell
    file = io.StringIO(newline="")
    write_harmless(file, [(cell, "end")])
    ((back, end),) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert (unmarked(back), end) == (cell, "end")


FORMULAS = ["=1+1", "＝1+1", "－2+3", "＠SUM(A1)", "x;=1+1", "x\t=1+1", 'x;"=1+1', "'=1", "a\n@b"]  # noqa: RUF001


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_no_cell_begins_like_a_formula_wherever_it_is_opened(delimiter):
    for cell in FORMULAS:
        file = io.StringIO(newline="")
        write_harmless(file, [(cell, "0.5")])
        rows = csv.reader(io.StringIO(file.getvalue(), newline=""), delimiter=delimiter)
        cells = [part for row in rows for part in row]
        assert not [part for part in cells if part.startswith(tuple("=+-@＝＋－＠"))], cell  # noqa: RUF001


def test_numbers_are_not_marked():
    assert [marked(cell) for cell in ("-1.5", "+2", "1e5", "a-b", "x;y", "plain", -3)] == [
        "-1.5", "+2", "1e5", "a-b", "x;y", "plain", -3,
    ]  # fmt: skip


@pytest.mark.usefixtures("quick_map")
def test_filled_views_with_odd_names_can_be_predicted(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        rows = [
            ["id", "=a", "x;=1+1", "'b"],
            *([f"=s{i}", *rng.normal(size=3)] for i in range(10 if name == "one" else 8)),
        ]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    files = [str(tmp_path / name) for name in ("one.csv", "two.csv")]
    quick = ["--clusters", "2", "--pretrain-epochs", "1", "--joint-epochs", "1", "--scaling", "standard"]
    quick += ["--hidden-dim", "8", "--embedding-dim", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.cli.fit.draw_map", lambda *_, **__: None)
        commands = [
            ["fit", *files, *quick, "--out", str(tmp_path / "run")],
            ["impute", str(tmp_path / "run/model"), *files, "--out", str(tmp_path / "filled")],
            ["predict", str(tmp_path / "run/model"), str(tmp_path / "filled"), "--out", str(tmp_path / "labels.csv")],
        ]
        for command in commands:
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 0, result.output
            assert "warning" not in result.output
    assert read_views(tmp_path / "filled").ids.tolist() == [f"=s{i}" for i in range(10)]


def test_names_of_views_cannot_steer_the_terminal(tmp_path, monkeypatch):
    name = "a\x07"
    choice = {"splits": [a_split(-1, 0, [5, 4], 1.0, alone=name)], "why": f"2 clusters, as {name} shows"}
    alarms = SimpleNamespace(alarms=[f"view {name!s} is missing"], sheet=lambda: Sheet(("view",), []), n_samples=1)
    model = SimpleNamespace(drift=lambda views: alarms, view_names_=["x"], _model=None)
    monkeypatch.setattr("viewfuse.URRL.choose", lambda *_: choice)
    monkeypatch.setattr("viewfuse.load", lambda *_, **__: model)
    (tmp_path / "x.csv").write_text("id,a\n" + "".join(f"s{i},{i}\n" for i in range(9)))
    for verb in (["choose", str(tmp_path / "x.csv")], ["drift", str(tmp_path), str(tmp_path / "x.csv")]):
        said = CliRunner().invoke(main, verb, catch_exceptions=False)
        assert said.exit_code == 0, said.output
        assert "view a" in said.output or "as a" in said.output
        assert "\x07" not in said.output


@pytest.mark.parametrize("start", [2**53, -(2**62)])
def test_whole_numbers_with_too_many_digits_are_treated_alike(tmp_path, start):
    numbers = [start + i for i in range(30)]
    table = {"id": [f"s{i}" for i in range(30)], "x": numbers, "y": np.arange(30.0)}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    (tmp_path / "c.csv").write_text("\n".join(["id,x,y", *lines]))
    zeros = [f"{name},{number}.00,{y}" for name, number, y in zip(*table.values(), strict=True)]
    (tmp_path / "zeros.csv").write_text("\n".join(["id,x,y", *zeros]))
    gaps = {"id": table["id"], "x": [*numbers[:-1], None], "y": table["y"]}
    pq.write_table(pa.table(gaps), tmp_path / "gaps.parquet")
    pq.write_table(pa.table({**table, "x": [*map(str, numbers)]}), tmp_path / "text.parquet")
    pq.write_table(
        pa.table({"id": table["id"], "x": [[i, one] for i, one in enumerate(numbers)]}), tmp_path / "l.parquet"
    )
    words = "its values differ by less than 32-bit floats can tell"
    for read in (
        lambda: Views([np.array([numbers, range(30)]).T]),
        *(lambda path=path: read_views(path) for path in sorted(tmp_path.iterdir())),
    ):
        with pytest.raises(DataError, match=words):
            read()


def test_whole_numbers_that_floats_can_tell_are_read(tmp_path):
    lines = [f"s{i},{2**60 + 256 * i}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["id,x", *lines]))
    pq.write_table(pa.table({"id": range(30), "x": [2**60 + 256 * i for i in range(30)]}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert np.diff(read_views(tmp_path / name).arrays[0][:, 0]).tolist() == [256.0] * 29
    (tmp_path / "c.csv").write_text(f"id,x,y\na,{2**60},{2**60}\nb,5,{2**60}\nc,,{2**60}\n")
    assert read_views(tmp_path / "c.csv").arrays[0][:2, 0].tolist() == [2.0**60, 5.0]


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_LONGEST_LINE", 1000)
    (tmp_path / "a.csv").write_bytes(b"id,x\na,1\n" + b"0" * 2000)
    with pytest.raises(DataError, match=r"a\.csv, line 3 has 1,000 letters or more.*; check how its lines end"):
        read_views(tmp_path / "a.csv")
