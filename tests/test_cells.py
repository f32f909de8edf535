"""Text tables as they are in offices: semicolons, decimal commas, yes and no, dates, packed files, columns to leave."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from viewfuse import read_views
from viewfuse.cli import main
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.readers import text
from viewfuse.io.source import ending_of, view_of

pytestmark = pytest.mark.filterwarnings("ignore::viewfuse.EmptySampleWarning")
PLAIN = "id,size,smoker,born\na,1.5,1,19782\nb,-20.25,0,-1\nc,,,\nd,3,0,19783.5\n"
"""The same table in four ways; 2024-02-29 is day 19782."""
OFFICE = "id;size;smoker;born\na;1,5;Yes;2024-02-29\nb;-20,25;no;1969-12-31\nc;;NA;\nd;3;no;2024-03-01T12:00:00Z\n"


def read(path, **how):
    views = read_views(path, **how)
    return views.in_units()


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "people.csv").write_text(PLAIN)
    return read(tmp_path / "plain" / "people.csv")


@pytest.mark.parametrize("per_block", [10**6, 1], ids=["at once", "row by row"])
def test_a_table_of_an_office_is_the_plain_one(tmp_path, plain, capsys, monkeypatch, per_block):
    monkeypatch.setattr(text, "_CELLS_AT_A_TIME", per_block)
    (tmp_path / "people.csv").write_text(OFFICE)
    found = read(tmp_path / "people.csv")
    assert found.names == plain.names
    assert found.columns == plain.columns
    assert found.ids.tolist() == plain.ids.tolist() == ["a", "b", "d"]  # c has nothing
    assert np.array_equal(found.arrays[0], plain.arrays[0])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "separated by ';', 1,5 is 1.5, 'smoker' as 1 for yes and 0 for no, 'born' as days since 1970" in said


def test_a_plain_table_says_nothing(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("id,x;y,z\na,1,2\nb,3,4\n")  # as many cells with commas
    assert read(tmp_path / "x.csv").columns == (["x;y", "z"],)
    (tmp_path / "x.csv").write_text('id,"a;b;c;d",z\na,1,2\nb,3,4\n')
    assert read(tmp_path / "x.csv").columns == (["a;b;c;d", "z"],)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("cells", "warned"), [
    (("1.234", "950", "-12.000"), True), (("1.234", "0.500", "1.000"), False), (("1.234", "1.5", "3"), False),
    (("1234", "950", "3"), False),
])  # fmt: skip
def test_points_that_may_stand_for_thousands_are_warned_of(tmp_path, recwarn, cells, warned):
    rows = "".join(f"{name};{cell};1,5\n" for name, cell in zip("abc", cells, strict=True))
    (tmp_path / "x.csv").write_text(f"id;x;y\n{rows}")
    read(tmp_path / "x.csv", only=["x"])
    assert [one.category for one in recwarn] == [SuspiciousDataWarning] * warned
    assert all("like 1.234, which is read as 1.234 and not as 1234; write" in str(one.message) for one in recwarn)
    if "." in "".join(cells):
        with pytest.raises(DataError, match="stand in one file; write all numbers alike"):
            read(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(f"id;x;y\n{rows}".replace(",", ".").replace(";", ","))
    recwarn.clear()
    read(tmp_path / "x.csv")
    assert not recwarn


def test_days_are_those_of_the_calendar():
    for day in ("1970-01-01", "1899-12-31", "2000-02-29", "2024-12-31"):
        expected = (date.fromisoformat(day) - date(1970, 1, 1)).days
        assert text._days(day) == expected
        assert text._days(f"{day} 06:00") == expected + 0.25
        assert text._days(f"{day}T02:00:00+02:00") == expected
    assert text._days("2023-02-29") is None


@pytest.mark.parametrize("name", ["rna.csv.gz", "rna.TSV.GZ"])
def test_packed_tables_are_read(tmp_path, name):
    sign = "\t" if "tsv" in name.lower() else ","
    (tmp_path / name).write_bytes(gzip.compress(f"id{sign}x\na{sign}1\nb{sign}2.5\n".encode()))
    views = read_views([tmp_path / name])
    assert views.names == ("rna",)
    assert views.arrays[0].tolist() == [[1.0], [2.5]]


def test_names_of_files():
    expected = {
        "a.b.csv": ("a.b", ".csv"),
        "x.CSV.gz": ("x", ".csv.gz"),
        "x.gz": ("x", ".gz"),
        "x.tar.gz": ("x.tar", ".gz"),
    }
    for name, (view, ending) in expected.items():
        assert (view_of(Path("folder") / name), ending_of(Path(name))) == (view, ending)


def test_a_packed_file_does_not_grow_without_end(tmp_path):
    line = b"a,1" + b"0" * 996 + b"\n"
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"id,x\n" + line * 16_500, compresslevel=1))
    with pytest.raises(DataError, match=r"bomb\.csv\.gz would grow from .* bytes or more; if that is right, unpack it"):
        read_views(tmp_path / "bomb.csv.gz")
    whole = gzip.compress(b"id,x\na,1\n" * 50)
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-12])
    with pytest.raises(DataError, match=r"cut\.csv\.gz is no readable \.gz file"):
        read_views(tmp_path / "cut.csv.gz")


@pytest.fixture
def tables(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"id": list("abc"), "q1": [1, 2, 4], "q2": [5.0, 6, 8], "note": ["x", "1", "2"], "s [cm]": [7, 8, 1]}
    )
    frame.to_csv(tmp_path / "form.csv", index=False)
    frame.to_parquet(tmp_path / "form.parquet", index=False)
    pd.DataFrame({"id": list("abc"), "g": [1.0, 2, 0]}).to_csv(tmp_path / "rna.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_are_chosen_by_name_or_pattern(tables, ending):
    files = [tables / f"form.{ending}", tables / "rna.csv"]
    assert read_views(files, drop=["note"]).columns == (["q1", "q2", "s [cm]"], ["g"])
    assert read_views(files, only=["q*"]).columns == (["q1", "q2"], ["g"])
    assert read_views(files, only=["q*", "s [cm]"], drop=["q1"]).columns == (["q2", "s [cm]"], ["g"])
    with pytest.raises(DataError, match="drop names 'nota', but no file has such a column"):
        read_views(files, drop=["note", "nota"])
    with pytest.raises(DataError, match="only names 'p', but no file has such a column"):
        read_views(files, only=["q1", "p"])
    with pytest.raises(DataError, match=r"rna\.csv: no column is left"):
        read_views(files, drop=["note", "g"])


def test_columns_without_names_are_not_chosen_by_name(tmp_path):
    (tmp_path / "x.csv").write_text("a,1\nb,2\n")
    with pytest.raises(DataError, match="drop names columns, but with header=False they have no names"):
        read_views(tmp_path / "x.csv", header=False, drop=["x"])


def test_the_command_line_leaves_columns_out(tables):
    done = CliRunner().invoke(
        main, ["inspect", str(tables / "form.csv"), "--drop", "note", "--only", "q*", "--only", "note"]
    )
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(main, ["inspect", str(tables / "form.csv")])
    assert "'x' is not a number" in refused.output
    assert "unlike other cells of the column" in refused.output
