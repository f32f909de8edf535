"""The deliberate defects can still be put into the code, and the tests that must notice them are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutants.defects import ROOT, Defect, DefectGone, all_defects
from mutants.run import verdict

DEFECTS = all_defects()


def test_there_are_enough_of_them_and_none_twice():
    assert len(DEFECTS) >= 60
    assert len({(one.file, one.old, one.new) for one in DEFECTS}) == len(DEFECTS)
    assert sum(bool(one.survives) for one in DEFECTS) <= 0.05 * len(DEFECTS)


@pytest.mark.parametrize("file", sorted({one.file for one in DEFECTS}))
def test_every_defect_applies_and_compiles(file):
    own = [one for one in DEFECTS if one.file == file]
    text = (ROOT / own[0].path).read_text(encoding="utf-8")
    for defect in own:
        compile(defect.applied(text), file, "exec")


def test_every_defect_has_tests_that_exist():
    for name in {name for one in DEFECTS for name in one.tests}:
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function or 'test_'}", (Path(__file__).parent / file).read_text(), re.M), name


def defect(old="a = 1", survives=""):
    return Defect("x.py", old, "a = 2", "something", ("test_x.py",), survives)


@pytest.mark.parametrize("text", ["b = 1", "a = 1\na = 1"])
def test_a_defect_that_is_not_found_exactly_once_is_loud(text):
    with pytest.raises(DefectGone, match=r"x\.py: found . times instead of once"):
        defect().applied(text)
    assert defect().applied("a = 1\n") == "a = 2\n"


def test_survivors_are_told_and_need_a_reason():
    many = [defect(str(i)) for i in range(99)]
    caught = ["caught"] * 98 + ["timed out"]
    assert verdict(many, caught)[1]
    assert verdict([*many, defect()], [*caught, "survived"]) == (
        "99 of 100 defects were caught (99.0%)\nsurvived: x.py: something: NO REASON GIVEN", False,
    )  # fmt: skip
    assert verdict([*many, defect(survives="equivalent")], [*caught, "survived"])[1]
    assert not verdict([*many, defect(survives="equivalent")], [*caught, "caught"])[1]
    assert not verdict([defect(survives="equivalent")] * 10, ["survived"] * 10)[1]
