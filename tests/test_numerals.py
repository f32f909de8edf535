"""What is a number in a table: plain decimal or scientific notation, ASCII digits, and nothing else."""

import json
import re
from decimal import Decimal
from fractions import Fraction

import click
import numpy as np
import pandas as pd
import pytest

from viewfuse import read_views
from viewfuse.cli.options import NumberRange
from viewfuse.data.precision import is_number
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.labels import read_table
from viewfuse.serve.bodies import read_json
from viewfuse.serve.limits import Limits

NO_NUMBERS = ["1_2", "1_000.5", "1e1_0", "١٢", "１２", "१२", "1.５", "−5", "0x10", "1d5", "1,5", "1 2", "½"]  # noqa: RUF001
NUMBERS = {"1e5": 1e5, " 5 ": 5, "5\u00a0": 5, "\u20035": 5, "+.5": 0.5, "5.": 5, "-1.5E-3": -1.5e-3, "1e-300": 1e-300}
OBJECTS = [np.datetime64("2020-01-01"), np.timedelta64(5, "D"), np.complex128(1 + 2j), b"1_2", bytearray(b"12")]
PLAIN = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
"""The rule, literally."""


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_text_that_only_python_takes_for_a_number_is_refused_with_its_place(tmp_path, text):
    place = rf"row 1 .*'c'.*column 1 \('y'\): {re.escape(repr(text))} is not a number"
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [4.0, text, 6.0]}, index=list("bca"), dtype=object)
    with pytest.raises(DataError, match=place):
        Views({"rna": frame})
    with pytest.raises(DataError, match=place):
        Views({"rna": np.ma.array(frame.to_numpy())}, ids=list("bca"), columns=[["x", "y"]])
    rows = {"columns": ["x", "y"], "values": [[1.0, None], [2.0, text]]}
    with pytest.raises(DataError, match=r"is not a number|not real numbers"):
        read_json(json.dumps({"views": {"rna": rows}}).encode(), Limits(), ["rna"])
    path = tmp_path / "rna.csv"
    frame.to_csv(path, index_label="id")
    with pytest.raises(DataError, match=rf"rna\.csv, id 'c', column 'y': {re.escape(repr(text))} is not a number"):
        read_views(path)
    with pytest.raises(DataError, match="data row 2, column y"):
        read_table(path).numbers("y")


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_plain_text_of_numbers_is_read(tmp_path, text, value):
    (tmp_path / "rna.csv").write_text(f"id,x,y\na,1,2\nb,3,{text}\n", encoding="utf-8")
    assert read_views(tmp_path / "rna.csv").arrays[0][1, 1] == np.float32(value)
    assert Views([np.array([[text, 1.0]], dtype=object)]).arrays[0][0, 0] == np.float32(value)


def test_the_rule_is_the_literal_one():
    rng = np.random.default_rng(0)
    signs = list("0123456789" * 2 + "+-..eE_ \u0661\uff11\u00a0")
    drawn = zip(rng.choice(signs, size=(5_000, 6)), rng.integers(1, 7, size=5_000), strict=True)
    texts = ["".join(own[:length]) for own, length in drawn]
    found = [text for text in texts if is_number(text)]
    assert found == [text for text in texts if PLAIN.fullmatch(text) and not is_lost(text)]
    assert len(found) > 500


def is_lost(text):
    return Fraction(Decimal(text.strip())) != 0 and float(text) == 0


@pytest.mark.parametrize("cell", OBJECTS, ids=repr)
def test_objects_that_only_numpy_takes_for_numbers_are_refused(cell):
    table = np.empty((2, 2), dtype=object)
    table[:] = [[1.0, 2.0], [3.0, cell]]
    with pytest.raises(DataError, match=r"row 1, column 1: .* is not a number"):
        Views([table])


def test_other_numbers_are_numbers():
    cells = [Decimal("1.5"), Fraction(3, 2), True, np.float16(1.5), np.uint8(7), np.bool_(False), b"12", np.array(5)]
    table = np.empty((1, len(cells)), dtype=object)
    table[0] = cells
    assert Views([table]).arrays[0].tolist() == [[1.5, 1.5, 1, 1.5, 7, 0, 12, 5]]


@pytest.mark.parametrize("kind", ["U3", "M8[D]", "c16"])
def test_masked_arrays_of_something_else_are_refused(kind):
    given = np.array([["12", "13"]] if kind == "U3" else [[12, 13]]).astype(kind)
    with pytest.raises(DataError, match=r"not real numbers|Complex data"):
        Views([np.ma.array(given)])


def test_numbers_that_64_bits_hold_as_zero_are_refused(tmp_path):
    (tmp_path / "rna.csv").write_text("id,x,y\na,1,2\nb,3,1e-400\n")
    with pytest.raises(DataError, match="id 'b', column 'y': '1e-400' is too small for 64-bit floats"):
        read_views(tmp_path / "rna.csv")
    with pytest.raises(DataError, match="'1E-400' is too small"):
        Views([pd.DataFrame({"x": ["0e-400", "1E-400"]}, dtype=object)])


def test_wells_of_a_plate_are_no_numbers(tmp_path):
    (tmp_path / "rna.csv").write_text("well,1_1,1_2,2_1\n1_1,4,5,6\n1_2,7,8,NA\n")
    views = read_views(tmp_path / "rna.csv")
    assert list(views.columns[0]) == ["1_1", "1_2", "2_1"]
    assert views.ids.tolist() == ["1_1", "1_2"]


def test_nan_is_within_no_bounds_of_an_option():
    with pytest.raises(click.BadParameter, match="'nan' is no number"):
        NumberRange(0, 1, min_open=True).convert("nan", None, None)
    assert NumberRange(0, 1).convert("1", None, None) == 1
