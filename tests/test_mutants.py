"""The deliberate defects can still be put into the code, their tests are there, and random ones are what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mutants.defects import PACKAGE, ROOT, Defect, DefectGone, all_defects
from mutants.mutations import WORDING, Finder, drawn, equivalents
from mutants.run import verdict

DEFECTS = all_defects()


def test_there_are_enough_of_them_and_none_twice():
    assert len(DEFECTS) >= 60
    assert len({(one.file, one.old, one.new) for one in DEFECTS}) == len(DEFECTS)
    assert sum(bool(one.survives) for one in DEFECTS) <= 0.05 * len(DEFECTS)


def test_every_defect_applies_and_can_be_read():
    texts = {one.file: (ROOT / one.path).read_text(encoding="utf-8") for one in DEFECTS}
    firsts = {file: first_lines(text) for file, text in texts.items()}
    lines = {file: text.splitlines(keepends=True) for file, text in texts.items()}
    for one in DEFECTS:
        text = texts[one.file]
        assert one.applied(text)
        first, last = (text[:place].count("\n") for place in (text.index(one.old), text.index(one.old) + len(one.old)))
        starts = firsts[one.file]
        begin, end = max(line for line in starts if line <= first), min(line for line in starts if line > last)
        ast.parse("".join(lines[one.file][begin:end]).replace(one.old, one.new), one.file)


def first_lines(text: str) -> list[int]:
    """Where the functions, classes and other statements of a file begin, from 0, and where it ends."""
    found = [min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
             for node in ast.parse(text).body]  # fmt: skip
    return [0, *found, text.count("\n") + 1]


def test_a_defect_that_cannot_be_read_would_be_noticed():
    text = "import os\n\n\n@one\ndef a():\n    return 1\n\n\nb = 2\n"
    assert first_lines(text) == [0, 0, 3, 8, 9 + 1]


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


def test_survivors_are_listed_and_those_with_a_reason_do_not_count():
    many = [defect(str(i)) for i in range(20)]
    caught = [True] * 19 + [False]
    assert verdict(many, caught, [""] * 20, 0.95) == (
        "survived: x.py: something\n19 of 20 were caught (95.0%); 0 more cannot be noticed", True,
    )  # fmt: skip
    assert not verdict(many, caught, [""] * 20, 0.96)[1]
    assert verdict(many, caught, [""] * 19 + ["equivalent"], 1.0)[1]
    assert not verdict(many, [True] * 20, [""] * 19 + ["equivalent"], 0.95)[1]  # caught after all


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a = b + c", ["a = b - c"]),
        ("a = (b) @ (c)", ["a = (b) * (c)"]),
        ("a = b < c not in d", ["a = b <= c not in d", "a = b < c in d"]),
        ("a = b is  not c", ["a = b is c"]),
        ("a = b and c and d", ["a = b or c and d"]),
        ("a = not b", ["a = (b)"]),
        ("a = (3, True, 0.5, 'x')", ["a = (4, True, 0.5, 'x')", "a = (2, True, 0.5, 'x')",
         "a = (3, False, 0.5, 'x')", "a = (3, True, 1.5, 'x')", "a = (3, True, (-0.5), 'x')"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["pass"]),
        ("f(x, é='ä', key=y)", ["pass", "f(x, é='ä')"]),
        ("f(a, strict=True)", ["pass"]),
        ("a = b if c else d", ["a = b if not (c) else d"]),
        ("while b:\n    break", ["continue"]),
        ("raise E(f'{a + 1}')", ["pass"]),
        ("warn(a + 1)", ["pass"]),
        ("a: Literal[1] = b", []),
        ("if TYPE_CHECKING:\n    a = 1", []),
        ("from a import b", []),
        ("'words'", []),
    ],
)  # fmt: skip
def test_every_operator_changes_what_it_says(old, new):
    assert [one.new for one in Finder("x.py", old).mutants()] == new


def test_a_mutant_says_where_it_is_and_changes_nothing_else():
    lines = (
        "class A:",
        '    """Ä."""',
        "",
        "    def f(self, n=1):",
        "        if n:",
        "            return (n +  # why",
        " g)",
    )
    text = "\n".join(lines)
    first, _, negated, last = Finder("x.py", text).mutants()
    assert (first.line, first.place.where, first.place.lines) == (4, "A.f", (5, 7))
    assert (negated.line, negated.place.lines) == (5, (5, 5))
    assert (last.line, last.place.where, last.place.lines) == (6, "A.f", (6, 7))
    assert last.key == ("x.py", "A.f", "return (n +  # why", "return (n -  # why")
    assert last.applied(text) == text.replace("n +", "n -")


def test_draws_can_be_repeated_and_compile():
    file = "data/side_information/knowledge.py"
    text = (ROOT / PACKAGE / file).read_text(encoding="utf-8")
    every = list(Finder(file, text).mutants())
    assert len(every) > 50
    for one in every:
        compile(one.applied(text), file, "exec")
    assert drawn(every, 20, 3) == drawn(every, 20, 3) != drawn(every, 20, 4)


def test_files_of_wording_are_still_there():
    assert all((ROOT / PACKAGE / file).is_file() for file in WORDING)


def test_every_equivalent_mutant_is_still_there():
    known = equivalents()
    there = {
        one.key
        for file in {key[0] for key in known}
        for one in Finder(file, (ROOT / PACKAGE / file).read_text(encoding="utf-8")).mutants()
    }
    assert not known.keys() - there
    assert all(known.values())
