"""The promises of docs/reliability.md: each has a test or a target that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    line.strip("|").split("|")
    for line in (ROOT / "results" / "reliability.md").read_text().splitlines()
    if line.startswith("|") and line.count("|") == 5 and "---" not in line and "last measured" not in line
]


def test_all_twenty_faults_and_some_loads_are_there():
    assert len(ROWS) >= 26


@pytest.mark.parametrize("page", ["docs/reliability.md", "SECURITY.md"])
def test_what_is_promised_and_what_is_not_is_one_screen(page):
    text = (ROOT / page).read_text()
    assert text.count("\n") <= 45
    assert re.search("^## What is not", text, re.M)


def test_every_promise_names_what_tests_it():
    for row in ROWS:
        _, promise, tests, measured = (cell.strip() for cell in row)
        assert promise, row
        assert measured, row
        assert "@" not in measured, row
        named = re.findall(r"`([^`]+)`", tests)
        assert named, row
        for one in named:
            if one.startswith("make "):
                assert re.search(rf"^{one.split()[1]}:", (ROOT / "Makefile").read_text(), re.M), one
                continue
            file, _, name = one.partition("::")
            assert re.search(rf"^def {name}" if name else "^def test_", (ROOT / "tests" / file).read_text(), re.M), one
